"""Tests the masks of recurrent dropout, and how the ops use them."""

import dataclasses

import numpy as np
import pytest
import random_configs
import reference
import tensorflow as tf
import test_second_order
from test_dropout import assert_independent

from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import second_order

pytestmark = pytest.mark.usefixtures("on_cpu")

SEED = (0x0123456789ABCDEF, -0x7EDCBA9876543210)
CONFIGS = {
    "lstm": RnnConfig("lstm", 2, 5, 3, direction="bidirectional", num_proj=3),
    "gru": RnnConfig("gru", 2, 7, 3),
    "rnn_tanh": RnnConfig("rnn_tanh", 1, 40, 3, direction="bidirectional"),
}
CONFIGS = {
    name: dataclasses.replace(config, recurrent_dropout=0.3) for name, config in CONFIGS.items()
}


def masks_of(config: RnnConfig, batch_size: int, seed: tuple[int, int] = SEED) -> np.ndarray:
    """Returns the masks, [L * D, G, B, P]."""
    seed = tf.constant(seed, tf.int64)
    return second_order.recurrent_dropout_masks(config, batch_size, seed).numpy()


@pytest.mark.parametrize("batch_size", [1, 3, 40])
@pytest.mark.parametrize("name", CONFIGS)
def test_masks_are_the_documented_function(name, batch_size):
    config = CONFIGS[name]
    expected = reference.recurrent_dropout_masks(config, SEED, batch_size)
    np.testing.assert_allclose(masks_of(config, batch_size), expected, rtol=1e-15)


def test_masks_are_independent():
    """Gates, sequences, units, layers and dropout between layers have independent masks."""
    config = RnnConfig("lstm", 2, 64, 1, recurrent_dropout=0.5)
    dropped = masks_of(config, 64) == 0
    pairs = [
        (dropped[0], reference.dropout_mask(SEED, layer, 0.5, dropped[0].shape) == 0)
        for layer in range(2)
    ]
    assert_independent(dropped, pairs)


CASES = [
    random_configs.with_recurrent_dropout(case) for case in random_configs.random_cases(24, seed=7)
]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.config.num_units < 42][:8], ids=str
)
def test_gradient_of_the_gradient(case):
    test_second_order.check_second_gradients(case)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[:8], ids=str)
def test_out_of_training_it_does_nothing(case, dtype):
    """Results and gradients are the same to the bit as without recurrent dropout."""
    data = random_configs.draw_data(case, dtype)
    results = [
        random_configs.run_ops(
            dataclasses.replace(
                case,
                config=dataclasses.replace(case.config, recurrent_dropout=rate),
                is_training=False,
            ),
            data,
        )
        for rate in (0.0, 0.3)
    ]
    assert random_configs.bits(results[0]) == random_configs.bits(results[1])
