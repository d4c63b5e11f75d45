"""Converts the weights of one direction of Keras's recurrent layers to pseudo-layers and back.

Keras holds per layer and direction a kernel [fan_in, G * H], a recurrent kernel [H, G * H], and a
bias. The bias is [G * H], for both sides together; that of a GRU with `reset_after` is [2, 3 * H],
with the input side's first. An LSTM's gates are in cuDNN's order i f c o, a GRU's in the order
z r h.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.pseudo_layers import GRU_OF_KERAS, PseudoLayer, both_biases, reorder

_GRUS = (constants.CUDNN_GRU, constants.GRU_RESET_BEFORE)


def from_keras_weights(
    rnn_mode: str, kernel: Any, recurrent_kernel: Any, bias: Any = None
) -> PseudoLayer:
    """Returns a pseudo-layer of tensors, such that gradients reach the weights.

    It uses TensorFlow's own operations, for portable SavedModels, which cannot have this package's.
    """

    def stacked(weight: Any) -> tf.Tensor:
        weight = tf.transpose(weight)
        if rnn_mode in _GRUS:
            gates = tf.split(weight, 3)
            weight = tf.concat([gates[gate] for gate in GRU_OF_KERAS], axis=0)
        return weight

    biases: list[Any] = []
    if bias is not None:
        biases = tf.unstack(bias) if rnn_mode == constants.CUDNN_GRU else [bias]
    return PseudoLayer(*map(stacked, (kernel, recurrent_kernel, *biases)))


def to_keras_weights(rnn_mode: str, pseudo_layer: PseudoLayer) -> list[np.ndarray]:
    """Returns the weights for a pseudo-layer of arrays, without a bias if it has none.

    Biases of the two sides are summed, unless it is a GRU with `reset_after`.
    """

    def unstacked(tensor: np.ndarray) -> np.ndarray:
        return (reorder(tensor, GRU_OF_KERAS) if rnn_mode in _GRUS else tensor).T

    weights = [unstacked(pseudo_layer.kernel), unstacked(pseudo_layer.recurrent_kernel)]
    biases = both_biases(pseudo_layer)
    if biases:
        sides = [unstacked(bias) for bias in biases]
        weights.append(np.stack(sides) if rnn_mode == constants.CUDNN_GRU else sides[0] + sides[1])
    return weights
