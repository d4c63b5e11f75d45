"""The tensors that `tf.contrib.cudnn_rnn` wrote into checkpoints, and back.

One set per pseudo-layer, named and laid out as the cell that computes the same step by step:

* LSTM: `kernel` [fan_in + H, 4 H], the input side above the recurrent side, gates in the order
  i, c, f, o; `bias` [4 H], the two bias sets summed.
* GRU: `gates/kernel` [fan_in + H, 2 H] and `gates/bias` [2 H] for r, z, summed likewise;
  `candidate/input_projection/{kernel,bias}` and `candidate/hidden_projection/{kernel,bias}`.
* RNN: `kernel` [fan_in + H, H], `bias` [H].

A sum of biases goes back as one half for each side.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

_CELL_NAMES = {
    "lstm": "cudnn_compatible_lstm_cell",
    "gru": "cudnn_compatible_gru_cell",
    "rnn_tanh": "basic_rnn_cell",
    "rnn_relu": "basic_rnn_cell",
}
# Which gates, by cuDNN's numbers, stand in which merged tensor.
_MERGED = {
    "lstm": {"": (0, 2, 1, 3)},
    "gru": {"gates/": (0, 1)},
    "rnn_tanh": {"": (0,)},
    "rnn_relu": {"": (0,)},
}
_GRU_CANDIDATE = 2


def prefix(config: RnnConfig, layer: int, direction: int) -> str:
    """The variable scope in which contrib's cells of one pseudo-layer stood."""
    cell = _CELL_NAMES[config.rnn_mode]
    if config.layout.num_dirs == 1:
        return f"rnn/multi_rnn_cell/cell_{layer}/{cell}"
    side = ("fw", "bw")[direction]
    return f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{side}/{cell}"


def _pseudo_layers(config: RnnConfig):
    return (
        (layer, direction)
        for layer in range(config.num_layers)
        for direction in range(config.layout.num_dirs)
    )


def _check(config: RnnConfig) -> None:
    if config.bias_mode != "double" or config.num_proj:
        raise ValueError(
            "contrib's checkpoint format knows bias_mode 'double' without projection only, but "
            f"received bias_mode {config.bias_mode!r} and num_proj {config.num_proj}"
        )


def from_params(config: RnnConfig, params: tf.Tensor) -> dict[str, tf.Tensor]:
    """The tensors of contrib's checkpoints by name, from an opaque buffer."""
    _check(config)
    weights, biases = (iter(tensors) for tensors in ops.params_to_canonical(config, params))
    gates = config.layout.num_gates
    result = {}
    for layer, direction in _pseudo_layers(config):
        scope = prefix(config, layer, direction)
        has_input = layer > 0 or config.input_mode == "linear_input"
        inputs = [next(weights) for _ in range(gates)] if has_input else None
        recurrent = [next(weights) for _ in range(gates)]
        input_bias = [next(biases) for _ in range(gates)]
        recurrent_bias = [next(biases) for _ in range(gates)]
        for part, order in _MERGED[config.rnn_mode].items():
            rows = [tf.concat([recurrent[gate] for gate in order], 0)]
            if has_input:
                rows.insert(0, tf.concat([inputs[gate] for gate in order], 0))
            result[f"{scope}/{part}kernel"] = tf.transpose(tf.concat(rows, 1))
            result[f"{scope}/{part}bias"] = tf.concat(
                [input_bias[gate] + recurrent_bias[gate] for gate in order], 0
            )
        if config.rnn_mode == "gru":
            candidate = f"{scope}/candidate"
            if has_input:
                result[f"{candidate}/input_projection/kernel"] = tf.transpose(
                    inputs[_GRU_CANDIDATE]
                )
            result[f"{candidate}/input_projection/bias"] = input_bias[_GRU_CANDIDATE]
            result[f"{candidate}/hidden_projection/kernel"] = tf.transpose(
                recurrent[_GRU_CANDIDATE]
            )
            result[f"{candidate}/hidden_projection/bias"] = recurrent_bias[_GRU_CANDIDATE]
    return result


def to_params(config: RnnConfig, tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The opaque buffer, from the tensors of contrib's checkpoints.

    Raises:
        ValueError: if a tensor's static shape does not fit the configuration; it is named.
    """
    _check(config)
    gates = config.layout.num_gates
    units = config.num_units
    weights, biases = [], []

    def take(name: str, shape: Sequence[int]) -> tf.Tensor:
        tensor = tf.convert_to_tensor(tensors[name])
        ops.check_shape(name, tensor, tuple(shape))
        return tensor

    for layer, direction in _pseudo_layers(config):
        scope = prefix(config, layer, direction)
        fan_in = config.input_size if layer == 0 else config.layout.num_dirs * units
        if layer == 0 and config.input_mode == "skip_input":
            fan_in = 0
        inputs, recurrent = [None] * gates, [None] * gates
        input_bias, recurrent_bias = [None] * gates, [None] * gates
        for part, order in _MERGED[config.rnn_mode].items():
            kernel = take(f"{scope}/{part}kernel", (fan_in + units, len(order) * units))
            bias = take(f"{scope}/{part}bias", (len(order) * units,))
            rows = tf.split(tf.transpose(kernel), len(order), axis=0)
            halves = tf.split(bias / 2, len(order))
            for gate, row, half in zip(order, rows, halves, strict=True):
                inputs[gate], recurrent[gate] = row[:, :fan_in], row[:, fan_in:]
                input_bias[gate] = recurrent_bias[gate] = half
        if config.rnn_mode == "gru":
            candidate = f"{scope}/candidate"
            if fan_in:
                inputs[_GRU_CANDIDATE] = tf.transpose(
                    take(f"{candidate}/input_projection/kernel", (fan_in, units))
                )
            input_bias[_GRU_CANDIDATE] = take(f"{candidate}/input_projection/bias", (units,))
            recurrent[_GRU_CANDIDATE] = tf.transpose(
                take(f"{candidate}/hidden_projection/kernel", (units, units))
            )
            recurrent_bias[_GRU_CANDIDATE] = take(f"{candidate}/hidden_projection/bias", (units,))
        weights += (inputs if fan_in else []) + recurrent
        biases += input_bias + recurrent_bias
    return ops.canonical_to_params(config, weights, biases)
