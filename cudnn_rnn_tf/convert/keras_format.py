"""Converts from and to `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `Bidirectional`."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
from typing_extensions import Unpack

from cudnn_rnn_tf import constants
from cudnn_rnn_tf._private_names import sublayers
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.convert import network
from cudnn_rnn_tf.initializers import AllGates, PerGate
from cudnn_rnn_tf.keras.bidirectional import directions_of
from cudnn_rnn_tf.keras.fusion import activation_of, rnn_mode_of, shown
from cudnn_rnn_tf.keras.stack import Stack
from cudnn_rnn_tf.keras_weights import from_keras_weights, to_keras_weights
from cudnn_rnn_tf.keywords import WEIGHT_OPTIONS, CudnnOptions
from cudnn_rnn_tf.layers import CudnnGRU
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN
from cudnn_rnn_tf.pseudo_layers import PseudoLayer

_STOCK = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN)

_INITIALIZERS = [name for name in WEIGHT_OPTIONS if name.endswith("initializer")]
_REGULARIZERS = [name for name in WEIGHT_OPTIONS if name not in _INITIALIZERS]
# The layers of a stack, and their directions, can become one layer only if they agree in these.
_COMMON = ("units", "use_bias", "dtype_policy", "trainable", "stateful", *_REGULARIZERS)


@checked
def from_keras(
    source: Any,
    *,
    name: str | None = None,
    for_inference: bool = False,
    **options: Unpack[CudnnOptions],
) -> CudnnRNN:
    """Returns a layer that computes the same as a stack of Keras's own layers.

    Args:
        source: a built `keras.layers.LSTM`, `GRU`, `SimpleRNN` or `Bidirectional` of one; a
            sequence of them, from bottom to top, in which each but the last returns its sequences,
            with or without a `keras.layers.Dropout` between each two; or a Keras model that
            contains such a stack. Drop-ins are such layers, too, and a `Stack` stands for its own.
        name: in a model, the name of the stack's first layer ("outer/inner" within a layer of the
            model); None where there is one stack.
        for_inference: whether to leave out the layers' own `dropout` and `recurrent_dropout`, which
            act in training only and have no equivalent here.
        **options: to the layer's constructor, instead of what it would be given.

    Returns:
        A built layer with the same weights to the bit, and with the same initializers (of the
        bottom layer, `unit_forget_bias` included), regularizers, constraints, dtype policy,
        `reset_after`, `return_sequences`, `return_state`, `go_backwards` and `stateful`. The one
        bias of an LSTM, simple RNN or GRU without `reset_after` becomes the input side's
        (`bias_mode="single_input"`); `bias_mode="double"` adds zeros for the other side. States are
        [B, L * D, H] here; past a sequence's end outputs are zeros, where an unwrapped Keras layer
        repeats the last one. Optimizers see one variable, where a Keras layer has up to three for
        each direction: one that goes by variables trains it otherwise (see `CudnnRNN`).

    Raises:
        TypeError: if the source is none of those.
        ValueError: if a layer is not built or has no equivalent here (other activations, dropout of
            inputs or recurrent states, unless it is `for_inference`; a `merge_mode` other than
            "concat"), or layers of a stack do not fit together.
    """
    if isinstance(source, keras.Model):
        found = {key: stack for key, stack in recurrent_layers(source) if isinstance(stack, list)}
        _, source = network.pick(found, name, f"model {source.name!r}", "stacks of Keras's layers")
    elif name is not None:
        raise TypeError(f"a name is for a model, but received {type(source).__name__}")
    layers, dropout = _without_dropout(source if isinstance(source, (list, tuple)) else [source])
    parts = [part for layer in layers for part in directions_of(layer)]
    for part in parts:
        if not part.built:
            raise ValueError(
                f"layer {part.name!r} is not built yet, so it has no weights: call it on inputs "
                "first"
            )
        _check_stock(part, for_inference)
    _check_stack(layers, parts)
    bottom, top = parts[0], layers[-1]
    rnn_mode = rnn_mode_of(bottom.cell)
    return network.make_layer(
        rnn_mode,
        [_pseudo_layer(part) for part in parts],
        len(directions_of(layers[0])),
        {
            **_initializers_of(bottom),
            **{key: getattr(bottom, key) for key in _REGULARIZERS},
            "dropout": dropout,
            "dtype": bottom.dtype_policy,
            "trainable": bottom.trainable,
            "return_sequences": top.return_sequences,
            "return_state": top.return_state,
            "go_backwards": bottom.go_backwards,
            "stateful": bottom.stateful,
            **options,
        },
        batch_size=bottom.states[0].shape[0] if bottom.stateful else None,
    )


def why_not(layer: Any) -> str:
    """Returns why `from_keras` does not take one of Keras's layers, built or not; "" if it does."""
    try:
        layers, _ = _without_dropout([layer])
        parts = directions_of(layer)
        for part in parts:
            _check_stock(part, for_inference=True)
        _check_stack(layers, parts)
        # The layers that an option leaves out come last.
        for part in parts:
            _check_stock(part, for_inference=False)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


