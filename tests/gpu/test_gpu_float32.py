"""The persistent kernels in float32 without TF32, against the reference and cuDNN."""

import dataclasses

import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_persistent

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = test_gpu.pytestmark

# Root mean squares of errors, as parts of those of the numbers: of outputs and states, and of
# gradients. TF32 errs by a thousand times as much.
OF_OUTPUTS, OF_GRADIENTS = 1e-6, 3e-6
# The most by which errors may exceed those of cuDNN, as the geometric mean over all tensors.
OVER_CUDNN = 1.5

_RNG = np.random.default_rng(17)
CASES = [
    test_gpu_persistent.supported(case)
    for case in random_configs.random_cases(60, seed=19)
    if case.config.num_units > 2
]
CASES += [test_gpu_persistent.large_case(_RNG, 8000 + i) for i in range(24)]
CASES += [test_gpu_persistent.stack_case(_RNG, 8200 + i) for i in range(16)]
# The reference takes long for these.
MOST_CASES = [test_gpu_persistent.large_case(_RNG, 8100 + i, most=True) for i in range(6)]


def draw(case: random_configs.Case) -> tuple[random_configs.Data, random_configs.Results]:
    """Draws data, and returns the expected results as well.

    Only gradients depend on the side of a ReLU's kink that a number is on.
    """
    if case.is_training:
        return random_configs.draw_smooth_data(case, "float32")
    data = random_configs.draw_data(case, "float32")
    return data, random_configs.run_reference(case, data)[1]


def check(results: random_configs.Results, expected: random_configs.Results) -> None:
    errors = random_configs.rms_errors(results, expected)
    too_large = {
        name: error
        for name, error in errors.items()
        if not error <= (OF_GRADIENTS if name.startswith("d_") else OF_OUTPUTS)
    }
    assert not too_large, too_large


@pytest.mark.parametrize("case", CASES + MOST_CASES, ids=str)
def test_agrees_with_the_reference(case):
    data, expected = draw(case)
    results = test_gpu_persistent.run_if_it_fits(case, data)
    check(results, expected)
    again = test_gpu_persistent.run(case, data)
    assert random_configs.bits(again) == random_configs.bits(results)


def errors_over_cudnn(cases: list[random_configs.Case]) -> np.ndarray:
    """Returns how many times as large as cuDNN's the errors of all tensors are.

    Layers that are too large for the GPU are left out. Dropout is switched off, since cuDNN draws
    other masks.
    """
    ratios = []
    for case in cases:
        config = dataclasses.replace(case.config, dropout=0.0)
        case = dataclasses.replace(case, config=config)
        data, expected = draw(case)
        errors = []
        for algorithm in ("persistent", "standard"):
            try:
                results = test_gpu_persistent.run(case, data, algorithm=algorithm)
            except tf.errors.UnimplementedError as error:
                assert "the weights do not fit" in error.message, error.message
                break
            errors.append(random_configs.rms_errors(results, expected))
        else:
            own, of_cudnn = errors
            ratios += [own[name] / of_cudnn[name] for name in own if of_cudnn[name] > 0]
    return np.array(ratios)


def test_errors_are_those_of_cudnn():
    of_cudnn = [case for case in CASES if case.config.layout.is_in_cudnn]
    ratios = errors_over_cudnn([case for case in of_cudnn if case.config.num_units >= 16])
    assert len(ratios) > 100
    mean = np.exp(np.mean(np.log(np.maximum(ratios, 1e-3))))
    assert mean <= OVER_CUDNN, (mean, np.quantile(ratios, [0.0, 0.25, 0.5, 0.75, 0.95, 1.0]))


def test_is_what_runs_unless_tf32_is_allowed():
    for is_allowed, name in ((False, "float32"), (True, "TF32")):
        if is_allowed and test_gpu_persistent.compute_capability() < (8, 0):
            continue
        tf.config.experimental.enable_tensor_float_32_execution(is_allowed)
        try:
            config = RnnConfig("lstm", 1, 52, 5)
            states = [tf.zeros([1, 20, 52])] * 2
            params = tf.zeros([config.layout.size])
            ops.forward(config, tf.ones([3, 20, 5]), states, params, is_training=False)
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(False)
        kernels = crnn.info()["gpu"]["kernels"]
        assert any(f"lstm, 52 units, {name}" in text for text in kernels), kernels


def test_states_that_are_no_numbers_stay_in_their_sequence():
    """The bits of a caller's NaN may be those that mark a state as not sent yet."""
    config = RnnConfig("lstm", 1, 600, 5)
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.standard_normal((40, 6, 5)), tf.float32)
    params = tf.constant(0.05 * rng.standard_normal(config.layout.size), tf.float32)
    lengths = tf.constant([40, 0, 40, 17, 0, 3])

    def outputs_of(first_h):
        states = [tf.constant(first_h), tf.zeros([1, 6, 600])]
        with tf.device("GPU:0"):
            outputs, finals = ops.forward(
                *(config, inputs, states, params),
                sequence_lengths=lengths,
                algorithm="persistent",
            )
        return outputs.numpy(), finals[0].numpy()

    first_h = np.zeros([1, 6, 600], np.float32)
    expected, _ = outputs_of(first_h)
    first_h[0, 1] = np.full(600, 0xFFFFFFFF, np.uint32).view(np.float32)
    outputs, last_h = outputs_of(first_h)
    np.testing.assert_array_equal(outputs, expected)
    assert np.isnan(last_h[0, 1]).all() and np.isfinite(last_h[0, [0, 2, 3, 4, 5]]).all()
