"""The tensors that `tf.contrib.cudnn_rnn` wrote into checkpoints, and back.

One set per pseudo-layer, named and laid out as the cell that computes the same step by step:

* LSTM: `kernel` [fan_in + H, 4 H], the input side above the recurrent side, gates in the order
  i, c, f, o; `bias` [4 H], the two bias sets summed.
* GRU: `gates/kernel` [fan_in + H, 2 H] and `gates/bias` [2 H] for r, z, summed likewise;
  `candidate/input_projection/{kernel,bias}` and `candidate/hidden_projection/{kernel,bias}`.
* RNN: `kernel` [fan_in + H, H], `bias` [H].

A sum of biases goes back as one half for each side. An optimizer's slot holds what the optimizer
knows of each weight: where the cell has one bias for two, their mean, which goes back as it is.
"""

from collections.abc import Iterator, Mapping

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

_CELL_NAMES = {
    "lstm": "cudnn_compatible_lstm_cell",
    "gru": "cudnn_compatible_gru_cell",
    "rnn_tanh": "basic_rnn_cell",
    "rnn_relu": "basic_rnn_cell",
}
# Where the kernel that joins both sides stands, and which gates, by cuDNN's numbers, are in it.
_JOINED = {
    "lstm": ("", (0, 2, 1, 3)),
    "gru": ("gates/", (0, 1)),
    "rnn_tanh": ("", (0,)),
    "rnn_relu": ("", (0,)),
}
_GRU_CANDIDATE = 2


def _pseudo_layers(config: RnnConfig, scope: str) -> Iterator[tuple[str, int]]:
    """Each pseudo-layer's variable scope, and how many inputs it has a matrix for."""
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
    """The names and shapes of the tensors of contrib's checkpoints.

    Raises:
        ValueError: if contrib's format has no place for such a network.
    """
    _check(config)
    units = config.num_units
    part, order = _JOINED[config.rnn_mode]
    shapes: dict[str, tuple[int, ...]] = {}
    for cell, fan_in in _pseudo_layers(config, scope):
        shapes[f"{cell}/{part}kernel"] = (fan_in + units, len(order) * units)
        shapes[f"{cell}/{part}bias"] = (len(order) * units,)
        if config.rnn_mode == "gru":
            candidate = f"{cell}/candidate"
            if fan_in:
                shapes[f"{candidate}/input_projection/kernel"] = (fan_in, units)
            shapes[f"{candidate}/input_projection/bias"] = (units,)
            shapes[f"{candidate}/hidden_projection/kernel"] = (units, units)
            shapes[f"{candidate}/hidden_projection/bias"] = (units,)
    return shapes


def from_params(
    config: RnnConfig, params: tf.Tensor, scope: str = "", is_slot: bool = False
) -> dict[str, tf.Tensor]:
    """The tensors of contrib's checkpoints by name, from an opaque buffer.

    Args:
        config: the network.
        params: the opaque buffer, [params_size].
        scope: what stands before the names, without its slash.
        is_slot: whether the buffer is an optimizer's slot.

    Raises:
        ValueError: if contrib's format has no place for such a network.
    """
    _check(config)
    weights, biases = (iter(tensors) for tensors in ops.params_to_canonical(config, params))
    gates = config.layout.num_gates
    part, order = _JOINED[config.rnn_mode]
    scale = 0.5 if is_slot else 1.0
    result = {}
    for cell, fan_in in _pseudo_layers(config, scope):
        inputs = [next(weights) for _ in range(gates)] if fan_in else []
        recurrent = [next(weights) for _ in range(gates)]
        input_bias = [next(biases) for _ in range(gates)]
        recurrent_bias = [next(biases) for _ in range(gates)]
        sides = [
            tf.concat([side[gate] for gate in order], 0) for side in (inputs, recurrent) if side
        ]
        result[f"{cell}/{part}kernel"] = tf.transpose(tf.concat(sides, 1))
        result[f"{cell}/{part}bias"] = tf.concat(
            [(input_bias[gate] + recurrent_bias[gate]) * scale for gate in order], 0
        )
        if config.rnn_mode == "gru":
            candidate, gate = f"{cell}/candidate", _GRU_CANDIDATE
            if fan_in:
                result[f"{candidate}/input_projection/kernel"] = tf.transpose(inputs[gate])
            result[f"{candidate}/input_projection/bias"] = input_bias[gate]
            result[f"{candidate}/hidden_projection/kernel"] = tf.transpose(recurrent[gate])
            result[f"{candidate}/hidden_projection/bias"] = recurrent_bias[gate]
    return result


def to_params(
    config: RnnConfig,
    tensors: Mapping[str, tf.Tensor],
    scope: str = "",
    is_slot: bool = False,
) -> tf.Tensor:
    """The opaque buffer, from the tensors of contrib's checkpoints: the inverse of `from_params`.

    Raises:
        ValueError: if contrib's format has no place for such a network, or a tensor is missing or
            its static shape does not fit; the tensor is named.
        tf.errors.InvalidArgumentError: likewise for a shape that is known when run only.
    """
    gates = config.layout.num_gates
    part, order = _JOINED[config.rnn_mode]
    scale = 1.0 if is_slot else 0.5
    weights, biases = [], []

    shapes = tensor_shapes(config, scope)

    def take(name: str) -> tf.Tensor:
        if name not in tensors:
            raise ValueError(f"expected a tensor {name}, but there is none")
        shape = shapes[name]
        tensor = tf.convert_to_tensor(tensors[name])
        ops.check_shape(name, tensor, shape)
        if tensor.shape.is_fully_defined():
            return tensor
        check = tf.debugging.assert_equal(
            tf.shape(tensor), shape, message=f"expected {name} of shape {shape}"
        )
        with tf.control_dependencies([check]):
            return tf.identity(tensor)

    for cell, fan_in in _pseudo_layers(config, scope):
        inputs, recurrent = [None] * gates, [None] * gates
        input_bias, recurrent_bias = [None] * gates, [None] * gates
        rows = tf.split(tf.transpose(take(f"{cell}/{part}kernel")), len(order), axis=0)
        shares = tf.split(take(f"{cell}/{part}bias") * scale, len(order))
        for gate, row, share in zip(order, rows, shares, strict=True):
            inputs[gate], recurrent[gate] = row[:, :fan_in], row[:, fan_in:]
            input_bias[gate] = recurrent_bias[gate] = share
        if config.rnn_mode == "gru":
            candidate, gate = f"{cell}/candidate", _GRU_CANDIDATE
            if fan_in:
                inputs[gate] = tf.transpose(take(f"{candidate}/input_projection/kernel"))
            input_bias[gate] = take(f"{candidate}/input_projection/bias")
            recurrent[gate] = tf.transpose(take(f"{candidate}/hidden_projection/kernel"))
            recurrent_bias[gate] = take(f"{candidate}/hidden_projection/bias")
        weights += (inputs if fan_in else []) + recurrent
        biases += input_bias + recurrent_bias
    return ops.canonical_to_params(config, weights, biases)
