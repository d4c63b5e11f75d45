"""Says which recurrent layers of a model run in the fused ops, and why others do not."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

from cudnn_rnn_tf._private_names import sublayers
from cudnn_rnn_tf.keras.bidirectional import Bidirectional, directions_of
from cudnn_rnn_tf.keras.class_changes import is_changed
from cudnn_rnn_tf.keras.configs import CALLS, why_left
from cudnn_rnn_tf.keras.stack import Stack


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What is said of one recurrent layer.

    Attributes:
        name: "outer/inner" for a layer within another one of the model.
        kind: the name of its class.
        replaced: whether it is a layer of `cudnn_rnn_tf.keras`.
        outcome: what runs it, or why it was left.
    """

    name: str
    kind: str
    replaced: bool
    outcome: str


@dataclasses.dataclass(frozen=True)
class AccelerationReport:
    """What `acceleration_report` returns. As a string, it is a table.

    Attributes:
        model_name: of the model.
        layers: its recurrent layers.
    """

    model_name: str
    layers: tuple[LayerReport, ...]

    @property
    def replaces_any(self) -> bool:
        """Whether any of them is a layer of `cudnn_rnn_tf.keras`."""
        return any(layer.replaced for layer in self.layers)

    def __repr__(self) -> str:
        lines = [f"Recurrent layers of model {self.model_name!r}:"]
        if not self.layers:
            return f"{lines[0]} none"
        names = max(len(layer.name) for layer in self.layers)
        kinds = max(len(layer.kind) for layer in self.layers)
        for layer in self.layers:
            lines.append(f"  {layer.name:{names}}  {layer.kind:{kinds}}  {layer.outcome}")
        return "\n".join(lines)


def acceleration_report(model: keras.Model) -> AccelerationReport:
    """Says which recurrent layers of a model run in the fused ops, and why others do not.

    Args:
        model: any Keras model, such as one that `accelerate` returned, or one that was loaded.

    Raises:
        TypeError: if it is no Keras model.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected model to be a Keras model, but received {type(model).__name__}")
    return AccelerationReport(model.name, tuple(_rows(model, "")))


def _rows(layer: keras.layers.Layer, scope: str) -> Iterator[LayerReport]:
    """Yields rows for the recurrent layers within a layer, with names that begin with `scope`."""
    for part in sublayers(layer):
        name, kind = f"{scope}{part.name}", type(part).__name__
        if isinstance(part, Stack):
            yield from _rows_of_stack(part, scope)
        elif hasattr(part, "runs_fused"):
            yield LayerReport(name, kind, True, _outcome(part))
        elif hasattr(part, "canonical_to_params"):  # A CudnnLSTM, say.
            yield LayerReport(name, kind, False, "left: it is this package's already")
        elif isinstance(part, keras.layers.RNN) or type(part) is keras.layers.Bidirectional:
            reason = why_left(part) or "accelerate was not called"
            yield LayerReport(name, kind, False, f"left: {reason}")
        else:
            yield from _rows(part, f"{name}/")


def _rows_of_stack(stack: Stack, scope: str) -> Iterator[LayerReport]:
    recurrent = [layer for layer in stack.layers if hasattr(layer, "runs_fused")]
    dropouts = [repr(layer.name) for layer in stack.layers if layer not in recurrent]
    for layer in recurrent:
        others = ", ".join(repr(each.name) for each in recurrent if each is not layer)
        outcome = f"{stack.runs_fused}, in one op" + (f" with {others}" if others else "")
        if dropouts:
            outcome += f", and {', '.join(dropouts)} between them with other masks"
        yield LayerReport(f"{scope}{layer.name}", type(layer).__name__, True, outcome)


def _outcome(layer: Any) -> str:
    outcome = str(layer.runs_fused)
    if isinstance(layer, Bidirectional) and layer.runs_fused:
        ops = f"in two ops: {layer.needs_two_ops}" if layer.needs_two_ops else "in one op"
        outcome = f"{outcome}, {ops}"
    own = next((part for part in directions_of(layer) if type(part).call not in CALLS), None)
    if own is not None and not layer.runs_fused.not_in_inference:
        outcome += f", where {type(own).__name__}.call reaches Keras's"
    if is_changed(layer):
        outcome += "; Keras runs it where a file of the model is loaded"
    return outcome
