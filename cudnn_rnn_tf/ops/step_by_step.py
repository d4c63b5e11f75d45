"""Runs a network in TensorFlow's own operations: a loop over the steps of each pseudo-layer.

It computes what the fused ops do, more slowly. It runs where the fused ops' library does not, and
it can be differentiated any number of times.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.lengths_and_masks import in_32_bits, reverse_sequences
from cudnn_rnn_tf.pseudo_layers import PseudoLayer, cut


def _within_0_and_1(x: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(x, 0.0, 1.0)


_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "relu": tf.nn.relu,
    "linear": tf.identity,
    # The gradient of TensorFlow's op has none.
    "softsign": lambda x: x / (1.0 + tf.abs(x)),
    "elu": tf.nn.elu,
    "hard_sigmoid": lambda x: _within_0_and_1(x / 6.0 + 0.5),
    "keras_2_hard_sigmoid": lambda x: _within_0_and_1(0.2 * x + 0.5),
}


def _activations(config: RnnConfig) -> tuple[Callable[[tf.Tensor], tf.Tensor], ...]:
    """Returns what a network's gates pass through, and its candidate and c."""
    own = "relu" if config.rnn_mode == constants.CUDNN_RNN_RELU else "tanh"
    names = (config.recurrent_activation or "sigmoid", config.activation or own)
    return tuple(_ACTIVATIONS[name] for name in names)


