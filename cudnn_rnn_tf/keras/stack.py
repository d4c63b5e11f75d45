"""A layer that runs several of Keras's recurrent layers on top of each other in one op."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.keras.bidirectional import Bidirectional, directions_of, is_plain, why_alone
from cudnn_rnn_tf.keras.fusion import Fusion, difference, forward
from cudnn_rnn_tf.keras.lengths import TakesLengths
from cudnn_rnn_tf.keywords import ChecksKeywords, NamedLayerOptions
from cudnn_rnn_tf.mask_packing import packing_of
from cudnn_rnn_tf.xla import CompiledByXla


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class Stack(ChecksKeywords, TakesLengths, CompiledByXla):
    """Several layers of `cudnn_rnn_tf.keras` as one, which computes what they do in one op.

    Its weights are theirs. `keras.layers.Dropout` between layers of one direction is the op's
    dropout between layers: the masks are others, of the same distribution. Between layers of two
    directions it is not, since a GPU may draw a mask for each of them.

    Args:
        layers: `LSTM`, `GRU`, `SimpleRNN`, `RNN` of one cell, or `Bidirectional` of one, from
            bottom to top; with cells of one class and the same `units`, `use_bias`, `activation`
            and dtype policy, without dropout, states or `go_backwards`, and all but the last with
            `return_sequences`. Between each two there may be a `keras.layers.Dropout`, all of one
            rate.
        **kwargs: to `keras.layers.Layer`. The dtype policy is that of the layers.

    Call arguments:
        sequences: [B, T, I].
        mask: [B, T], true where a step is to be read; None for all.
        sequence_lengths: [B], integers, in place of a mask.
        training: whether dropout acts, and a gradient is likely to be wanted.

    Returns:
        What the last layer returns.

    Raises:
        TypeError: if `layers` is no sequence of layers.
        ValueError: if one op does not run them; it says why.

    Example:
        ```python
        stack = Stack([LSTM(32, return_sequences=True), LSTM(32)])
        outputs = stack(np.zeros((8, 20, 16)))  # [8, 32]
        ```
    """

    @checked
    def __init__(self, layers: Sequence[keras.layers.Layer], **kwargs: Unpack[NamedLayerOptions]):
        reason = needs_several_ops(layers)
        if reason:
            raise ValueError(f"expected layers that run in one op, but {reason}")
        kwargs["dtype"] = layers[0].dtype_policy
        super().__init__(**kwargs)
        self.layers = list(layers)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    @property
    def runs_fused(self) -> Fusion:
        """Tells that the fused ops run the layers, which they always do."""
        return Fusion()

    def build(self, sequences_shape: Sequence[int | None]) -> None:
        for layer in self.layers:
            if not layer.built:
                layer.build(sequences_shape)
            sequences_shape = layer.compute_output_shape(sequences_shape)

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self,
            sequences: Any,
            mask: Any = None,
            training: Any = None,
            *,
            sequence_lengths: Any = None,
        ) -> tf.Tensor | Any: ...

    def compute_output_shape(self, sequences_shape: Sequence[int | None]) -> Any:
        for layer in self.layers:
            sequences_shape = layer.compute_output_shape(sequences_shape)
        return sequences_shape

    def compute_mask(self, sequences: Any, mask: Any = None) -> Any:
        return self.layers[-1].compute_mask(sequences, mask)

    def call(
        self, sequences: tf.Tensor, mask: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        # Keras calls this with NumPy arrays in `stateless_call`.
        sequences = tf.convert_to_tensor(sequences, self.compute_dtype)
        recurrent, dropouts = _parted(self.layers)
        cells = [part.cell for layer in recurrent for part in directions_of(layer)]
        top = self.layers[-1]
        num_dirs = len(directions_of(top))
        packing = packing_of(mask, sequences, f"layer {self.name!r}")
        if packing:
            sequences = packing.pack(sequences)
        outputs, finals = forward(
            cells,
            sequences,
            None,
            packing.lengths if packing else None,
            bool(training),
            num_dirs,
            dropout=next((dropout for dropout in dropouts if dropout and dropout.rate), None),
        )
        # As in Keras's wrapper, outputs of two directions are zero where a step is masked.
        zero_masked = top.return_sequences if num_dirs == 2 else top.zero_output_for_mask
        if top.return_sequences:
            return packing.unpack(outputs, not zero_masked) if packing else outputs
        last = tf.reshape(finals[0][:, -num_dirs:], (-1, num_dirs * cells[0].units))
        return packing.last_output(last, not zero_masked) if packing else last

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        # TensorFlow calls this to find the objects to save. It does not look into Keras's lists.
        children = super()._trackable_children(save_type, **kwargs)
        return {**children, **{f"layer_{i}": layer for i, layer in enumerate(self.layers)}}

    def get_config(self) -> dict[str, Any]:
        layers = [keras.saving.serialize_keras_object(layer) for layer in self.layers]
        for layer in layers:
            # The layers are built when the stack is.
            layer.pop("build_config", None)
        config = super().get_config()
        del config["dtype"]
        return {**config, "layers": layers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Stack":
        config = dict(config)
        layers = [keras.saving.deserialize_keras_object(each) for each in config.pop("layers")]
        return cls(layers, **config)


def needs_several_ops(layers: Sequence[keras.layers.Layer]) -> str:
    """Returns why one op cannot run these layers; "" if it can."""
    if len(layers) == 0:
        return "there are none"
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(f"expected layers to hold Keras layers, but received {layer!r}")
        # A wrapper has a regularizer of its own, and dropout may have one.
        if layer.activity_regularizer is not None:
            return f"activity_regularizer of {layer.name!r}"
    reason = _dropout_reason(layers)
    if reason:
        return reason
    layers, _ = _parted(layers)
    bottom, first = layers[0], directions_of(layers[0])[0]
    for layer in layers:
        # If a wrapper's directions run in one op, they are alike, so the first stands for both.
        part = directions_of(layer)[0]
        if not is_plain(layer):
            return f"{layer.name!r} is none of cudnn_rnn_tf.keras's layers"
        if isinstance(layer, Bidirectional) != isinstance(bottom, Bidirectional):
            return f"{bottom.name!r} and {layer.name!r} are of different classes"
        if isinstance(layer, Bidirectional):
            if layer.needs_two_ops or layer.merge_mode != "concat":
                return layer.needs_two_ops or f"merge_mode={layer.merge_mode!r} of {layer.name!r}"
        elif not layer.runs_fused:
            return f"{layer.name!r} {layer.runs_fused}"
        if layer.dtype_policy != first.dtype_policy:
            return f"{first.name!r} and {layer.name!r} differ in dtype_policy"
        if layer is not layers[-1] and not layer.return_sequences:
            return f"{layer.name!r} returns no sequences"
        if reason := why_alone(part):
            return reason
        for name in ("return_state", "go_backwards"):
            if getattr(part, name):
                return f"{name} of {part.name!r}"
        if part.cell.recurrent_dropout:
            return f"recurrent_dropout of {part.name!r}"
        if name := difference(first.cell, part.cell):
            return f"{first.name!r} and {part.name!r} differ in {name}"
    return ""


def _parted(
    layers: Sequence[keras.layers.Layer],
) -> tuple[list[keras.layers.Layer], list[keras.layers.Dropout | None]]:
    """Returns the recurrent layers, and the dropout layer or None between each two of them."""
    recurrent: list[keras.layers.Layer] = []
    between: list[keras.layers.Dropout | None] = []
    dropout = None
    for layer in layers:
        if type(layer) is keras.layers.Dropout:
            dropout = layer
            continue
        if recurrent:
            between.append(dropout)
        recurrent.append(layer)
        dropout = None
    return recurrent, between


def _dropout_reason(layers: Sequence[keras.layers.Layer]) -> str:
    """Returns why the op's dropout cannot replace the layers' dropout; "" if it can."""
    recurrent, between = _parted(layers)
    dropouts = [layer for layer in layers if type(layer) is keras.layers.Dropout]
    if len([dropout for dropout in between if dropout]) < len(dropouts):
        return f"dropout is not between two layers: {[layer.name for layer in dropouts]}"
    rates = {dropout.rate if dropout else 0 for dropout in between}
    if len(rates) > 1:
        return f"the rates of dropout between the layers differ: {sorted(rates)}"
    for dropout in dropouts:
        if not 0 <= dropout.rate < 1 or dropout.noise_shape is not None:
            return f"rate={dropout.rate} and noise_shape={dropout.noise_shape} of {dropout.name!r}"
        if dropout.dtype_policy != recurrent[0].dtype_policy:
            return f"{recurrent[0].name!r} and {dropout.name!r} differ in dtype_policy"
        if dropout.rate and isinstance(recurrent[0], keras.layers.Bidirectional):
            return f"{dropout.name!r} is between layers of two directions"
    return ""
