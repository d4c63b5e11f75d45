"""Tests the masks of dropout between layers, with networks that return them."""

import numpy as np
import pytest
import reference
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = pytest.mark.usefixtures("on_cpu")

SEED = (0x0123456789ABCDEF, -0x7EDCBA9876543210)


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_reference_generator_gives_the_known_answers(counter, key, expected):
    """The answers are published by Random123, the authors' implementation."""
    words = reference.philox4x32(np.array([counter], np.uint32), np.array(key, np.uint32))
    np.testing.assert_array_equal(words, [expected])


def masks_of(
    shape: tuple[int, int, int], rate: float, dirs: int = 1, dtype: str = "float64"
) -> np.ndarray:
    """Returns the masks [T, B, D * H] between two layers, of which a ReLU network returns them.

    The lower layer's outputs are ones for any inputs, and each direction of the upper one returns
    its own half of its inputs.
    """
    max_time, batch_size, size = shape
    direction = "bidirectional" if dirs == 2 else "unidirectional"
    config = RnnConfig(
        "rnn_relu", 2, size, 3, direction=direction, bias_mode="single_input", dropout=rate
    )
    weights = [np.zeros((size, 3)), np.zeros((size, size))] * dirs
    for half in np.split(np.eye(dirs * size), dirs):
        weights += [half, np.zeros((size, size))]
    biases = [np.ones(size)] * dirs + [np.zeros(size)] * dirs
    outputs, _ = ops.forward(
        config,
        tf.zeros([max_time, batch_size, 3], dtype),
        [tf.zeros(s, dtype) for s in config.state_shapes(batch_size, time_major=True)],
        tf.constant(reference.join_params(weights, biases), dtype),
        seed=tf.constant(SEED, tf.int64),
    )
    return outputs.numpy().astype(np.float64)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dirs", [1, 2])
@pytest.mark.parametrize(
    "shape, rate", [((1, 1), 0.3), ((5, 3), 0.3), ((9, 40), 0.001), ((9, 40), 0.9), ((9, 40), 0.3)]
)
def test_masks_are_the_documented_function(shape, rate, dirs, dtype):
    """The random networks of test_ops_reference.py have such masks, between all of their layers."""
    masks = masks_of((*shape, 7), rate, dirs, dtype)
    expected = reference.dropout_mask(SEED, 0, rate, masks.shape)
    np.testing.assert_array_equal(masks == 0, expected == 0)
    # Numbers that are kept are 1 / (1 - rate), rounded a few times.
    rtol = {"float64": 1e-15, "float32": 2e-7, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(masks, expected, rtol=rtol, atol=0)
    # The limit is five standard deviations of a binomial distribution; the seed is fixed.
    deviation = np.sqrt(masks.size * rate * (1 - rate))
    assert abs(np.sum(masks == 0) - masks.size * rate) < 5 * deviation


def assert_independent(dropped: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Checks neighbours in all dimensions, and pairs of other masks, at a rate of one half."""
    neighbours = [
        (dropped.take(range(1, size), axis), dropped.take(range(size - 1), axis))
        for axis, size in enumerate(dropped.shape)
    ]
    for a, b in [*neighbours, *pairs]:
        # Independent numbers are equal half of the time, within five standard deviations.
        assert abs(np.sum(a == b) - a.size / 2) < 5 * np.sqrt(a.size) / 2


def test_elements_are_dropped_independently():
    """Neighbours in units, batch or time, and layers, have no correlation."""
    dropped = masks_of((32, 64, 32), 0.5) == 0
    above = reference.dropout_mask(SEED, 1, 0.5, dropped.shape) == 0
    assert_independent(dropped, [(dropped, above)])
