"""Runs networks for the op-level API of `tf.contrib`, in the forms that callers' data have."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf.config import Direction, InputMode, RnnConfig
from cudnn_rnn_tf.lengths_and_masks import as_lengths, as_tensor, from_ragged, to_ragged

# Returns the network's configuration, given inputs, states and params in the shapes that the ops
# take.
ConfigOf = Callable[[tf.Tensor, Sequence[tf.Tensor], tf.Tensor], RnnConfig]


def run(
    config_of: ConfigOf,
    inputs: Any,
    states: Sequence[Any],
    params: Any,
    is_training: bool,
    sequence_lengths: Any,
    time_major: bool,
    seed: Any,
    dropout: float = 0.0,
    dtype: tf.DType | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """Runs a network on callers' arrays, ragged tensors, or one sequence without a batch.

    The arguments, results and errors are those of `cudnn_rnn_ops.cudnn_lstm`; `states` are h and an
    LSTM's c. `config_of` returns the network, given the arguments in the shapes that the ops take;
    its own rate is `rate_below_1(dropout)`. `dtype` is of the inputs; None for their own.
    """
    if not isinstance(is_training, bool):
        raise TypeError(f"expected is_training to be a Python bool, but received {is_training!r}")
    if isinstance(sequence_lengths, bool):
        # In TensorFlow up to 1.12, the models had is_training in this place.
        raise TypeError(
            f"expected sequence_lengths to be integers, but received {sequence_lengths!r}: pass "
            "is_training by name"
        )
    if sequence_lengths is not None:
        sequence_lengths = as_lengths(sequence_lengths)
    is_ragged = isinstance(inputs, tf.RaggedTensor)
    given = inputs if is_ragged else as_tensor("inputs", inputs, dtype)
    inputs = given
    names = ("input_h", "input_c")
    states = [as_tensor(k, state, inputs.dtype) for k, state in zip(names, states, strict=False)]
    batch_axis = 1 if time_major else 0
    is_unbatched = not is_ragged and given.shape.rank == 2
    if is_ragged:
        inputs, sequence_lengths = from_ragged(given, sequence_lengths, time_major)
    elif is_unbatched:
        if sequence_lengths is not None:
            raise ValueError(
                "expected no sequence_lengths with inputs of rank 2, one sequence without a batch, "
                f"but received {sequence_lengths!r}"
            )
        for state in states:
            if state.shape.rank not in (None, 2):
                raise ValueError(
                    "expected states of rank 2 with inputs of rank 2, one sequence without a "
                    f"batch, but received inputs of shape {given.shape} and a state of shape "
                    f"{state.shape}"
                )
        inputs = tf.expand_dims(inputs, batch_axis)
        states = [tf.expand_dims(state, batch_axis) for state in states]
    params = as_tensor("params", params, inputs.dtype)
    config = config_of(inputs, states, params)
    if dropout == 1.0 and is_training:
        params = _without_upper_inputs(config, params)
    outputs, final_states = ops.forward(
        config,
        inputs,
        states,
        params,
        sequence_lengths=sequence_lengths,
        seed=_seed_tensor(seed) if is_training and config.dropout else None,
        time_major=time_major,
        is_training=is_training,
        name=name,
    )
    if is_ragged:
        outputs = to_ragged(outputs, given, time_major)
    if is_unbatched:
        return tuple(tf.squeeze(result, batch_axis) for result in (outputs, *final_states))
    return outputs, *final_states


def config_from(
    rnn_mode: str, time_major: bool, input_mode: InputMode, direction: Direction, dropout: float
) -> ConfigOf:
    """Returns a function that finds a network's sizes in its arguments' static shapes."""
    count_axis = 0 if time_major else 1
    needed = {"inputs": (2,), "input_h": (count_axis, 2), "input_c": (2,)}

    def config_of(inputs: tf.Tensor, states: Sequence[tf.Tensor], params: tf.Tensor) -> RnnConfig:
        # If the inputs' size is not known, the buffer's size implies it.
        from_params = (
            input_mode == constants.CUDNN_INPUT_LINEAR_MODE and params.shape.is_fully_defined()
        )
        shapes = []
        for (argument, axes), tensor in zip(needed.items(), (inputs, *states), strict=False):
            # `as_list` is needed because, with version 2 behavior off, a shape's items are no
            # numbers.
            shape = tensor.shape.as_list() if tensor.shape.rank == 3 else None
            if argument == "inputs" and from_params and tensor.shape.rank in (None, 3):
                shapes.append(shape or [None] * 3)
                continue
            if shape is None or any(shape[axis] is None for axis in axes):
                raise ValueError(
                    f"expected {argument} of rank 3 with static dimensions {axes}, from which the "
                    f"network's sizes are taken, but received shape {tensor.shape}"
                )
            shapes.append(shape)
        count, output_size = shapes[1][count_axis], shapes[1][2]
        num_units = shapes[-1][2]
        num_dirs = 2 if direction == constants.CUDNN_RNN_BIDIRECTION else 1
        if count % num_dirs:
            raise ValueError(
                "expected input_h to hold an even number of states for direction "
                f"{direction!r}, but received {count}"
            )

        def with_input_size(input_size: int) -> RnnConfig:
            return RnnConfig(
                rnn_mode,
                count // num_dirs,
                num_units,
                input_size,
                input_mode,
                direction,
                num_proj=0 if output_size == num_units else output_size,
                dropout=rate_below_1(dropout),
            )

        if shapes[0][2] is not None:
            return with_input_size(shapes[0][2])
        size = with_input_size(1).layout.size
        rest = params.shape.num_elements() - size
        # If the division leaves a remainder, no input size fits, and the op will raise an error.
        return with_input_size(1 + max(rest, 0) // (with_input_size(2).layout.size - size))

    return config_of


def rate_below_1(dropout: float) -> float:
    """Returns the rate of a network for a rate in [0, 1], since networks take no rate of 1.

    The rate is then 0, and `run` drops everything by itself.
    """
    return 0.0 if dropout == 1.0 else dropout


def _without_upper_inputs(config: RnnConfig, params: tf.Tensor) -> tf.Tensor:
    """Returns the buffer with the input-side matrices of all layers but the first set to zero.

    Each layer then gets nothing from the layer below, as if all of its outputs were dropped, and no
    gradient goes there.
    """
    weights, biases = ops.params_to_canonical(config, params)
    gates, num_dirs = config.layout.num_gates, config.layout.num_dirs
    # A pseudo-layer above the first layer has matrices of both sides and possibly a projection.
    count = 2 * gates + (1 if config.num_proj else 0)
    first = len(weights) - count * num_dirs * (config.num_layers - 1)
    for index in range(first, len(weights)):
        if (index - first) % count < gates:
            weights[index] = tf.zeros_like(weights[index])
    return ops.canonical_to_params(config, weights, biases)


def _seed_tensor(seed: Any) -> tf.Tensor:
    """Returns the two numbers that one run's dropout masks are a function of.

    As in TensorFlow 1's random ops, an integer seed stands for a sequence, with new numbers in each
    run. If contrib's environment variable is set, which gradient checks need, they stay the same.
    """
    resets = os.environ.get("TF_CUDNN_RESET_RND_GEN_STATE", "").lower() in ("1", "true")
    if resets and (seed is None or isinstance(seed, (int, np.integer))):
        seed = (seed or 0, 0)
    if seed is None or isinstance(seed, (int, np.integer)):
        return tf.compat.v1.random_uniform([2], maxval=tf.int64.max, dtype=tf.int64, seed=seed)
    seed = tf.cast(seed, tf.int64)
    ops.check_shape("seed", seed, (2,))
    return seed


def params_size(config: RnnConfig, name: str | None = None) -> tf.Tensor:
    """Returns the buffer's size as an int32, as in contrib."""
    return tf.cast(ops.params_size(config), tf.int32, name=name)
