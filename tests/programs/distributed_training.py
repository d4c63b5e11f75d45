"""Trains one model on two virtual devices or as one of two workers.

Run by test_distribution.py, in processes of its own: devices and clusters cannot change once
TensorFlow has started.

    distributed_training.py FOLDER devices
    distributed_training.py FOLDER worker INDEX PORT PORT
    distributed_training.py FOLDER guide INDEX PORT PORT
"""

import json
import os
import pathlib
import re
import sys

import keras
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf as crnn

GLOBAL_BATCH, BATCHES, TIME, FEATURES = 8, 6, 5, 3
RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((BATCHES * GLOBAL_BATCH, TIME, FEATURES)).astype(np.float32)
TARGETS = INPUTS.sum(axis=(1, 2))[:, None]


def make_model() -> keras.Model:
    """Makes a model that has the same weights in every process."""
    model = keras.Sequential(
        [
            keras.Input((None, FEATURES)),
            crnn.CudnnLSTM(2, 4, direction="bidirectional", num_proj=3),
            crnn.CudnnGRU(1, 3, return_sequences=False),
            keras.layers.Dense(1),
        ]
    )
    rng = np.random.default_rng(1)
    model.set_weights([0.4 * rng.standard_normal(w.shape) for w in model.get_weights()])
    return model


def make_optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {str(index): weight for index, weight in enumerate(model.get_weights())}


def compiled_model() -> keras.Model:
    model = make_model()
    model.compile(make_optimizer(), "mse")
    return model


def fit(model: keras.Model) -> dict[str, np.ndarray]:
    model.fit(INPUTS, TARGETS, batch_size=GLOBAL_BATCH, epochs=2, shuffle=False, verbose=0)
    return weights_of(model)


def train_in_loop(strategy: tf.distribute.Strategy) -> dict[str, np.ndarray]:
    """Trains as `fit` does, in a loop that is written by hand."""
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        optimizer.build(model.trainable_variables)

    def replica_step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            error = model(inputs, training=True) - targets
            loss = tf.reduce_sum(error**2) / GLOBAL_BATCH
        # Keras's optimizers sum up the replicas' gradients, so the loss is divided by the global
        # batch.
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    @tf.function
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        strategy.run(replica_step, (inputs, targets))

    def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(GLOBAL_BATCH)).repeat(2)

    for inputs, targets in strategy.distribute_datasets_from_function(shard):
        step(inputs, targets)
    return weights_of(model)


def dropped(strategy: tf.distribute.Strategy, calls: int = 2) -> dict[str, np.ndarray]:
    """Returns the local replicas' outputs of ones in training; all have the same weights."""
    with strategy.scope():
        layer = crnn.CudnnRNNTanh(2, 16, dropout=0.5)
        layer.build((None, TIME, FEATURES))
        layer.kernel.assign(0.1 * np.random.default_rng(2).standard_normal(layer.params_size()))

    @tf.function
    def step() -> tf.Tensor:
        return strategy.run(lambda: layer(tf.ones([2, TIME, FEATURES]), training=True))

    results = [strategy.experimental_local_results(step()) for _ in range(calls)]
    return {
        f"{call}_{replica}": output.numpy()
        for call, outputs in enumerate(results)
        for replica, output in enumerate(outputs)
    }


def run_devices(folder: pathlib.Path) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = compiled_model()
    np.savez(folder / "mirrored.npz", **fit(model))
    np.savez(folder / "mirrored_loop.npz", **train_in_loop(strategy))
    np.savez(folder / "dropped.npz", **dropped(strategy))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(str(folder / "checkpoint"))
    # The checkpoint is restored into a mirrored model, whose copies must all change.
    with strategy.scope():
        restored = make_model()
        tf.train.Checkpoint(model=restored).restore(path).expect_partial()
    np.savez(folder / "restored.npz", **weights_of(restored))
    copies = [
        copy.numpy() for copy in strategy.experimental_local_results(restored.weights[0].value)
    ]
    np.savez(folder / "copies.npz", *copies)
    model.export(str(folder / "saved_model"), verbose=False)
    model.save(folder / "model.keras")
    np.save(folder / "predictions.npy", model(INPUTS).numpy())


def set_cluster(index: str, ports: tuple[str, ...]) -> None:
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {"worker": [f"localhost:{port}" for port in ports]},
            "task": {"type": "worker", "index": int(index)},
        }
    )


def run_guide(folder: pathlib.Path, index: str, *ports: str) -> None:
    """Runs the guide's program for several workers."""
    set_cluster(index, ports)
    guide = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "distributed.md"
    _, several_workers = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    names = {"keras": keras, "tf": tf, "crnn": crnn}
    names["data"] = RNG.standard_normal((64, 20, 16)).astype("float32")
    exec(compile(several_workers, guide, "exec"), names)
    np.savez(folder / f"guide_{index}.npz", loss=names["loss"], **weights_of(names["model"]))


def run_worker(folder: pathlib.Path, index: str, *ports: str) -> None:
    set_cluster(index, ports)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    np.savez(folder / f"worker_{index}.npz", **train_in_loop(strategy))
    np.savez(folder / f"worker_dropped_{index}.npz", **dropped(strategy))


if __name__ == "__main__":
    commands = {"devices": run_devices, "worker": run_worker, "guide": run_guide}
    commands[sys.argv[2]](pathlib.Path(sys.argv[1]), *sys.argv[3:])
    print("done", flush=True)
    # This skips the cluster's shutdown, in which the worker that ends first makes the other fail.
    os._exit(0)
