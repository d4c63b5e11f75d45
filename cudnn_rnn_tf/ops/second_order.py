"""Registers the gradient of the ops' gradient, which itself has gradients of any order.

`CudnnRnnTf>Backward` cannot be differentiated itself, so its gradient runs the network once more in
TensorFlow's own operations and differentiates those twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import op_gradients, step_by_step

# The recomputed outputs may differ from the op's by this much, relative to the outputs' norm.
# Rounding stays far below it, in the half types too; another dropout mask exceeds it.
_OUTPUT_TOLERANCE = 0.02


@tf.RegisterGradient("CudnnRnnTf>Backward")
def _backward_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    config = op_gradients.config_of(op)
    time_major = op.get_attr("time_major")
    num_seeds = len(op.get_attr("Tseed"))
    inputs, h, c, params, sequence_lengths, *others = op.inputs
    num_resets = len(op.get_attr("Tresets"))
    seeds, (output, _, _, *cotangents, _), resets, of_cells = (
        others[:num_seeds],
        others[num_seeds : num_seeds + 7],
        others[num_seeds + 7 :][:num_resets],
        others[num_seeds + 7 + num_resets :],
    )
    lengths = sequence_lengths if op.get_attr("has_sequence_lengths") else None
    # Networks other than LSTMs have empty cell states.
    num_states = len(config.state_sizes())
    state_shapes = config.state_shapes(None, time_major)
    primals = [
        tf.ensure_shape(inputs, (None, None, config.input_size)),
        params,
        *map(tf.ensure_shape, (h, c), state_shapes),
    ]
    cotangents = cotangents[: 1 + num_states] + of_cells
    d_inputs, d_h, d_c, d_params = gradients
    # `tape.jacobian` of a tape that ran eagerly traces the gradient in a function, where it cannot
    # vectorize the gradients of a loop.
    is_traced_later = not (tf.executing_eagerly() or any(map(tf.is_symbolic_tensor, op.inputs)))
    vectors = [d_inputs, d_params, *(d_h, d_c)[:num_states]]

    def differentiate() -> list[tf.Tensor]:
        masks = recurrent_masks = stays = None
        max_time, batch_size = tf.unstack(tf.shape(output)[:2])[:: 1 if time_major else -1]
        if config.dropout and config.num_layers > 1:
            is_ours = bool(resets or of_cells)
            masks = dropout_masks(config, output, lengths, seeds[0], time_major, is_ours)
        if config.recurrent_dropout:
            recurrent_masks = recurrent_dropout_masks(config, batch_size, seeds[0])
        if config.has_zoneout and seeds:
            stays = zones(config, max_time, batch_size, seeds[0])
        with tf.GradientTape() as outer_tape:
            outer_tape.watch([*primals, *cotangents])
            with tf.GradientTape() as inner_tape:
                inner_tape.watch(primals)
                outputs, states, *cells = step_by_step.forward(
                    config,
                    primals[0],
                    primals[2:],
                    primals[1],
                    sequence_lengths=lengths,
                    resets=resets[0] if resets else None,
                    masks=masks,
                    recurrent_masks=recurrent_masks,
                    zones=stays,
                    time_major=time_major,
                    unroll=is_traced_later,
                    return_cell_sequences=bool(of_cells),
                )
                if masks:
                    outputs = checked(outputs, output)
            first = inner_tape.gradient(
                [outputs, *states, *cells],
                primals,
                output_gradients=cotangents,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        return outer_tape.gradient(
            first,
            [*primals, *cotangents],
            output_gradients=vectors,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )

    if not (tf.executing_eagerly() or tf.inside_function()):
        # In a TensorFlow 1 graph, loops can be differentiated twice only within functions.
        differentiate = tf.function(differentiate, autograph=False)
    by_inputs, by_params, *rest = differentiate()
    by_states, by_cotangents = rest[:num_states], rest[num_states : 1 + 2 * num_states]
    by_cells = rest[1 + 2 * num_states :]
    padding = [None] * (2 - num_states)
    # One gradient for each of Backward's inputs, in the order of its registration.
    return [
        by_inputs,
        *by_states,
        *padding,
        by_params,
        *[None] * (4 + num_seeds),  # sequence_lengths, seed, output, output_h, output_c.
        *by_cotangents,
        *padding,
        *[None] * (1 + num_resets),  # reserve_space, resets.
        *by_cells,
    ]


def dropout_masks(
    config: RnnConfig,
    outputs: tf.Tensor,
    sequence_lengths: tf.Tensor | None,
    seed: tf.Tensor,
    time_major: bool,
    is_ours: bool = False,
) -> list[list[tf.Tensor]]:
    """Returns the masks by which the pass of `outputs` multiplied each layer's output but the last.

    There is one mask [T, B, D * P] for each direction of the next layer, since cuDNN draws one for
    each. A mask is a function of the seed, the layer and the sequences' shape, and it depends on
    the device. A ReLU network can show it: one layer's outputs are ones, and the next layer returns
    what it gets. Each direction of the next layer returns one direction's share at a time.
    """
    size, num_dirs = config.layout.output_size, config.layout.num_dirs
    dtype = outputs.dtype
    batch_size = tf.shape(outputs)[1 if time_major else 0]
    # All weights for these inputs are zero. The inputs must not be constants, because TensorFlow
    # may compute everything that depends only on constants on the CPU, whose masks are different.
    inputs = tf.cast(outputs[..., :1] > 0, dtype)
    # The op's attribute is a float32, so the rate is rounded to float32 here too.
    rate = tf.cast(tf.constant(config.dropout, tf.float32), tf.float64)
    shares = tf.split(tf.eye(num_dirs * size, dtype=dtype), num_dirs)
    # On a GPU, the kernels that run what cuDNN lacks have other masks than cuDNN.
    is_for_own_kernels = config.recurrent_dropout or is_ours or not config.layout.is_in_cudnn
    masks = []
    for layer in range(config.num_layers - 1):
        probe = RnnConfig(
            "rnn_relu",
            layer + 2,
            size,
            input_size=1,
            direction=config.direction,
            bias_mode="single_input",
            dropout=config.dropout,
        )
        biases = [tf.zeros(shape, dtype) for shape in probe.layout.bias_shapes]
        for direction in range(num_dirs):
            biases[layer * num_dirs + direction] += 1
        # Indexed by the next layer's direction, and by share.
        parts: list[list[tf.Tensor]] = [[None] * num_dirs for _ in range(num_dirs)]
        for turn in range(num_dirs):
            weights = [tf.zeros(shape, dtype) for shape in probe.layout.weight_shapes]
            for direction in range(num_dirs):
                share = shares[(direction + turn) % num_dirs]
                weights[2 * ((layer + 1) * num_dirs + direction)] = share
            output, _ = ops.forward(
                probe,
                inputs,
                [tf.zeros(state, dtype) for state in probe.state_shapes(batch_size, time_major)],
                ops.canonical_to_params(probe, weights, biases),
                sequence_lengths=sequence_lengths,
                seed=seed,
                time_major=time_major,
                algorithm="persistent" if is_for_own_kernels else "auto",
            )
            if not time_major:
                output = tf.transpose(output, (1, 0, 2))
            for direction, part in enumerate(tf.split(output, num_dirs, axis=-1)):
                parts[direction][(direction + turn) % num_dirs] = part
        kept = [tf.cast(tf.concat(part, axis=-1) > 0, tf.float64) for part in parts]
        masks.append([tf.stop_gradient(mask / (1 - rate)) for mask in kept])
    return masks


def recurrent_dropout_masks(
    config: RnnConfig, batch_size: tf.Tensor | int, seed: tf.Tensor
) -> tf.Tensor:
    """Returns the masks by which recurrent dropout multiplies each gate's states: [L * D, G, B, P].

    On every device, they are the same function of the seed and of a number's place in this array.
    """
    layout = config.layout
    lead = (config.num_layers * layout.num_dirs, layout.num_gates)
    kept = 1.0 - _dropped(
        seed, 2**16 - 1, (*lead, batch_size, layout.output_size), config.recurrent_dropout
    )
    return kept / (1.0 - np.float32(config.recurrent_dropout).astype(np.float64))


def zones(
    config: RnnConfig, max_time: tf.Tensor | int, batch_size: tf.Tensor | int, seed: tf.Tensor
) -> tf.Tensor:
    """Returns where zoneout leaves h and c what they were: 1 or 0, [L * D, 2, T, B, H].

    On every device, they are the same function of the seed and of a number's place in this array.
    """
    lead = (config.num_layers * config.layout.num_dirs, 2, max_time)
    rates = np.reshape([config.zoneout, config.cell_zoneout], (2, 1, 1, 1))
    return _dropped(seed, 2**16 - 2, (*lead, batch_size, config.num_units), rates)


def _dropped(seed: tf.Tensor, layer: int, shape: Sequence[Any], rates: Any) -> tf.Tensor:
    """Returns 1 where a mask with a layer's number drops at these rates, and else 0, in float64.

    kernels/cpu/dropout.h says what is drawn.
    """
    key, stream = tf.split(tf.bitcast(seed, tf.uint64), 2)
    counter = tf.concat([tf.constant([layer << 48], tf.uint64), stream], 0)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.stack(shape), key=key, counter=counter, alg=1, dtype=tf.uint32
    )
    # The op's attributes are float32.
    thresholds = np.float32(rates).astype(np.float64) * 2.0**32
    return tf.cast(tf.cast(words, tf.int64) < thresholds.astype(np.int64), tf.float64)


def checked(outputs: tf.Tensor, expected: tf.Tensor) -> tf.Tensor:
    """Returns `outputs` after checking that they are what the op returned."""
    wide = tf.cast(expected, tf.float64)
    difference = tf.norm(tf.cast(outputs, tf.float64) - wide)
    check = tf.debugging.Assert(
        tf.logical_not(difference > _OUTPUT_TOLERANCE * tf.norm(wide)),
        [
            "the dropout masks of this device could not be recovered for a gradient of the "
            "gradient; use dropout=0, or the CPU. The outputs' relative error is",
            difference / tf.norm(wide),
        ],
    )
    with tf.control_dependencies([check]):
        return tf.identity(outputs)
