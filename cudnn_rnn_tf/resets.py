"""Handles resets, which begin a new segment within a sequence."""

from typing import Any

import tensorflow as tf

from cudnn_rnn_tf.mask_packing import Packing


def as_resets(resets: Any, owner: str, time_major: bool) -> tf.Tensor:
    """Returns callers' resets, which may be ragged or no tensor, as `ops.forward` takes them.

    Raises:
        TypeError: if they are not boolean.
    """
    is_ragged = isinstance(resets, tf.RaggedTensor)
    resets = resets.to_tensor() if is_ragged else tf.convert_to_tensor(resets)
    if resets.dtype != tf.bool:
        raise TypeError(
            f"expected resets of {owner} to be boolean, but received {resets.dtype.name}"
        )
    return tf.transpose(resets) if is_ragged and time_major else resets


def in_order_of_reading(
    resets: Any, packing: Packing | None, owner: str, go_backwards: bool = False
) -> tf.Tensor | None:
    """Returns a drop-in's resets [B, T] as the op reads them; None for none.

    Args:
        resets: what the caller gave.
        packing: that by the mask; None without one.
        owner: whose resets they are, for errors.
        go_backwards: whether the layer reads from the end.
    """
    if resets is None:
        return None
    resets = as_resets(resets, owner, time_major=False)
    if not packing and not go_backwards:
        return resets
    segments = segments_of(resets, 1)
    segments = packing.pack(segments) if packing else tf.reverse(segments, [1])
    return starts_of_segments(segments, 1, go_backwards)[..., 0]


def segments_of(resets: tf.Tensor, time_axis: int) -> tf.Tensor:
    """Returns the number of each step's segment, [B, T, 1], of resets [B, T] ([T, B] time-major).

    It is a float, so that steps can be moved as inputs are.
    """
    # TensorFlow sums integers on a CPU only. Float32 counts up to 16 million segments.
    return tf.expand_dims(tf.cumsum(tf.cast(resets, tf.float32), axis=time_axis), -1)


def starts_of_segments(segments: tf.Tensor, time_axis: int, is_reversed: bool) -> tf.Tensor:
    """Tells where the number of the segment is not that of the step read before.

    `segments` are what `segments_of` returned, in the order of reading, and the boolean result has
    their shape. If sequences are read from the end, no reset comes before the first step that is
    read; otherwise there is one if segments before its own have been left.
    """
    first = segments[:, :1] if time_axis else segments[:1]
    before = tf.concat([first if is_reversed else tf.zeros_like(first), segments], time_axis)
    return tf.not_equal(segments, before[:, :-1] if time_axis else before[:-1])
