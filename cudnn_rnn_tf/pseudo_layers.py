"""Splits the buffer into pseudo-layers, each one direction of one layer, and joins them again."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

# Others' orders of gates: for each place there, the gate's in cuDNN's order, i f c o or r z h.
GRU_OF_KERAS = (1, 0, 2)  # z r h, ONNX's as well
LSTM_OF_TENSORFLOW_1 = (0, 2, 1, 3)  # i c f o, Keras 1's as well
LSTM_OF_ONNX = (0, 3, 1, 2)  # i o f c


class PseudoLayer(NamedTuple):
    """One direction of one layer, each side's gates stacked in cuDNN's order.

    Attributes:
        kernel: the input side, [G * H, fan_in]; None for a first layer in skip_input mode.
        recurrent_kernel: the recurrent side, [G * H, P].
        bias: of the input side, [G * H]; None for none.
        recurrent_bias: of the recurrent side, [G * H]; None for none.
        projection: [P, H]; None for none.
        vectors: those of a cell that has some, such as a peephole LSTM's of the input, the forget
            and the output gate, [3, H]; None for none.
    """

    kernel: Any
    recurrent_kernel: Any
    bias: Any = None
    recurrent_bias: Any = None
    projection: Any = None
    vectors: Any = None


def _pseudo_layers(config: RnnConfig, tensors: Iterable[Any]) -> list[PseudoLayer]:
    """Returns the pseudo-layers that have these tensors, which are in the buffer's order."""
    found = [PseudoLayer(None, None)] * (config.num_layers * config.layout.num_dirs)
    places = config.layout.pseudo_layer_tensors
    for (index, field, _), tensor in zip(places, tensors, strict=True):
        found[index] = found[index]._replace(**{field: tensor})
    return found


def shapes(config: RnnConfig) -> list[PseudoLayer]:
    """Returns the shapes of each pseudo-layer's tensors; None for tensors that it does not have."""
    return _pseudo_layers(config, [shape for *_, shape in config.layout.pseudo_layer_tensors])


def cut(config: RnnConfig, params: tf.Tensor) -> list[PseudoLayer]:
    """Returns the pseudo-layers that a buffer [params_size] holds."""
    of_all = [shape for *_, shape in config.layout.pseudo_layer_tensors]
    pieces = tf.split(params, list(map(math.prod, of_all)))
    return _pseudo_layers(config, map(tf.reshape, pieces, of_all))


def cut_array(config: RnnConfig, params: np.ndarray) -> list[PseudoLayer]:
    """Returns the pseudo-layers of a buffer, as `cut` does, where TensorFlow makes a graph."""
    of_all = [shape for *_, shape in config.layout.pseudo_layer_tensors]
    pieces = np.split(params, np.cumsum(list(map(math.prod, of_all)))[:-1])
    return _pseudo_layers(config, map(np.reshape, pieces, of_all))


def join(config: RnnConfig, pseudo_layers: Sequence[PseudoLayer]) -> tf.Tensor:
    """Returns the buffer that holds the pseudo-layers: the inverse of `cut`.

    Raises:
        ValueError: if a tensor's static shape is not the network's; it is named.
    """
    parts = []
    for index, field, shape in config.layout.pseudo_layer_tensors:
        layer, direction = divmod(index, config.layout.num_dirs)
        name = f"layer_{layer}_{'backward' if direction else 'forward'}_{field}"
        part = tf.convert_to_tensor(getattr(pseudo_layers[index], field))
        ops.check_shape(name, part, shape)
        parts.append(tf.reshape(part, [-1]))
    return tf.concat(parts, axis=0)


def both_biases(pseudo_layer: PseudoLayer) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the biases of both sides, with zeros for a missing one; None if both are missing."""
    bias, recurrent_bias = pseudo_layer.bias, pseudo_layer.recurrent_bias
    if bias is None and recurrent_bias is None:
        return None
    zeros = np.zeros_like(pseudo_layer.kernel[:, 0])
    return zeros if bias is None else bias, zeros if recurrent_bias is None else recurrent_bias


def reorder(stacked: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Returns stacked gates [G * H, …] in another order: gate i is the old gate `order[i]`."""
    gates = np.split(stacked, len(order))
    return np.concatenate([gates[gate] for gate in order])
