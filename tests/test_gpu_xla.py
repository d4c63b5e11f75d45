"""Functions that XLA compiles for a GPU: the persistent kernels run in them."""

import fresh_process
import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_persistent
from test_gpu_persistent import TOLERANCE, needs_tensor_cores, tensor_float_32  # noqa: F401

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf import op_library, ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = [
    *test_gpu.pytestmark,
    pytest.mark.skipif(
        op_library.no_xla != "", reason=f"XLA cannot compile the ops: {op_library.no_xla}"
    ),
]


def draw(*shape: int, dtype: str = "float16") -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).standard_normal(shape), dtype)


def run(case: random_configs.Case, data: random_configs.Data) -> random_configs.Results:
    return test_gpu_persistent.run(case, data, algorithm="auto", jit_compile=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", test_gpu_persistent.CASES[::6], ids=str)
def test_agrees_with_the_reference(case, dtype):
    data = random_configs.draw_data(case, dtype)
    test_gpu_persistent.check(run(case, data), case, data, dtype)


def test_calls_take_lengths_and_seeds_anew():
    """The same compiled function runs with other lengths and other seeds."""
    config = RnnConfig("lstm", 2, 48, 7, direction="bidirectional", dropout=0.4)
    params, inputs, state = draw(config.layout.size), draw(11, 9, 7), draw(11, 4, 48)

    def forward(lengths: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(params)
            outputs, _ = ops.forward(
                config,
                inputs,
                [state, state],
                params,
                sequence_lengths=lengths,
                seed=seed,
                time_major=False,
                algorithm="persistent",
            )
        return outputs, tape.gradient(outputs, params)

    compiled, plain = tf.function(forward, jit_compile=True), tf.function(forward)
    rng = np.random.default_rng(1)
    for _ in range(6):
        lengths = tf.constant(rng.integers(0, 10, size=11))
        seed = tf.constant(rng.integers(0, 1000, size=2))
        for received, expected in zip(compiled(lengths, seed), plain(lengths, seed), strict=True):
            np.testing.assert_allclose(received, expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("name", ["layer", "drop_in", "bidirectional"])
def test_layers_with_masks(name):
    layer = {
        "layer": lambda: crnn.CudnnLSTM(2, 32, dtype="float16"),
        "drop_in": lambda: drop_ins.GRU(32, return_sequences=True, dtype="float16"),
        "bidirectional": lambda: drop_ins.Bidirectional(
            drop_ins.LSTM(32, return_sequences=True, dtype="float16"), dtype="float16"
        ),
    }[name]()
    inputs, mask = draw(5, 12, 8), tf.constant(np.random.default_rng(1).random((5, 12)) < 0.6)
    layer(inputs)

    def with_gradients(inputs: tf.Tensor, mask: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, mask=mask)
        return [outputs, *tape.gradient(outputs, [inputs, *layer.trainable_variables])]

    expected = tf.function(with_gradients)(inputs, mask)
    compiled = tf.function(with_gradients, jit_compile=True)(inputs, mask)
    for a, b in zip(compiled, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * np.abs(b).max())


def test_a_wrong_length_makes_its_outputs_nan():
    layer = crnn.CudnnGRU(1, 32, dtype="float16")
    compiled = tf.function(lambda x, n: layer(x, sequence_lengths=n), jit_compile=True)
    outputs = compiled(draw(2, 5, 8), tf.constant([3, 9], tf.int64)).numpy()
    assert np.isnan(outputs[1]).all() and not np.isnan(outputs[0]).any()


def test_a_loop_of_steps():
    layer = crnn.CudnnLSTM(1, 32, return_state=True, dtype="float16")
    layer(draw(4, 1, 32))

    def steps(inputs: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, x: tf.Tensor, h: tf.Tensor, c: tf.Tensor):
            return step + 1, *layer(x, initial_state=[h, c])

        zeros = tf.zeros([4, 1, 32], tf.float16)
        return tf.while_loop(lambda step, *_: step < 20, body, (0, inputs, zeros, zeros))[1]

    expected = tf.function(steps, autograph=False)(draw(4, 1, 32))
    compiled = tf.function(steps, autograph=False, jit_compile=True)(draw(4, 1, 32))
    np.testing.assert_allclose(compiled, expected, rtol=0, atol=2e-3)


def test_what_the_persistent_kernels_cannot_run_is_an_error_that_says_what_to_write():
    layer = crnn.CudnnLSTM(1, 8, algorithm="standard")
    compiled = tf.function(lambda inputs: layer(inputs), jit_compile=True)
    with pytest.raises(tf.errors.OpError, match="leave out jit_compile=True"):
        compiled(draw(2, 5, 3))


COMMAND_BUFFERS = """
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf as crnn

layer = crnn.CudnnLSTM(2, 32, dtype="float16")
inputs = tf.constant(np.random.default_rng(0).standard_normal((4, 9, 8)), tf.float16)
layer(inputs)
layer.kernel.assign(0.2 * np.sin(np.arange(layer.kernel.shape[0])))


@tf.function(jit_compile=True)
def run(inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf.nn.gelu(layer(tf.nn.gelu(2 * inputs) @ tf.ones([8, 8], tf.float16)))
    return tf.reduce_sum(tf.abs(tf.cast(tape.gradient(outputs, inputs), tf.float32)))


print(*[float(run(inputs)) for _ in range(5)])
"""


def test_with_and_without_xlas_command_buffers():
    def run_with(flags: str) -> list[float]:
        return [
            float(number)
            for number in fresh_process.run_program(COMMAND_BUFFERS, XLA_FLAGS=flags).split()
        ]

    without = run_with("--xla_gpu_enable_command_buffer=")
    kinds = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL"
    captured = run_with(f"--xla_gpu_enable_command_buffer={kinds} --xla_gpu_graph_min_graph_size=1")
    np.testing.assert_allclose(captured, without, rtol=1e-3)
