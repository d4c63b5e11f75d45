"""The network in TensorFlow's own operations: a loop over the time steps of each pseudo-layer.

Slower than the fused ops and the same in meaning. It runs where the fused ops' library does not,
and it can be differentiated any number of times.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.sequences import reverse_sequences


class _PseudoLayer(NamedTuple):
    """One direction of one layer, the gates of each side stacked into one map."""

    input_kernel: tf.Tensor | None  # [G * H, fan_in]; None in skip_input mode.
    recurrent_kernel: tf.Tensor  # [G * H, P]
    projection: tf.Tensor | None  # [P, H]
    input_bias: tf.Tensor | None  # [G * H]; None where the bias mode has none.
    recurrent_bias: tf.Tensor | None
    recurrent_masks: tf.Tensor | None = None  # [G, B, P]; None for no recurrent dropout.


def forward(
    config: RnnConfig,
    inputs: tf.Tensor,
    states: Sequence[tf.Tensor],
    params: tf.Tensor,
    *,
    sequence_lengths: tf.Tensor | None = None,
    masks: Sequence[Sequence[tf.Tensor]] | None = None,
    recurrent_masks: tf.Tensor | None = None,
    time_major: bool = True,
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Runs the network over whole sequences, as `cudnn_rnn_tf.ops.forward` does.

    The half types are computed in float32. What fits together is the caller's to check.

    Args:
        config: the network.
        inputs: [T, B, I] time-major, [B, T, I] batch-major.
        states: the initial states, h and an LSTM's c, of `config.state_shapes`.
        params: the opaque buffer, [params_size].
        sequence_lengths: int32 [B], each in [0, T]; None where all sequences fill T.
        masks: with dropout, what the output of each layer but the last is multiplied with for
            each direction of the next layer, [T, B, D * P] each; None for no dropout.
        recurrent_masks: with recurrent dropout, what the states are multiplied with for each gate
            of each pseudo-layer before the recurrent matrices read them, [L * D, G, B, P]; None
            for no recurrent dropout.
        time_major: the layout of inputs, states and what is returned.

    Returns:
        outputs [T, B, D * P] ([B, T, D * P] batch-major), and the final states as a tuple.
    """
    dtype = inputs.dtype
    compute_dtype = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype

    def read(tensor: tf.Tensor) -> tf.Tensor:
        tensor = tf.cast(tensor, compute_dtype)
        return tensor if time_major else tf.transpose(tensor, (1, 0, 2))

    def write(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(tensor if time_major else tf.transpose(tensor, (1, 0, 2)), dtype)

    x = read(inputs)
    valid = None
    if sequence_lengths is not None:
        steps = tf.range(tf.shape(x)[0])
        sequence_lengths = tf.cast(sequence_lengths, tf.int32)
        valid = steps[:, tf.newaxis, tf.newaxis] < sequence_lengths[:, tf.newaxis]
        # What stands in the padding is not to be read, were it NaN.
        x = tf.where(valid, x, tf.zeros_like(x))
    num_dirs = config.layout.num_dirs
    initial = [tf.unstack(read(state), config.num_layers * num_dirs) for state in states]
    final: list[list[tf.Tensor]] = [[] for _ in states]
    pseudo_layers = _pseudo_layers(config, tf.cast(params, compute_dtype))
    if recurrent_masks is not None:
        parts = tf.unstack(tf.cast(recurrent_masks, compute_dtype), len(pseudo_layers))
        pseudo_layers = [
            layer._replace(recurrent_masks=part)
            for layer, part in zip(pseudo_layers, parts, strict=True)
        ]
    for layer in range(config.num_layers):
        outputs = []
        for direction in range(num_dirs):
            index = layer * num_dirs + direction
            sequence = x
            if layer > 0 and masks is not None:
                sequence *= tf.cast(masks[layer - 1][direction], compute_dtype)
            if direction:
                sequence = reverse_sequences(sequence, sequence_lengths, True)
            output, last = _run_pseudo_layer(
                config, pseudo_layers[index], sequence, [state[index] for state in initial], valid
            )
            if direction:
                output = reverse_sequences(output, sequence_lengths, True)
            outputs.append(output)
            for collected, state in zip(final, last, strict=True):
                collected.append(state)
        x = tf.concat(outputs, axis=-1)
    if config.is_lstm:
        final[1] = [ops.clip_cell_state(config, c) for c in final[1]]
    outputs = write(x)
    # The loop forgets how many steps there are, which layers above may want to know.
    outputs.set_shape(inputs.shape[:2] + outputs.shape[2:])
    return outputs, tuple(write(tf.stack(collected)) for collected in final)


def _pseudo_layers(config: RnnConfig, params: tf.Tensor) -> list[_PseudoLayer]:
    """Cuts up the buffer: the matrices of all pseudo-layers, then their biases."""
    layout = config.layout
    rows, out = layout.num_gates * config.num_units, layout.output_size
    matrices: list[list[tuple[int, int] | None]] = []
    for layer in range(config.num_layers):
        fan_in = layout.num_dirs * out if layer else config.input_size
        has_input_kernel = layer > 0 or config.input_mode != "skip_input"
        matrices += [
            [
                (rows, fan_in) if has_input_kernel else None,
                (rows, out),
                (out, config.num_units) if config.num_proj else None,
            ]
        ] * layout.num_dirs
    has_bias = [config.bias_mode in ("double", f"single_{side}") for side in ("input", "recurrent")]
    biases = [[(rows,) if present else None for present in has_bias]] * len(matrices)
    parts = _cut(params, [shape for shapes in matrices + biases for shape in shapes])
    matrix_parts = [[next(parts) for _ in shapes] for shapes in matrices]
    return [_PseudoLayer(*part, *(next(parts) for _ in has_bias)) for part in matrix_parts]


def _cut(params: tf.Tensor, shapes: Sequence[tuple[int, ...] | None]) -> Iterator[tf.Tensor | None]:
    """Tensors of these shapes from the buffer, one after the other; None for None."""
    sizes = [math.prod(shape) for shape in shapes if shape]
    pieces = iter(tf.split(params, sizes))
    return (tf.reshape(next(pieces), shape) if shape else None for shape in shapes)


def _run_pseudo_layer(
    config: RnnConfig,
    layer: _PseudoLayer,
    inputs: tf.Tensor,
    states: Sequence[tf.Tensor],
    valid: tf.Tensor | None,
) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
    """Runs forward over time-major inputs.

    Args:
        config: the network.
        layer: its parameters.
        inputs: [T, B, fan_in].
        states: h [B, P] and an LSTM's c [B, H].
        valid: boolean [T, B, 1]; None where all steps are valid.

    Returns:
        outputs [T, B, P], and the final states.
    """
    steps: dict[str, Callable[..., list[tf.Tensor]]] = {"lstm": _lstm_step, "gru": _gru_step}
    step = steps.get(config.rnn_mode, _rnn_step)
    max_time = tf.shape(inputs)[0]
    dtype = inputs.dtype

    def array(tensor: tf.Tensor) -> tf.TensorArray:
        whole = tf.TensorArray(tensor.dtype, size=max_time, element_shape=tensor.shape[1:])
        return whole.unstack(tensor)

    input_side = array(_input_side(config, layer, inputs))
    valid_steps = None if valid is None else array(valid)
    outputs = tf.TensorArray(dtype, size=max_time, element_shape=states[0].shape)

    def body(time: tf.Tensor, outputs: tf.TensorArray, *states: tf.Tensor) -> tuple[Any, ...]:
        new_states = step(config, layer, input_side.read(time), *states)
        for new, old in zip(new_states, states, strict=True):
            new.set_shape(old.shape)
        output = new_states[0]
        if valid_steps is not None:
            is_valid = valid_steps.read(time)
            output = tf.where(is_valid, output, tf.zeros_like(output))
            new_states = [
                tf.where(is_valid, new, old) for new, old in zip(new_states, states, strict=True)
            ]
        return time + 1, outputs.write(time, output), *new_states

    _, outputs, *final = tf.while_loop(
        lambda time, *_: time < max_time,
        body,
        (tf.constant(0), outputs, *states),
        maximum_iterations=inputs.shape.as_list()[0],
    )
    return outputs.stack(), final


def _input_side(config: RnnConfig, layer: _PseudoLayer, inputs: tf.Tensor) -> tf.Tensor:
    """W x + b_W for all gates and steps, [T, B, G * H]."""
    if layer.input_kernel is None:
        result = tf.tile(inputs, (1, 1, config.layout.num_gates))
    else:
        rows, fan_in = layer.input_kernel.shape.as_list()
        result = tf.matmul(tf.reshape(inputs, (-1, fan_in)), layer.input_kernel, transpose_b=True)
        sizes = [
            tf.shape(inputs)[axis] if size is None else size
            for axis, size in enumerate(inputs.shape.as_list()[:2])
        ]
        result = tf.reshape(result, (*sizes, rows))
    return result if layer.input_bias is None else result + layer.input_bias


def _recurrent_side(layer: _PseudoLayer, h: tf.Tensor) -> tf.Tensor:
    """R h + b_R for all gates, [B, G * H]."""
    kernel = layer.recurrent_kernel
    if layer.recurrent_masks is None:
        result = tf.matmul(h, kernel, transpose_b=True)
    else:
        num_gates, units = layer.recurrent_masks.shape[0], h.shape[-1]
        kernels = tf.reshape(kernel, (num_gates, -1, units))
        products = tf.matmul(h * layer.recurrent_masks, kernels, transpose_b=True)
        result = tf.concat(tf.unstack(products, num_gates), axis=-1)
    return result if layer.recurrent_bias is None else result + layer.recurrent_bias


def _lstm_step(
    config: RnnConfig, layer: _PseudoLayer, input_side: tf.Tensor, h: tf.Tensor, c: tf.Tensor
) -> list[tf.Tensor]:
    i, f, g, o = tf.split(input_side + _recurrent_side(layer, h), 4, axis=-1)
    # The cell state is carried as it is and clipped where it is read.
    c = tf.sigmoid(f) * ops.clip_cell_state(config, c) + tf.sigmoid(i) * tf.tanh(g)
    h = tf.sigmoid(o) * tf.tanh(ops.clip_cell_state(config, c))
    if layer.projection is not None:
        h = tf.matmul(h, layer.projection, transpose_b=True)
    return [h, c]


def _gru_step(
    config: RnnConfig, layer: _PseudoLayer, input_side: tf.Tensor, h: tf.Tensor
) -> list[tf.Tensor]:
    x_r, x_z, x_n = tf.split(input_side, 3, axis=-1)
    h_r, h_z, h_n = tf.split(_recurrent_side(layer, h), 3, axis=-1)
    z = tf.sigmoid(x_z + h_z)
    return [(1.0 - z) * tf.tanh(x_n + tf.sigmoid(x_r + h_r) * h_n) + z * h]


def _rnn_step(
    config: RnnConfig, layer: _PseudoLayer, input_side: tf.Tensor, h: tf.Tensor
) -> list[tf.Tensor]:
    activation = tf.tanh if config.rnn_mode == "rnn_tanh" else tf.nn.relu
    return [activation(input_side + _recurrent_side(layer, h))]
