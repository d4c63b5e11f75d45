"""What layers tell Keras of XLA, and what happens without the library for it."""

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_xla import draw, on_cpus_only, pytestmark  # noqa: F401

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf import xla
from cudnn_rnn_tf.ops import op_library


@on_cpus_only
def test_the_default_compiles_nothing(monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda *_: [tf.config.PhysicalDevice("GPU:0", "GPU")]
    )
    stock = keras.Sequential([keras.Input((5, 3)), keras.layers.Dense(4)])
    stock.compile("sgd", "mse")
    assert stock.jit_compile
    model = keras.Sequential([stock, crnn.CudnnLSTM(1, 4)])
    model.compile("sgd", "mse")
    assert not model.jit_compile
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile


# Without the library.


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(op_library, "no_xla", "it was built without XLA")
    xla._can_compile.cache_clear()
    yield
    xla._can_compile.cache_clear()


@pytest.mark.usefixtures("without_library")
def test_without_the_library_models_run_as_before(caplog):
    caplog.set_level("INFO", logger="cudnn_rnn_tf")
    model = keras.Sequential([keras.Input((3, 2)), crnn.CudnnGRU(1, 4), drop_ins.LSTM(3)])
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile
    model.fit(draw(2, 3, 2), draw(2, 3), verbose=0)
    told = [record for record in caplog.records if "it was built without XLA" in record.message]
    assert len(told) == 1
    assert crnn.info()["backends"]["xla"] == "not available: it was built without XLA"


@on_cpus_only
def test_layers_that_run_as_keras_runs_them_are_compiled_as_keras_compiles_them():
    assert drop_ins.LSTM(3, use_cudnn=False).supports_jit
    layer = drop_ins.LSTM(3)
    assert layer.supports_jit
    layer.supports_jit = False
    assert not layer.supports_jit


class DerivedLSTM(drop_ins.LSTM):
    def __init__(self, units: int, *, supports_jit: bool | None = None, **options: Any):
        super().__init__(units, **options)
        if supports_jit is not None:
            self.supports_jit = supports_jit


UNFIT_FOR_KERAS = {
    "LSTM": lambda: drop_ins.LSTM(3),
    "GRU": lambda: drop_ins.GRU(3),
    "SimpleRNN": lambda: drop_ins.SimpleRNN(3),
    "derived": lambda: DerivedLSTM(3),
    "bidirectional": lambda: drop_ins.Bidirectional(drop_ins.GRU(3)),
    "stack": lambda: drop_ins.Stack([drop_ins.LSTM(3, return_sequences=True), drop_ins.LSTM(3)]),
    "config": lambda: drop_ins.LSTM.from_config(drop_ins.LSTM(3).get_config()),
    "accelerated": lambda: crnn.accelerate(
        keras.Sequential([keras.Input((5, 2)), keras.layers.Bidirectional(keras.layers.LSTM(3))])
    ),
    "opaque": lambda: crnn.CudnnLSTM(1, 3, return_sequences=False),
}


@on_cpus_only
@pytest.mark.parametrize("make", UNFIT_FOR_KERAS.values(), ids=UNFIT_FOR_KERAS)
def test_keras_does_not_speak_for_its_own_op_on_a_gpu(make, monkeypatch, tmp_path):
    """Where Keras's op could run a layer, its constructor calls the layer unfit for XLA."""
    devices = tf.config.list_logical_devices
    gpu = tf.config.LogicalDevice("GPU:0", "GPU")

    def models() -> dict[str, keras.Model]:
        # Keras asks which devices there are when a layer is made.
        with monkeypatch.context() as patch:
            patch.setattr(
                tf.config,
                "list_logical_devices",
                lambda kind=None: [gpu] if kind == "GPU" else devices(kind),
            )
            assert not keras.layers.LSTM(3).supports_jit
            made = keras.Sequential([keras.Input((5, 2)), make()])
            made.save(tmp_path / "model.keras")
            custom = {"DerivedLSTM": DerivedLSTM}
            return {
                "made": made,
                "loaded": keras.models.load_model(tmp_path / "model.keras", custom_objects=custom),
                "cloned": keras.models.clone_model(made),
            }

    for how, model in models().items():
        model.compile("sgd", "mse", jit_compile=True)
        assert model.jit_compile, how
    expected = model(draw(2, 5, 2))
    np.testing.assert_allclose(model.predict(draw(2, 5, 2), verbose=0), expected, atol=1e-6)
    model.fit(draw(2, 5, 2), tf.zeros_like(expected), verbose=0)


def test_a_derived_layer_speaks_for_itself():
    assert DerivedLSTM(3).supports_jit
    assert not DerivedLSTM(3, supports_jit=False).supports_jit


@pytest.mark.parametrize("class_name", ["LSTM", "GRU", "SimpleRNN"])
def test_constructors_have_the_signatures_of_keras(class_name):
    ours, stock = (getattr(module, class_name) for module in (drop_ins, keras.layers))
    assert inspect.signature(ours) == inspect.signature(stock)
    assert inspect.getfullargspec(ours.__init__) == inspect.getfullargspec(stock.__init__)


@pytest.mark.parametrize(
    "make",
    [
        lambda: drop_ins.SimpleRNN(3),
        lambda: drop_ins.Bidirectional(drop_ins.GRU(3)),
        lambda: crnn.CudnnLSTM(1, 3),
    ],
)
def test_a_layer_may_be_a_function(make):
    """A class shows what its constructor takes; its layers have another signature."""
    layer = make()
    assert "args" not in inspect.signature(type(layer)).parameters
    x = tf.ones((2, 4, 5))
    np.testing.assert_array_equal(tf.function(layer)(x), layer(x))
