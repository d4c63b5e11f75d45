"""Trains one model on several GPUs, with one process for each, through Keras's own `fit`.

    python several_gpus.py --output_dir=runs/several_gpus

The model learns to predict the next character of lines of Python's standard library, which have
different lengths. Each process has a whole model on a GPU of its own and reads batches of its own;
before each update, NCCL takes the mean of the processes' gradients, all of them in one piece. This
is what `Parallel` below does, and nothing else of a program for one GPU has to change: callbacks,
metrics and `steps_per_execution` are Keras's.

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
flags.DEFINE_integer("steps_per_execution", 8, "Steps that TensorFlow runs in one call.")
flags.DEFINE_integer("epochs", 5, "Epochs in all.", lower_bound=1)
flags.DEFINE_integer("worker", None, "The process's number, which the first process gives.")


class Parallel:
    """The processes that train together, and what they do together: they take means of tensors.

    TensorFlow's strategy for several workers only connects them. The model is made outside of it,
    since Keras 3's `fit` does not run under it.
    """

    def __init__(self, workers: list[str], index: int):
        self.index, self.size = index, len(workers)
        if self.size == 1:
            return
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        os.environ["TF_CONFIG"] = json.dumps(cluster)
        tf.distribute.MultiWorkerMirroredStrategy()
        self._hint = "nccl" if tf.config.list_physical_devices("GPU") else "ring"

    def mean(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns each tensor's mean over the processes. All of them must have one dtype."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        sizes = [tensor.shape.num_elements() for tensor in tensors]
        # The strategy's own `all_reduce` does not run in the loop of `steps_per_execution`. The key
        # says which operations of the processes belong together; equal sizes may share one.
        flat = tf.raw_ops.CollectiveReduceV2(
            input=tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0),
            group_size=self.size,
            group_key=1,
            instance_key=sum(sizes),
            ordering_token=[],
            merge_op="Add",
            final_op="Div",
            communication_hint=self._hint,
        )
        parts = tf.split(flat, sizes)
        return [tf.reshape(part, t.shape) for part, t in zip(parts, tensors, strict=True)]

    def optimizer(self, kind: type[keras.Optimizer], **arguments: object) -> keras.Optimizer:
        """Returns an optimizer of that class which applies the processes' mean gradients."""
        if self.size == 1:
            return kind(**arguments)
        parallel = self

        class Optimizer(kind):  # type: ignore[misc, valid-type]
            def apply(self, grads: list, trainable_variables: list | None = None) -> None:
                super().apply(parallel.mean(grads), trainable_variables)

        return Optimizer(**arguments)

    def share(self, variables: list[tf.Variable]) -> None:
        """Gives all processes the values that the first one's variables have."""
        if self.size == 1:
            return
        share = float(self.size * (self.index == 0))
        means = tf.function(self.mean)([variable * share for variable in variables])
        for variable, value in zip(variables, means, strict=True):
            variable.assign(value)


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
    return steps.map(batch, num_parallel_calls=2).prefetch(4 * FLAGS.steps_per_execution)


class Report(keras.callbacks.Callback):
    """Saves after each epoch, and says how fast it was."""

    def __init__(self, manager: tf.train.CheckpointManager, epoch: tf.Variable, lines: int):
        super().__init__()
        self._manager, self._epoch, self._lines = manager, epoch, lines

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        seconds = time.perf_counter() - self._start
        self._epoch.assign(epoch + 1)
        self._manager.save()
        record = {
            "epoch": epoch + 1,
            "loss": logs["loss"],
            "lines_per_second": self._lines / seconds,
        }
        with open(pathlib.Path(FLAGS.output_dir) / "history.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        print(
            f"epoch {epoch + 1}: loss {record['loss']:.4f}, "
            f"{record['lines_per_second']:,.0f} lines a second",
            flush=True,
        )


def make_model(vocabulary: int, optimizer: keras.Optimizer) -> keras.Model:
    """Returns a model of that many characters, compiled."""
    model = keras.Sequential(
        [
            keras.Input((FLAGS.max_chars,), dtype="int32"),
            keras.layers.Embedding(vocabulary, 64, mask_zero=True),
            crnn.CudnnLSTM(2, FLAGS.num_units),
            keras.layers.Dense(vocabulary),
        ]
    )
    optimizer.build(model.trainable_variables)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=FLAGS.steps_per_execution,
    )
    return model


def work(parallel: Parallel) -> None:
    """Trains in one of the processes."""
    # Processes differ in what they draw, as in masks of dropout, and start from the same weights.
    keras.utils.set_random_seed(parallel.index)
    lines, vocabulary = read_lines()
    optimizer = parallel.optimizer(keras.optimizers.SGD, learning_rate=FLAGS.learning_rate)
    model = make_model(vocabulary, optimizer)
    parallel.share([variable.value for variable in model.trainable_variables])
    epoch = tf.Variable(0, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    manager = tf.train.CheckpointManager(checkpoint, FLAGS.output_dir, max_to_keep=2)
    # The first process alone writes, and cannot end an epoch before all others have started.
    checkpoint.restore(manager.latest_checkpoint)
    first = int(epoch)
    report = Report(manager, epoch, parallel.size * FLAGS.batch_size * FLAGS.steps_per_epoch)
    if first < FLAGS.epochs:
        model.fit(
            batches(lines, parallel, first * FLAGS.steps_per_epoch),
            initial_epoch=first,
            epochs=FLAGS.epochs,
            steps_per_epoch=FLAGS.steps_per_epoch,
            callbacks=[report] if parallel.index == 0 else [],
            shuffle=False,
            verbose=0,
        )
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    np.save(pathlib.Path(FLAGS.output_dir) / f"weights_{parallel.index}.npy", weights)
    # Workers that are still busy take one that left for crashed.
    parallel.share([tf.Variable(0.0)])


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
    if FLAGS.steps_per_epoch % FLAGS.steps_per_execution:
        raise app.UsageError(
            f"--steps_per_epoch={FLAGS.steps_per_epoch} must be a multiple of "
            f"--steps_per_execution={FLAGS.steps_per_execution}"
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
