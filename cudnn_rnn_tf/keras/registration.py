"""What Keras has to find by name where it makes a layer of a config: classes and functions."""

import contextlib
import types
import uuid
from collections.abc import Iterator
from typing import Any

import keras

from cudnn_rnn_tf import native
from cudnn_rnn_tf._private_names import layers_in

_PREFIX = "cudnn_rnn_tf>"
_OURS: dict[str, Any] = {}


def find_ours() -> None:
    """Has Keras find this package's classes and functions under their names in configs.

    A program that calls `keras.saving.get_custom_objects().clear()` means its own.
    """
    registry = keras.saving.get_custom_objects()
    _OURS.update((name, each) for name, each in registry.items() if name.startswith(_PREFIX))
    registry.update(_OURS)


def registered_name(owner: type) -> str:
    """Returns the name of a class of this package in configs, under which Keras finds it."""
    find_ours()
    return keras.saving.get_registered_name(owner)


def signed(build_config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns a layer's build config that says in files what wrote them; versions pass it over."""
    written_by = f"cudnn_rnn_tf {native.build_info.VERSION}"
    return build_config if build_config is None else {**build_config, "written_by": written_by}


def _unregistered_classes(model: keras.layers.Layer) -> dict[str, type]:
    """Returns the classes in a model that Keras does not find, by name.

    Where two classes have one name, Keras could not tell them apart, so both are left out.
    """
    found: dict[str, set[type]] = {}
    for part in layers_in(model):
        kind = part.__class__
        name = keras.saving.get_registered_name(kind)
        is_known = keras.saving.get_registered_object(name) is not None
        if not is_known and not _is_keras_own(kind):
            found.setdefault(name, set()).add(kind)
    return {name: kind for name, kinds in found.items() for kind in kinds if len(kinds) == 1}


@contextlib.contextmanager
def own_objects(model: keras.layers.Layer) -> Iterator[Any]:
    """Yields the config of a model, with its classes and the very functions of its layers known.

    Otherwise, a lambda's bytecode becomes a function that does not know the names of its module,
    and another function is looked up by its name, which may be unknown, or one of Keras's own.
    """
    find_ours()
    found: dict[str, Any] = {**_unregistered_classes(model)}
    config = _with_references(keras.saving.serialize_keras_object(model), model, found)
    registry = keras.saving.get_custom_objects()
    registry.update(found)
    try:
        yield config
    finally:
        for name in found:
            registry.pop(name, None)


def _with_references(config: Any, outer: keras.layers.Layer, found: dict[str, Any]) -> Any:
    """Returns a config with names for the functions of layers, which are put into `found`.

    Args:
        config: a part of a layer's config.
        outer: the innermost layer that is known to have this part in it.
        found: the functions so far, by name.
    """
    if isinstance(config, (list, tuple)):
        return type(config)(_with_references(each, outer, found) for each in config)
    if not isinstance(config, dict):
        return config
    arguments = config.get("config")
    owner = None
    if "class_name" in config and isinstance(arguments, dict) and "name" in arguments:
        names = (arguments["name"], config["class_name"])
        alike = (each for each in layers_in(outer) if (each.name, type(each).__name__) == names)
        owner = next(alike, None)
    result = {key: _with_references(each, owner or outer, found) for key, each in config.items()}
    if owner is None or not isinstance(arguments, dict):
        return result
    for key, value in arguments.items():
        function = _function_for(value, key, owner)
        if key == "mask" and isinstance(owner, keras.layers.Lambda):
            result["config"][key] = owner.mask  # Keras writes its config, but does not read it.
        elif function is not None:
            name = f"function {uuid.uuid4()}"
            found[name] = function
            result["config"][key] = {
                "module": "builtins",
                "class_name": "function",
                "config": name,
                "registered_name": name,
            }
    return result


def _function_for(config: Any, key: str, owner: keras.layers.Layer) -> Any:
    """Returns the function of an owner's of which this is the config; None if it is not one.

    It is None for Keras's own functions as well, which need no other names.
    """
    is_name = isinstance(config, str)
    if not (is_name or isinstance(config, dict)):
        return None
    for attribute in (key, f"_{key}"):
        with contextlib.suppress(Exception):  # A property of a user's may raise anything.
            function = getattr(owner, attribute)
            if isinstance(function, types.FunctionType) and not _is_keras_own(function):
                return None if is_name and config != function.__name__ else function
    return None


def _is_keras_own(value: Any) -> bool:
    return value.__module__.partition(".")[0] == "keras"
