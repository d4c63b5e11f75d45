"""Functions and models that XLA compiles for a GPU."""

import functools

import fresh_process
import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_persistent
import test_xla
from test_gpu_persistent import TOLERANCE, needs_tensor_cores, tensor_float_32  # noqa: F401

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import op_library

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


@pytest.mark.parametrize("dtype", test_xla.DTYPES)
@pytest.mark.parametrize("case", test_xla.SINGLE_STEPS[::4], ids=str)
@pytest.mark.usefixtures("without_tf32")
def test_single_steps_agree_with_the_reference(case, dtype):
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = random_configs.run_ops(case, data, jit_compile=True)
    rounds_factors = dtype in random_configs.RMS_TOLERANCE
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)


# cuDNN's passes.

OF_CUDNN = [case for case in test_gpu.CASES if case.config.layout.is_in_cudnn]


@pytest.mark.usefixtures("without_tf32")
@pytest.mark.parametrize("algorithm", ["standard", "cudnn", "auto"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", OF_CUDNN[::20], ids=str)
def test_passes_of_cudnn_agree_with_the_reference(case, dtype, algorithm):
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = random_configs.run_forward(
        functools.partial(ops.forward, algorithm=algorithm),
        case,
        data,
        seed=tf.constant(data.seed),
        is_training=case.is_training,
        jit_compile=True,
    )
    rounds_factors = dtype in random_configs.RMS_TOLERANCE
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)


def test_cudnn_takes_lengths_anew_and_refuses_wrong_ones():
    layer = crnn.CudnnGRU(1, 32, algorithm="standard", dtype="float16")
    layer(draw(2, 5, 8))
    compiled = tf.function(lambda x, n: layer(x, sequence_lengths=n), jit_compile=True)
    for lengths in ([3, 5], [5, 5], [0, 1]):
        lengths = tf.constant(lengths, tf.int64)
        expected = layer(draw(2, 5, 8), sequence_lengths=lengths)
        np.testing.assert_allclose(compiled(draw(2, 5, 8), lengths), expected, rtol=0, atol=2e-3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"lengths\[1\] must lie in \[0, 5\]"):
        compiled(draw(2, 5, 8), tf.constant([3, 9], tf.int64)).numpy()


# Models.


@pytest.fixture
def without_tf32():
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.mark.usefixtures("without_tf32")
@pytest.mark.parametrize("name", test_xla.MODELS)
def test_fit(name):
    test_xla.check_fit(name, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["auto", "standard"])
def test_dropout_in_training(algorithm):
    """It draws the masks that it draws without XLA, others in each step."""

    def steps(jit_compile: bool | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(2)
        layer = crnn.CudnnLSTM(3, 32, dropout=0.4, seed=7, algorithm=algorithm, dtype="float16")
        inputs = draw(5, 12, 8)
        layer(inputs)

        @tf.function(jit_compile=jit_compile)
        def step() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True)
            return [outputs, tape.gradient(outputs, inputs)]

        return [tensor.numpy() for _ in range(3) for tensor in step()]

    expected = steps(None)
    assert not np.array_equal(expected[0], expected[2])
    for received, other in zip(steps(True), expected, strict=True):
        np.testing.assert_allclose(received, other, rtol=0, atol=4e-3 * np.abs(other).max())


def test_keras_and_tensorflow_layers_around_dropout():
    """A model of a user's kind trains compiled, and its loss falls."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            keras.layers.Embedding(50, 32),
            drop_ins.Bidirectional(
                drop_ins.LSTM(32, return_sequences=True, dropout=0.1, recurrent_dropout=0.1)
            ),
            keras.layers.Dropout(0.1),
            keras.layers.LayerNormalization(),
            crnn.CudnnLSTM(2, 32, dropout=0.1),
            keras.layers.Dense(50),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, jit_compile=True)
    assert model.jit_compile
    tokens = np.random.default_rng(0).integers(0, 50, size=(64, 12))
    losses = model.fit(tokens, tokens, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]


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
