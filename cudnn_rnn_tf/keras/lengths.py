"""Gives the drop-ins the call argument `sequence_lengths`, which Keras's layers lack."""

import inspect
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import _private_names, ops
from cudnn_rnn_tf.keras.registration import registered_name, signed


class TakesLengths:
    """Makes a layer take sequence lengths in place of a mask, and pass its mask on.

    The base class of Keras comes after this one.
    """

    @property
    def supports_masking(self) -> bool:
        # Not all versions of Keras say it of wrappers.
        return True

    @supports_masking.setter
    def supports_masking(self, value: bool) -> None:
        pass

    def get_build_config(self) -> dict[str, Any] | None:
        return signed(super().get_build_config())  # type: ignore[misc]

    def get_config(self) -> dict[str, Any]:
        # Keras is about to make a layer of it, as for each direction of a wrapper.
        if type(self).__module__.startswith("cudnn_rnn_tf."):
            registered_name(type(self))
        return super().get_config()  # type: ignore[misc]

    def _call(self, sequences: Any, *args: Any, sequence_lengths: Any = None, **kwargs: Any) -> Any:
        """Calls the layer as Keras does, with one argument more: `sequence_lengths`.

        They are integers [B], how many steps of each sequence are to be read, each in [0, T]. In a
        model or a function, where nobody knows them yet, more than T are as good as T, and less
        than 0 as good as 0. None for all steps, or if there is a mask; one that the sequences carry
        themselves, as `Embedding` makes it, is ignored.

        Raises:
            TypeError: if the lengths are not integers.
            ValueError: if the lengths are not of shape [B], or there are lengths and a mask.
            tf.errors.InvalidArgumentError: if the call is no part of a graph and a length is not
                in [0, T].
        """
        layer: Any = self
        call = super().__call__  # type: ignore[misc]
        if sequence_lengths is None:
            return call(sequences, *args, **kwargs)
        owner = f"layer {layer.name!r}"
        given = inspect.signature(layer.call).bind(sequences, *args, **kwargs).arguments
        mask = given.get("mask")
        if mask is not None and mask is not _private_names.keras_mask(sequences):
            raise ValueError(
                f"{owner} received both sequence_lengths and a mask, which say the "
                "same thing twice: pass one of them"
            )
        given["mask"] = _mask(owner, sequences, sequence_lengths)
        # Keras takes tensors alone by position, so `training` must have its name.
        first, *others = given
        return call(given[first], **{name: given[name] for name in others})

    if TYPE_CHECKING:

        def __call__(
            self,
            sequences: Any,
            initial_state: Any = None,
            mask: Any = None,
            training: Any = None,
            resets: Any = None,
            *,
            sequence_lengths: Any = None,
        ) -> tf.Tensor | Any: ...
    else:
        __call__ = _call


def _mask(owner: str, sequences: Any, sequence_lengths: Any) -> Any:
    """Returns the mask [B, T] in Keras's own operations, so that any program loads a model."""
    if not keras.backend.is_keras_tensor(sequence_lengths):
        sequence_lengths = keras.ops.convert_to_tensor(sequence_lengths)
    dtype = keras.backend.standardize_dtype(sequence_lengths.dtype)
    if not keras.backend.is_int_dtype(dtype):
        raise TypeError(
            f"expected sequence_lengths of {owner} to be integers, but received {dtype}"
        )
    batch_size = sequences.shape[0]
    ops.check_shape(f"sequence_lengths of {owner}", sequence_lengths, (batch_size,), " ([batch])")
    if tf.executing_eagerly() and isinstance(sequence_lengths, tf.Tensor):
        _check_lengths(owner, sequence_lengths, sequences.shape[1])
    # TensorFlow sums integers on a CPU only. Float32 counts up to 16 million steps.
    counts = keras.ops.cumsum(keras.ops.ones_like(sequences[:, :, 0], dtype="float32"), axis=1)
    lengths = keras.ops.expand_dims(keras.ops.cast(sequence_lengths, "float32"), 1)
    if None not in (batch_size, sequence_lengths.shape[0]):
        return counts <= lengths
    # A comparison alone would take one length for all sequences.
    both = keras.ops.concatenate([lengths, counts], axis=1)
    return both[:, 1:] <= both[:, :1]


def _check_lengths(owner: str, lengths: tf.Tensor, max_time: int | None) -> None:
    """Raises the op's error if a length is out of range and the host need not wait for a GPU."""
    if max_time is None or not lengths.backing_device.endswith("CPU:0"):
        return
    values = lengths.numpy()
    for index in np.flatnonzero((values < 0) | (values > max_time))[:1]:
        raise tf.errors.InvalidArgumentError(
            *(None, None),
            f"sequence_lengths[{index}] of {owner} must lie in [0, {max_time}], but received "
            f"{values[index]}",
        )
