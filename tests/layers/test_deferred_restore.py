"""Tests that layers which are built after `tf.train.Checkpoint.restore` get what it has read."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

MAKERS: dict[str, Callable[[], keras.layers.Layer]] = {
    "CudnnLSTM": lambda: crnn.CudnnLSTM(2, 4, direction="bidirectional", dropout=0.5),
    "CudnnGRU": lambda: crnn.CudnnGRU(1, 4),
    "CudnnRNNTanh": lambda: crnn.CudnnRNNTanh(1, 4),
    "CudnnRNNRelu": lambda: crnn.CudnnRNNRelu(1, 4, bias_mode="none"),
    "LSTM": lambda: drop_ins.LSTM(4),
    "GRU": lambda: drop_ins.GRU(4),
    "SimpleRNN": lambda: drop_ins.SimpleRNN(4),
    "Bidirectional": lambda: drop_ins.Bidirectional(drop_ins.GRU(4)),
    "Stack": lambda: drop_ins.Stack([drop_ins.LSTM(4, return_sequences=True), drop_ins.LSTM(4)]),
}
INPUTS = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)


class Module(tf.Module):
    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer


class Model(keras.Model):
    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


class LateModel(Model):
    """A model whose layer is built while it runs, within its autocast scope."""

    def __init__(self, layer: Any):
        super().__init__(layer)
        self.dtype_policy = "mixed_float16"

    def build(self, input_shape):
        pass


# A model builds layers where Keras's own variables, unlike the buffer, cannot be restored.
OWNERS = {Module: ("CudnnLSTM", "Stack"), Model: ("CudnnLSTM",), LateModel: ("CudnnLSTM",)}
CASES = [
    (name, owner, first_call)
    for owner, names in {(lambda layer: layer): MAKERS, **OWNERS}.items()
    for name in names
    for first_call in ("eager", "function", "none")
] + [("Stack", owner, "none") for owner in (Model, LateModel)]


@pytest.mark.parametrize(("name", "owner", "first_call"), CASES)
def test_outputs_after_a_restore(tmp_path, name, owner, first_call):
    source = MAKERS[name]()
    owned = owner(source)
    expected = (source if owner is Module else owned)(INPUTS)
    path = tf.train.Checkpoint(owner=owned).save(tmp_path / "checkpoint")
    layer = MAKERS[name]()
    owned = owner(layer)
    call = layer if owner is Module else owned
    if first_call == "none":
        layer.build(INPUTS.shape)
    status = tf.train.Checkpoint(owner=owned).restore(path)
    if first_call == "function":
        call = tf.function(call)
    np.testing.assert_array_equal(call(tf.constant(INPUTS)), expected)
    status.assert_consumed()


def test_a_checkpoint_of_an_accelerated_model(tmp_path):
    def make() -> keras.Model:
        layers = [keras.layers.LSTM(4, return_sequences=True), keras.layers.LSTM(4)]
        return crnn.accelerate(keras.Sequential([keras.Input((5, 3)), *layers]))

    source, target = make(), make()
    path = tf.train.Checkpoint(model=source).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=target).restore(path).assert_consumed()
    np.testing.assert_array_equal(target(INPUTS), source(INPUTS))