@checked
def to_keras(layer: CudnnRNN) -> list[keras.layers.Layer]:
    """Returns Keras's own layers that compute the same as a layer.

    Args:
        layer: a built layer.

    Returns:
        From bottom to top, one built `keras.layers.LSTM`, `GRU`, `SimpleRNN` or `Bidirectional` of
        one per layer of the stack, with a `keras.layers.Dropout` between each two if there is
        dropout; a `keras.Sequential` takes them. The weights are the same to the bit, except that
        an LSTM, simple RNN or GRU without `reset_after` has one bias, the rounded sum of both
        sides'. Keras's states are one tensor per direction, [B, H].

    Raises:
        TypeError: if `layer` is none of this package's layers.
        ValueError: if it is not built, or Keras has no equivalent: skip input, projection, cell
            clipping, peepholes, other activations, layer normalization, zoneout, recurrent weight
            dropout, time-major data, cell sequences, the states of more than one layer,
            initializers of gates on their own (`PerGate`) other than a forget gate's of ones.
    """
    target = "keras.layers"
    network.check_layer(
        *(layer, target),
        num_proj=None,
        cell_clip=None,
        use_peepholes=False,
        use_layer_norm=False,
        recurrent_weight_dropout=0.0,
        time_major=False,
    )
    network.check_layer(layer, target, return_cell_sequences=False, **network.OWN_ACTIVATIONS)
    if layer.num_layers > 1:
        network.check_layer(layer, target, return_state=False)
    weights = iter(network.pseudo_layers(layer))
    batch_size = layer.states[0].shape[0] if layer.stateful else None
    layers: list[keras.layers.Layer] = []
    for index in range(layer.num_layers):
        is_top = index == layer.num_layers - 1
        fan_in = layer.num_dirs * layer.num_units if index else layer.input_size
        stock = _make_stock(
            layer,
            return_sequences=layer.return_sequences or not is_top,
            # Layers above the first read its outputs in the order in which it returns them.
            go_backwards=layer.go_backwards and index == 0,
        )
        stock.build((batch_size, None, fan_in))
        for part in directions_of(stock):
            part.set_weights(to_keras_weights(layer.rnn_mode, next(weights)))
        layers.append(stock)
        if layer.dropout and not is_top:
            seed = None if layer.seed is None else layer.seed + index
            layers.append(keras.layers.Dropout(layer.dropout, seed=seed, dtype=layer.dtype_policy))
    return layers


def recurrent_layers(model: keras.layers.Layer) -> Iterator[tuple[str, Any]]:
    """Yields the recurrent layers of a model and of layers within it, by name.

    Yields:
        A name, and one of this package's layers or a list: a stack of Keras's own, each called on
        the one before, of the same class and size, with the dropout between. A recurrent layer of
        another class is in a list of its own, so that it is not overlooked.
    """
    stacks: list[list[keras.layers.Layer]] = []
    # The layer of the model that each stack ends with. It may be a `Stack` of several.
    tops: list[keras.layers.Layer] = []
    for layer in sublayers(model):
        parts = _parts(layer)
        if isinstance(layer, CudnnRNN):
            yield layer.name, layer
        elif _is_stock(parts[0]) or isinstance(layer, keras.layers.Dropout):
            for index, stack in enumerate(stacks):
                if _reads(model, layer, tops[index]) and _belongs(parts[0], stack):
                    stack += parts
                    tops[index] = layer
                    break
            else:
                if _is_stock(parts[0]):
                    stacks.append(list(parts))
                    tops.append(layer)
        elif isinstance(layer, (keras.layers.RNN, keras.layers.Bidirectional)):
            yield layer.name, [layer]
        else:
            for name, found in recurrent_layers(layer):
                yield f"{layer.name}/{name}", found
    for stack in stacks:
        yield stack[0].name, stack if _is_stock(stack[-1]) else stack[:-1]


