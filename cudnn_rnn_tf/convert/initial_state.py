"""A layer of Keras's that holds what a network starts from."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class InitialState(keras.layers.Layer):
    """Holds the states that each sequence starts from, as weights, which training changes.

    It is called on a network's inputs [B, T, I] and returns a list of the states [B, L * D, H],
    which are the network's `initial_state`.

    Args:
        shapes: of the states, h's and an LSTM's c's: [1, L * D, H], or with the batch size in place
            of 1 where each sequence of a batch starts from another state.
        **kwargs: to `keras.layers.Layer`.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], **kwargs: Any):
        super().__init__(**kwargs)
        self._shapes = [tuple(shape) for shape in shapes]

    def build(self, input_shape: Sequence[int | None]) -> None:
        self._states = [
            self.add_weight(name=name, shape=shape, initializer="zeros")
            for name, shape in zip(("h", "c"), self._shapes, strict=False)
        ]

    def call(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        batch_size = tf.shape(inputs)[0]
        return [
            tf.broadcast_to(state, (batch_size, *state.shape[1:]))
            for state in map(tf.convert_to_tensor, self._states)
        ]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shapes": self._shapes}
