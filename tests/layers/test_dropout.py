"""Tests the masks of dropout between layers, with networks that return them."""

import layer_reference
import numpy as np
import pytest
import reference
import reference_masks
import tensorflow as tf
from layer_reference import make, normal, randomize

import cudnn_rnn_tf as crnn
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
    words = reference_masks.philox4x32(np.array([counter], np.uint32), np.array(key, np.uint32))
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
    expected = reference_masks.dropout_mask(SEED, 0, rate, masks.shape)
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
    above = reference_masks.dropout_mask(SEED, 1, 0.5, dropped.shape) == 0
    assert_independent(dropped, [(dropped, above)])


def recurrent_parts(layer) -> list[slice]:
    """Returns where a buffer without skip input has its recurrent matrices."""
    weights, _ = reference.canonical_shapes(layer._config)
    gates = reference.NUM_GATES[layer.rnn_mode]
    parts, start = [], 0
    for index, shape in enumerate(weights):
        end = start + int(np.prod(shape))
        if index // gates % 2:
            parts.append(slice(start, end))
        start = end
    return parts


@pytest.mark.parametrize(
    "rnn_mode, dtype, jit_compile",
    [
        *(("lstm", "float32", True), ("lstm", "mixed_float16", False)),
        *(("gru", "float32", False), ("rnn_tanh", "mixed_float16", True)),
    ],
)
def test_recurrent_weight_dropout(rnn_mode, dtype, jit_compile):
    """The weights without a gradient are those that are dropped; a layer without them agrees."""
    options = {"direction": "bidirectional", "dtype": dtype, "seed": 5}
    inputs = tf.constant(normal(3, 6, 4))

    def fresh():
        layer = make(rnn_mode, 2, 12, recurrent_weight_dropout=0.3, **options)
        return randomize(layer, (None, None, 4))

    layer, plain = fresh(), randomize(make(rnn_mode, 2, 12, **options), (None, None, 4))
    np.testing.assert_array_equal(layer(inputs), plain(inputs))

    def step(layer=layer):
        with tf.GradientTape() as tape:
            outputs = layer(inputs, training=True)
            loss = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
        return outputs, tape.gradient(loss, layer.kernel.value)

    run = tf.function(step, jit_compile=jit_compile)
    before, masks = layer.kernel.numpy(), []
    for _ in range(2):
        outputs, gradient = (np.asarray(each) for each in run())
        assert gradient.dtype == np.float32
        scale = np.ones_like(before)
        for part in recurrent_parts(layer):
            scale[part] = np.where(gradient[part] == 0, 0, 1 / 0.7)
        masks.append(scale == 0)
        plain.kernel.assign(before * scale)
        right, of_plain = (np.asarray(each) for each in step(plain))
        tolerance = 1e-5 if dtype == "float32" else 2e-3
        np.testing.assert_allclose(outputs, right, rtol=tolerance, atol=tolerance)
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(gradient, of_plain * scale, atol=20 * tolerance * largest)
        share = np.concatenate([masks[-1][part] for part in recurrent_parts(layer)]).mean()
        assert 0.25 < share < 0.35
    assert (masks[0] != masks[1]).mean() > 0.1
    np.testing.assert_array_equal(np.asarray(step(fresh())[1]) == 0, masks[0])
    assert type(layer).from_config(layer.get_config()).recurrent_weight_dropout == 0.3


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_bad_recurrent_weight_dropout(rate):
    with pytest.raises(ValueError, match=r"recurrent_weight_dropout to lie in \[0, 1\), but"):
        make("gru", 1, 3, recurrent_weight_dropout=rate)


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "gru_reset_before", "rnn_tanh"])
def test_zoneout(rnn_mode):
    """Each call in training draws masks by a seed of its own; inference has expected values."""
    rates = {"zoneout": 0.3} | ({"cell_zoneout": 0.4} if rnn_mode == "lstm" else {})
    options = {"direction": "bidirectional", "dtype": "float64", "seed": 5, "dropout": 0.2}
    layer = make(rnn_mode, 2, 7, return_state=True, **options, **rates)
    randomize(layer, (None, None, 4))
    inputs = normal(3, 6, 4, dtype="float64")
    passes = {}
    for call in range(3):
        seed = None if call == 2 else tf.cast(layer.seed_generator.state.value, tf.int64).numpy()
        with tf.GradientTape() as tape:
            outputs, *states = layer(inputs, training=call < 2)
            loss = tf.reduce_sum(outputs)
        expected = layer_reference.forward(layer, inputs, seed=seed)
        for value, right in zip(
            (outputs, *states), (expected.outputs, *expected.states), strict=True
        ):
            np.testing.assert_allclose(value, right, rtol=0, atol=1e-12)
        zeros = [np.zeros(state.shape) for state in states]
        gradient = reference.backward(expected, np.ones(outputs.shape), zeros).params
        np.testing.assert_allclose(tape.gradient(loss, layer.kernel.value), gradient, atol=1e-11)
        passes[call] = outputs.numpy()
    assert len({each.tobytes() for each in passes.values()}) == 3
    again = type(layer).from_config(layer.get_config())
    assert {name: getattr(again, name) for name in rates} == rates
    for write in (crnn.convert.to_torch, crnn.convert.to_keras, crnn.convert.to_onnx):
        with pytest.raises(ValueError, match="zoneout=0.3 of layer"):
            write(layer)
    predicted, _ = crnn.CpuPredictor(layer)(inputs)
    np.testing.assert_allclose(predicted, passes[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rnn_mode, options, message",
    [
        ("gru", {"zoneout": 1.0}, r"^zoneout must lie in \[0, 1\), but received 1.0"),
        ("lstm", {"cell_zoneout": np.nan}, r"cell_zoneout must lie in \[0, 1\), but received nan"),
        ("lstm", {"zoneout": 0.1, "num_proj": 2}, "zoneout takes no num_proj, but received 2"),
        ("lstm_layer_norm", {"cell_zoneout": 0.1}, "no layer normalization.*use_layer_norm=True"),
        ("gru_layer_norm", {"zoneout": 0.1}, "no layer normalization.*use_layer_norm=True"),
        ("lstm_peephole", {"cell_zoneout": 0.1}, "of c no peepholes.*use_peepholes=True"),
    ],
)
def test_what_excludes_zoneout(rnn_mode, options, message):
    with pytest.raises(ValueError, match=message):
        make(rnn_mode, 1, 3, **options)
    with pytest.raises(ValueError, match="cell_zoneout is for LSTMs only, but received 0.5"):
        RnnConfig("gru", 1, 3, 2, cell_zoneout=0.5)