def _parts(layer: Any) -> list[Any]:
    """Returns the layers of a `Stack`; of others, the layer."""
    return layer.layers if isinstance(layer, Stack) else [layer]


def _reads(model: keras.Model, layer: keras.layers.Layer, below: keras.layers.Layer) -> bool:
    """Returns whether a layer of a model is called on the output of the layer below."""
    if isinstance(model, keras.Sequential):
        return model.layers[model.layers.index(layer) - 1] is below
    try:
        return layer.input is below.output
    except (AttributeError, ValueError):  # A layer was not called yet, or more than once.
        return False


def _belongs(layer: keras.layers.Layer, stack: Sequence[keras.layers.Layer]) -> bool:
    """Returns whether a layer can be next in a stack: one of its kind, or dropout after one."""
    if not _is_stock(layer):
        return _is_stock(stack[-1])

    def kind(stock: keras.layers.Layer) -> list[Any]:
        return [(type(part), part.units) for part in directions_of(stock)]

    return kind(stack[0]) == kind(layer)


def _is_stock(layer: Any) -> bool:
    return all(isinstance(part, _STOCK) for part in directions_of(layer))


def _without_dropout(source: Sequence[Any]) -> tuple[list[keras.layers.Layer], float]:
    """Returns the recurrent layers of a stack, and the rate of the dropout between them."""
    layers: list[keras.layers.Layer] = []
    rates: list[float] = []
    for layer in (part for each in source for part in _parts(each)):
        if _is_stock(layer):
            rates += [0.0] * (len(layers) - len(rates))
            layers.append(layer)
        elif isinstance(layer, keras.layers.Dropout) and len(layers) == len(rates) + 1:
            if layer.noise_shape is not None:
                raise ValueError(f"noise_shape of layer {layer.name!r} has no equivalent")
            rates.append(layer.rate)
        else:
            raise TypeError(
                "expected keras.layers.LSTM, GRU, SimpleRNN or Bidirectional ones of them, and "
                f"Dropout between them, but received {layer!r}"
            )
    if not layers or len(rates) != len(layers) - 1:
        raise ValueError("expected a stack to begin and end with a recurrent layer")
    if len(set(rates)) > 1:
        raise ValueError(
            f"expected dropout of one rate between each two layers, but received the rates {rates}"
        )
    return layers, rates[0] if rates else 0.0


def _check_stock(part: keras.layers.Layer, for_inference: bool) -> None:
    """Checks that one direction of a layer has an equivalent."""
    activations = ("tanh", "relu") if isinstance(part, keras.layers.SimpleRNN) else ("tanh",)
    for name, expected in (
        ("activation", activations),
        ("recurrent_activation", ("sigmoid",)),
        ("dropout", (0.0,)),
        ("recurrent_dropout", (0.0,)),
        ("activity_regularizer", (None,)),
    ):
        received = getattr(part, name, expected[0])
        if (activation_of(received) if callable(received) else received) in expected:
            continue
        acts_in_training = name in ("dropout", "recurrent_dropout")
        if acts_in_training and for_inference:
            continue
        raise ValueError(
            f"{name}={shown(received)} of layer {part.name!r} has no equivalent here: expected "
            f"{' or '.join(map(repr, expected))}"
            + (", or for_inference=True (--for-inference)" if acts_in_training else "")
        )


