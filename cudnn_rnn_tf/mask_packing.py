"""Turns Keras's masks, which may mask any steps, into sequence lengths for the ops."""

from typing import Any

import tensorflow as tf


class Packing:
    """A reordering of each sequence after which the steps that are to be read come first.

    A layer that skips masked steps computes the same as a layer without a mask on the packed
    sequences, which lengths suffice for. If a mask is padded on the right, as most are, packing
    moves nothing.

    Args:
        mask: [B, T], or [B, T, 1]; true where a step is to be read. What broadcasts to [B, T] will
            do, as in Keras.
        inputs: what it masks, [B, T, I].

    Attributes:
        mask: boolean [B, T].
        lengths: int32 [B], how many steps of each sequence are to be read.
    """

    def __init__(self, mask: tf.Tensor, inputs: tf.Tensor):
        mask = tf.cast(mask, tf.bool)
        if mask.shape.rank == 3:
            mask = mask[:, :, 0]
        self.mask = tf.broadcast_to(mask, tf.shape(inputs)[:2])
        self._max_time = tf.shape(self.mask)[1]
        self.lengths = tf.reduce_sum(tf.cast(self.mask, tf.int32), axis=1)
        self._is_packed = tf.reduce_all(
            tf.equal(self.mask, tf.sequence_mask(self.lengths, self._max_time))
        )

    def pack(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns inputs [B, T, I] with the steps that are to be read first, in their order."""

        def moved() -> tf.Tensor:
            steps = tf.range(self._max_time)
            # The keys are the numbers of the steps. Those of masked steps are increased, so that
            # they sort behind all others.
            keys = tf.where(self.mask, steps, steps + self._max_time)
            return tf.gather(inputs, tf.sort(keys, axis=1) % self._max_time, batch_dims=1)

        return tf.cond(self._is_packed, lambda: inputs, moved)

    def unpack(self, outputs: tf.Tensor, *, backward: bool, zero_masked: bool) -> tf.Tensor:
        """Moves outputs to the places where Keras has them.

        Args:
            outputs: of packed inputs, [B, T, n], zero past the lengths.
            backward: whether they come from a layer that reads from the end.
            zero_masked: whether masked steps get zeros. Otherwise they get the output of the step
                that was read before them, or zeros if there is none.

        Returns:
            [B, T, n], in the order of time.
        """

        def filled() -> tf.Tensor:
            if backward or zero_masked:
                return outputs
            last = tf.gather(outputs, tf.maximum(self.lengths - 1, 0), batch_dims=1)
            return tf.where(self.mask[:, :, tf.newaxis], outputs, last[:, tf.newaxis])

        def moved() -> tf.Tensor:
            # For each step, this is the place of the latest step that was read so far. If the layer
            # reads from the end, that is the next one in time.
            place = tf.cumsum(tf.cast(self.mask, tf.int32), axis=1, exclusive=backward)
            if not backward:
                place -= 1
            spread = tf.gather(outputs, tf.maximum(place, 0), batch_dims=1)
            is_there = self.mask if zero_masked else place >= 0
            return tf.where(is_there[:, :, tf.newaxis], spread, tf.zeros_like(spread))

        return tf.cond(self._is_packed, filled, moved)

    def last_output(self, h: tf.Tensor, *, backward: bool, zero_masked: bool) -> tf.Tensor:
        """Returns the output of the step that is read last.

        Args:
            h: the final state, [B, n].
            backward: as in `unpack`.
            zero_masked: as in `unpack`.

        Returns:
            [B, n].
        """
        is_there = self.lengths > 0
        if zero_masked:
            is_there = self.mask[:, 0 if backward else -1]
        return tf.where(is_there[:, tf.newaxis], h, tf.zeros_like(h))


def packed(mask: Any, inputs: tf.Tensor) -> tuple[Packing | None, tf.Tensor, tf.Tensor | None]:
    """Packs a layer's inputs by its mask, or by the first one of a list of masks.

    Returns:
        The packing, the packed inputs and their lengths; without a mask None, the inputs and None.
    """
    if isinstance(mask, (list, tuple)):
        mask = mask[0]
    if mask is None:
        return None, inputs, None
    packing = Packing(tf.convert_to_tensor(mask), inputs)
    return packing, packing.pack(inputs), packing.lengths
