"""Private names of TensorFlow and Keras are in `_private_names`, and these versions have them."""

import importlib
import inspect
import pathlib
import pkgutil
import re

import keras
import pytest
import tensorflow as tf

import cudnn_rnn_tf
from cudnn_rnn_tf import _private_names

PACKAGE = pathlib.Path(cudnn_rnn_tf.__file__).parent
OTHERS = ("tensorflow", "keras")
# These names mean something else in classes of TensorFlow or Keras that classes here derive from.
# That is intended: each is set here as the other package's own code expects.
SHARED = {"_supports_jit"}


@pytest.mark.parametrize("point", _private_names.EXTENSION_POINTS, ids=lambda point: point.name)
def test_the_installed_versions_have(point):
    method = getattr(point.owner, point.name, None)
    assert callable(method), f"{point.owner.__name__}.{point.name} is gone: {point.reason}"
    assert point.reason.endswith(".")


def modules() -> list:
    return [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(cudnn_rnn_tf.__path__, "cudnn_rnn_tf.")
        if not found.name.endswith("__main__")
    ]


def classes() -> set[type]:
    return {
        value
        for module in modules()
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__.startswith("cudnn_rnn_tf")
    } | {cudnn_rnn_tf.keras.LSTM, cudnn_rnn_tf.keras.Bidirectional}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_other_private_method_is_overridden():
    """A new version of TensorFlow or Keras may begin to use a private name of a class here."""
    known = {point.name for point in _private_names.EXTENSION_POINTS} | SHARED
    found = set()
    for one in classes():
        bases = [base for base in one.__mro__ if base.__module__.partition(".")[0] in OTHERS]
        for name in filter(is_private, vars(one)):
            # These names belong to Python's abstract and generic classes, and to Keras's tracking.
            if name.startswith("_abc_") or name in ("_is_protocol", "_parameters_"):
                continue
            if any(name in vars(base) for base in bases):
                found.add(name)
                assert name in known, f"{one.__name__}.{name} is {bases}'s as well"
    assert len(found) >= 6


def test_other_modules_name_nothing_private():
    pattern = r"tf\.__internal__|tensorflow\.(?:python|core|compiler)\b|keras\.src|\._keras_mask"
    for path in PACKAGE.rglob("*.py"):
        if path.name != "_private_names.py":
            assert not re.search(pattern, path.read_text()), path
    assert len(re.findall(pattern, (PACKAGE / "_private_names.py").read_text())) >= 5


def test_variables_keep_what_a_restored_buffer_replaces():
    variable = keras.Variable(tf.zeros([2]), dtype="float32")
    # A variable that has no value yet is given another initializer.
    assert isinstance(variable._value, tf.Variable)
    assert "_initializer" in vars(variable)
