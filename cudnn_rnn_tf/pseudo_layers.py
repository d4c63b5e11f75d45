"""Splits the buffer into pseudo-layers, each one direction of one layer, and joins them again."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

# For each bias mode: whether there are biases on the input side, and on the recurrent side.
SIDES_WITH_BIAS = {
    "none": (False, False),
    "single_input": (True, False),
    "single_recurrent": (False, True),
    "double": (True, True),
}


class PseudoLayer(NamedTuple):
    """One direction of one layer, each side's gates stacked in cuDNN's order.

    Attributes:
        kernel: the input side, [G * H, fan_in]; None for a first layer in skip_input mode.
        recurrent_kernel: the recurrent side, [G * H, P].
        bias: of the input side, [G * H]; None for none.
        recurrent_bias: of the recurrent side, [G * H]; None for none.
        projection: [P, H]; None for none.
    """

    kernel: Any
    recurrent_kernel: Any
    bias: Any = None
    recurrent_bias: Any = None
    projection: Any = None


def shapes(config: RnnConfig) -> list[PseudoLayer]:
    """Returns the shapes of each pseudo-layer's tensors; None for tensors that it does not have."""
    layout = config.layout
    rows, size = layout.num_gates * config.num_units, layout.output_size
    has_bias, has_recurrent_bias = SIDES_WITH_BIAS[config.bias_mode]
    result = []
    for layer in range(config.num_layers):
        fan_in = layout.num_dirs * size if layer else config.input_size
        has_kernel = layer > 0 or config.input_mode != "skip_input"
        result += [
            PseudoLayer(
                kernel=(rows, fan_in) if has_kernel else None,
                recurrent_kernel=(rows, size),
                bias=(rows,) if has_bias else None,
                recurrent_bias=(rows,) if has_recurrent_bias else None,
                projection=(size, config.num_units) if config.num_proj else None,
            )
        ] * layout.num_dirs
    return result


def _places(config: RnnConfig) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Yields a pseudo-layer's index, field and shape for each tensor, in the buffer's order."""
    of_all = shapes(config)
    for fields in (("kernel", "recurrent_kernel", "projection"), ("bias", "recurrent_bias")):
        for index, of_one in enumerate(of_all):
            for field in fields:
                shape = getattr(of_one, field)
                if shape is not None:
                    yield index, field, shape


def cut(config: RnnConfig, params: tf.Tensor) -> list[PseudoLayer]:
    """Returns the pseudo-layers that a buffer [params_size] holds."""
    places = list(_places(config))
    pieces = tf.split(params, [math.prod(shape) for *_, shape in places])
    found: list[dict[str, Any]] = [
        dict.fromkeys(PseudoLayer._fields)
        for _ in range(config.num_layers * config.layout.num_dirs)
    ]
    for (index, field, shape), piece in zip(places, pieces, strict=True):
        found[index][field] = tf.reshape(piece, shape)
    return [PseudoLayer(**fields) for fields in found]


def join(config: RnnConfig, pseudo_layers: Sequence[PseudoLayer]) -> tf.Tensor:
    """Returns the buffer that holds the pseudo-layers: the inverse of `cut`.

    Raises:
        ValueError: if a tensor's static shape is not the network's; it is named.
    """
    parts = []
    for index, field, shape in _places(config):
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
