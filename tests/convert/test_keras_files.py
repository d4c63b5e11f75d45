"""Files, copies and names of `cudnn_rnn_tf.keras`'s layers, beside those of Keras's."""

import copy
import inspect
import json
import pickle
import re
import zipfile
from typing import Any

import fresh_process
import keras
import numpy as np
import pytest
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

NAMES = ("LSTM", "GRU", "SimpleRNN", "Bidirectional")

# This program loads a file without importing cudnn_rnn_tf, and runs the model.
_LOAD_WITHOUT = """\
import sys
import keras, numpy
names = ("LSTM", "GRU", "SimpleRNN", "Bidirectional")
custom = {"cudnn_rnn_tf>" + name: getattr(keras.layers, name) for name in names}
options = {"custom_objects": custom} if sys.argv[4:] else {}
model = keras.saving.load_model(sys.argv[1], compile=False, **options)
numpy.save(sys.argv[3], model.predict(numpy.load(sys.argv[2]), verbose=0))
assert not any(name.startswith("cudnn_rnn_tf") for name in sys.modules)
"""

_IMPORT = """\
import keras
objects = keras.saving.get_custom_objects()
before = dict(objects)
import cudnn_rnn_tf
added = objects.keys() - before.keys()
assert "cudnn_rnn_tf>LSTM" in added
assert all(name.startswith("cudnn_rnn_tf>") for name in added), added
assert all(objects[name] is before[name] for name in before)
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


def test_an_import_adds_names_of_its_own_alone():
    fresh_process.run_program(_IMPORT)


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_file_loads_fused_with_the_package_and_as_keras_own_without(tmp_path, suffix):
    model = make_model(drop_ins)
    path, inputs, outputs = (str(tmp_path / name) for name in (f"m.{suffix}", "in.npy", "out.npy"))
    model.save(path)
    expected = model.predict(data(), verbose=0)
    loaded = keras.saving.load_model(path, compile=False)
    assert all(is_drop_in(layer) for layer in recurrent(loaded))
    np.testing.assert_array_equal(loaded.predict(data(), verbose=0), expected)
    np.save(inputs, data())
    arguments = (_LOAD_WITHOUT, path, inputs, outputs)
    fresh_process.run_program(*arguments, "custom")
    np.testing.assert_allclose(np.load(outputs), expected, atol=1e-6)
    crnn.to_stock(model).save(path)
    fresh_process.run_program(*arguments)
    np.testing.assert_allclose(np.load(outputs), expected, atol=1e-6)


def config_of(model: keras.Model, path: Any) -> dict[str, Any]:
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        text = archive.read("config.json").decode()
    return json.loads(re.sub(r', "shared_object_id": \d+', "", text))


def test_the_file_of_a_stock_copy_says_what_keras_own_says(tmp_path):
    configs = []
    for module in (keras.layers, drop_ins):
        keras.utils.clear_session()
        model = make_model(module)
        if module is drop_ins:
            model = crnn.to_stock(model)
        configs.append(config_of(model, tmp_path / "m.keras"))
    assert configs[0] == configs[1]


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_keras_own_file_stays_keras_own(tmp_path, suffix):
    make_model(keras.layers).save(tmp_path / f"m.{suffix}")
    loaded = keras.saving.load_model(tmp_path / f"m.{suffix}", compile=False)
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


class Users:
    """Classes of a user's, with the names of Keras's."""

    class LSTM(keras.layers.LSTM):
        pass

    class GRU(keras.layers.GRU):
        pass

    class SimpleRNN(keras.layers.SimpleRNN):
        pass

    class Bidirectional(keras.layers.Bidirectional):
        pass


def make_one(module: Any, name: str) -> Any:
    if name == "Bidirectional":
        return module.Bidirectional(keras.layers.GRU(3))
    return getattr(module, name)(3)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_of_a_users_wins(tmp_path, name):
    kind = getattr(Users, name)
    custom = {name: kind}
    model = keras.Sequential([keras.Input((6, 3)), make_one(Users, name)])
    for suffix in ("keras", "h5"):
        model.save(tmp_path / f"m.{suffix}")
        loaded = keras.saving.load_model(tmp_path / f"m.{suffix}", custom_objects=custom)
        assert type(loaded.layers[0]) is kind
    again = keras.models.model_from_json(model.to_json(), custom_objects=custom)
    assert type(again.layers[0]) is kind
    again = keras.Sequential.from_config(model.get_config(), custom_objects=custom)
    assert type(again.layers[0]) is kind
    # The usual way to load a file of Keras 2 is to name a class for its layers.
    stock = keras.Sequential([keras.Input((6, 3)), make_one(keras.layers, name)])
    stock.save(tmp_path / "stock.h5")
    loaded = keras.saving.load_model(tmp_path / "stock.h5", custom_objects=custom)
    assert type(loaded.layers[0]) is kind
    if name != "Bidirectional":
        with keras.saving.custom_object_scope(custom):
            for wrapper in (keras.layers, drop_ins):
                wrapped = wrapper.Bidirectional(kind(3))
                assert type(wrapped.forward_layer) is type(wrapped.backward_layer) is kind


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("name", NAMES)
def test_copies_of_layers_within_layers_stay_fused(name, tmp_path):
    inner = keras.Sequential([keras.Input((4, 3)), make_one(drop_ins, name)])
    model = keras.Sequential([keras.Input((6, 4, 3)), keras.layers.TimeDistributed(inner)])
    inputs = np.random.default_rng(0).standard_normal((2, 6, 4, 3)).astype("float32")
    expected = model(inputs)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    for same in (loaded, copy.deepcopy(model), pickled(model)):
        assert type(same.layers[0].layer.layers[0]) is getattr(drop_ins, name)
        np.testing.assert_array_equal(same(inputs), expected)
    clone = keras.models.clone_model(model)
    assert type(clone.layers[0].layer.layers[0]) is getattr(drop_ins, name)
    if name == "Bidirectional":
        return
    # A wrapper's constructor copies the layer that it wraps, by its config.
    for module in (keras.layers, drop_ins):
        wrapper = module.Bidirectional(make_one(drop_ins, name))
        wrapper.build((None, 6, 3))
        for same in (wrapper, copy.deepcopy(wrapper), pickled(wrapper)):
            assert type(same) is module.Bidirectional
            assert is_drop_in(same.forward_layer) and is_drop_in(same.backward_layer)
            np.testing.assert_array_equal(same(data()), wrapper(data()))


@pytest.mark.parametrize("name", [*NAMES, "Stack"])
def test_pickles_and_sources(name):
    kind = getattr(drop_ins, name)
    assert pickled(kind) is kind
    assert kind.__module__.startswith("cudnn_rnn_tf.keras.")
    assert inspect.getsource(kind).startswith("@keras.saving.register_keras_serializable")
    assert f"class {name}(" in inspect.getsource(kind)
    if name == "Stack":
        layer = kind([drop_ins.LSTM(3, return_sequences=True), drop_ins.LSTM(3)])
    else:
        layer = make_one(drop_ins, name)
    layer.build((None, 6, 3))
    again = pickled({"layer": layer})["layer"]
    assert type(again) is kind
    np.testing.assert_array_equal(again(data()), layer(data()))


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
