"""What `soak.py` has done in processes of their own. Each prints what came of it as JSON.

soak_work.py threads SECONDS SEED
soak_work.py memory
soak_work.py backup FOLDER EPOCH BATCH      killed there; never where these are -1
"""

import collections
import functools
import json
import os
import pathlib
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

NUM_THREADS = 8
HAS_GPU = bool(tf.config.list_physical_devices("GPU"))
DEVICE = "GPU:0" if HAS_GPU else "CPU:0"
# The largest errors, as parts of the largest expected value. Half types keep 11 and 8 bits of every
# step's state.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
NETWORKS = (
    RnnConfig("lstm", 2, 64, 24, direction="bidirectional"),
    RnnConfig("lstm", 1, 96, 16, num_proj=32),
    RnnConfig("gru", 2, 48, 20),
    RnnConfig("rnn_tanh", 1, 128, 32),
)
TIMES, BATCHES = (1, 2, 7, 16, 33), (1, 3, 8, 16)
SAMPLES = 40


class Case:
    """A network with data, and what a CPU makes of them."""

    def __init__(self, rng: np.random.Generator, dtype: str):
        self.config = NETWORKS[rng.integers(len(NETWORKS))]
        self.dtype = dtype
        times, batch = int(rng.choice(TIMES)), int(rng.choice(BATCHES))

        # With larger weights, a plain RNN would double its rounding errors in every step.
        of_params = 0.7 * self.config.num_units**-0.5

        def tensor(*shape: int, scale: float = 1.0) -> tf.Tensor:
            return tf.cast(scale * rng.standard_normal(shape), dtype)

        with tf.device("CPU:0"):
            arguments = [
                tensor(times, batch, self.config.input_size),
                *(tensor(*shape) for shape in self.config.state_shapes(batch, time_major=True)),
                tensor(self.config.layout.size, scale=of_params),
            ]
            lengths = rng.integers(0, times + 1, size=batch)
            self._lengths = tf.constant(lengths, tf.int32) if rng.integers(2) else None
            self._expected = [_numbers(result) for result in self._run(True, *arguments)]
        self._arguments = [argument.numpy() for argument in arguments]
        # Threads call functions: if they ran ops eagerly on one GPU, TensorFlow might hand one
        # thread's op the inputs of another's.
        self._functions = [
            tf.function(functools.partial(self._run, flag)) for flag in (False, True)
        ]

    def check(self, with_gradients: bool) -> None:
        """Fails unless the device's results are the CPU's."""
        with tf.device(DEVICE):
            arguments = [tf.constant(value) for value in self._arguments]
            found = self._functions[with_gradients](*arguments)
        for index, value in enumerate(map(_numbers, found)):
            expected = self._expected[index]
            error, largest = _error(value, expected)
            if error <= TOLERANCES[self.dtype] * largest:
                continue
            # The rest tells an op that went wrong from an op that was given wrong inputs.
            intact = [
                np.array_equal(argument.numpy(), given)
                for argument, given in zip(arguments, self._arguments, strict=True)
            ]
            again = _numbers(self._functions[with_gradients](*arguments)[index])
            lengths = "without lengths" if self._lengths is None else "with lengths"
            raise AssertionError(
                f"result {index} of {self.config}, {self.dtype}, {lengths}, is off by {error}; "
                f"{intact.count(True)} of {len(intact)} inputs are as they were given; run again, "
                f"it is off by {_error(again, expected)[0]}"
            )

    def _run(self, with_gradients: bool, *arguments: tf.Tensor) -> list[tf.Tensor]:
        inputs, *states, params = arguments
        with tf.GradientTape() as tape:
            tape.watch([inputs, params])
            outputs, finals = ops.forward(
                self.config,
                inputs,
                states,
                params,
                sequence_lengths=self._lengths,
                is_training=with_gradients,
            )
            total = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
        results = [outputs, *finals]
        if with_gradients:
            results += tape.gradient(total, [inputs, params])
        return results