def _check_stack(layers: Sequence[keras.layers.Layer], parts: Sequence[Any]) -> None:
    """Checks that one of our layers can compute what a stack of Keras's layers does."""

    def agree(name: str, values: Sequence[Any]) -> None:
        values = [keras.saving.serialize_keras_object(value) for value in values]
        for layer, value in zip(parts, values, strict=True):
            if value != values[0]:
                raise ValueError(
                    f"expected the layers of a stack, and their directions, to have one {name}, "
                    f"but {parts[0].name!r} has {values[0]!r} and {layer.name!r} has {value!r}"
                )

    agree("class", [rnn_mode_of(part.cell) for part in parts])
    for name in _COMMON:
        agree(name, [getattr(part, name) for part in parts])

    def check(layer: Any, **expected: Any) -> None:
        for name, value in expected.items():
            if getattr(layer, name) != value:
                raise ValueError(
                    f"expected {name}={value} of layer {layer.name!r} in a stack of "
                    f"{len(layers)}, but received {getattr(layer, name)!r}"
                )

    for layer in layers:
        if len(directions_of(layer)) != len(directions_of(layers[0])):
            raise ValueError("expected all layers of a stack, or none, to be Bidirectional")
        check(layer, **({"merge_mode": "concat"} if len(directions_of(layer)) == 2 else {}))
        # This may be a wrapper's own.
        check(layer, activity_regularizer=None)
        if layer is not layers[-1]:
            check(layer, return_sequences=True)
        if layer is not layers[0]:
            check(directions_of(layer)[0], go_backwards=False)
        if len(layers) > 1:
            # One layer of ours would return the states of the whole stack.
            check(layer, return_state=False)


def _make_stock(layer: CudnnRNN, return_sequences: bool, go_backwards: bool) -> keras.layers.Layer:
    """Returns one of Keras's own layers for a stack, not yet built."""

    def make(go_backwards: bool) -> keras.layers.Layer:
        options = {key: getattr(layer, key) for key in _REGULARIZERS}
        initializers, unit_forget_bias = _to_initializers(layer)
        options |= {
            **initializers,
            "use_bias": layer.bias_mode != "none",
            "return_sequences": return_sequences,
            "return_state": layer.return_state,
            "go_backwards": go_backwards,
            "stateful": layer.stateful,
            "dtype": layer.dtype_policy,
            "trainable": layer.trainable,
            "zero_output_for_mask": return_sequences,
        }
        if layer.rnn_mode == constants.CUDNN_LSTM:
            return keras.layers.LSTM(layer.num_units, unit_forget_bias=unit_forget_bias, **options)
        if isinstance(layer, CudnnGRU):
            return keras.layers.GRU(layer.num_units, reset_after=layer.reset_after, **options)
        activation = layer.rnn_mode.removeprefix("rnn_")
        return keras.layers.SimpleRNN(layer.num_units, activation=activation, **options)

    if layer.num_dirs == 1:
        return make(go_backwards)
    return keras.layers.Bidirectional(
        make(go_backwards), backward_layer=make(not go_backwards), dtype=layer.dtype_policy
    )


def _initializers_of(part: keras.layers.Layer) -> dict[str, Any]:
    """Returns initializers with which our layer begins as one direction of Keras's layer does."""
    found: dict[str, Any] = {key: AllGates(getattr(part, key)) for key in _INITIALIZERS}
    if getattr(part, "unit_forget_bias", False):
        found["bias_initializer"] = PerGate(part.bias_initializer, forget_gate="ones")
    return found


def _to_initializers(layer: CudnnRNN) -> tuple[dict[str, Any], bool]:
    """Inverts `_initializers_of`, and returns whether there is a unit forget bias."""
    found = {key: getattr(layer, key) for key in _INITIALIZERS}
    found["recurrent_initializer"] = layer.recurrent_initializer or layer.kernel_initializer
    bias = found["bias_initializer"]
    unit_forget_bias = (
        isinstance(bias, PerGate)
        and bias.gates.keys() == {"forget_gate"}
        and isinstance(bias.gates["forget_gate"], keras.initializers.Ones)
    )
    if unit_forget_bias:
        found["bias_initializer"] = bias.default
    for key, initializer in found.items():
        if isinstance(initializer, PerGate):
            raise ValueError(f"{key} of layer {layer.name!r} has no equivalent in keras.layers")
        if isinstance(initializer, AllGates):
            found[key] = initializer.initializer
    return found, unit_forget_bias


def _pseudo_layer(part: keras.layers.Layer) -> PseudoLayer:
    """Returns the weights of one direction of a layer as arrays."""
    tensors = from_keras_weights(rnn_mode_of(part.cell), *part.get_weights())
    return PseudoLayer(*(None if tensor is None else tensor.numpy() for tensor in tensors))
