"""`accelerate`, which has the fused ops run the recurrent layers of a model that exists."""

from typing import Any

import keras
import numpy as np
import pytest

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

layers = keras.layers
DROP_INS = (drop_ins.LSTM, drop_ins.GRU, drop_ins.SimpleRNN, drop_ins.Bidirectional)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def sequential() -> tuple[keras.Model, np.ndarray]:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(7, 3, mask_zero=True),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.1, seed=1)),
            layers.GRU(5, return_sequences=True, seed=2, recurrent_dropout=0.1),
            layers.SimpleRNN(2, activation="relu"),
        ]
    )
    return model, np.random.default_rng(0).integers(0, 7, (5, 6))


def functional() -> tuple[keras.Model, np.ndarray]:
    """With a model in it, a layer used twice, states, wrappers, and what cannot be fused."""
    inputs = keras.Input((6, 4))
    shared = layers.LSTM(4, return_sequences=True, name="shared")
    nested = keras.Sequential(
        [
            keras.Input((6, 4)),
            layers.GRU(4, return_sequences=True, name="nested"),
            layers.GRU(4, return_sequences=True, reset_after=False, name="old"),
        ]
    )
    x, *states = layers.LSTM(4, return_sequences=True, return_state=True, name="first")(inputs)
    x = shared(nested(shared(x, initial_state=states)))
    x = layers.Reshape((6, 2, 2))(x)
    x = layers.TimeDistributed(layers.SimpleRNN(3, name="inside"))(x)
    x = layers.RNN(layers.LSTMCell(3), name="cell")(x)
    return keras.Model(inputs, layers.Lambda(lambda x: 2 * x)(x)), draw(5, 6, 4)


def recurrent_types(model: keras.Model) -> list[type]:
    found = []
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found += recurrent_types(layer)
        elif isinstance(layer, (layers.RNN, layers.Bidirectional)):
            found.append(type(layer))
        elif isinstance(layer, layers.TimeDistributed):
            found.append(type(layer.layer))
    return found


@pytest.mark.parametrize("make", [sequential, functional])
def test_the_copy_computes_and_learns_what_the_model_does(make, capsys):
    model, inputs = make()
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
    targets = draw(len(inputs), model.output_shape[-1])
    model.fit(inputs, targets, verbose=0)
    fast = crnn.accelerate(model)
    assert [variable.name for variable in fast.weights] == [v.name for v in model.weights]
    assert fast.optimizer is not model.optimizer
    for received, expected in zip(fast.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(received, expected)
    np.testing.assert_allclose(
        fast.predict(inputs, verbose=0), model.predict(inputs, verbose=0), atol=1e-5
    )
    # With the same dropout, from the seeds' states.
    histories = [
        each.fit(inputs, targets, epochs=2, shuffle=False, verbose=0).history
        for each in (fast, model)
    ]
    for name, expected in histories[1].items():
        np.testing.assert_allclose(histories[0][name], expected, rtol=1e-4)
    for received, expected in zip(fast.weights, model.weights, strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-4)
    # The model itself stays Keras's.
    assert not any(issubclass(kind, DROP_INS) for kind in recurrent_types(model))


def test_the_table_and_the_layers_agree(capsys):
    model, _ = sequential()
    fast = crnn.accelerate(model)
    assert recurrent_types(fast) == [drop_ins.Bidirectional, drop_ins.GRU, drop_ins.SimpleRNN]
    assert type(fast.layers[1].backward_layer) is drop_ins.LSTM
    table = capsys.readouterr().out.splitlines()
    assert "in two ops: dropout of 'forward_lstm" in table[1]
    assert "GRU" in table[2] and "in training as Keras runs it: recurrent_dropout=0.1" in table[2]
    assert table[3].endswith("runs fused")
    model, _ = functional()
    fast = crnn.accelerate(model)
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert {name: "left" not in row for name, row in rows.items()} == {
        "first": True,
        "shared": True,
        "nested": True,
        "old": False,
        "inside": True,
        "cell": False,
    }
    assert "reset_after=False" in rows["old"]
    assert recurrent_types(fast) == [
        drop_ins.LSTM,
        drop_ins.LSTM,
        drop_ins.GRU,
        layers.GRU,
        drop_ins.SimpleRNN,
        layers.RNN,
    ]


def test_a_dry_run_only_prints(capsys):
    model, _ = functional()
    weights = model.get_weights()
    assert crnn.accelerate(model, dry_run=True) is None
    dry = capsys.readouterr().out
    crnn.accelerate(model)
    assert capsys.readouterr().out == dry
    for received, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(received, expected)


class Configured(keras.Model):
    """A model whose config has its recurrent layer."""

    def __init__(self, recurrent: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.recurrent = recurrent

    def call(self, inputs):
        return self.recurrent(inputs)

    def get_config(self):
        return {"recurrent": keras.saving.serialize_keras_object(self.recurrent)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["recurrent"]))


class Coded(keras.Model):
    """A model whose code makes its recurrent layer."""

    def __init__(self, units: int):
        super().__init__()
        self.units = units
        self.recurrent = layers.GRU(units, name="coded")

    def call(self, inputs):
        return self.recurrent(inputs)

    def get_config(self):
        return {"units": self.units}


def test_models_of_classes_of_their_own(capsys):
    inputs = draw(2, 5, 3)
    model = Configured(layers.LSTM(4))
    expected = model(inputs)
    fast = crnn.accelerate(model)
    assert type(fast) is Configured and type(fast.recurrent) is drop_ins.LSTM
    np.testing.assert_allclose(fast(inputs), expected, atol=1e-6)
    model = Coded(4)
    expected = model(inputs)
    fast = crnn.accelerate(model)
    np.testing.assert_allclose(fast(inputs), expected, atol=1e-6)
    assert "left: the code of Coded makes it" in capsys.readouterr().out


def test_a_model_compiled_for_xla_is_not_in_the_copy():
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(2)])
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile
    fast = crnn.accelerate(model)
    assert not fast.jit_compile
    fast.fit(draw(2, 5, 3), draw(2, 2), verbose=0)


def test_errors():
    with pytest.raises(TypeError, match="expected a Keras model, but received LSTM"):
        crnn.accelerate(layers.LSTM(2))
    with pytest.raises(ValueError, match="to be built"):
        crnn.accelerate(keras.Sequential([layers.LSTM(2)]))
