"""Runs networks in many threads at once, in shapes that take turns, and compares with a CPU.

With `--gpu`, the threads share a GPU, its kernels and its replayed passes. They call functions,
since TensorFlow can hand an eager op of one thread the tensors of another's.
"""

import concurrent.futures
import functools
import random
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

EXPECTED = ()
THREADS, CALLS = 8, 12
# The largest errors, as parts of the largest expected value. Half types keep 11 and 8 bits of every
# step's state.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
NETWORKS = (
    RnnConfig("lstm", 2, 64, 24, direction="bidirectional"),
    RnnConfig("lstm", 1, 96, 16, num_proj=32),
    RnnConfig("gru", 2, 48, 20),
    RnnConfig("rnn_tanh", 1, 128, 32),
)
HAS_GPU = bool(tf.config.list_physical_devices("GPU"))


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws the networks that run at once; each is a change, so that a failure can lose it."""
    changes = [
        {
            "network": rng.randrange(len(NETWORKS)),
            "dtype": rng.choice(list(TOLERANCES)),
            "shape": [rng.choice((1, 2, 7, 16, 33)), rng.choice((1, 3, 8, 16))],
            "has_lengths": rng.random() < 0.5,
        }
        for _ in range(4)
    ]
    return {"changes": changes, "data": rng.randrange(1 << 30)}


def run(case: dict[str, Any]) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    rng = np.random.default_rng(case["data"])
    calls = [_Call(rng, **change) for change in case["changes"]]
    if calls:
        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            order = rng.integers(len(calls), size=THREADS * CALLS)
            list(threads.map(lambda index: calls[index].check(), order))


class _Call:
    """A network with data, and what a CPU makes of them while nothing else runs."""

    def __init__(
        self,
        rng: np.random.Generator,
        network: int,
        dtype: str,
        shape: list[int],
        has_lengths: bool,
    ):
        self._config, self._dtype = NETWORKS[network], dtype
        times, batch = shape

        def tensor(*shape: int, scale: float = 1.0) -> tf.Tensor:
            return tf.cast(scale * rng.standard_normal(shape), dtype)

        with tf.device("CPU:0"):
            states = self._config.state_shapes(batch, time_major=True)
            # With larger weights, a plain RNN would double its rounding errors in every step.
            of_params = 0.7 * self._config.num_units**-0.5
            self._arguments = [
                tensor(times, batch, self._config.input_size),
                *(tensor(*state) for state in states),
                tensor(self._config.layout.size, scale=of_params),
            ]
            lengths = tf.constant(rng.integers(0, times + 1, size=batch), tf.int32)
            self._pass = functools.partial(self._both_passes, lengths if has_lengths else None)
            self._expected = [_numbers(result) for result in self._pass(*self._arguments)]
        self._function = tf.function(self._pass)

    def check(self) -> None:
        """Fails unless the device's results are the CPU's."""
        with tf.device("GPU:0" if HAS_GPU else "CPU:0"):
            found = self._function(*map(tf.identity, self._arguments))
        for index, (value, expected) in enumerate(zip(found, self._expected, strict=True)):
            largest = max(1.0, np.max(np.abs(expected), initial=0))
            error = np.max(np.abs(_numbers(value) - expected), initial=0)
            what = f"result {index} of {self._config}, {self._dtype}, is off by {error}"
            assert error <= TOLERANCES[self._dtype] * largest, what

    def _both_passes(self, lengths: tf.Tensor | None, *arguments: tf.Tensor) -> list[tf.Tensor]:
        inputs, *states, params = arguments
        with tf.GradientTape() as tape:
            tape.watch([inputs, params])
            outputs, finals = ops.forward(
                self._config, inputs, states, params, sequence_lengths=lengths
            )
            total = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
        return [outputs, *finals, *tape.gradient(total, [inputs, params])]


def _numbers(tensor: tf.Tensor) -> np.ndarray:
    return tensor.numpy().astype(np.float64)
