"""Runs networks with the persistent kernels of the GPU that the process imitates.

`test_gpu_older.py` starts processes with `CUDNN_RNN_TF_IMITATE_GPU`, which is read once in each.
"""

import json

import numpy as np
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_float32
import test_gpu_persistent
import test_gpu_recurrent_dropout

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig


def main(dtypes: str, seed: str) -> None:
    """Prints what ran, as JSON: the kernels, how many networks ran, and how many were too large.

    Args:
        dtypes: the types that the imitated GPU has, separated by commas; "tf32" is float32 with
            TF32 allowed.
        seed: of the random networks.

    Raises:
        AssertionError: if a result is wrong, or not the same bits in a second run.
    """
    ran = too_large = 0
    for type_ in dtypes.split(","):
        tf.config.experimental.enable_tensor_float_32_execution(type_ == "tf32")
        dtype = "float32" if type_ == "tf32" else type_
        for case in _cases(int(seed)):
            if type_ == "float32":
                data, expected = test_gpu_float32.draw(case)
            else:
                data = random_configs.draw_data(case, dtype)
            try:
                results = test_gpu_persistent.run(case, data)
            except tf.errors.UnimplementedError as error:
                # Without the clusters that a GPU refuses, there may be too few multiprocessors.
                too_small = ("the weights do not fit", "so many blocks at the same time")
                assert any(reason in error.message for reason in too_small), error.message
                too_large += 1
                continue
            if type_ == "float32":
                test_gpu_float32.check(results, expected)
            else:
                test_gpu_persistent.check(results, case, data, dtype)
            again = test_gpu_persistent.run(case, data)
            assert random_configs.bits(again) == random_configs.bits(results), case
            ran += 1
        for units in (40, 300, 512):
            _check_zeros(dtype, units)
        _check_recurrent_dropout(dtype)
    kernels = crnn.info()["gpu"]["kernels"]
    print(json.dumps({"kernels": kernels, "ran": ran, "too_large": too_large}))


def _cases(seed: int) -> list[random_configs.Case]:
    rng = np.random.default_rng(seed)
    small = [
        test_gpu_persistent.supported(case)
        for case in random_configs.random_cases(6, seed=seed)
        if case.config.num_units > 2
    ]
    return [
        *small,
        *(test_gpu_persistent.large_case(rng, 7000 + i) for i in range(3)),
        *(test_gpu_persistent.large_case(rng, 7100 + i, most=True) for i in range(2)),
        test_gpu_persistent.stack_case(rng, 7200),
    ]


def _check_zeros(dtype: str, units: int) -> None:
    """Where no gradient comes in, none goes out."""
    config = RnnConfig("gru", 1, units, 16)
    rng = np.random.default_rng(units)
    is_idle = np.arange(24) % 3 == 1
    inputs = tf.cast(rng.standard_normal((40, 24, 16)), dtype)
    states = [tf.zeros([1, 24, units], dtype)]
    params = tf.cast(0.05 * rng.standard_normal(config.layout.size), dtype)
    d_outputs = rng.standard_normal((40, 24, units)) * ~is_idle[None, :, None]
    with tf.GradientTape() as tape:
        tape.watch([inputs, *states])
        outputs, _ = ops.forward(config, inputs, states, params, algorithm="persistent")
    d_inputs, d_state = tape.gradient(
        outputs, [inputs, *states], output_gradients=tf.cast(d_outputs, dtype)
    )
    for gradient in (d_inputs, d_state):
        of_idle = gradient.numpy()[:, is_idle].astype(np.float32)
        assert not np.any(of_idle), f"{np.abs(of_idle).max()} came from no gradient"
        assert np.any(gradient.numpy()[:, ~is_idle].astype(np.float32))


def _check_recurrent_dropout(dtype: str) -> None:
    case = test_gpu_recurrent_dropout.with_recurrent_dropout(
        test_gpu_persistent.large_case(np.random.default_rng(3), 7300)
    )
    data = random_configs.draw_data(case, dtype)
    digits = "float16" if dtype == "float32" else dtype
    test_gpu_persistent.check(test_gpu.run_on("GPU:0", case, data), case, data, digits)
