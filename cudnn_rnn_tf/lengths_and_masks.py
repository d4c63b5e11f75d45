"""Handles masks, lengths, ragged tensors and the order of variable-length sequences."""

from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import _private_names

# The text recommends this function because, unlike tf.ragged.stack, its result has a static last
# dimension.
HOW_TO_MAKE_RAGGED = (
    "of arrays [time, input_size], tf.RaggedTensor.from_row_lengths(tf.concat(arrays, 0), "
    "[len(a) for a in arrays]) makes a ragged tensor that fits"
)


def as_tensor(argument: str, value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    """Returns callers' numbers as a tensor; TensorFlow's error then names the argument."""
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"expected {argument} to be what a tensor can be made of: {error}") from error


def as_lengths(sequence_lengths: Any, argument: str = "sequence_lengths") -> tf.Tensor:
    """Returns callers' lengths as `ops.forward` takes them: int32 [B] as they are, others as int64.

    Raises:
        TypeError: if they are not integers; `argument` is what it calls them.
    """
    lengths = as_tensor(argument, sequence_lengths)
    if not lengths.dtype.is_integer:
        raise TypeError(f"expected {argument} to be integers, but received {lengths.dtype.name}")
    return lengths if lengths.dtype == tf.int32 else tf.cast(lengths, tf.int64)


def in_32_bits(lengths: tf.Tensor) -> tf.Tensor:
    """Returns lengths as int32; those that are no length and do not fit remain none."""
    if lengths.dtype == tf.int32:
        return lengths
    # A cast alone would take the lower half of a length, which may be one that fits.
    return tf.cast(tf.clip_by_value(lengths, tf.int32.min, tf.int32.max), tf.int32)


def mask_from_lengths(
    sequence_lengths: tf.Tensor, outputs: tf.Tensor, time_major: bool
) -> tf.Tensor:
    """Returns the mask [B, T] ([T, B] time-major) of outputs [B, T, n] ([T, B, n] time-major)."""
    time_axis = 0 if time_major else 1
    max_time = outputs.shape.as_list()[time_axis]
    if max_time is None:
        max_time = tf.shape(outputs)[time_axis]
    mask = tf.sequence_mask(sequence_lengths, max_time)
    return tf.transpose(mask) if time_major else mask


def reverse_sequences(
    inputs: tf.Tensor, sequence_lengths: tf.Tensor | None, time_major: bool
) -> tf.Tensor:
    """Returns the sequences reversed, with their padding left at the end.

    A length out of range counts as the nearest one in range, since LiteRT would read and write
    outside the tensor. Whoever runs the network has to say that there is one.
    """
    time_axis, batch_axis = (0, 1) if time_major else (1, 0)
    if sequence_lengths is None:
        return tf.reverse(inputs, [time_axis])
    max_time = tf.cast(tf.shape(inputs)[time_axis], sequence_lengths.dtype)
    # The converter to LiteRT takes some pairs of a maximum and a minimum for activations, such as
    # RELU6, which its interpreter has for floating-point numbers alone.
    lengths = tf.where(sequence_lengths < 0, tf.zeros_like(sequence_lengths), sequence_lengths)
    lengths = tf.where(lengths > max_time, max_time, lengths)
    # XLA reverses no sequences without steps.
    needs_a_step = not inputs.shape[time_axis] and _private_names.is_compiled_by_xla()
    if needs_a_step:
        inputs = tf.pad(inputs, [[0, int(axis == time_axis)] for axis in range(inputs.shape.rank)])
    inputs = tf.reverse_sequence(inputs, lengths, seq_axis=time_axis, batch_axis=batch_axis)
    if needs_a_step:
        inputs = inputs[:-1] if time_major else inputs[:, :-1]
    return inputs


def from_ragged(
    sequences: tf.RaggedTensor, sequence_lengths: tf.Tensor | None, time_major: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns sequences of a ragged tensor [B, (T), I], padded, and their lengths.

    Raises:
        ValueError: if another dimension than the second is ragged, or lengths are given.
    """
    if sequences.ragged_rank != 1 or sequences.shape.rank != 3:
        raise ValueError(
            "expected a ragged tensor of sequences to be of shape [batch, (time), input_size] with "
            f"the second dimension ragged, but received shape {sequences.shape} with "
            f"{sequences.ragged_rank} ragged dimensions: {HOW_TO_MAKE_RAGGED}"
        )
    if sequence_lengths is not None:
        raise ValueError(
            "expected no sequence_lengths or mask with a ragged tensor, which says the lengths, "
            f"but received {sequence_lengths!r}"
        )
    padded = sequences.to_tensor()
    if time_major:
        padded = tf.transpose(padded, (1, 0, 2))
    return padded, sequences.row_lengths()


def to_ragged(outputs: tf.Tensor, inputs: tf.RaggedTensor, time_major: bool) -> tf.RaggedTensor:
    """Returns padded outputs as a ragged tensor [B, (T), n] with the inputs' row lengths."""
    if time_major:
        outputs = tf.transpose(outputs, (1, 0, 2))
    lengths = inputs.row_lengths()
    return inputs.with_values(tf.RaggedTensor.from_tensor(outputs, lengths).values)
