"""Trains one model on several GPUs of a machine.

    python several_gpus.py --output_dir=runs/several_gpus

The model learns to predict the next character of lines of Python's standard library, which have
different lengths. Each GPU has a replica, which is a whole model with batches of its own; before
each update, NCCL takes the mean of the replicas' gradients, all of them in one piece.

The loop is the program's own, and asks the GPUs nothing while they train. XLA compiles a step as a
whole, from the batch to the update, with NCCL's operation in it: TensorFlow by itself would enqueue
an update only when NCCL has ended.

A checkpoint is saved after each epoch, and the same command goes on from the newest one; the
learning rate is the checkpoint's. The first epoch after a start includes what XLA compiles. Without
GPUs, replicas share the CPU, to try it out: `--replicas=2 --num_units=16 --steps_per_epoch=8`. The
output directory then holds:

    checkpoint, ckpt-*   what `tf.train.CheckpointManager` keeps
    history.jsonl        each epoch's loss and the lines a second, of all replicas together
    weights_0.npy, ...   the weights that each replica ends with, which are the same
"""

import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator

# This must be set before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import char_text
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import cudnn_rnn_tf as crnn

FLAGS = flags.FLAGS
flags.DEFINE_string("output_dir", "runs/several_gpus", "Where checkpoints and results go.")
flags.DEFINE_integer("replicas", 0, "Replicas; 0 means one for each GPU.", lower_bound=0)
flags.DEFINE_integer("batch_size", 64, "Lines of each replica in a step.", lower_bound=1)
flags.DEFINE_integer("max_chars", 100, "Characters of a line; the rest is cut off.", lower_bound=2)
flags.DEFINE_integer("num_units", 512, "Units of each of the two layers.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.5, "Of stochastic gradient descent.", lower_bound=0.0)
flags.DEFINE_integer("steps_per_epoch", 200, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_integer("steps_per_call", 8, "Steps that TensorFlow runs in one call.", lower_bound=1)
flags.DEFINE_bool("jit_compile", True, "Whether XLA compiles a step; not in TensorFlow 2.19.")
flags.DEFINE_integer("epochs", 5, "Epochs in all.", lower_bound=1)


def replica_devices() -> list[str]:
    """Returns the device of each replica."""
    gpus = tf.config.list_physical_devices("GPU")
    count = FLAGS.replicas or len(gpus) or 1
    if gpus and count > len(gpus):
        raise app.UsageError(f"--replicas={count} needs as many GPUs, but there are {len(gpus)}")
    # In a compiled step, each replica holds a thread until all of them have come to NCCL.
    tf.config.threading.set_inter_op_parallelism_threads(2 * count + (os.cpu_count() or 1))
    if gpus:
        tf.config.set_visible_devices(gpus[:count], "GPU")
        return [f"GPU:{index}" for index in range(count)]
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, parts)
    return [f"CPU:{index}" for index in range(count)]


def mean_of_replicas(vector: tf.Tensor, replicas: int) -> tf.Tensor:
    """Returns the mean of the vectors that all replicas give, each on its device."""
    if replicas == 1:
        return vector
    # The keys say which operations of the replicas belong together.
    total = tf.raw_ops.CollectiveReduceV2(
        input=vector,
        group_size=replicas,
        group_key=1,
        instance_key=1,
        ordering_token=[],
        merge_op="Add",
        final_op="Id",  # XLA compiles no other.
        communication_hint="nccl",  # On CPUs, it names nothing.
    )
    return total / replicas


def in_one_vector(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Returns all numbers of the tensors, one tensor after the other."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def parts_of(vector: tf.Tensor, like: list[tf.Variable]) -> list[tf.Tensor]:
    """Returns a vector's parts, in the shapes of the variables."""
    parts = tf.split(vector, [variable.shape.num_elements() for variable in like])
    return [tf.reshape(part, variable.shape) for part, variable in zip(parts, like, strict=True)]


def read_lines() -> tuple[np.ndarray, int]:
    """Returns lines of characters, [N, max_chars + 1] with 0 behind, and the number of ids."""
    text = char_text.read_standard_library(3_000_000)
    lines = [line for line in text.splitlines() if len(line) > 1]
    id_of = {char: index for index, char in enumerate(sorted(set("".join(lines))), start=1)}
    ids = np.zeros((len(lines), FLAGS.max_chars + 1), np.int64)
    for row, line in zip(ids, lines, strict=True):
        known = [id_of[char] for char in line[: len(row)]]
        row[: len(known)] = known
    return ids, len(id_of) + 1


def batches(lines: np.ndarray, replica: int, first_step: int) -> tf.data.Dataset:
    """Returns a replica's own batches from that step on, the same after every start."""
    table = tf.constant(lines)

    def batch(step: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([step, tf.cast(replica, step.dtype)])
        rows = tf.random.stateless_uniform([FLAGS.batch_size], seed, 0, len(lines), tf.int32)
        return tf.gather(table, rows)

    steps = tf.data.Dataset.counter(first_step)
    return steps.map(batch, num_parallel_calls=2).prefetch(4 * FLAGS.steps_per_call)


def make_model(vocabulary: int) -> keras.Model:
    """Returns a model of that many characters."""
    return keras.Sequential(
        [
            keras.Input((FLAGS.max_chars,), dtype="int64"),
            keras.layers.Embedding(vocabulary, 64, mask_zero=True),
            crnn.CudnnLSTM(2, FLAGS.num_units),
            keras.layers.Dense(vocabulary),
        ]
    )


class Replica:
    """A model with its optimizer, on a device of its own."""

    def __init__(self, vocabulary: int, device: str, replicas: int):
        self.device, self._replicas = device, replicas
        with tf.device(device):
            self.model = make_model(vocabulary)
            self.optimizer = keras.optimizers.SGD(FLAGS.learning_rate)
            self.optimizer.build(self.model.trainable_variables)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # On a CPU, XLA has no operation between replicas.
        compiles = FLAGS.jit_compile and (replicas == 1 or device.startswith("GPU"))
        self.step = tf.function(self._step, autograph=False, jit_compile=compiles)

    def _step(self, lines: tf.Tensor) -> tf.Tensor:
        """Trains on a batch, and returns its loss."""
        inputs, targets = lines[:, :-1], lines[:, 1:]
        weights = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = self.model(inputs, training=True)
            loss = self._loss(targets, logits, tf.cast(targets != 0, tf.float32))
        gradient = in_one_vector(tape.gradient(loss, weights))
        gradient = mean_of_replicas(gradient, self._replicas)
        self.optimizer.apply(parts_of(gradient, weights), self.model.trainable_variables)
        return loss

    def variables(self) -> list[keras.Variable]:
        return [*self.model.variables, *self.optimizer.variables]


def steps_of(replicas: list[Replica]) -> Callable[..., list[tf.Tensor]]:
    """Returns a function that runs the steps of a call, and returns the replicas' mean losses."""

    @tf.function(autograph=False)
    def steps(*data: Iterator[tf.Tensor]) -> list[tf.Tensor]:
        losses = [[] for _ in replicas]
        # Python repeats the step. A loop of TensorFlow's would wait for the GPU each time.
        for _ in range(FLAGS.steps_per_call):
            for replica, lines, found in zip(replicas, data, losses, strict=True):
                batch = next(lines)
                with tf.device(replica.device):
                    found.append(replica.step(batch))
        means = []
        for replica, found in zip(replicas, losses, strict=True):
            with tf.device(replica.device):
                means.append(tf.reduce_mean(found))
        return means

    return steps


def main(_: list[str]) -> None:
    if FLAGS.steps_per_epoch % FLAGS.steps_per_call:
        raise app.UsageError(
            f"--steps_per_epoch={FLAGS.steps_per_epoch} must be a multiple of "
            f"--steps_per_call={FLAGS.steps_per_call}"
        )
    logging.set_verbosity(logging.WARNING)
    keras.utils.set_random_seed(0)
    devices = replica_devices()
    lines, vocabulary = read_lines()
    replicas = [Replica(vocabulary, device, len(devices)) for device in devices]
    first, *others = replicas
    epoch = tf.Variable(0, trainable=False)
    checkpoint = tf.train.Checkpoint(model=first.model, optimizer=first.optimizer, epoch=epoch)
    manager = tf.train.CheckpointManager(checkpoint, FLAGS.output_dir, max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    # Among these are the states of a dropout's seeds, so all replicas would draw the same masks.
    for replica in others:
        for variable, source in zip(replica.variables(), first.variables(), strict=True):
            variable.assign(source)
    output = pathlib.Path(FLAGS.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    first_step = int(first.optimizer.iterations)
    data = [iter(batches(lines, index, first_step)) for index in range(len(replicas))]
    steps = steps_of(replicas)
    for number in range(int(epoch) + 1, FLAGS.epochs + 1):
        start = time.perf_counter()
        calls = FLAGS.steps_per_epoch // FLAGS.steps_per_call
        # To read a number waits for a GPU, so the losses are read after the last call.
        losses = [steps(*data) for _ in range(calls)]
        loss = float(np.mean([loss.numpy() for of_call in losses for loss in of_call]))
        seconds = time.perf_counter() - start
        epoch.assign(number)
        manager.save()
        speed = len(replicas) * FLAGS.batch_size * FLAGS.steps_per_epoch / seconds
        with open(output / "history.jsonl", "a") as file:
            record = {"epoch": number, "loss": loss, "lines_per_second": speed}
            file.write(json.dumps(record) + "\n")
        print(f"epoch {number}: loss {loss:.4f}, {speed:,.0f} lines a second", flush=True)
    for index, replica in enumerate(replicas):
        weights = np.concatenate([np.ravel(weight) for weight in replica.model.get_weights()])
        np.save(output / f"weights_{index}.npy", weights)


if __name__ == "__main__":
    app.run(main)
