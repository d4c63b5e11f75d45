"""Files of `cudnn_rnn_tf.keras`'s layers load as Keras's, and the other way round."""

import copy
import json
import re
import subprocess
import sys
import zipfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

# This program loads a file without importing cudnn_rnn_tf, and runs the model.
_LOAD_WITHOUT = """\
import sys
import keras, numpy
model = keras.saving.load_model(sys.argv[1])
numpy.save(sys.argv[3], model.predict(numpy.load(sys.argv[2]), verbose=0))
assert not any(name.startswith("cudnn_rnn_tf") for name in sys.modules)
"""


def make_model(module: Any) -> keras.Model:
    inputs = keras.Input((6, 3), name="inputs")
    x = module.LSTM(4, return_sequences=True, unit_forget_bias=False)(inputs)
    x = module.Bidirectional(module.GRU(3, return_sequences=True), merge_mode="sum")(x)
    x = keras.layers.TimeDistributed(keras.layers.Dense(2))(x)
    x = module.SimpleRNN(2, activation="relu", kernel_regularizer="l2")(x)
    model = keras.Model(inputs, x)
    model.compile("adam", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables:
        if len(variable.shape):
            variable.assign(np.random.default_rng(1).random(variable.shape))
    return model


def data() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 6, 3)).astype("float32")


def recurrent(model: keras.Model) -> list[Any]:
    bidirectional = model.layers[2]
    return [
        model.layers[1],
        bidirectional,
        bidirectional.forward_layer,
        bidirectional.backward_layer,
        model.layers[4],
    ]


def is_drop_in(layer: Any) -> bool:
    return type(layer) in (drop_ins.LSTM, drop_ins.GRU, drop_ins.SimpleRNN, drop_ins.Bidirectional)


def test_a_file_loads_fused_with_the_package_and_as_keras_own_without(tmp_path):
    model = make_model(drop_ins)
    path, inputs, outputs = (str(tmp_path / name) for name in ("m.keras", "in.npy", "out.npy"))
    model.save(path)
    expected = model.predict(data(), verbose=0)
    loaded = keras.saving.load_model(path)
    assert all(is_drop_in(layer) for layer in recurrent(loaded))
    np.testing.assert_array_equal(loaded.predict(data(), verbose=0), expected)
    np.save(inputs, data())
    subprocess.run([sys.executable, "-c", _LOAD_WITHOUT, path, inputs, outputs], check=True)
    np.testing.assert_allclose(np.load(outputs), expected, atol=1e-6)


def test_a_file_says_what_keras_own_says(tmp_path):
    configs = []
    for module in (keras.layers, drop_ins):
        keras.utils.clear_session()
        model = make_model(module)
        model.save(tmp_path / "m.keras")
        with zipfile.ZipFile(tmp_path / "m.keras") as archive:
            text = archive.read("config.json").decode()
        # Keras does not write registered names for its own classes.
        for name in ("LSTM", "GRU", "SimpleRNN", "Bidirectional"):
            text = text.replace(f'"registered_name": "{name}"', '"registered_name": null')
        text = re.sub(r'"shared_object_id": \d+', '"shared_object_id": 0', text)
        configs.append(json.loads(text))
    assert configs[0] == configs[1]


def test_keras_own_file_stays_keras_own(tmp_path):
    make_model(keras.layers).save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert not any(is_drop_in(layer) for layer in recurrent(loaded))


@pytest.mark.parametrize("file", ["m.weights.h5", "checkpoint"])
@pytest.mark.parametrize("writer", [keras.layers, drop_ins])
def test_weights_move_both_ways(tmp_path, writer, file):
    reader = keras.layers if writer is drop_ins else drop_ins
    source, target = make_model(writer), make_model(reader)
    if file == "checkpoint":
        path = tf.train.Checkpoint(model=source).save(tmp_path / file)
        tf.train.Checkpoint(model=target).restore(path).assert_consumed()
    else:
        source.save_weights(tmp_path / file)
        target.load_weights(tmp_path / file)
    for received, expected in zip(target.weights, source.weights, strict=True):
        assert received.path == expected.path or received.shape == expected.shape
        np.testing.assert_array_equal(received, expected)
    for received, expected in zip(
        target.optimizer.variables, source.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(received, expected)


def test_copies_stay_fused():
    model = make_model(drop_ins)
    for same in (copy.deepcopy(model), keras.models.clone_model(model)):
        assert all(is_drop_in(layer) for layer in recurrent(same))
    # Keras's own wrapper copies the layer that it wraps.
    wrapper = keras.layers.Bidirectional(drop_ins.LSTM(3))
    assert is_drop_in(wrapper.forward_layer) and is_drop_in(wrapper.backward_layer)


def test_layers_are_keras_own_as_well():
    for name in ("LSTM", "GRU", "SimpleRNN", "Bidirectional"):
        assert issubclass(getattr(drop_ins, name), getattr(keras.layers, name))
        assert getattr(drop_ins, name).__doc__ == getattr(keras.layers, name).__doc__


def test_saved_models(tmp_path):
    model = make_model(drop_ins)
    expected = model.predict(data(), verbose=0)
    model.export(tmp_path / "fused", verbose=False)
    crnn.export_portable(copy.deepcopy(model), tmp_path / "portable")
    for name in ("fused", "portable"):
        loaded = tf.saved_model.load(tmp_path / name)
        np.testing.assert_allclose(loaded.serve(data()), expected, atol=1e-6)
    assert b"CudnnRnnTf>Forward" in (tmp_path / "fused/saved_model.pb").read_bytes()
    assert b"CudnnRnnTf>" not in (tmp_path / "portable/saved_model.pb").read_bytes()
