"""Programs with Keras, of which imports alone are changed: each step has the loss of Keras's own.

Each makes a model of the layers in a module, and says which inputs and targets it learns from.
"""

import types
from typing import Any

import keras
import numpy as np
import pytest

from cudnn_rnn_tf import keras as drop_ins

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 7, (8, 6))
SERIES = RANDOM.standard_normal((8, 6, 3)).astype("float32")
STOCK: Any = types.SimpleNamespace(**vars(keras.layers))
# Keras 3 has no layers of these names, but says what to write instead.
STOCK.CuDNNLSTM, STOCK.CuDNNGRU = keras.layers.LSTM, keras.layers.GRU
CHANGED: Any = types.SimpleNamespace(**{**vars(keras.layers), **vars(drop_ins)})


def translator(layers: Any) -> Any:
    """The decoder begins with the states of an encoder, and looks at all of its outputs."""
    source, target = keras.Input((6,)), keras.Input((6,))
    read = layers.Embedding(7, 4, mask_zero=True)(source)
    encoded, *states = layers.LSTM(5, return_sequences=True, return_state=True)(read)
    written = layers.Embedding(7, 4)(target)
    decoded = layers.LSTM(5, return_sequences=True)(written, initial_state=states)
    attended = layers.Attention()([decoded, encoded])
    logits = layers.Dense(7)(layers.Concatenate()([decoded, attended]))
    return keras.Model([source, target], logits), [TOKENS, TOKENS[::-1]], TOKENS


def critic(layers: Any) -> Any:
    """Reviews with padding in front, and dropout of what layers read."""
    model = keras.Sequential([keras.Input((6,)), layers.Embedding(7, 4, mask_zero=True)])
    model.add(layers.Bidirectional(layers.GRU(4, return_sequences=True, dropout=0.3, seed=1)))
    model.add(layers.Bidirectional(layers.GRU(3, dropout=0.3, seed=2), merge_mode="sum"))
    model.add(layers.Dense(7))
    padded = np.where(np.arange(6) < TOKENS[:, :1], 0, TOKENS)
    return model, padded, TOKENS[:, 0]


def composer(layers: Any) -> Any:
    """Layers with the names of Keras 2, whose states go on from batch to batch."""
    model = keras.Sequential([keras.Input(batch_shape=(8, 6, 3))])
    model.add(layers.CuDNNLSTM(5, return_sequences=True, stateful=True))
    model.add(layers.CuDNNGRU(5, return_sequences=True, go_backwards=True))
    model.add(layers.Dense(7))
    return model, SERIES, TOKENS


def pointer(layers: Any) -> Any:
    """A layer and a model of classes of their own."""

    class Gated(layers.LSTM):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            super().build(shape)
            self.gate = self.add_weight(shape=(self.units,), name="gate")

        def call(self, sequences: Any, **options: Any) -> Any:
            return super().call(sequences, **options) * keras.ops.sigmoid(self.gate)

    class Pointer(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.below = layers.SimpleRNN(4, return_sequences=True, activation="relu")
            self.gated = Gated(5, return_sequences=True)
            self.head = layers.Dense(7)

        def call(self, inputs: Any, training: Any = None) -> Any:
            return self.head(self.gated(self.below(inputs), training=training))

    model = Pointer()
    model(SERIES)
    return model, SERIES, TOKENS


@pytest.mark.parametrize("program", [translator, critic, composer, pointer])
def test_programs_learn_as_with_keras(program):
    (stock, inputs, targets), (model, *_) = program(STOCK), program(CHANGED)
    model.set_weights(stock.get_weights())
    for each in (stock, model):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile(keras.optimizers.Adam(0.02), loss, run_eagerly=each is stock)
    losses = [[each.train_on_batch(inputs, targets) for each in (stock, model)] for _ in range(3)]
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-5)
    assert losses[-1][0] < losses[0][0]
    parts = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)]
    assert parts and all(layer.runs_fused for layer in parts)
