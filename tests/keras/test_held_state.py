"""What layers hold besides variables, and what models and optimizers do: no copy loses it."""

import held_layers
import keras
import numpy as np
import pytest
from test_accelerate import draw

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf.convert import keras_2_hard_sigmoid

layers = keras.layers


# Those of images hold nothing, which is left to the fuzzer to try.
@pytest.mark.parametrize("kind", sorted(held_layers.KINDS.keys() - held_layers.IMAGES.keys()))
def test_accelerate_keeps_what_layers_hold(kind):
    held_layers.check(kind, "accelerate")


@pytest.mark.parametrize("kind", held_layers.IN_WEIGHTS)
def test_load_keras_weights_derives_what_layers_hold(kind):
    held_layers.check(kind, "load_keras_weights")


@pytest.mark.parametrize("door", ["to_stock", "command", "export_onnx", "export_litert"])
def test_each_door_keeps_what_layers_hold(door):
    held_layers.check("Composite", door)
    held_layers.check("TextVectorization int" if door == "command" else "OwnFormat", door)


class Refusing(layers.Layer):
    def load_own_variables(self, store):
        raise KeyError("no")

    def call(self, inputs):
        return inputs


def test_a_hook_that_fails():
    model = keras.Sequential([keras.Input((5, 3)), Refusing(name="mine"), layers.LSTM(2)])
    with pytest.raises(ValueError, match="cannot copy what layer 'mine', a Refusing, holds"):
        crnn.accelerate(model)


def test_lambdas_keep_their_masks():
    inputs = keras.Input((5, 3))
    x = layers.Lambda(lambda x: 2 * x, mask=lambda x, _: x[:, :, 0] > held_layers.SHIFT)(inputs)
    model = keras.Model(inputs, layers.LSTM(2)(x))
    fast = crnn.accelerate(model)
    assert fast.layers[1].mask is model.layers[1].mask
    values = 3 * draw(4, 5, 3)
    np.testing.assert_allclose(fast(values), model(values), atol=1e-6)


def test_functions_made_in_one_place():
    """Two lambdas of one bytecode and name differ in what is around them."""

    def scaled(factor):
        return layers.Lambda(lambda x: factor[0] * x)

    factors = [[2.0], [5.0]]
    model = keras.Sequential([keras.Input((5, 3)), *map(scaled, factors), layers.LSTM(2)])
    fast = crnn.accelerate(model)
    factors[0][0] = 3.0  # Both models read the list itself.
    np.testing.assert_allclose(fast(draw(4, 5, 3)), model(draw(4, 5, 3)), atol=1e-6)


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("fits", [False, True])
def test_variables_excluded_from_weight_decay(wraps, fits):
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4, bias_initializer="ones")])
    model.add(layers.Dense(4, bias_initializer="ones"))
    adam = keras.optimizers.AdamW(0.01, weight_decay=0.9)
    adam.exclude_from_weight_decay(var_list=[model.layers[0].cell.kernel], var_names=["bias"])
    adam = keras.optimizers.LossScaleOptimizer(adam) if wraps else adam
    model.compile(adam, "mse", run_eagerly=True)
    if fits:
        model.fit(draw(6, 5, 3), draw(6, 4), verbose=0)
    copies = [crnn.accelerate(model), crnn.to_stock(crnn.accelerate(model))]
    for each in (model, *copies):
        each.fit(draw(6, 5, 3), draw(6, 4), epochs=2, verbose=0)
    for copy in copies:
        assert copy.optimizer.iterations == model.optimizer.iterations
        for received, expected in zip(copy.weights, model.weights, strict=True):
            np.testing.assert_allclose(received, expected, atol=1e-4)


@pytest.fixture
def cleared():
    """Clears Keras's custom objects, as its documentation shows it."""
    registered = dict(keras.saving.get_custom_objects())
    keras.saving.get_custom_objects().clear()
    yield
    keras.saving.get_custom_objects().update(registered)


@pytest.mark.usefixtures("cleared")
def test_after_custom_objects_were_cleared(tmp_path):
    inputs = draw(2, 5, 3)
    both = drop_ins.Bidirectional(drop_ins.LSTM(4, return_sequences=True))
    model = keras.Sequential([keras.Input((5, 3)), both])
    model.add(layers.Bidirectional(drop_ins.GRU(2, return_sequences=True)))
    model.add(layers.SimpleRNN(2, return_sequences=True))
    model.add(layers.SimpleRNN(2))
    model.add(layers.RepeatVector(3))
    model.add(layers.GRU(2, recurrent_activation=keras_2_hard_sigmoid, return_sequences=True))
    model.add(layers.Normalization())
    model.add(layers.RNN(crnn.CudnnCompatibleLSTMCell(2), return_sequences=True))
    model.add(crnn.CudnnLSTM(1, 2, kernel_initializer=crnn.AllGates("he_normal")))
    assert type(both.backward_layer) is drop_ins.LSTM
    fast = crnn.accelerate(model)
    assert type(fast.layers[-6]) is drop_ins.Stack
    model.save(tmp_path / "m.keras")
    keras.saving.get_custom_objects().clear()
    loaded = crnn.load_keras_model(tmp_path / "m.keras")
    for copy in (loaded, fast, crnn.to_stock(fast), keras.models.clone_model(fast)):
        copy.set_weights(model.get_weights())
        np.testing.assert_allclose(copy(inputs), model(inputs), atol=1e-6)
