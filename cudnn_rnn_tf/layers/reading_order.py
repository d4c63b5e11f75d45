"""What the op of a layer reads, in which order: inputs, lengths, masks, ragged tensors, resets."""

from typing import Any, NamedTuple

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.lengths_and_masks import as_lengths, from_ragged, reverse_sequences
from cudnn_rnn_tf.mask_packing import Packing, packing_of
from cudnn_rnn_tf.resets import as_resets, segments_of, starts_of_segments


class Read(NamedTuple):
    """What the op reads."""

    inputs: tf.Tensor
    lengths: tf.Tensor | None  # None if all steps are read.
    packing: Packing | None  # How a mask packed the inputs.
    resets: tf.Tensor | None


def in_order_of_reading(
    inputs: tf.Tensor | tf.RaggedTensor,
    sequence_lengths: Any,
    mask: Any,
    resets: Any,
    owner: str,
    time_major: bool,
    go_backwards: bool,
) -> Read:
    """Returns what the op reads, given what a layer is called with; `owner` is named in errors."""
    reverses, time_axis = go_backwards, 0 if time_major else 1
    segments = None
    if resets is not None:
        resets = as_resets(resets, owner, time_major)
        if not isinstance(inputs, tf.RaggedTensor):
            ops.check_shape(f"resets of {owner}", resets, tuple(inputs.shape[:2]))
        if mask is not None or reverses:
            segments = segments_of(resets, time_axis)
    if isinstance(inputs, tf.RaggedTensor):
        if sequence_lengths is None and isinstance(mask, tf.RaggedTensor):
            # The mask may leave out steps that are in the inputs.
            inputs, row_lengths = from_ragged(inputs, None, time_major)
            mask = mask.to_tensor()
            mask = tf.transpose(mask) if time_major else mask
            if reverses:
                # The outputs of a row begin with its last step, so the padding stays behind.
                inputs = reverse_sequences(inputs, row_lengths, time_major)
                mask = reverse_sequences(mask, row_lengths, time_major)
                if segments is not None:
                    segments = reverse_sequences(segments, row_lengths, time_major)
                reverses = False
        else:
            given = mask if sequence_lengths is None else sequence_lengths
            inputs, sequence_lengths = from_ragged(inputs, given, time_major)
            mask = None
    if mask is not None:
        if sequence_lengths is not None:
            raise ValueError(
                f"{owner} received both sequence_lengths and a mask, which say the same thing "
                "twice: pass one of them"
            )
        packing = packing_of(mask, inputs, owner, time_major=time_major, go_backwards=reverses)
        if packing:
            if segments is not None:
                segments = packing.pack(segments)
                resets = starts_of_segments(segments, time_axis, go_backwards)[..., 0]
            return Read(packing.pack(inputs), packing.lengths, packing, resets)
    lengths = None
    if sequence_lengths is not None:
        lengths = as_lengths(sequence_lengths, f"sequence_lengths of {owner}")
    if reverses:
        inputs = reverse_sequences(inputs, lengths, time_major)
        if segments is not None:
            segments = reverse_sequences(segments, lengths, time_major)
            resets = starts_of_segments(segments, time_axis, is_reversed=True)[..., 0]
    return Read(inputs, lengths, None, resets)
