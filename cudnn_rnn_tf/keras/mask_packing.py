"""Keras's masks, which may mask any steps, for ops that know lengths."""

import tensorflow as tf


class Packing:
    """The order in which the steps that are to be read come first in each sequence.

    A recurrent layer that skips masked steps reads what a layer without a mask reads of the packed
    sequences, so that lengths say all. Where a mask is padded on the right, as most are, packing
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
        """Inputs [B, T, I] with the steps that are to be read first, in their order."""

        def moved() -> tf.Tensor:
            steps = tf.range(self._max_time)
            # Every step's number once, the masked ones' behind all others.
            keys = tf.where(self.mask, steps, steps + self._max_time)
            return tf.gather(inputs, tf.sort(keys, axis=1) % self._max_time, batch_dims=1)

        return tf.cond(self._is_packed, lambda: inputs, moved)

    def unpack(self, outputs: tf.Tensor, *, backward: bool, zero_masked: bool) -> tf.Tensor:
        """Outputs where Keras has them.

        Args:
            outputs: of packed inputs, [B, T, n], zero past the lengths.
            backward: whether they come from a layer that reads from the end.
            zero_masked: whether masked steps have zeros. Otherwise they have the output of the step
                that was read before them, and zeros where there is none.

        Returns:
            [B, T, n], in the order of time.
        """

        def filled() -> tf.Tensor:
            if backward or zero_masked:
                return outputs
            last = tf.gather(outputs, tf.maximum(self.lengths - 1, 0), batch_dims=1)
            return tf.where(self.mask[:, :, tf.newaxis], outputs, last[:, tf.newaxis])

        def moved() -> tf.Tensor:
            # Where the latest of the steps read so far stands; read from the end, the next one.
            place = tf.cumsum(tf.cast(self.mask, tf.int32), axis=1, exclusive=backward)
            if not backward:
                place -= 1
            spread = tf.gather(outputs, tf.maximum(place, 0), batch_dims=1)
            is_there = self.mask if zero_masked else place >= 0
            return tf.where(is_there[:, :, tf.newaxis], spread, tf.zeros_like(spread))

        return tf.cond(self._is_packed, filled, moved)

    def last_output(self, h: tf.Tensor, *, backward: bool, zero_masked: bool) -> tf.Tensor:
        """The output of the step that is read last.

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
