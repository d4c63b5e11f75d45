"""Checks callers' arguments by their annotations, so that errors name the one that is wrong."""

import difflib
import functools
import inspect
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

_F = TypeVar("_F", bound=Callable[..., Any])
# Names as far apart as "return_seqs" and "return_sequences" are still taken for the same.
_ALIKE = 0.8


def checked(function: _F, hints: Mapping[str, Any] = {}, instead: Mapping[str, str] = {}) -> _F:
    """Returns a function that raises TypeError for arguments that are misspelt or of another type.

    Of Keras's errors about an initializer or the like, it makes a ValueError that names it.

    Args:
        function: a function or a constructor.
        hints: the types of arguments that it does not annotate itself.
        instead: maps names that people use elsewhere to what to write.
    """
    signature = inspect.signature(function)
    kinds = {name: each.annotation for name, each in signature.parameters.items()} | {**hints}
    for annotation in list(kinds.values()):
        for options in filter(typing.is_typeddict, typing.get_args(annotation)):
            kinds |= typing.get_type_hints(options)
    owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_names(owner, kwargs, kinds.keys(), instead)
        given = dict(zip(signature.parameters, args, strict=False)) | kwargs
        for name, value in given.items():
            check_type(name, value, kinds.get(name))
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            for name, value in given.items():
                kind = name.rpartition("_")[2]
                if kind in _OF_KERAS and not str(error).startswith("expected"):
                    of_keras(kind, name, value)
            raise

    # Keras looks at the signature without following `__wrapped__`.
    vars(call)["__signature__"] = signature
    return typing.cast(_F, call)


def check_names(
    owner: str, given: Mapping[str, Any], names: Set[str], instead: Mapping[str, str] = {}
) -> None:
    """Raises TypeError if an argument that is none of the names has one that is to be written."""
    for keyword in sorted(given.keys() - names):
        alike = difflib.get_close_matches(keyword, names, 1, cutoff=_ALIKE)
        hint = instead.get(keyword) or (f"did you mean {alike[0]!r}?" if alike else "")
        if hint:
            raise TypeError(f"{owner} has no argument {keyword!r}: {hint}") from None


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raises TypeError if a value is not of a type that is known here."""
    kinds = _kinds_of(hint)
    if kinds and not any(is_of_kind(value) for is_of_kind in kinds.values()):
        raise TypeError(f"expected {name} to be {' or '.join(kinds)}, but received {value!r}")


_OF_KERAS = ("initializer", "regularizer", "constraint", "activation")


def of_keras(kind: str, name: str, value: Any) -> Any:
    """Returns what Keras makes of an argument of one of its kinds; ValueError if it cannot."""
    import keras

    try:
        return getattr(keras, f"{kind}s").get(value)
    except (TypeError, ValueError) as error:
        message = f"expected {name} to be a Keras {kind}, but received {value!r}"
        raise ValueError(message) from error


def _is_integer(value: Any) -> bool:
    return not isinstance(value, bool) and _is_taken_by(operator.index, value)


def _is_taken_by(function: Callable[[Any], Any], value: Any) -> bool:
    try:
        function(value)
    except (TypeError, ValueError):
        return False
    return True


# Errors call a type so, and the function tells what is of it.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("an integer", _is_integer),
    float: (
        "a number",
        lambda each: not isinstance(each, (bool, str, bytes)) and _is_taken_by(float, each),
    ),
    bool: (
        "a bool",
        lambda each: isinstance(each, (bool, np.bool_)) or (_is_integer(each) and each in (0, 1)),
    ),
    Sequence: (
        "a sequence",
        lambda each: (
            hasattr(each, "__getitem__") and not isinstance(each, (str, bytes, Mapping, type))
        ),
    ),
    typing.Literal: ("a string", lambda each: isinstance(each, str)),
    str: ("a string", lambda each: isinstance(each, str)),
    os.PathLike: ("a path", lambda each: isinstance(each, os.PathLike)),
    Mapping: ("a mapping", lambda each: isinstance(each, Mapping)),
    types.NoneType: ("None", lambda each: each is None),
}


@functools.cache
def _kinds_of(hint: Any) -> dict[str, Callable[[Any], bool]]:
    """Returns what a value of this type may be; nothing if that is not known here."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    found = [_KINDS.get(typing.get_origin(member) or member) for member in members]
    return {} if None in found else dict(filter(None, found))