def _error(value: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest difference, and the largest magnitude that was expected, at least 1."""
    difference = np.max(np.abs(value - expected), initial=0)
    return difference, max(1.0, np.max(np.abs(expected), initial=0))


def _numbers(tensor: tf.Tensor) -> np.ndarray:
    return tensor.numpy().astype(np.float64)


class Trainer:
    """A thread's own model, trained on data of changing shapes and lengths.

    On a GPU, mixed bfloat16 runs in the persistent kernels, if it has them, and float32 in cuDNN.
    """

    def __init__(self, seed: int):
        keras.utils.set_random_seed(seed)
        self._rng = np.random.default_rng(seed)
        with tf.device(DEVICE):
            inputs = keras.Input((None, 16))
            masked = keras.layers.Masking()(inputs)
            dtype = ("float32", "mixed_bfloat16")[seed % 2]
            layer = crnn.CudnnGRU(2, 32, dropout=0.2, return_sequences=False, dtype=dtype)
            self._model = keras.Model(inputs, keras.layers.Dense(1)(layer(masked)))
            self._model.compile("adam", "mse", jit_compile=False)

    def step(self) -> None:
        times, batch = int(self._rng.choice(TIMES)), int(self._rng.choice(BATCHES))
        data = self._rng.standard_normal((batch, times, 16)).astype(np.float32)
        for row, length in enumerate(self._rng.integers(1, times + 1, size=batch)):
            data[row, length:] = 0
        with tf.device(DEVICE):
            loss = self._model.train_on_batch(data, data.sum(axis=(1, 2))[:, None])
        assert np.isfinite(loss), f"a loss of {loss}"


def work_in_threads(seconds: float, seed: int) -> dict[str, Any]:
    """Training and inference in threads, while the memory is watched."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    rng = np.random.default_rng(seed)
    cases = [Case(rng, dtype) for dtype in TOLERANCES for _ in range(12)]
    trainers = [Trainer(seed + index) for index in range(NUM_THREADS)]
    end = time.monotonic() + seconds
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    failures: list[str] = []
    lock = threading.Lock()

    def work(index: int) -> None:
        own = np.random.default_rng([seed, index])
        while time.monotonic() < end and not failures:
            case, kind = cases[own.integers(len(cases))], own.integers(3)
            what, done = (
                ("inference", "as computed alone on a CPU"),
                ("gradients", "as computed alone on a CPU"),
                ("training steps", "the loss is finite"),
            )[kind]
            try:
                trainers[index].step() if kind == 2 else case.check(with_gradients=bool(kind))
            except Exception as error:
                with lock:
                    failures.append(f"{what}: {type(error).__name__}: {error}"[:500])
                return
            with lock:
                counts[what][done] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    memory = []
    while any(thread.is_alive() for thread in threads):
        threads[0].join(seconds / SAMPLES)
        memory.append(_megabytes())
    for thread in threads:
        thread.join()
    if not failures:
        failures += _growth(memory)
    return {"counts": counts, "memory": memory, "failures": failures}


def _megabytes() -> dict[str, int]:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    found = {"host": pages * resource.getpagesize() >> 20}
    if HAS_GPU:
        found["gpu"] = tf.config.experimental.get_memory_info("GPU:0")["current"] >> 20
    return found


def _growth(memory: list[dict[str, int]]) -> list[str]:
    """What the last quarter of the time needs more than the second, at the least."""
    quarter = len(memory) // 4
    failures = []
    for name in memory[0]:
        early = min(sample[name] for sample in memory[quarter : 2 * quarter])
        late = min(sample[name] for sample in memory[-quarter:])
        if late > 1.05 * early + 100:
            failures.append(f"memory of the {name} grew from {early} MB to {late} MB")
    return failures


def run_out_of_memory() -> dict[str, Any]:
    """Larger and larger steps until there is no memory; after each failure a small one works.

    Each size is run three times: on a GPU the first is enqueued, the second measures the choice,
    and the third is captured and replayed.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if HAS_GPU:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("GPU")[0],
            [tf.config.LogicalDeviceConfiguration(memory_limit=1024)],
        )
    # On a GPU, half types run in the persistent kernels, if it has them, and float32 in cuDNN.
    steps = [_Step("float16", "auto"), _Step("float32", "cudnn" if HAS_GPU else "auto")]
    expected = [step.run(4, 8) for step in steps]
    if not HAS_GPU:
        # The address space may grow by 1 GiB from what is used now.
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        limit = used * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    failures: list[str] = []
    for step, of_small in zip(steps, expected, strict=True):
        ends = counts[f"steps in {step.dtype}"]
        for batch in (64, 256, 512, 768, 1024, 2048):
            for _ in range(3):
                if step.succeeds(60, batch):
                    ends["worked"] += 1
                    continue
                ends[f"out of memory {step.at}, then a small step was right"] += 1
                found = step.run(4, 8)
                if not all(map(np.allclose, found, of_small, [1e-2] * 2, [1e-3] * 2)):
                    failures.append(f"after {batch} sequences a small step is wrong")
    return {"counts": counts, "failures": failures}


class _Step:
    """A training step in a type; `at` says how far the last one came."""

    def __init__(self, dtype: str, algorithm: str):
        self.dtype, self._algorithm = dtype, algorithm
        self._config = RnnConfig("lstm", 2, 256, 64)
        rng = np.random.default_rng(0)
        self._params = 0.05 * rng.standard_normal(self._config.layout.size)
        self.at = ""

    def succeeds(self, times: int, batch: int) -> bool:
        """Tells whether there was memory; what the step held is free again when this returns."""
        try:
            self.run(times, batch)
        except tf.errors.ResourceExhaustedError:
            return False
        return True

    def run(self, times: int, batch: int) -> list[np.ndarray]:
        """The loss and its gradient, of data that are all ones."""
        self.at = "while the data were made"
        with tf.device(DEVICE):
            params = tf.constant(self._params, self.dtype)
            inputs = tf.ones([times, batch, self._config.input_size], self.dtype)
            shapes = self._config.state_shapes(batch, time_major=True)
            states = [tf.zeros(shape, self.dtype) for shape in shapes]
            with tf.GradientTape() as tape:
                tape.watch(params)
                self.at = "in the forward pass"
                outputs, _ = ops.forward(
                    self._config, inputs, states, params, algorithm=self._algorithm
                )
                total = tf.reduce_mean(tf.cast(outputs, tf.float32) ** 2)
            self.at = "in the backward pass"
            gradient = tape.gradient(total, params)
            return [result.numpy().astype(np.float32) for result in (total, gradient)]


def train_with_backup(folder: pathlib.Path, epoch: int, batch: int) -> dict[str, Any]:
    """Trains a model under BackupAndRestore, to the end or until it is killed."""
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    rng = np.random.default_rng(0)
    data = rng.standard_normal((96, 12, 8)).astype(np.float32)
    layer = crnn.CudnnLSTM(2, 24, dropout=0.3, return_sequences=False)
    model = keras.Sequential([keras.Input((None, 8)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)

    class Kill(keras.callbacks.Callback):
        epochs = 0

        def on_epoch_begin(self, index: int, logs: Any = None) -> None:
            self.epochs += 1
            self._epoch = index

        def on_train_batch_end(self, index: int, logs: Any = None) -> None:
            if (self._epoch, index) == (epoch, batch):
                os.kill(os.getpid(), signal.SIGKILL)

    backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
    targets = data.sum(axis=(1, 2))[:, None]
    kill = Kill()
    model.fit(data, targets, 8, 4, verbose=0, shuffle=False, callbacks=[backup, kill])
    np.savez(folder / "weights.npz", *(weight.numpy() for weight in model.weights))
    return {"epochs": kill.epochs}


def main(arguments: list[str]) -> None:
    what, *values = arguments
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "threads": lambda: work_in_threads(float(values[0]), int(values[1])),
        "memory": run_out_of_memory,
        "backup": lambda: train_with_backup(
            pathlib.Path(values[0]), int(values[1]), int(values[2])
        ),
    }
    found = works[what]()
    for gpu in tf.config.list_physical_devices("GPU")[:1]:
        found["device"] = tf.config.experimental.get_device_details(gpu)["device_name"]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
