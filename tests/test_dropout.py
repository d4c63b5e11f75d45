"""Tests the masks of dropout between layers, with networks that return them."""

import dataclasses

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


def pass_through_params(config: RnnConfig, dropped_layer: int, dtype: str) -> tf.Tensor:
    """Returns the parameters of a ReLU network that returns the mask of `dropped_layer`.

    That layer's outputs are ones for any inputs. Each direction of the layers above returns its own
    half of its inputs.
    """
    size, dirs = config.num_units, reference.num_dirs(config)
    weights, biases = [], []
    for layer in range(config.num_layers):
        fan_in = config.input_size if layer == 0 else dirs * size
        for direction in range(dirs):
            passes = np.zeros((size, fan_in))
            if layer > dropped_layer:
                passes = np.eye(dirs * size)[direction * size : (direction + 1) * size]
            weights += [passes, np.zeros((size, size))]
            biases += [np.full(size, float(layer <= dropped_layer))]
    return tf.constant(reference.join_params(weights, biases), dtype)


def run(
    config: RnnConfig,
    params: tf.Tensor,
    shape: tuple[int, int],
    seed: tuple[int, int] = SEED,
    *,
    time_major: bool = True,
    is_training: bool = True,
    sequence_lengths: list[int] | None = None,
) -> np.ndarray:
    """Returns the time-major outputs of zero inputs, with [T, B] = shape."""
    batch_size = shape[1]
    lead = shape if time_major else shape[::-1]
    outputs, _ = ops.forward(
        config,
        tf.zeros([*lead, config.input_size], params.dtype),
        [tf.zeros(s, params.dtype) for s in config.state_shapes(batch_size, time_major)],
        params,
        sequence_lengths=None if sequence_lengths is None else tf.constant(sequence_lengths),
        seed=tf.constant(seed, tf.int64),
        time_major=time_major,
        is_training=is_training,
    )
    outputs = outputs.numpy().astype(np.float64)
    return outputs if time_major else outputs.swapaxes(0, 1)


def relu_config(num_layers: int = 2, num_units: int = 7, rate: float = 0.3, dirs: int = 1):
    return RnnConfig(
        "rnn_relu",
        num_layers,
        num_units,
        3,
        direction="bidirectional" if dirs == 2 else "unidirectional",
        bias_mode="single_input",
        dropout=rate,
    )


def masks_of(config: RnnConfig, shape: tuple[int, int], seed: tuple[int, int] = SEED):
    return run(config, pass_through_params(config, 0, "float64"), shape, seed)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dirs", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (9, 40)])
def test_masks_are_the_documented_function(shape, dirs, dtype):
    config = relu_config(dirs=dirs)
    masks = run(config, pass_through_params(config, 0, dtype), shape)
    expected = reference.dropout_mask(SEED, 0, config.dropout, (*shape, 7 * dirs))
    np.testing.assert_array_equal(masks == 0, expected == 0)
    # Numbers that are kept are 1 / (1 - rate), rounded a few times.
    rtol = {"float64": 1e-15, "float32": 2e-7, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(masks, expected, rtol=rtol, atol=0)


@pytest.mark.parametrize("layer", [0, 1])
def test_every_layer_has_its_own_mask(layer):
    """One of three layers returns ones, which show the masks above it."""
    config = relu_config(num_layers=3)
    outputs = run(config, pass_through_params(config, layer, "float64"), (4, 5))
    expected = np.prod(
        [reference.dropout_mask(SEED, i, config.dropout, (4, 5, 7)) for i in range(layer, 2)],
        axis=0,
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-15)


@pytest.mark.parametrize("seed", [(0, 0), (1, 0), (0, 1), (-1, -1), (2**40, 3), (3, 2**40)])
def test_masks_of_seeds(seed):
    config = relu_config()
    expected = reference.dropout_mask(seed, 0, config.dropout, (6, 5, 7))
    np.testing.assert_allclose(masks_of(config, (6, 5), seed), expected, rtol=1e-15)


def test_same_seed_same_masks_another_seed_others():
    config, seeds = relu_config(), [(1, 2), (2, 2), (1, 3), (2, 1), (-1, 2), (1 + 2**32, 2)]
    masks = [masks_of(config, (10, 10), seed) for seed in seeds]
    np.testing.assert_array_equal(masks_of(config, (10, 10), seeds[0]), masks[0])
    assert len({mask.tobytes() for mask in masks}) == len(seeds)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_share_of_dropped_elements_is_the_rate(rate):
    masks = masks_of(relu_config(num_units=25, rate=rate), (40, 100))
    expected = masks.size * rate
    # The limit is five standard deviations of a binomial distribution; the seed is fixed.
    assert abs(np.sum(masks == 0) - expected) < 5 * np.sqrt(expected * (1 - rate))
    kept = masks[masks != 0]
    np.testing.assert_allclose(kept, 1 / (1 - float(np.float32(rate))), rtol=1e-12)


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
    config = relu_config(num_units=32, rate=0.5)
    dropped = masks_of(config, (32, 64)) == 0
    above = reference.dropout_mask(SEED, 1, 0.5, dropped.shape) == 0
    assert_independent(dropped, [(dropped, above)])


def test_masks_do_not_depend_on_the_layout():
    config = relu_config(dirs=2)
    params = pass_through_params(config, 0, "float32")
    outputs = run(config, params, (6, 5))
    np.testing.assert_array_equal(run(config, params, (6, 5), time_major=False), outputs)


def test_masks_do_not_depend_on_sequence_lengths():
    """An element's mask depends on its place only, and not on which sequences have ended."""
    config, lengths = relu_config(dirs=2), [6, 0, 3, 1, 5]
    params = pass_through_params(config, 0, "float32")
    full = run(config, params, (6, 5))
    valid = np.arange(6)[:, None, None] < np.array(lengths)[:, None]
    outputs = run(config, params, (6, 5), sequence_lengths=lengths)
    np.testing.assert_array_equal(outputs, np.where(valid, full, 0.0))


def test_no_dropout_in_inference():
    config = relu_config()
    params = pass_through_params(config, 0, "float32")
    np.testing.assert_array_equal(run(config, params, (6, 5), is_training=False), 1.0)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_last_layer_is_never_dropped(num_layers):
    config = relu_config(num_layers=num_layers, rate=0.9)
    params = pass_through_params(config, num_layers - 1, "float32")
    np.testing.assert_array_equal(run(config, params, (6, 5)), 1.0)


def test_rate_of_zero_is_no_dropout():
    config = relu_config(rate=0.0)
    params = pass_through_params(config, 0, "float32")
    np.testing.assert_array_equal(run(config, params, (6, 5)), 1.0)


def test_gradient_takes_the_same_masks():
    """If a network returns its inputs, the gradient for them is the mask."""
    config = dataclasses.replace(relu_config(num_units=7), input_mode="skip_input", input_size=7)
    weights, biases = reference.canonical_shapes(config)
    params = [np.zeros(shape) for shape in weights]
    params[1] = np.eye(7)  # This is layer 1's input side; layer 0 only has a recurrent matrix.
    params = tf.constant(reference.join_params(params, [np.zeros(shape) for shape in biases]))
    inputs = tf.ones([6, 5, 7], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs, _ = ops.forward(
            config,
            inputs,
            [tf.zeros([2, 5, 7], tf.float64)],
            params,
            seed=tf.constant(SEED, tf.int64),
        )
    np.testing.assert_array_equal(tape.gradient(outputs, inputs), outputs)
    expected = reference.dropout_mask(SEED, 0, config.dropout, (6, 5, 7))
    np.testing.assert_allclose(outputs, expected, rtol=1e-15)
