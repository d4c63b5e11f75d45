"""Trains one model on several GPUs, with one process for each.

    python several_gpus.py --output_dir=runs/several_gpus

The model learns to predict the next character of lines of Python's standard library, which have
different lengths. Each process has a whole model on a GPU of its own and reads batches of its own;
before each update, NCCL takes the mean of the processes' gradients, all of them in one piece.

The loop is the program's own. With `steps_per_execution`, Keras's `fit` runs several steps in one
call, too, but asks the GPU twice in each step whether to go on. This loop asks nothing, and XLA
compiles the gradient and the update. On H200s, that makes training 1.85 times as fast with one GPU,
and 1.5 times with two.

The first process saves a checkpoint after each epoch. If any process ends early, all are ended, and
the same command goes on from the newest checkpoint. Without GPUs, processes share the CPU, to try
it out: `--processes=2 --num_units=16 --steps_per_epoch=8`. The output directory then holds:

    checkpoint, ckpt-*   what `tf.train.CheckpointManager` keeps
    history.jsonl        each epoch's loss and the lines a second, of all processes together
    weights_0.npy, ...   the weights that each process ends with, which are the same
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

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
flags.DEFINE_integer("processes", 0, "Processes; 0 stands for one a GPU.", lower_bound=0)
flags.DEFINE_integer("batch_size", 64, "Lines of each process in a step.", lower_bound=1)
flags.DEFINE_integer("max_chars", 100, "Characters of a line; the rest is cut off.", lower_bound=2)
flags.DEFINE_integer("num_units", 512, "Units of each of the two layers.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.5, "Of stochastic gradient descent.", lower_bound=0.0)
flags.DEFINE_integer("steps_per_epoch", 200, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_integer("steps_per_call", 8, "Steps that TensorFlow runs in one call.", lower_bound=1)
flags.DEFINE_bool(
    "jit_compile", True, "Whether XLA compiles the gradient and the update; not in TensorFlow 2.19."
)
flags.DEFINE_integer("epochs", 5, "Epochs in all.", lower_bound=1)
flags.DEFINE_integer("worker", None, "The process's number, which the first process gives.")


class Parallel:
    """The processes that train together, and what they do together: they take the mean of a vector.

    TensorFlow's strategy for several workers only connects them. The model is made outside of it,
    and belongs to its process alone.
    """

    def __init__(self, workers: list[str], index: int):
        self.index, self.size = index, len(workers)
        if self.size == 1:
            return
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        os.environ["TF_CONFIG"] = json.dumps(cluster)
        tf.distribute.MultiWorkerMirroredStrategy()
        self._hint = "nccl" if tf.config.list_physical_devices("GPU") else "ring"

    def mean(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns a vector's mean over the processes."""
        if self.size == 1:
            return vector
        # The key says which operations of the processes belong together; equal sizes share one.
        return tf.raw_ops.CollectiveReduceV2(
            input=vector,
            group_size=self.size,
            group_key=1,
            instance_key=vector.shape[0],
            ordering_token=[],
            merge_op="Add",
            final_op="Div",
            communication_hint=self._hint,
        )


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
    ids = np.zeros((len(lines), FLAGS.max_chars + 1), np.int32)
    for row, line in zip(ids, lines, strict=True):
        known = [id_of[char] for char in line[: len(row)]]
        row[: len(known)] = known
    return ids, len(id_of) + 1


def batches(lines: np.ndarray, parallel: Parallel, first_step: int) -> tf.data.Dataset:
    """Returns the process's own batches from that step on, the same after every start."""
    table = tf.constant(lines)

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        seed = tf.stack([step, tf.cast(parallel.index, step.dtype)])
        rows = tf.random.stateless_uniform([FLAGS.batch_size], seed, 0, len(lines), tf.int32)
        chosen = tf.gather(table, rows)
        inputs, targets = chosen[:, :-1], chosen[:, 1:]
        return inputs, targets, tf.cast(targets != 0, tf.float32)

    steps = tf.data.Dataset.counter(first_step)
    return steps.map(batch, num_parallel_calls=2).prefetch(4 * FLAGS.steps_per_call)


def make_model(vocabulary: int) -> keras.Model:
    """Returns a model of that many characters."""
    return keras.Sequential(
        [
            keras.Input((FLAGS.max_chars,), dtype="int32"),
            keras.layers.Embedding(vocabulary, 64, mask_zero=True),
            crnn.CudnnLSTM(2, FLAGS.num_units),
            keras.layers.Dense(vocabulary),
        ]
    )


