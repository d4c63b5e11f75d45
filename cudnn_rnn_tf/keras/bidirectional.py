"""The drop-in for `keras.layers.Bidirectional`."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import keras
import tensorflow as tf
from typing_extensions import Unpack

from cudnn_rnn_tf.keras.fusion import Fusion, cells_of, difference, forward
from cudnn_rnn_tf.keras.layers import GRU, LSTM, RNN, SimpleRNN, logger
from cudnn_rnn_tf.keras.lengths import TakesLengths
from cudnn_rnn_tf.keywords import ChecksKeywords, NamedLayerOptions
from cudnn_rnn_tf.mask_packing import packing_of
from cudnn_rnn_tf.resets import in_order_of_reading

# Outputs come concatenated already.
_MERGES = {
    "sum": lambda y, y_rev: y + y_rev,
    "ave": lambda y, y_rev: (y + y_rev) / 2,
    "mul": lambda y, y_rev: y * y_rev,
}
# The layers that an op may run together with others.
_PLAIN_CLASSES = (LSTM, GRU, RNN, SimpleRNN)


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class Bidirectional(ChecksKeywords, TakesLengths, keras.layers.Bidirectional):
    """Keras's wrapper that runs a layer in both directions: here in one op, where that is possible.

    The arguments, weights, configs and errors are those of `keras.layers.Bidirectional`. The layer
    in it should be an `LSTM`, `GRU`, `SimpleRNN` or `RNN` of this module; calls take
    `sequence_lengths` and, where one op runs both directions, `resets` as these do. Two ops run
    directions that differ, or have several cells, `dropout` or `stateful`; the attribute
    `needs_two_ops` says why.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.Bidirectional(cudnn_rnn_tf.keras.LSTM(32))
        both = layer(np.zeros((4, 20, 16)))  # [4, 64]
        ```
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            layer: keras.layers.Layer,
            merge_mode: Literal["concat", "sum", "mul", "ave"] | None = "concat",
            weights: Any = None,
            backward_layer: keras.layers.Layer | None = None,
            **kwargs: Unpack[NamedLayerOptions],
        ) -> None: ...

    @property
    def runs_fused(self) -> Fusion:
        """Tells whether the fused ops run both directions, and if not, why."""
        reasons: dict[str, str] = {}
        for layer in (self.forward_layer, self.backward_layer):
            foreign = f"{layer.name!r} is none of cudnn_rnn_tf.keras's layers"
            fusion = getattr(layer, "runs_fused", Fusion(foreign, foreign))
            for when, reason in dataclasses.asdict(fusion).items():
                reasons[when] = reasons.get(when) or reason
        return Fusion(**reasons)

    @property
    def needs_two_ops(self) -> str:
        """The reason why the directions cannot run in one op; "" if they can."""
        first, second = self.forward_layer, self.backward_layer
        if not self.runs_fused:
            return str(self.runs_fused)
        if type(first) is not type(second) or type(first) not in _PLAIN_CLASSES:
            return "the directions are of different or derived classes"
        if reason := why_alone(first) or why_alone(second):
            return reason
        if name := difference(first.cell, second.cell):
            return f"the directions differ in {name}"
        for layer in (first, second):
            if layer.zero_output_for_mask != layer.return_sequences:
                return f"zero_output_for_mask of {layer.name!r}"
        if first.go_backwards:
            return f"go_backwards of {first.name!r}"
        return ""

    def build(
        self,
        sequences_shape: Sequence[int | None],
        initial_state_shape: Any = None,
    ) -> None:
        super().build(sequences_shape, initial_state_shape)
        logger.info(
            "layer %r %s, %s",
            self.name,
            self.runs_fused,
            f"in two ops: {self.needs_two_ops}" if self.needs_two_ops else "in one op",
        )

    def call(
        self,
        sequences: tf.Tensor,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
        resets: Any = None,
        sequences_mask: Any = None,
    ) -> Any:
        if mask is None and resets is not None:
            mask = sequences_mask  # As Keras calls the mask that comes with one of two tensors.
        # Keras's `call`, unlike its `__call__`, may get NumPy arrays.
        sequences = tf.convert_to_tensor(sequences)
        is_layer_dtype = sequences.dtype == tf.as_dtype(self.forward_layer.compute_dtype)
        if self.needs_two_ops or not is_layer_dtype:
            if resets is not None:
                raise ValueError(
                    f"expected no resets of layer {self.name!r}, which one op does not run: "
                    f"{self.needs_two_ops or sequences.dtype.name}"
                )
            return super().call(sequences, initial_state, mask, training)
        num_states = len(self.forward_layer.state_size)
        if initial_state is not None and len(initial_state) != 2 * num_states:
            raise ValueError(
                f"expected {2 * num_states} initial states, those of the forward layer and then "
                f"those of the backward layer, but received {len(initial_state)}"
            )
        cells = [self.forward_layer.cell, self.backward_layer.cell]
        initial_states = None
        if initial_state is not None:
            states = [tf.cast(state, sequences.dtype) for state in initial_state]
            initial_states = [states[:num_states], states[num_states:]]
        owner = f"layer {self.name!r}"
        packing = packing_of(mask, sequences, owner)
        resets = in_order_of_reading(resets, packing, owner)
        if packing:
            sequences = packing.pack(sequences)
        lengths = packing.lengths if packing else None
        outputs, finals = forward(
            cells, sequences, initial_states, lengths, bool(training), 2, resets=resets
        )
        if self.return_sequences:
            outputs = packing.unpack(outputs) if packing else outputs
        else:
            outputs = tf.reshape(finals[0], (-1, 2 * cells[0].units))
            outputs = packing.last_output(outputs, repeat_masked=True) if packing else outputs
        outputs = tf.cast(outputs, self.compute_dtype)
        merged: Any = outputs
        if self.merge_mode != "concat":
            parts = tf.split(outputs, 2, axis=-1)
            merged = _MERGES[self.merge_mode](*parts) if self.merge_mode else tuple(parts)
        if not self.return_state:
            return merged
        outputs = merged if self.merge_mode is None else (merged,)
        forward_states, backward_states = zip(*(tf.unstack(h, axis=1) for h in finals), strict=True)
        return (*outputs, *forward_states, *backward_states)


def directions_of(layer: keras.layers.Layer) -> list[Any]:
    """Returns the two layers in Keras's or this package's `Bidirectional`; of others, the layer."""
    if isinstance(layer, keras.layers.Bidirectional):
        return [layer.forward_layer, layer.backward_layer]
    return [layer]


def is_plain(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer is one of this package's drop-ins, and not of a class derived."""
    return all(type(part) in _PLAIN_CLASSES for part in directions_of(layer))


def why_alone(layer: Any) -> str:
    """Returns why an op that runs a drop-in runs no other layer or direction; "" if it can."""
    if layer.stateful:
        return f"stateful of {layer.name!r}"
    if layer.activity_regularizer is not None:
        return f"activity_regularizer of {layer.name!r}"
    if cells_of(layer) != [layer.cell]:
        return f"the list of cells of {layer.name!r}"
    return f"dropout of {layer.name!r}" if layer.cell.dropout else ""
