"""Copies of Keras models, which are made of changed configs and take over the models' state."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from cudnn_rnn_tf._private_names import decays, sublayers
from cudnn_rnn_tf.keras.held_state import hand_over
from cudnn_rnn_tf.keras.registration import own_objects
from cudnn_rnn_tf.keras.stack import Stack
from cudnn_rnn_tf.keras.stack_configs import lists_layers


def copied(model: keras.Model, rewrite: Callable[[Any], Any]) -> keras.Model:
    """Returns a copy of a model, without its state, made of its config as `rewrite` returns it.

    Raises:
        TypeError: if Keras cannot make the copy.
    """
    try:
        with own_objects(model) as config:
            config = rewrite(config)
            config.pop("compile_config", None)
            # The safe mode would refuse lambdas, but the model is the caller's own.
            return keras.saving.deserialize_keras_object(config, safe_mode=False)
    except Exception as error:  # A class of a user's may raise anything.
        raise TypeError(_what_to_write(model, error)) from error


def _what_to_write(model: keras.Model, error: BaseException) -> str:
    """Returns one sentence in place of Keras's many lines, of which the first one has the cause."""
    while error.__context__ is not None:
        error = error.__context__
    cause = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    return (
        f"Keras cannot make a copy of model {model.name!r} ({cause}): write get_config and "
        "from_config for each class of your own in it, such that from_config(get_config()) makes "
        "an object anew, and decorate such classes, and functions of your own, with "
        "@keras.saving.register_keras_serializable()"
    )


def take_over(model: keras.Model, copy: keras.Model) -> None:
    """Gives a copy the state, what is frozen, and the optimizer of a model.

    Raises:
        ValueError: if the copy has other variables, or a layer's own hooks fail.
    """
    take_over_weights(model, copy)
    compile_config = keras.saving.serialize_keras_object(model.get_compile_config())
    if model.compiled and compile_config:
        _compile(model, copy, compile_config)


def take_over_weights(model: keras.Model, copy: keras.Model) -> None:
    """Gives a copy the weights, the seeds, what layers hold besides, and what is frozen of a model.

    Raises:
        ValueError: if the copy has other variables, or a layer's own hooks fail.
    """
    pairs = list(_pairs(model, copy))
    # A shared layer is in several pairs.
    for old, new in {id(old): (old, new) for old, new in pairs}.values():
        new.trainable = old.trainable
        hand_over(old, new)
    for source, target in _variables(model, pairs):
        target.assign(source)
        # A single weight may be frozen, too.
        target.trainable = source.trainable


def has_same_order(model: keras.Model, copy: keras.Model) -> bool:
    """Returns whether the variables of a copy come in the order of the model's.

    Raises:
        ValueError: if the copy has other variables.
    """
    targets = {id(old): new for old, new in _variables(model, list(_pairs(model, copy)))}
    expected = [id(targets[id(variable)]) for variable in model.variables]
    return expected == [id(variable) for variable in copy.variables]


def _compile(model: keras.Model, copy: keras.Model, config: dict[str, Any]) -> None:
    if config.get("jit_compile"):
        # Keras stores what "auto" was resolved to. It must be resolved anew, since XLA compiles the
        # fused ops only where there is no GPU.
        config["jit_compile"] = "auto"
    if type(model).get_compile_config is keras.Model.get_compile_config:
        # When Keras writes a .h5 file, the optimizer is lost from the model's config.
        config["optimizer"] = keras.saving.serialize_keras_object(model.optimizer)
    try:
        copy.compile_from_config(config)
    except Exception as error:  # A loss or metric of a user's may raise anything.
        raise TypeError(_what_to_write(model, error)) from error
    if not copy.compiled:
        return
    _exclude_from_weight_decay(model, copy)
    if not model.optimizer.built:
        return
    # Building an optimizer that scales losses a second time would give it more variables.
    if not copy.optimizer.built:
        copy.optimizer.build(copy.trainable_variables)
    sources, targets = model.optimizer.variables, copy.optimizer.variables
    is_alike = type(copy.optimizer) is type(model.optimizer) and _shapes(sources) == _shapes(
        targets
    )
    if not (is_alike and has_same_order(model, copy)):
        warnings.warn(
            f"the optimizer of the copy of model {model.name!r} begins anew, since it is for other "
            "variables, or in another order, than the one that the model was trained with",
            stacklevel=5,
        )
        return
    for source, target in zip(sources, targets, strict=True):
        target.assign(source)


def _exclude_from_weight_decay(model: keras.Model, copy: keras.Model) -> None:
    """Excludes the variables that the model's optimizer does, which its config does not say."""
    pairs = _variables(model, list(_pairs(model, copy)))

    def excluded(optimizer: Any) -> list[keras.Variable]:
        return [target for source, target in pairs if not decays(optimizer, source)]

    wrapped = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not excluded(wrapped):
        return
    # Keras has built the optimizer, after which it excludes nothing more.
    copy.optimizer = type(copy.optimizer).from_config(copy.optimizer.get_config())
    inner = getattr(copy.optimizer, "inner_optimizer", copy.optimizer)
    inner.exclude_from_weight_decay(var_list=excluded(wrapped))
    copy.optimizer.build(copy.trainable_variables)


def _pairs(
    old: keras.layers.Layer, new: keras.layers.Layer
) -> Iterator[tuple[keras.layers.Layer, keras.layers.Layer]]:
    """Yields the layers of a model, each with its copy, and outer ones before inner ones."""
    yield old, new
    olds, news = _parts(old), _parts(new)
    if lists_layers(type(old).__name__):
        # A stack may have moved a layer, but the names are those of the config.
        by_name = {layer.name: layer for layer in news}
        news = [by_name[layer.name] for layer in olds if layer.name in by_name]
    if len(olds) != len(news):
        raise _differs(old, "layers", len(olds), len(news))
    for pair in zip(olds, news, strict=True):
        yield from _pairs(*pair)


def _differs(old: keras.layers.Layer, what: str, expected: Any, received: Any) -> ValueError:
    return ValueError(
        f"expected the copy of {old.name!r}, a {type(old).__name__}, to have {what} {expected}, "
        f"but it has {received}: if Keras cannot build a model of your own from its config, write "
        "build_from_config for its class"
    )


def _parts(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the layers right in a layer. Those of stacks take the stacks' places."""
    found = [part for part in sublayers(layer) if not isinstance(part, keras.layers.InputLayer)]
    if not lists_layers(type(layer).__name__):
        return found
    return [each for part in found for each in (part.layers if isinstance(part, Stack) else [part])]


def _variables(
    model: keras.Model, pairs: list[tuple[keras.layers.Layer, keras.layers.Layer]]
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Returns the variables of layers, each with its copy."""
    found: dict[int, tuple[keras.Variable, keras.Variable]] = {}
    for old, new in pairs:
        olds, news = _own(old), _own(new)
        if _shapes(olds) != _shapes(news):
            raise _differs(old, "variables of shapes", _shapes(olds), _shapes(news))
        for source, target in zip(olds, news, strict=True):
            if found.setdefault(id(source), (source, target))[1] is not target:
                raise ValueError(
                    f"expected each layer of model {model.name!r} to be in one model, but "
                    f"{source.path!r} is in several, of which Keras makes layers of their own"
                )
    return list(found.values())


def _own(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer that are not in a layer within it."""
    inner = {id(variable) for part in sublayers(layer) for variable in part.variables}
    return [variable for variable in layer.variables if id(variable) not in inner]


def _shapes(variables: list[keras.Variable]) -> list[tuple[int, ...]]:
    return [tuple(variable.shape) for variable in variables]
