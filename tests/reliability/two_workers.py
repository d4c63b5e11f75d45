"""One of two workers that train a model under `MultiWorkerMirroredStrategy`.

two_workers.py FOLDER INDEX PORT PORT EPOCH BATCH

It goes on from the first worker's newest checkpoint, makes one in FOLDER/INDEX after each epoch,
leaves its weights there, and prints how many epochs it took. It is killed after that epoch's and
batch's step, or never where they are -1.
Keras 3's `fit`, and so `BackupAndRestore`, does not run under this strategy, so the loop is written
by hand.
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf as crnn

EPOCHS, BATCHES, GLOBAL_BATCH = 4, 12, 8


def train(folder: pathlib.Path, index: int, kill_at: tuple[int, int]) -> int:
    # NCCL, the default on GPUs, wants a GPU for each worker, and here both may share one.
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring)
    )
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((BATCHES * GLOBAL_BATCH, 12, 8)).astype(np.float32)
    targets = inputs.sum(axis=(1, 2))[:, None]
    with strategy.scope():
        layer = crnn.CudnnLSTM(2, 24, dropout=0.3, return_sequences=False)
        model = keras.Sequential([keras.Input((None, 8)), layer, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        done = tf.Variable(0, trainable=False)  # The epochs that are done.

    def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((inputs, targets))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(GLOBAL_BATCH))

    def replica_step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(inputs, training=True) - targets) ** 2) / GLOBAL_BATCH
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    @tf.function
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        strategy.run(replica_step, (inputs, targets))

    # All workers must save, and must resume from the same epoch.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    checkpoint.restore(tf.train.latest_checkpoint(folder / "0"))
    manager = tf.train.CheckpointManager(checkpoint, str(folder / str(index)), max_to_keep=2)
    first = int(done.numpy())
    for epoch in range(first, EPOCHS):
        for batch, data in enumerate(strategy.distribute_datasets_from_function(shard)):
            step(*data)
            if (epoch, batch) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        done.assign_add(1)
        manager.save()
    np.savez(folder / str(index) / "weights.npz", *(weight.numpy() for weight in model.weights))
    return EPOCHS - first


def main(arguments: list[str]) -> None:
    folder, index, *ports = arguments[:4]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    task = {"type": "worker", "index": int(index)}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    epoch, batch = map(int, arguments[4:])
    epochs = train(pathlib.Path(folder), int(index), (epoch, batch))
    print(json.dumps({"epochs": epochs}), flush=True)
    # This skips the cluster's shutdown, in which the worker that ends first makes the other fail.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
