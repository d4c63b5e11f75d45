"""Recurrent dropout on a GPU, against the reference, the CPU kernels and itself.

`test_step_kernels.py` tests the same code without a GPU.
"""

import dataclasses

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_persistent
import test_gpu_replay
from fresh_process import run_program

from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = test_gpu.pytestmark

# The largest errors in float32 without TF32, as parts of the largest magnitude in a tensor.
FLOAT32_TOLERANCE = 5e-5


@pytest.fixture(autouse=True)
def needs_newer_gpu():
    if test_gpu_persistent.compute_capability() < (8, 0):
        pytest.skip("the GPU has a compute capability below 8.0")


@pytest.fixture
def tensor_float_32():
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)


def with_recurrent_dropout(case: random_configs.Case) -> random_configs.Case:
    """Returns the case with recurrent dropout, and without what GPUs then lack.

    Over many steps, recurrent dropout makes simple RNNs chaotic, so that they enlarge every
    rounding error.
    """
    case = random_configs.with_recurrent_dropout(case)
    case = dataclasses.replace(case, config=dataclasses.replace(case.config, num_proj=0))
    if case.config.rnn_mode == "rnn_tanh" and case.max_time > 30:
        case = dataclasses.replace(case, config=dataclasses.replace(case.config, rnn_mode="gru"))
    return case


_RNG = np.random.default_rng(12)
CASES = [
    *(case for case in random_configs.random_cases(80, seed=8) if case.config.num_units > 2),
    *(test_gpu_persistent.large_case(_RNG, 6000 + i) for i in range(20)),
    *(test_gpu_persistent.large_case(_RNG, 6100 + i, most=True) for i in range(6)),
]
CASES = [with_recurrent_dropout(case) for case in CASES]


def check_float32(case: random_configs.Case, data, results, expected) -> None:
    for other in (expected, test_gpu.run_on("CPU:0", case, data)):
        errors = random_configs.errors(results, other, "float32")
        assert all(error <= FLOAT32_TOLERANCE for error in errors.values()), errors


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_agrees_with_the_reference_and_the_cpu(case):
    data, expected = random_configs.draw_smooth_data(case, "float32")
    results = test_gpu.run_on("GPU:0", case, data)
    check_float32(case, data, results, expected)
    again = test_gpu.run_on("GPU:0", case, data)
    assert random_configs.bits(again) == random_configs.bits(results)


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_float64_agrees_with_the_reference(case):
    data, expected = random_configs.draw_smooth_data(case, "float64")
    results = test_gpu.run_on("GPU:0", case, data)
    assert not random_configs.beyond_tolerance(case, results, expected, "float64", False)


@pytest.mark.parametrize("dtype", test_gpu_persistent.TOLERANCE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_tf32_and_half_types_agree_with_the_reference(case, dtype, tensor_float_32):
    data = random_configs.draw_data(case, dtype)
    results = test_gpu.run_on("GPU:0", case, data)
    # TF32 has float16's digits.
    digits = "float16" if dtype == "float32" else dtype
    test_gpu_persistent.check(results, case, data, digits)
    again = test_gpu_persistent.run(case, data)  # With the algorithm persistent.
    assert random_configs.bits(again) == random_configs.bits(results)


def test_tf32_may_be_switched_off_between_replays():
    config = RnnConfig("gru", 1, 50, 9, recurrent_dropout=0.2)
    case = random_configs.Case(6600, config, 6, 10, True, True, None)
    data, expected = random_configs.draw_smooth_data(case, "float32")
    try:
        for is_on in (True, True, True, False, False, False):
            tf.config.experimental.enable_tensor_float_32_execution(is_on)
            results = test_gpu.run_on("GPU:0", case, data)
            errors = random_configs.errors(results, expected, "float32")
            assert (max(errors.values()) <= FLOAT32_TOLERANCE) != is_on, errors
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)


LONG_SEQUENCES = """
import tensorflow as tf
import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras
layer = keras.LSTM(16, recurrent_dropout=0.2)

def replays(steps):
    x = tf.ones([3, steps, 4])
    for _ in range(4):
        with tf.GradientTape() as tape:
            y = layer(x, training=True)
        tape.gradient(y, layer.trainable_variables)
    return crnn.info()["gpu"]["replays"]

print(replays(1500), replays(24))
"""


def test_long_sequences_are_not_replayed():
    """In a process of its own, since passes of other tests may still be replayed."""
    of_long, of_all = map(int, run_program(LONG_SEQUENCES).split())
    assert of_long == 0
    assert of_all > 0 if test_gpu_replay.REPLAY_IS_ON else of_all == 0
    config = RnnConfig("lstm", 1, 16, 4, recurrent_dropout=0.2)
    case = random_configs.Case(6700, config, 1500, 3, True, True, (1500, 7, 1024))
    data, expected = random_configs.draw_smooth_data(case, "float32")
    check_float32(case, data, test_gpu.run_on("GPU:0", case, data), expected)


@pytest.mark.parametrize("wrong", [-1, 7])
@pytest.mark.parametrize("rnn_mode", ["gru", "lstm", "rnn_relu"])
def test_lengths_out_of_range_on_the_device(rnn_mode, wrong):
    config = RnnConfig(rnn_mode, 2, 40, 5, direction="bidirectional", recurrent_dropout=0.3)
    test_gpu_persistent.check_lengths_out_of_range(config, "float32", wrong)


def test_what_cannot_run_is_an_error_that_says_so():
    config = RnnConfig("lstm", 1, 8, 4, recurrent_dropout=0.5, num_proj=3)
    states = [tf.zeros(shape) for shape in config.state_shapes(2, time_major=True)]
    params = tf.zeros([config.layout.size])
    with (
        pytest.raises(tf.errors.UnimplementedError, match="projections.*recurrent_dropout"),
        tf.device("GPU:0"),
    ):
        ops.forward(config, tf.ones([3, 2, 4]), states, params)


@pytest.mark.parametrize("is_bidirectional", [False, True])
@pytest.mark.parametrize("class_name", ["LSTM", "GRU", "SimpleRNN"])
def test_drop_ins_train_on_the_gpu(class_name, is_bidirectional):
    def layer_on(device: str) -> keras.layers.Layer:
        keras.utils.set_random_seed(1)
        with tf.device(device):
            layer = getattr(drop_ins, class_name)(24, recurrent_dropout=0.25, seed=3)
            layer = drop_ins.Bidirectional(layer) if is_bidirectional else layer
            layer.build((None, None, 5))
        return layer

    assert layer_on("GPU:0").runs_fused
    inputs = np.random.default_rng(0).standard_normal((32, 9, 5)).astype("float32")
    mask = np.arange(9) < np.arange(32)[:, np.newaxis] % 10
    results = []
    for device in ("GPU:0", "CPU:0"):
        layer = layer_on(device)
        with tf.device(device), tf.GradientTape() as tape:
            outputs = layer(tf.constant(inputs), mask=tf.constant(mask), training=True)
            loss = tf.reduce_sum(tf.square(outputs))
        results.append([outputs, *tape.gradient(loss, layer.trainable_variables)])
        assert device.split(":")[0] in outputs.device
    for on_gpu, on_cpu in zip(*results, strict=True):
        scale = np.abs(on_cpu).max()
        np.testing.assert_allclose(on_gpu, on_cpu, atol=FLOAT32_TOLERANCE * scale)
    model = keras.Sequential([keras.Input((None, 5)), layer_on("GPU:0"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    losses = model.fit(inputs, inputs[:, :, 0].sum(1), epochs=15, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
