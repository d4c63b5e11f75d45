"""Turns masks, which may mask any steps of a sequence, into sequence lengths for the ops."""

from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.ops.op_library import raw_ops

# The attribute of a tensor that `Packing.unpack` returned: the packing, and what it has unpacked.
_PACKED = "_cudnn_rnn_tf_packed"


class Packing:
    """A reordering of each sequence after which the steps that are to be read come first.

    A layer that skips masked steps computes the same as a layer without a mask on the packed
    sequences, which lengths suffice for. Nothing here depends on what is in the mask, so that a
    host need not wait for a GPU that has it. The mask is [B, T] or [1, T] ([T, B] or [T, 1]
    time-major), true where a step is to be read; a last dimension of size 1 may follow. With
    `go_backwards`, packed sequences and unpacked outputs are in the order of reading, from the end.

    Attributes:
        lengths: int64 [B], how many steps of each sequence are to be read.

    Raises:
        ValueError: if the mask's static shape is another one.
        tf.errors.InvalidArgumentError: if its shape is another one, when run.
    """

    def __init__(
        self,
        mask: tf.Tensor,
        inputs: tf.Tensor,
        owner: str,
        *,
        time_major: bool = False,
        go_backwards: bool = False,
    ):
        _check_mask(mask, inputs, owner, time_major)
        self._mask = mask
        mask = tf.cast(mask, tf.bool)
        self._attrs = {"time_major": time_major, "go_backwards": go_backwards}
        if not ops.has_substitute():
            self.lengths, self._places, self._steps = raw_ops.cudnn_rnn_tf_read_mask(
                mask=mask, values=inputs, owner=owner, **self._attrs
            )
            return
        # The graph that is being made must not have this package's ops.
        if mask.shape.rank == 3:
            mask = mask[:, :, 0]
        # Only the sequences may share a row; to broadcast one along time would be another mask.
        time_axis = 0 if time_major else 1
        check = tf.debugging.assert_equal(
            tf.shape(mask)[time_axis],
            tf.shape(inputs)[time_axis],
            f"expected the mask of {owner} to have as many steps as the inputs",
        )
        with tf.control_dependencies([check]):
            mask = self._batch_major(tf.broadcast_to(mask, tf.shape(inputs)[:2]))
        mask = tf.reverse(mask, [1]) if go_backwards else mask
        reads = tf.cast(mask, tf.int64)
        before = tf.cumsum(reads, axis=1, exclusive=True)
        self.lengths = tf.reduce_sum(reads, axis=1)
        self._places = tf.where(mask, before, -1 - before)
        # The keys of masked steps are increased, so that they sort behind all others.
        max_time = tf.shape(mask, tf.int64)[1]
        steps = tf.range(max_time)
        order = tf.sort(tf.where(mask, steps, steps + max_time), axis=1)
        self._steps = tf.where(order < max_time, order, tf.constant(-1, tf.int64))

    def pack(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns inputs [B, T, I] ([T, B, I] time-major) with the steps that are to be read first.

        What comes after them is not to be read.
        """
        if self.has_unpacked(inputs):
            return getattr(inputs, _PACKED)[1]
        if not ops.has_substitute():
            return raw_ops.cudnn_rnn_tf_pack_steps(
                values=inputs, places=self._places, steps=self._steps, **self._attrs
            )
        inputs = self._batch_major(inputs)
        inputs = tf.reverse(inputs, [1]) if self._attrs["go_backwards"] else inputs
        return self._batch_major(_gathered(inputs, self._steps))

    def unpack(self, outputs: tf.Tensor, repeat_masked: bool = False) -> tf.Tensor:
        """Moves outputs [B, T, n] ([T, B, n] time-major) to the steps that they belong to.

        They are in the order of reading. With `repeat_masked`, masked steps get the output of the
        step that was read before them, or zeros if there is none; otherwise zeros.
        """
        unpacked = self._unpack(outputs, repeat_masked)
        # Eager tensors would keep the packed ones in memory.
        if tf.is_symbolic_tensor(unpacked) and not self._attrs["go_backwards"]:
            setattr(unpacked, _PACKED, (self, outputs))
        return unpacked

    def _unpack(self, outputs: tf.Tensor, repeat_masked: bool) -> tf.Tensor:
        if not ops.has_substitute():
            return raw_ops.cudnn_rnn_tf_unpack_steps(
                values=outputs,
                places=self._places,
                steps=self._steps,
                repeat_masked=repeat_masked,
                # Outputs are in the order of reading already.
                **{**self._attrs, "go_backwards": False},
            )
        places = self._places
        if repeat_masked:
            places = tf.where(places < 0, -2 - places, places)
        return self._batch_major(_gathered(self._batch_major(outputs), places))

    def last_output(self, h: tf.Tensor, repeat_masked: bool) -> tf.Tensor:
        """Returns the output of the last step, as `unpack` would.

        Args:
            h: the final state, [B, n].
            repeat_masked: as in `unpack`.

        Returns:
            [B, n].
        """
        is_there = self.lengths > 0 if repeat_masked else self._places[:, -1] >= 0
        return tf.where(is_there[:, tf.newaxis], h, tf.zeros_like(h))

    def has_unpacked(self, tensor: tf.Tensor) -> bool:
        """Tells whether a tensor of the graph that is being made is what `unpack` returned."""
        return (
            getattr(tensor, _PACKED, (None,))[0] is self
            and tensor.graph is tf.compat.v1.get_default_graph()
        )

    def is_of(self, mask: tf.Tensor, time_major: bool = False, go_backwards: bool = False) -> bool:
        """Tells whether this is the packing by the very same mask, in the same order."""
        layout = {"time_major": time_major, "go_backwards": go_backwards}
        return mask is self._mask and self._attrs == layout

    def _batch_major(self, tensor: tf.Tensor) -> tf.Tensor:
        """Swaps the first two dimensions of a time-major tensor, or makes it so again."""
        if not self._attrs["time_major"]:
            return tensor
        return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


def packing_of(mask: Any, inputs: tf.Tensor, owner: str, **layout: bool) -> Packing | None:
    """Returns the packing of a layer's inputs by its mask; None without a mask.

    Args:
        mask: as of `Packing`, or what TensorFlow makes a tensor of. Of a list of masks, as Keras
            passes one for inputs and states, the first one counts.
        inputs: as of `Packing`.
        owner: as of `Packing`.
        **layout: `time_major` and `go_backwards`.
    """
    mask = first_mask(mask)
    if mask is None:
        return None
    mask = tf.convert_to_tensor(mask)
    # A layer above another one reads what that one's op wrote, without a detour.
    packing = getattr(inputs, _PACKED, (None,))[0]
    if packing and packing.has_unpacked(inputs) and packing.is_of(mask, **layout):
        return packing
    return Packing(mask, inputs, owner, **layout)


def first_mask(mask: Any) -> Any:
    """Returns the first one of a list of masks, as Keras passes one for inputs and states."""
    is_list = isinstance(mask, (list, tuple)) and _is_list_of_masks(mask)
    return mask[0] if is_list else mask


def _is_list_of_masks(values: list[Any] | tuple[Any, ...]) -> bool:
    """Tells a list of masks from a mask that is a nested list."""
    if not values or values[0] is None:
        return bool(values)
    shape = getattr(values[0], "shape", None)
    if shape is None:
        return False
    return tf.TensorShape(shape).rank is None or len(shape) >= 2


def _check_mask(mask: tf.Tensor, inputs: tf.Tensor, owner: str, time_major: bool) -> None:
    expected = inputs.shape[:2].as_list() if inputs.shape.rank else [None, None]
    received = mask.shape.as_list() if mask.shape.rank is not None else expected
    fits = len(received) == 2 or (len(received) == 3 and received[2] in (1, None))
    if fits:
        batch, time = (1, 0) if time_major else (0, 1)
        fits = received[batch] in (1, None, expected[batch]) or expected[batch] is None
        fits &= None in (received[time], expected[time]) or received[time] == expected[time]
    if not fits:
        layout = "[time, batch]" if time_major else "[batch, time]"
        raise ValueError(
            f"expected the mask of {owner} of shape {tuple(expected)} ({layout}), but received "
            f"{tuple(received)}"
        )


def _gathered(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Returns values [B, T, n] by indices [B, T]; zeros where an index is negative."""
    found = tf.gather(values, tf.maximum(indices, tf.constant(0, tf.int64)), batch_dims=1)
    # LiteRT has no indexing with a new axis where it knows no size.
    return tf.where(tf.expand_dims(indices, 2) >= 0, found, tf.zeros_like(found))
