"""The layers in `keras.layers.Bidirectional`, beside Keras's own layers in it."""

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
from layer_reference import LAYERS, make, normal, randomize, stock_layer

MODES = tuple(LAYERS)
LENGTHS = (5, 3, 1, 0)
MASK = np.arange(5) < np.array(LENGTHS)[:, None]


def wrapped(rnn_mode: str, merge_mode: str | None = "concat", **options):
    """Returns a layer of this package and one of Keras's with the same weights, each wrapped."""
    fused = keras.layers.Bidirectional(make(rnn_mode, **options), merge_mode=merge_mode)
    fused.build((None, None, 4))
    for seed, layer in enumerate((fused.forward_layer, fused.backward_layer)):
        randomize(layer, (None, None, 4), seed=seed)
    forward, backward = (
        stock_layer(layer, go_backwards=go_backwards, **options)
        for layer, go_backwards in ((fused.forward_layer, False), (fused.backward_layer, True))
    )
    stock = keras.layers.Bidirectional(forward, backward_layer=backward, merge_mode=merge_mode)
    stock.forward_layer.build((None, None, 4))
    stock.forward_layer.set_weights(forward.get_weights())
    return fused, stock


def assert_same(actual, expected) -> None:
    actual, expected = (
        value if isinstance(value, (list, tuple)) else [value] for value in (actual, expected)
    )
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.reshape(a, np.shape(e)), e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
@pytest.mark.parametrize("return_sequences", [False, True], ids=["last", "sequences"])
@pytest.mark.parametrize("merge_mode", random_configs.mostly_slow(["concat", "sum", None]))
@pytest.mark.parametrize("rnn_mode", MODES)
def test_agrees_with_stock_layers(rnn_mode, merge_mode, return_sequences, masked):
    options = {"return_sequences": return_sequences, "return_state": True}
    fused, stock = wrapped(rnn_mode, merge_mode, **options)
    arguments = {"mask": tf.constant(MASK)} if masked else {}
    inputs = normal(4, 5, 4)
    assert_same(fused(inputs, **arguments), stock(inputs, **arguments))


def test_mask_of_a_backward_layer_is_that_of_its_outputs():
    layer = randomize(make("gru", go_backwards=True), (None, None, 4))
    mask = layer.compute_mask(None, tf.constant(MASK))
    outputs = layer(normal(4, 5, 4), mask=tf.constant(MASK))
    np.testing.assert_array_equal(mask, np.any(outputs != 0, axis=-1))


def test_time_major_is_an_error():
    """Keras's wrapper reverses the second dimension, so that must be time."""
    with pytest.raises(ValueError, match="time_major=False"):
        keras.layers.Bidirectional(make("gru", time_major=True))
    with pytest.raises(ValueError, match="time_major=False"):
        keras.layers.Bidirectional(
            make("gru"), backward_layer=make("gru", go_backwards=True, time_major=True)
        )