class Training:
    """What a process trains: a model with its optimizer."""

    def __init__(self, vocabulary: int, parallel: Parallel):
        self._parallel = parallel
        self.model = make_model(vocabulary)
        self.optimizer = keras.optimizers.SGD(FLAGS.learning_rate)
        self.optimizer.build(self.model.trainable_variables)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._weights = [variable.value for variable in self.model.trainable_variables]
        compiled = tf.function(autograph=False, jit_compile=FLAGS.jit_compile)
        self._compiled_compute = compiled(self._compute)
        self._compiled_apply = compiled(self._apply)

    def _compute(
        self, inputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of a batch, and its gradient in one vector."""
        with tf.GradientTape() as tape:
            loss = self._loss(targets, self.model(inputs, training=True), weights)
        return loss, in_one_vector(tape.gradient(loss, self._weights))

    def _apply(self, gradient: tf.Tensor) -> None:
        parts = parts_of(gradient, self._weights)
        self.optimizer.apply(parts, self.model.trainable_variables)

    @tf.function(autograph=False)
    def steps(self, batches: Iterator[tuple[tf.Tensor, ...]]) -> tf.Tensor:
        """Runs the steps of a call, and returns their mean loss."""
        losses = []
        # Python repeats the step. A loop of TensorFlow's would wait for the GPU each time.
        for _ in range(FLAGS.steps_per_call):
            loss, gradient = self._compiled_compute(*next(batches))
            self._compiled_apply(self._parallel.mean(gradient))
            losses.append(loss)
        return tf.reduce_mean(losses)

    def share_weights(self) -> None:
        """Gives all processes the weights that the first one has."""
        share = float(self._parallel.size * (self._parallel.index == 0))
        mean = tf.function(self._parallel.mean)(share * in_one_vector(self._weights))
        for weight, value in zip(self._weights, parts_of(mean, self._weights), strict=True):
            weight.assign(value)


def work(parallel: Parallel) -> None:
    """Trains in one of the processes."""
    # Processes differ in what they draw, as in masks of dropout, and start from the same weights.
    keras.utils.set_random_seed(parallel.index)
    lines, vocabulary = read_lines()
    training = Training(vocabulary, parallel)
    training.share_weights()
    output = pathlib.Path(FLAGS.output_dir)
    epoch = tf.Variable(0, trainable=False)
    checkpoint = tf.train.Checkpoint(
        model=training.model, optimizer=training.optimizer, epoch=epoch
    )
    manager = tf.train.CheckpointManager(checkpoint, FLAGS.output_dir, max_to_keep=2)
    # The first process alone writes, and cannot end an epoch before all others have started.
    checkpoint.restore(manager.latest_checkpoint)
    first = int(epoch)
    data = iter(batches(lines, parallel, first * FLAGS.steps_per_epoch))
    for number in range(first + 1, FLAGS.epochs + 1):
        start = time.perf_counter()
        calls = FLAGS.steps_per_epoch // FLAGS.steps_per_call
        # To read a number waits for the GPU, so the losses are read after the last call.
        loss = float(tf.reduce_mean([training.steps(data) for _ in range(calls)]))
        seconds = time.perf_counter() - start
        if parallel.index > 0:
            continue
        epoch.assign(number)
        manager.save()
        speed = parallel.size * FLAGS.batch_size * FLAGS.steps_per_epoch / seconds
        with open(output / "history.jsonl", "a") as file:
            record = {"epoch": number, "loss": loss, "lines_per_second": speed}
            file.write(json.dumps(record) + "\n")
        print(f"epoch {number}: loss {loss:.4f}, {speed:,.0f} lines a second", flush=True)
    weights = np.concatenate([np.ravel(weight) for weight in training.model.get_weights()])
    np.save(output / f"weights_{parallel.index}.npy", weights)
    # A worker that leaves early is taken for crashed, so all wait here for the last one.
    training.share_weights()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("localhost", 0))
        return [item.getsockname()[1] for item in sockets]


def start_processes() -> int:
    """Runs this program once for each process, and returns the first bad exit status, or 0."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    count = FLAGS.processes or gpus or 1
    if gpus and count > gpus:
        raise app.UsageError(f"--processes={count} needs as many GPUs, but there are {gpus}")
    if FLAGS.steps_per_epoch % FLAGS.steps_per_call:
        raise app.UsageError(
            f"--steps_per_epoch={FLAGS.steps_per_epoch} must be a multiple of "
            f"--steps_per_call={FLAGS.steps_per_call}"
        )
    # The processes below are ended before this one is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pathlib.Path(FLAGS.output_dir).mkdir(parents=True, exist_ok=True)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    workers = ",".join(f"localhost:{port}" for port in free_ports(count))
    processes = []
    try:
        for index in range(count):
            environment = {**os.environ, "WORKERS": workers}
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index]
            command = [sys.executable, *sys.argv, f"--worker={index}"]
            processes.append(subprocess.Popen(command, env=environment))
        running = list(processes)
        while running:
            for process in list(running):
                if process.poll() is None:
                    continue
                if process.returncode:
                    return process.returncode if process.returncode > 0 else 1
                running.remove(process)
            time.sleep(0.2)
        return 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def main(argv: list[str]) -> int:
    del argv
    if FLAGS.worker is None:
        return start_processes()
    logging.set_verbosity(logging.WARNING)
    work(Parallel(os.environ["WORKERS"].split(","), FLAGS.worker))
    return 0


if __name__ == "__main__":
    app.run(main)
