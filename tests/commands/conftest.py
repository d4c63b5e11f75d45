"""A model with recurrent layers of three kinds, and a file of it."""

import keras
import pytest

import cudnn_rnn_tf as crnn


@pytest.fixture
def model():
    inputs = keras.Input((None, 5))
    x = crnn.CudnnLSTM(2, 4, direction="bidirectional", name="ours")(inputs)
    x = keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True), name="both")(x)
    inner = keras.Sequential([keras.Input((None, 6)), keras.layers.SimpleRNN(7, name="plain")])
    inner.name = "inner"
    return keras.Model(inputs, keras.layers.Dense(1)(inner(x)))


@pytest.fixture
def file(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras"