def forward(
    config: RnnConfig,
    inputs: tf.Tensor,
    states: Sequence[tf.Tensor],
    params: tf.Tensor,
    *,
    sequence_lengths: tf.Tensor | None = None,
    resets: tf.Tensor | None = None,
    masks: Sequence[Sequence[tf.Tensor]] | None = None,
    recurrent_masks: tf.Tensor | None = None,
    zones: tf.Tensor | None = None,
    time_major: bool = True,
    unroll: bool = False,
    return_cell_sequences: bool = False,
) -> tuple[Any, ...]:
    """Runs the network over whole sequences: `cudnn_rnn_tf.ops.forward`'s arguments and results.

    The half types are computed in float32. The caller must have checked the arguments. What is
    returned of a sequence with a length out of range is NaN. With dropout, the output of each layer
    but the last is multiplied with `masks` for each direction of the next layer, [T, B, D * P]
    each. With recurrent dropout, the states are multiplied with `recurrent_masks` before the
    recurrent matrices read them, [L * D, G, B, P], a mask for each gate of each pseudo-layer. With
    zoneout, `zones` are 1 where h and c stay what they were, else 0, [L * D, 2, T, B, H]; None for
    the expected values. With `unroll`, a graph has the operations of each step rather than a loop;
    their number must be static.
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
        sequence_lengths = in_32_bits(sequence_lengths)
        in_range = (sequence_lengths >= 0) & (sequence_lengths <= tf.shape(x)[0])
        valid = steps[:, tf.newaxis, tf.newaxis] < sequence_lengths[:, tf.newaxis]
        # Padding is replaced by zeros, since it may hold NaN.
        x = tf.where(valid, x, tf.zeros_like(x))
    begins = None
    if resets is not None:
        begins = tf.expand_dims(tf.cast(resets if time_major else tf.transpose(resets), x.dtype), 2)
    num_dirs = config.layout.num_dirs
    initial = [tf.unstack(read(state), config.num_layers * num_dirs) for state in states]
    final: list[list[tf.Tensor]] = [[] for _ in states]
    pseudo_layers = cut(config, tf.cast(params, compute_dtype))
    masks_of_states: Sequence[tf.Tensor | None] = [None] * len(pseudo_layers)
    if recurrent_masks is not None:
        masks_of_states = tf.unstack(tf.cast(recurrent_masks, compute_dtype), len(pseudo_layers))
    zones_of_steps: Sequence[tf.Tensor | None] = [None] * len(pseudo_layers)
    if zones is not None:
        zones_of_steps = tf.unstack(
            tf.concat(tf.unstack(tf.cast(zones, compute_dtype), axis=1), -1), len(pseudo_layers)
        )
    for layer in range(config.num_layers):
        outputs = []
        for direction in range(num_dirs):
            index = layer * num_dirs + direction
            sequence, anew, stays = x, None, zones_of_steps[index]
            if layer > 0 and masks is not None:
                sequence *= tf.cast(masks[layer - 1][direction], compute_dtype)
            if direction:
                sequence = reverse_sequences(sequence, sequence_lengths, True)
                if stays is not None:
                    stays = reverse_sequences(stays, sequence_lengths, True)
            if begins is not None:
                anew = begins > 0
                if direction:
                    # Read from its end, a segment begins after the step that has a reset.
                    ends = reverse_sequences(begins, sequence_lengths, True)
                    anew = tf.concat([tf.zeros_like(ends[:1]), ends], 0)[:-1] > 0
            output, last = _run_pseudo_layer(
                config,
                pseudo_layers[index],
                masks_of_states[index],
                sequence,
                [state[index] for state in initial],
                valid,
                anew,
                stays,
                unroll,
                return_cell_sequences and layer == config.num_layers - 1,
            )
            if direction:
                output = reverse_sequences(output, sequence_lengths, True)
            outputs.append(output)
            for collected, state in zip(final, last, strict=True):
                collected.append(state)
        x = tf.concat(outputs, axis=-1)
    of_steps = [x]
    if return_cell_sequences:
        parts = tf.split(x, config.state_sizes() * num_dirs, axis=-1)
        cells = ops.clip_cell_state(config, tf.concat(parts[1::2], axis=-1))
        of_steps = [tf.concat(parts[::2], axis=-1), cells]
    if config.is_lstm:
        final[1] = [ops.clip_cell_state(config, c) for c in final[1]]
    of_states = [tf.stack(collected) for collected in final]
    if sequence_lengths is not None:
        # In files of other formats, nothing can raise an error.
        of_steps, of_states = (
            [
                tf.where(in_range[:, tf.newaxis], each, tf.constant(float("nan"), compute_dtype))
                for each in tensors
            ]
            for tensors in (of_steps, of_states)
        )
    outputs, *cells = map(write, of_steps)
    for each in (outputs, *cells):
        # The loop loses the static number of steps, which layers above may need.
        each.set_shape(inputs.shape[:2] + each.shape[2:])
    return outputs, tuple(map(write, of_states)), *cells


def _run_pseudo_layer(
    config: RnnConfig,
    layer: PseudoLayer,
    masks: tf.Tensor | None,
    inputs: tf.Tensor,
    states: Sequence[tf.Tensor],
    valid: tf.Tensor | None,
    anew: tf.Tensor | None,
    zones: tf.Tensor | None,
    unroll: bool,
    emits_c: bool,
) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
    """Runs one pseudo-layer forward in time over time-major inputs [T, B, fan_in].

    `states` are h [B, P] and an LSTM's c [B, H]; `masks`, of recurrent dropout, are [G, B, P] or
    None. `valid` [T, B, 1] says which steps are (None for all), `anew` where one starts from zeros
    (None for nowhere). `zones`, with zoneout, are 1 where h and c stay what they were, [T, B, 2 *
    H]; None for the rates. With `unroll`, a graph has no loop; with `emits_c`, outputs are h and c
    side by side.

    Returns:
        outputs [T, B, P], or with c [T, B, P + H], and the final states.
    """
    steps: dict[str, Callable[..., list[tf.Tensor]]] = {
        constants.CUDNN_LSTM: _lstm_step,
        constants.LSTM_PEEPHOLE: _lstm_step,
        constants.LSTM_LAYER_NORM: _lstm_step_normalized,
        constants.GRU_LAYER_NORM: _gru_step,
        constants.CUDNN_GRU: _gru_step,
        constants.GRU_RESET_BEFORE: _gru_step_reset_before,
    }
    step = steps.get(config.rnn_mode, _rnn_step)
    input_sides = _input_side(config, layer, inputs)

    def run_step(
        input_side: tf.Tensor,
        states: Sequence[tf.Tensor],
        is_valid: tf.Tensor | None,
        is_anew: tf.Tensor | None,
        stays: tf.Tensor | None,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if is_anew is not None:
            # Past a sequence's end, the state stays what it is.
            starts = is_anew if is_valid is None else is_anew & is_valid
            states = [tf.where(starts, tf.zeros_like(state), state) for state in states]
        new_states = step(config, layer, masks, input_side, *states)
        if config.has_zoneout:
            new_states = _with_zoneout(config, stays, states, new_states)
        for new, old in zip(new_states, states, strict=True):
            new.set_shape(old.shape)
        output = tf.concat(new_states, axis=-1) if emits_c else new_states[0]
        if is_valid is not None:
            output = tf.where(is_valid, output, tf.zeros_like(output))
            new_states = [
                tf.where(is_valid, new, old) for new, old in zip(new_states, states, strict=True)
            ]
        return output, new_states

    if unroll:
        collected = []
        for time in range(inputs.shape[0]):
            options = (each if each is None else each[time] for each in (valid, anew, zones))
            output, states = run_step(input_sides[time], states, *options)
            collected.append(output)
        return tf.stack(collected), states
    max_time = tf.shape(inputs)[0]

    def array(tensor: tf.Tensor) -> tf.TensorArray:
        whole = tf.TensorArray(tensor.dtype, size=max_time, element_shape=tensor.shape[1:])
        return whole.unstack(tensor)

    input_side = array(input_sides)
    of_steps = [each if each is None else array(each) for each in (valid, anew, zones)]
    element_shape = states[0].shape[:1] + [sum(config.state_sizes()[: 1 + emits_c])]
    outputs = tf.TensorArray(inputs.dtype, size=max_time, element_shape=element_shape)

    def body(time: tf.Tensor, outputs: tf.TensorArray, *states: tf.Tensor) -> tuple[Any, ...]:
        options = (each if each is None else each.read(time) for each in of_steps)
        output, new_states = run_step(input_side.read(time), states, *options)
        return time + 1, outputs.write(time, output), *new_states

    _, outputs, *final = tf.while_loop(
        lambda time, *_: time < max_time,
        body,
        (tf.constant(0), outputs, *states),
        maximum_iterations=inputs.shape.as_list()[0] or max_time,
    )
    return outputs.stack(), final


def _with_zoneout(
    config: RnnConfig, zones: tf.Tensor | None, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the states after a step, of which shares are those before it."""
    shares: Sequence[Any] = [
        tf.cast(tf.constant(rate, tf.float32), new[0].dtype)
        for rate in (config.zoneout, config.cell_zoneout)
    ]
    if zones is not None:
        shares = tf.split(zones, 2, axis=-1)
    limits = (tf.identity, functools.partial(ops.clip_cell_state, config))
    return [
        share * limit(before) + (1.0 - share) * limit(after)
        for share, limit, before, after in zip(shares, limits, old, new, strict=False)
    ]


