"""Converts an opaque buffer to the tensors of `tf.contrib.cudnn_rnn`'s checkpoints, and back.

There is one set of tensors per pseudo-layer. Names and layouts are those of the cell that computes
the same step by step:

* LSTM: `kernel` [fan_in + H, 4 H], the input side above the recurrent side, gates in the order
  i, c, f, o; `bias` [4 H], the two bias sets summed.
* GRU: `gates/kernel` [fan_in + H, 2 H] and `gates/bias` [2 H] for r, z, summed likewise;
  `candidate/input_projection/{kernel,bias}` and `candidate/hidden_projection/{kernel,bias}`.
* RNN: `kernel` [fan_in + H, H], `bias` [H].

When a sum of biases is converted back, each side gets one half. An optimizer's slot holds a number
for each weight: if the cell has one bias for two, the slot's tensor holds the mean of both numbers,
and each side gets this mean back.
"""

from collections.abc import Mapping

import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.contrib.format_converters import converter_of

# The names of contrib's step-by-step cells.
CELL_NAMES = {
    constants.CUDNN_LSTM: "cudnn_compatible_lstm_cell",
    constants.CUDNN_GRU: "cudnn_compatible_gru_cell",
    constants.CUDNN_RNN_TANH: "basic_rnn_cell",
    constants.CUDNN_RNN_RELU: "basic_rnn_cell",
}


def cell_scope(cell_name: str, direction: str, layer: int, is_fwd: bool) -> str:
    """Returns the variable scope of a cell, which its tensors' names begin with.

    Args:
        cell_name: one of `CELL_NAMES`, or what a program calls its cells.
        direction: the network's.
        layer: the layer that the cell computes.
        is_fwd: whether it computes the layer's forward direction.
    """
    if direction == constants.CUDNN_RNN_UNIDIRECTION:
        return f"rnn/multi_rnn_cell/cell_{layer}/{cell_name}"
    side = "fw" if is_fwd else "bw"
    return f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{side}/{cell_name}"


def _check(config: RnnConfig) -> None:
    if config.rnn_mode not in CELL_NAMES:
        raise ValueError(
            f"contrib's checkpoint format knows rnn_mode {', '.join(map(repr, CELL_NAMES))}, but "
            f"received {config.rnn_mode!r}"
        )
    if config.bias_mode != "double" or config.num_proj:
        raise ValueError(
            "contrib's checkpoint format knows bias_mode 'double' without projection only, but "
            f"received bias_mode {config.bias_mode!r} and num_proj {config.num_proj}"
        )


def tensor_shapes(config: RnnConfig, scope: str = "") -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the tensors of contrib's checkpoints.

    They are in the order of the converters: all weights, then all biases.

    Raises:
        ValueError: if contrib's format has no place for such a network.
    """
    _check(config)
    converter = converter_of(config)
    outer = f"{scope}/" if scope else ""
    weights: dict[str, tuple[int, ...]] = {}
    biases: dict[str, tuple[int, ...]] = {}
    for index, fan_in in enumerate(converter._fan_ins()):
        layer, side = divmod(index, config.layout.num_dirs)
        cell = outer + cell_scope(CELL_NAMES[config.rnn_mode], config.direction, layer, side == 0)
        of_weights, of_biases = converter._weight_shapes(fan_in), converter._bias_shapes()
        weights |= {f"{cell}/{name}": shape for name, shape in of_weights.items()}
        biases |= {f"{cell}/{name}": shape for name, shape in of_biases.items()}
    return weights | biases


def from_params(config: RnnConfig, params: tf.Tensor, scope: str = "") -> dict[str, tf.Tensor]:
    """Converts an opaque buffer [params_size] to the tensors of contrib's checkpoints, by name.

    Raises:
        ValueError: if contrib's format has no place for such a network.
    """
    weights, biases = converter_of(config).opaque_to_tf_canonical(params)
    return dict(zip(tensor_shapes(config, scope), weights + biases, strict=True))


def to_params(config: RnnConfig, tensors: Mapping[str, tf.Tensor], scope: str = "") -> tf.Tensor:
    """Converts the tensors of contrib's checkpoints to the opaque buffer; inverts `from_params`.

    Raises:
        ValueError: if contrib's format has no place for such a network, or a tensor is missing or
            its static shape does not fit; the tensor is named.
        tf.errors.InvalidArgumentError: likewise for a shape that is known when run only.
    """
    canonical = checked(tensor_shapes(config, scope), tensors)
    return converter_of(config).tf_canonical_to_opaque(canonical)


def checked(
    shapes: Mapping[str, tuple[int, ...] | None], tensors: Mapping[str, tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the tensors of these names and checks their shapes; a shape of None fits any tensor.

    Raises:
        ValueError: if one is missing or its static shape is another; it is named.
        tf.errors.InvalidArgumentError: likewise for a shape that is known when run only.
    """
    found = []
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(f"expected a tensor {name}, but there is none")
        tensor = tf.convert_to_tensor(tensors[name])
        if shape is not None:
            ops.check_shape(name, tensor, shape)
        if shape is not None and not tensor.shape.is_fully_defined():
            check = tf.debugging.assert_equal(
                tf.shape(tensor), shape, message=f"expected {name} of shape {shape}"
            )
            with tf.control_dependencies([check]):
                tensor = tf.identity(tensor)
        found.append(tensor)
    return found
