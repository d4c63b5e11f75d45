"""Keras models that exist, with their recurrent layers run by the fused ops."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.layers import GRU, LSTM, SimpleRNN

_DROP_INS = {layer.__name__: layer for layer in (LSTM, GRU, SimpleRNN, Bidirectional)}
_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.ConvLSTM2D)


class _Row(NamedTuple):
    """A line of the table that is printed."""

    name: str
    kind: str
    outcome: str


def accelerate(model: keras.Model, dry_run: bool = False) -> keras.Model | None:
    """A copy of a model in which the fused ops run the recurrent layers.

    Every `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `Bidirectional` that they can run becomes the
    layer of that name in `cudnn_rnn_tf.keras`. Names, weights and files stay as they are. A table
    says of each recurrent layer what became of it and why; it is printed.

    Args:
        model: a built model: sequential, functional, with models and shared layers in it, or of a
            class with `get_config`, of which the layers that its config has are replaced. It is not
            changed. Classes and functions of your own must be registered with Keras, or be in a
            `keras.saving.custom_object_scope`.
        dry_run: whether the table is all that is wanted.

    Returns:
        The copy: compiled, if the model is, with its weights, seeds and optimizer state. States of
        stateful layers are zero. None for a dry run.

    Raises:
        TypeError: if `model` is no Keras model, or Keras cannot make one of its objects from its
            config.
        ValueError: if it is not built, or a copy has other weights, as where layers are shared
            between models.

    Example:
        ```python
        model = keras.saving.load_model("model.keras")
        fast = cudnn_rnn_tf.accelerate(model)
        ```
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a Keras model, but received {type(model).__name__}")
    if not model.built:
        raise ValueError(
            f"expected model {model.name!r} to be built: call it on inputs, or build it, first"
        )
    rows: list[_Row] = []
    with keras.saving.custom_object_scope(
        {keras.saving.get_registered_name(type(model)): type(model)}
    ):
        config = _replaced(keras.saving.serialize_keras_object(model), rows)
        rows += _unseen(model, {row.name for row in rows})
        _print_table(model.name, rows)
        if dry_run:
            return None
        compile_config = config.pop("compile_config", None)
        # It is the caller's own model, lambdas included.
        fast = keras.saving.deserialize_keras_object(config, safe_mode=False)
        _assign(fast.variables, model.variables, model.name)
        if model.compiled and compile_config:
            if compile_config.get("jit_compile"):
                # Keras stores what "auto" came to, and XLA has no kernel for the fused ops.
                compile_config["jit_compile"] = "auto"
            fast.compile_from_config(compile_config)
            if model.optimizer.built:
                fast.optimizer.build(fast.trainable_variables)
                _assign(fast.optimizer.variables, model.optimizer.variables, model.name)
    return fast


def _replaced(config: Any, rows: list[_Row]) -> Any:
    """A config with the drop-ins in it; each recurrent layer adds a row."""
    if isinstance(config, (list, tuple)):
        return type(config)(_replaced(item, rows) for item in config)
    if not isinstance(config, dict):
        return config
    layer_class = _class_of(config)
    if layer_class is None or not issubclass(layer_class, _RECURRENT):
        return {key: _replaced(value, rows) for key, value in config.items()}
    name, kind = config["config"].get("name", ""), config["class_name"]
    if layer_class not in (getattr(keras.layers, key) for key in _DROP_INS):
        if layer_class not in _DROP_INS.values():
            rows.append(_Row(name, kind, "left: no fused op runs layers of this class"))
            return config
    replacement = _as_drop_in(config)
    # Without weights, as this one only says what it will be.
    probe = copy.deepcopy(replacement)
    probe.pop("build_config", None)
    layer = keras.saving.deserialize_keras_object(probe, safe_mode=False)
    if layer.runs_fused.not_in_inference:
        rows.append(_Row(name, kind, f"left: {layer.runs_fused.not_in_inference}"))
        return config
    outcome = str(layer.runs_fused)
    if isinstance(layer, Bidirectional) and layer.runs_fused:
        outcome += f", in two ops: {layer.needs_two_ops}" if layer.needs_two_ops else ", in one op"
    rows.append(_Row(name, kind, outcome))
    return replacement


def _class_of(config: dict[str, Any]) -> type | None:
    """The class that a config is for, if it is a layer's; None otherwise."""
    if not isinstance(config.get("config"), dict):
        return None
    found = keras.saving.get_registered_object(config.get("registered_name"))
    if found is None and config.get("module") == "keras.layers":
        found = getattr(keras.layers, config["class_name"], None)
    return found if isinstance(found, type) else None


def _as_drop_in(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a Keras layer as that of the drop-in, what it wraps included."""
    config = copy.deepcopy(config)
    for part in (config, config["config"].get("layer"), config["config"].get("backward_layer")):
        if part and part["module"] == "keras.layers" and part["class_name"] in _DROP_INS:
            # Keras looks this name up first.
            part["registered_name"] = part["class_name"]
    return config


def _unseen(layer: Any, seen: set[str]) -> Iterator[_Row]:
    """Rows for the recurrent layers that a model's config does not have."""
    for part in layer.layers:
        if isinstance(part, _RECURRENT):
            if part.name not in seen:
                reason = f"left: the code of {type(layer).__name__} makes it, not its config"
                yield _Row(part.name, type(part).__name__, reason)
        elif isinstance(part, keras.Model):
            yield from _unseen(part, seen)


def _print_table(model_name: str, rows: list[_Row]) -> None:
    print(f"Recurrent layers of model {model_name!r}:" + ("" if rows else " none"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for row in rows:
        print(f"  {row.name:{widths[0]}}  {row.kind:{widths[1]}}  {row.outcome}")


def _assign(targets: list[Any], sources: list[Any], model_name: str) -> None:
    shapes = [[tuple(variable.shape) for variable in each] for each in (targets, sources)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"expected a copy of model {model_name!r} to have {len(sources)} variables of the same "
            f"shapes, but it has {len(targets)}: are layers shared between models in it?"
        )
    for target, source in zip(targets, sources, strict=True):
        target.assign(source)