def _input_side(config: RnnConfig, layer: PseudoLayer, inputs: tf.Tensor) -> tf.Tensor:
    """Returns W x + b_W for all gates and steps, [T, B, G * H]."""
    if layer.kernel is None:
        result = tf.tile(inputs, (1, 1, config.layout.num_gates))
    else:
        rows, fan_in = layer.kernel.shape.as_list()
        result = tf.matmul(tf.reshape(inputs, (-1, fan_in)), layer.kernel, transpose_b=True)
        sizes = [
            tf.shape(inputs)[axis] if size is None else size
            for axis, size in enumerate(inputs.shape.as_list()[:2])
        ]
        result = tf.reshape(result, (*sizes, rows))
    return result if layer.bias is None else result + layer.bias


def _recurrent_side(layer: PseudoLayer, masks: tf.Tensor | None, h: tf.Tensor) -> tf.Tensor:
    """Returns R h + b_R for all gates, [B, G * H]."""
    kernel = layer.recurrent_kernel
    if masks is None:
        result = tf.matmul(h, kernel, transpose_b=True)
    else:
        num_gates, units = masks.shape[0], h.shape[-1]
        kernels = tf.reshape(kernel, (num_gates, -1, units))
        products = tf.matmul(h * masks, kernels, transpose_b=True)
        result = tf.concat(tf.unstack(products, num_gates), axis=-1)
    return result if layer.recurrent_bias is None else result + layer.recurrent_bias


