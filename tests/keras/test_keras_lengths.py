"""The drop-ins' call argument `sequence_lengths`, beside Keras's layers with a mask."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from random_layers import check_equal, draw_options, run, without_cudnn

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf._private_names import keras_mask

CLASSES = ("LSTM", "GRU", "SimpleRNN")
LENGTHS = np.array([5, 2, 0, 4])


def mask_of(lengths: np.ndarray, time: int) -> np.ndarray:
    return np.arange(time) < lengths[:, np.newaxis]


def pair(class_name: str, *, bidirectional: bool, **options):
    """Returns a drop-in and Keras's own layer, with the same weights."""
    layers = []
    for module in (drop_ins, keras.layers):
        layer = getattr(module, class_name)(**options)
        wrapped = bidirectional and module.Bidirectional(layer, dtype=options["dtype"])
        layers.append(wrapped or layer)
        layers[-1].build((None, None, 3))
    ours, stock = layers
    random = np.random.default_rng(0)
    ours.set_weights([0.4 * random.standard_normal(w.shape) for w in ours.get_weights()])
    stock.set_weights(ours.get_weights())
    for layer in [stock.forward_layer, stock.backward_layer] if bidirectional else [stock]:
        without_cudnn(layer)
    return ours, stock


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("class_name", CLASSES)
def test_same_as_a_mask(class_name, bidirectional, seed):
    random = np.random.default_rng(seed)
    options = draw_options(random, class_name) | {"dtype": "float64", "dropout": 0.0}
    if bidirectional:
        # If a layer is unrolled and reads backwards, Keras masks the wrong outputs.
        options |= {"go_backwards": False, "unroll": False}
    ours, stock = pair(class_name, bidirectional=bidirectional, **options)
    time, is_traced = int(random.integers(1, 7)), seed % 2 == 1
    # In a function, lengths out of range are as good as the nearest ones in range.
    lengths = random.integers(-2, 8, size=4) if is_traced else random.integers(0, time + 1, size=4)
    inputs = tf.constant(random.standard_normal((4, time, 3)))
    dtype = str(random.choice(["int32", "int64", "int8"]))
    received = run(ours, inputs, is_traced, sequence_lengths=tf.constant(lengths, dtype))
    check_equal(received, run(stock, inputs, False, mask=tf.constant(mask_of(lengths, time))))


@pytest.mark.parametrize("given", [list, np.asarray, tf.constant])
def test_other_layers_see_the_mask(given):
    layer = drop_ins.LSTM(4, return_sequences=True)
    outputs = layer(np.ones((4, 5, 3), "float32"), sequence_lengths=given(LENGTHS.tolist()))
    np.testing.assert_array_equal(keras_mask(outputs), mask_of(LENGTHS, 5))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["layer", "wrapper", "stack"])
def test_beside_all_other_arguments(name, training):
    layer = {
        "layer": lambda: drop_ins.GRU(3, return_sequences=True),
        "wrapper": lambda: drop_ins.Bidirectional(drop_ins.GRU(3, return_sequences=True)),
        "stack": lambda: drop_ins.Stack(
            [drop_ins.GRU(3, return_sequences=True), drop_ins.GRU(3, return_sequences=True)]
        ),
    }[name]()
    random = np.random.default_rng(0)
    inputs = tf.constant(random.standard_normal((4, 5, 3)), tf.float32)
    arguments = {"training": training}
    if name != "stack":
        count = 2 if name == "wrapper" else 1
        states = random.standard_normal((count, 4, 3)).astype("float32")
        arguments["initial_state"] = [tf.constant(state) for state in states]
    expected = layer(inputs, mask=tf.constant(mask_of(LENGTHS, 5)), **arguments)
    received = layer(inputs, sequence_lengths=LENGTHS, **arguments)
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize("make", [drop_ins.LSTM, lambda n: drop_ins.Bidirectional(drop_ins.GRU(n))])
def test_lengths_are_a_models_input(make, tmp_path):
    """Such a model is saved and loaded, and becomes one of Keras's own layers."""
    inputs = [keras.Input((None, 3)), keras.Input((), dtype="int32")]
    outputs = make(4)(inputs[0], sequence_lengths=inputs[1])
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    data = [np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32"), LENGTHS]
    expected = model(data)
    changed = [data[0].copy(), LENGTHS]
    changed[0][1, 2:] = 7.0
    np.testing.assert_array_equal(model(changed), expected)
    model.save(tmp_path / "model.keras")
    for other in (keras.saving.load_model(tmp_path / "model.keras"), crnn.to_stock(model)):
        np.testing.assert_allclose(other(data), expected, atol=1e-6)
    model.compile("sgd", "mse")
    model.fit(data, np.ones((4, 1)), verbose=0)


@pytest.mark.parametrize("class_name", [*CLASSES, "Bidirectional"])
def test_wrong_lengths(class_name):
    wraps = class_name == "Bidirectional"
    layer = getattr(drop_ins, class_name)(drop_ins.LSTM(4) if wraps else 4, name="mine")
    inputs, mask = np.ones((4, 5, 3), "float32"), np.ones((4, 5), bool)
    for call in (
        lambda: layer(inputs, mask=mask, sequence_lengths=LENGTHS),
        lambda: layer(inputs, None, mask, sequence_lengths=LENGTHS),
    ):
        with pytest.raises(ValueError, match="'mine' received both sequence_lengths and a mask"):
            call()
    with pytest.raises(TypeError, match="sequence_lengths of layer 'mine' to be integers, but"):
        layer(inputs, sequence_lengths=LENGTHS.astype("float32"))
    message = r"sequence_lengths of layer 'mine' of shape \(4,\) \(\[batch\]\), but received "
    for wrong in (mask.astype("int32"), LENGTHS[:1], LENGTHS[:3]):
        with pytest.raises(ValueError, match=message + re.escape(str(wrong.shape))):
            layer(inputs, sequence_lengths=wrong)
    message = r"sequence_lengths\[2\] of layer 'mine' must lie in \[0, 5\], but received "
    for wrong in (6, -2, 2**31, 2**32 + 1):
        for given in (list, np.array, tf.constant):
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"{message}{wrong}$"):
                layer(inputs, sequence_lengths=given([5, 0, wrong, wrong]))


def test_one_length_is_not_taken_for_all_sequences():
    """Nor where the batch size is known only when a function runs."""
    layer = drop_ins.LSTM(4)
    signature = [tf.TensorSpec([None, None, 3]), tf.TensorSpec([None], tf.int32)]
    function = tf.function(
        lambda x, lengths: layer(x, sequence_lengths=lengths), input_signature=signature
    )
    assert function(tf.ones((1, 5, 3)), [2]).shape == (1, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1,1\] vs.* = \[4,5\]"):
        function(tf.ones((4, 5, 3)), [2])


def test_lengths_replace_the_mask_of_an_embedding():
    embedding = keras.layers.Embedding(8, 3, mask_zero=True)
    layer = drop_ins.LSTM(4)
    inputs = embedding(np.array([[1, 0, 2, 3, 0]] * 4))
    assert keras_mask(inputs) is not None
    expected = layer(inputs.numpy(), mask=mask_of(LENGTHS, 5))
    np.testing.assert_allclose(layer(inputs, sequence_lengths=LENGTHS), expected, atol=1e-6)
