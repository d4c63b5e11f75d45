"""Runs predictors and the op on cases of `random_configs`, for comparisons to the bit."""

import dataclasses

import numpy as np
import random_configs

from cudnn_rnn_tf import native
from cudnn_rnn_tf.config import RnnConfig

# These cases have enough work for several threads: few sequences share the steps, many are divided
# among threads. With many features, more threads share the inputs' products than the steps.
LARGE = [
    (1, RnnConfig("lstm", 1, 300, 280, num_proj=270)),
    (3, RnnConfig("gru", 1, 290, 70, direction="bidirectional")),
    (17, RnnConfig("lstm", 2, 150, 50, cell_clip=0.5)),
    (70, RnnConfig("rnn_tanh", 2, 130, 50)),
    (1, RnnConfig("lstm", 1, 40, 2000)),
]


def large_cases():
    return [
        random_configs.Case(index, config, 13, batch_size, index % 2 == 0, False, None)
        for index, (batch_size, config) in enumerate(LARGE, start=2000)
    ]


def make(case, data, num_threads=1):
    """Returns a compiled predictor for a case, which may have more options than a layer has."""
    return native._native.PredictorBinding(
        case.config.layout, data.params, case.time_major, False, num_threads
    )


def run(predictor, case, data):
    outputs, states = predictor(data.inputs, data.states, case.sequence_lengths, case.resets)
    return [outputs, *states]


def run_op(case, data):
    results = random_configs.run_ops(dataclasses.replace(case, is_training=False), data)
    return [results.outputs, *results.states]


def assert_same_bits(results, expected):
    assert len(results) == len(expected)
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        assert result.shape == other.shape
        assert result.tobytes() == other.tobytes()


def assert_is_ops(case, results, expected):
    """Asserts that results are the op's: to the bit, if it packs its weights as a predictor does.

    In inference, it does but for what FactorForms in kernels/cpu/cpu_plan.h leaves in place.
    """
    packs = results[0].dtype.itemsize < 4 or case.max_time * case.batch_size > 16
    if packs:
        return assert_same_bits(results, expected)
    tolerance = 100 * np.finfo(results[0].dtype).eps
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        np.testing.assert_allclose(result, other, tolerance, tolerance)