def _lstm_step(
    config: RnnConfig,
    layer: PseudoLayer,
    masks: tf.Tensor | None,
    input_side: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
) -> list[tf.Tensor]:
    i, f, g, o = tf.split(input_side + _recurrent_side(layer, masks, h), 4, axis=-1)
    # The cell state is stored unclipped and clipped when it is read.
    before = ops.clip_cell_state(config, c)
    if layer.vectors is not None:
        i += layer.vectors[0] * before
        f += layer.vectors[1] * before
    gate, activation = _activations(config)
    c = gate(f) * before + gate(i) * activation(g)
    after = ops.clip_cell_state(config, c)
    if layer.vectors is not None:
        o += layer.vectors[2] * after
    h = gate(o) * activation(after)
    if layer.projection is not None:
        h = tf.matmul(h, layer.projection, transpose_b=True)
    return [h, c]


def _gru_step(
    config: RnnConfig,
    layer: PseudoLayer,
    masks: tf.Tensor | None,
    input_side: tf.Tensor,
    h: tf.Tensor,
) -> list[tf.Tensor]:
    x_r, x_z, x_n = tf.split(input_side, 3, axis=-1)
    h_r, h_z, h_n = tf.split(_recurrent_side(layer, masks, h), 3, axis=-1)
    gate, activation = _activations(config)
    r = gate(_normalized(config, layer, 0, x_r + h_r))
    z = gate(_normalized(config, layer, 1, x_z + h_z))
    return [(1.0 - z) * activation(_normalized(config, layer, 2, x_n + r * h_n)) + z * h]


def _gru_step_reset_before(
    config: RnnConfig,
    layer: PseudoLayer,
    masks: tf.Tensor | None,
    input_side: tf.Tensor,
    h: tf.Tensor,
) -> list[tf.Tensor]:
    units = config.num_units
    x_gates, x_n = tf.split(input_side, (2 * units, units), axis=-1)
    of_gates, of_candidate = _split_recurrent_side(layer, 2 * units)
    gate, activation = _activations(config)
    r, z = tf.split(
        gate(x_gates + _recurrent_side(of_gates, masks if masks is None else masks[:2], h)),
        2,
        axis=-1,
    )
    h_n = _recurrent_side(of_candidate, masks if masks is None else masks[2:], r * h)
    return [(1.0 - z) * activation(x_n + h_n) + z * h]


def _split_recurrent_side(layer: PseudoLayer, row: int) -> tuple[PseudoLayer, PseudoLayer]:
    """Returns what `_recurrent_side` reads of a layer, above a row and from that row on."""
    kernel, bias = layer.recurrent_kernel, layer.recurrent_bias
    return (
        PseudoLayer(None, kernel[:row], None, None if bias is None else bias[:row]),
        PseudoLayer(None, kernel[row:], None, None if bias is None else bias[row:]),
    )


def _normalized(config: RnnConfig, layer: PseudoLayer, number: int, sums: tf.Tensor) -> tf.Tensor:
    """Returns sums [B, H] normalized by the norm of this number, if the mode has norms."""
    if not config.rnn_mode.endswith("_layer_norm"):
        return sums
    centred = sums - tf.reduce_mean(sums, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + config.layer_norm_epsilon)
    return centred * scale * layer.vectors[2 * number] + layer.vectors[2 * number + 1]


def _lstm_step_normalized(
    config: RnnConfig,
    layer: PseudoLayer,
    masks: tf.Tensor | None,
    input_side: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
) -> list[tf.Tensor]:
    sums = tf.split(input_side + _recurrent_side(layer, masks, h), 4, axis=-1)
    i, f, g, o = (_normalized(config, layer, *each) for each in enumerate(sums))
    gate, activation = _activations(config)
    c = _normalized(config, layer, 4, gate(f) * c + gate(i) * activation(g))
    return [gate(o) * activation(c), c]


def _rnn_step(
    config: RnnConfig,
    layer: PseudoLayer,
    masks: tf.Tensor | None,
    input_side: tf.Tensor,
    h: tf.Tensor,
) -> list[tf.Tensor]:
    _, activation = _activations(config)
    return [activation(input_side + _recurrent_side(layer, masks, h))]
