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

from collections.abc import Iterator, Mapping

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.format_converters import converter_of

_CELL_NAMES = {
    "lstm": "cudnn_compatible_lstm_cell",
    "gru": "cudnn_compatible_gru_cell",
    "rnn_tanh": "basic_rnn_cell",
    "rnn_relu": "basic_rnn_cell",
}
# The name's prefix of the kernel that joins both sides, and the number of gates in it.
_JOINED = {"lstm": ("", 4), "gru": ("gates/", 2), "rnn_tanh": ("", 1), "rnn_relu": ("", 1)}


def _pseudo_layers(config: RnnConfig, scope: str) -> Iterator[tuple[str, int]]:
    """Yields each pseudo-layer's variable scope, and how many inputs it has a matrix for."""
    cell = _CELL_NAMES[config.rnn_mode]
    outer = f"{scope}/" if scope else ""
    for layer in range(config.num_layers):
        fan_in = config.layout.num_dirs * config.num_units
        if layer == 0:
            fan_in = 0 if config.input_mode == "skip_input" else config.input_size
        if config.direction == "unidirectional":
            yield f"{outer}rnn/multi_rnn_cell/cell_{layer}/{cell}", fan_in
            continue
        for side in ("fw", "bw"):
            inner = f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{side}/{cell}"
            yield outer + inner, fan_in


def _check(config: RnnConfig) -> None:
    if config.bias_mode != "double" or config.num_proj:
        raise ValueError(
            "contrib's checkpoint format knows bias_mode 'double' without projection only, but "
            f"received bias_mode {config.bias_mode!r} and num_proj {config.num_proj}"
        )


def tensor_shapes(config: RnnConfig, scope: str = "") -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the tensors of contrib's checkpoints.

    Raises:
        ValueError: if contrib's format has no place for such a network.
    """
    _check(config)
    units = config.num_units
    part, gates = _JOINED[config.rnn_mode]
    shapes: dict[str, tuple[int, ...]] = {}
    for cell, fan_in in _pseudo_layers(config, scope):
        shapes[f"{cell}/{part}kernel"] = (fan_in + units, gates * units)
        shapes[f"{cell}/{part}bias"] = (gates * units,)
        if config.rnn_mode == "gru":
            candidate = f"{cell}/candidate"
            if fan_in:
                shapes[f"{candidate}/input_projection/kernel"] = (fan_in, units)
            shapes[f"{candidate}/input_projection/bias"] = (units,)
            shapes[f"{candidate}/hidden_projection/kernel"] = (units, units)
            shapes[f"{candidate}/hidden_projection/bias"] = (units,)
    return shapes


def from_params(config: RnnConfig, params: tf.Tensor, scope: str = "") -> dict[str, tf.Tensor]:
    """Converts an opaque buffer [params_size] to the tensors of contrib's checkpoints, by name.

    Raises:
        ValueError: if contrib's format has no place for such a network.
    """
    weights, biases = converter_of(config).opaque_to_tf_canonical(params)
    return dict(zip(ordered(tensor_shapes(config, scope)), weights + biases, strict=True))


def to_params(config: RnnConfig, tensors: Mapping[str, tf.Tensor], scope: str = "") -> tf.Tensor:
    """Converts the tensors of contrib's checkpoints to the opaque buffer; inverts `from_params`.

    Raises:
        ValueError: if contrib's format has no place for such a network, or a tensor is missing or
            its static shape does not fit; the tensor is named.
        tf.errors.InvalidArgumentError: likewise for a shape that is known when run only.
    """
    shapes = ordered(tensor_shapes(config, scope))
    return converter_of(config).tf_canonical_to_opaque(checked(shapes, tensors))


def ordered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns `tensor_shapes` in the order of the converters: all weights, then all biases."""
    return dict(sorted(shapes.items(), key=lambda item: len(item[1]), reverse=True))


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
