"""Files of weights alone, of any version of Keras: they go where their model's layers are."""

from typing import Any

import h5py
import keras
import keras_reference as reference
import numpy as np
import pytest
from keras_reference import gru, lstm, sigmoid, write
from test_old_keras_files import cudnn_weights, normal, randomized, tf_keras

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__
from cudnn_rnn_tf.convert import file_inspection


def small_model(module: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((None, 4)),
            module.LSTM(3, return_sequences=True, name="a"),
            keras.layers.Dropout(0.5, name="b"),
            module.GRU(2, name="c", reset_after=False),
        ]
    )


def small_weights() -> dict[str, list[tuple[str, np.ndarray]]]:
    return {
        "a": cudnn_weights(4, 4, "a"),
        "b": [],
        "c": [
            ("c/kernel:0", normal(3, 6)),
            ("c/recurrent_kernel:0", normal(2, 6)),
            ("c/bias:0", normal(6)),
        ],
    }


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("module", [keras.layers, crnn.keras])
def test_weights_alone(module, by_name, tmp_path):
    weights = small_weights()
    model = small_model(module)
    if by_name:
        weights = {"other": [("x", normal(1))], **weights}
    path = write(tmp_path / "w.hdf5", weights)
    crnn.load_keras_weights(model, path, by_name=by_name)
    inputs = normal(2, 5, 4)
    expected = lstm(inputs, *reference.as_cudnn_reads([v for _, v in weights["a"]], 4))
    expected = gru(expected, *(array for _, array in weights["c"]))[:, -1]
    np.testing.assert_allclose(model(inputs), expected, atol=1e-6)


def inner_model(module: Any, frozen: str) -> Any:
    """Returns a model with parts of equal shapes, of which some are frozen."""
    make = module.layers
    a, b = (make.Dense(4, name=name, trainable=name not in frozen) for name in "ab")
    c = make.BatchNormalization(name="c", trainable="c" not in frozen)
    inner = module.Sequential([make.Input((5, 4)), a, b, c])
    both = make.Bidirectional(make.GRU(4), merge_mode="sum")
    model = module.Sequential([make.Input((5, 4)), inner, both])
    both.forward_layer.trainable = "f" not in frozen
    if "g" in frozen and module is keras:
        c.gamma.trainable = False
    return model


@pytest.mark.parametrize("module", [keras, tf_keras])
@pytest.mark.parametrize("saved", ["", "a", "bc", "f", "acf", "g"])
@pytest.mark.parametrize("loaded", ["", "bf"])
def test_weights_when_other_layers_were_frozen(saved, loaded, module, tmp_path):
    source, target = randomized(inner_model(module, saved)), inner_model(keras, loaded)
    source.save(tmp_path / "w.h5")
    crnn.load_keras_weights(target, tmp_path / "w.h5")
    inputs = normal(2, 5, 4)
    np.testing.assert_allclose(target(inputs), np.asarray(source(inputs)), atol=1e-6)


def test_weights_of_other_names_when_other_layers_were_frozen(tmp_path):
    def model(frozen: str, *names: str) -> keras.Model:
        inner = keras.Sequential([keras.Input((4,))])
        for name in names:
            inner.add(keras.layers.Dense(4, name=name, bias_initializer="normal"))
            inner.layers[-1].trainable = name not in frozen
        return keras.Sequential([keras.Input((4,)), inner])

    path, inputs = tmp_path / "w.h5", normal(2, 4)
    target = model("", "dense_7", "dense_8")
    source = model("", "dense", "dense_1")
    source.save(path)
    crnn.load_keras_weights(target, path)
    np.testing.assert_allclose(target(inputs), source(inputs), atol=1e-6)
    model("dense", "dense", "dense_1").save(path)
    with pytest.raises(ValueError, match="other ones were frozen when it was written"):
        crnn.load_keras_weights(target, path)
    inner = target.layers[0]
    inner.layers[0].trainable = False
    crnn.load_keras_weights(target, path)


def test_weights_that_do_not_fit(tmp_path):
    weights = small_weights()
    model = small_model(keras.layers)
    path = write(tmp_path / "w.h5", {"x": weights["a"]})
    with pytest.raises(ValueError, match=r"expected 2 layers with weights .* are 1: \['x'\]"):
        crnn.load_keras_weights(model, path)
    with pytest.raises(ValueError, match=r"none of the model's layers: \['x'\]"):
        crnn.load_keras_weights(model, path, by_name=True)
    with pytest.raises(
        ValueError, match=r"weight 'kernel' of layer 'c' .* \(3, 6\), but .* \(2, 6"
    ):
        crnn.load_keras_weights(
            model, write(path, {**weights, "c": [(n, v[:2]) for n, v in weights["c"]]})
        )
    with pytest.raises(ValueError, match="expected 3 weights of layer 'c', but the file has 2"):
        crnn.load_keras_weights(model, write(path, {**weights, "c": weights["c"][:2]}))
    with pytest.raises(ValueError, match="holds weights alone and no model: make the model"):
        crnn.load_keras_model(path)


def test_a_list_of_names_in_several_attributes(tmp_path):
    path = write(tmp_path / "w.h5", small_weights())
    with h5py.File(path, "a") as file:
        names = file.attrs.pop("layer_names").astype("S")  # As older Keras wrote them.
        file.attrs["layer_names0"], file.attrs["layer_names1"] = names[:1], names[1:]
    assert [each.name for each in file_inspection.inspect_file(path)] == ["a", "c"]


@pytest.mark.parametrize("name", ["w.weights.h5", "w.h5"])
def test_weights_of_keras_3(name, tmp_path):
    model = small_model(crnn.keras)
    model.save_weights(tmp_path / name) if "weights" in name else model.save(tmp_path / name)
    path = (tmp_path / name).rename(tmp_path / "noname")
    again = small_model(crnn.keras)
    crnn.load_keras_weights(again, path)
    for received, value in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(received, value)


def test_weights_alone_want_the_mode(tmp_path, capsys):
    weights = {
        "a": [
            (f"a/{k}:0", v)
            for k, v in zip(
                ("kernel", "recurrent_kernel", "bias"),
                (normal(4, 12), normal(3, 12), normal(12)),
                strict=True,
            )
        ]
    }
    path = str(write(tmp_path / "w.h5", weights))
    target = str(tmp_path / "m.keras")
    assert __main__.main(["convert", path, target]) == 1
    assert "do not say the activations: pass --rnn-mode 'lstm'" in capsys.readouterr().err
    assert __main__.main(["convert", path, target, "--rnn-mode=gru"]) == 1
    assert "the arrays are those of lstm, but --rnn-mode is 'gru'" in capsys.readouterr().err
    assert __main__.main(["convert", path, target, "--rnn-mode=lstm"]) == 0
    inputs = normal(2, 5, 4)
    expected = lstm(inputs, *(v for _, v in weights["a"]), act=sigmoid)
    np.testing.assert_allclose(keras.saving.load_model(target)(inputs), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["none.keras", "none.h5", "none.weights.h5"])
def test_no_file(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no file '.*{name}'"):
        crnn.load_keras_model(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=f"no file '.*{name}'"):
        crnn.load_keras_weights(small_model(keras.layers), tmp_path / name)
