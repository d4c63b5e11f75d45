"""Says which recurrent layers of a model run in the fused ops, and why others do not."""

import dataclasses
from collections.abc import Iterator

import keras

from cudnn_rnn_tf._private_names import sublayers
from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.configs import why_left
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
        layers: its recurrent layers, except those of classes such as `CudnnLSTM`.
    """

    model_name: str
    layers: tuple[LayerReport, ...]

    def __str__(self) -> str:
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
        model: any Keras model, such as one that `accelerate` returned, or a file of it.

    Raises:
        TypeError: if it is no Keras model.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a Keras model, but received {type(model).__name__}")
    return AccelerationReport(model.name, tuple(_rows(model, "", "")))


def _rows(layer: keras.layers.Layer, scope: str, owner: str) -> Iterator[LayerReport]:
    """Yields rows for the recurrent layers within a layer.

    Args:
        layer: a model, or another layer that has layers.
        scope: what the names begin with.
        owner: the class of users' that the layer is, or is in; "" if it is in none.
    """
    if not type(layer).__module__.startswith("keras."):
        owner = type(layer).__name__
    for part in sublayers(layer):
        name, kind = f"{scope}{part.name}", type(part).__name__
        if isinstance(part, Stack):
            yield from _rows_of_stack(part, scope)
        elif hasattr(part, "runs_fused"):
            yield LayerReport(name, kind, True, _outcome(part))
        elif isinstance(part, (keras.layers.RNN, keras.layers.Bidirectional)):
            yield LayerReport(name, kind, False, f"left: {_why_stock(part, owner)}")
        else:
            yield from _rows(part, f"{name}/", owner)


def _rows_of_stack(stack: Stack, scope: str) -> Iterator[LayerReport]:
    recurrent = [layer for layer in stack.layers if hasattr(layer, "runs_fused")]
    dropouts = [repr(layer.name) for layer in stack.layers if layer not in recurrent]
    for layer in recurrent:
        others = ", ".join(repr(each.name) for each in recurrent if each is not layer)
        outcome = f"{stack.runs_fused}, in one op" + (f" with {others}" if others else "")
        if dropouts:
            outcome += f", and {', '.join(dropouts)} between them with other masks"
        yield LayerReport(f"{scope}{layer.name}", type(layer).__name__, True, outcome)


def _outcome(layer: keras.layers.Layer) -> str:
    if not (isinstance(layer, Bidirectional) and layer.runs_fused):
        return str(layer.runs_fused)
    ops = f"in two ops: {layer.needs_two_ops}" if layer.needs_two_ops else "in one op"
    return f"{layer.runs_fused}, {ops}"


def _why_stock(layer: keras.layers.Layer, owner: str) -> str:
    reason = why_left(layer)
    if reason:
        return reason
    if owner:
        return f"{owner} does not have it in its config, or accelerate was not called"
    return "it is Keras's own, which accelerate replaces"
