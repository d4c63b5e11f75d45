"""Tells how much memory the model of a config takes, before that memory is taken."""

import math
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from cudnn_rnn_tf._private_names import sublayers
from cudnn_rnn_tf.convert import untrusted
from cudnn_rnn_tf.keras import registration

# The names of shapes that begin with a batch size.
_SHAPES = ("batch_shape", "batch_input_shape", "input_shape")
_T = TypeVar("_T")


def without_weights(
    make: Callable[[], _T], config: Any, custom_objects: Mapping[str, Any] | None = None
) -> _T:
    """Returns what a function makes of a config where no variable of Keras's takes memory.

    It runs in a thread, since Keras would give these variables their values later, when something
    else in the same thread is done.
    """
    # The scopes of custom objects are those of a thread as well.
    names = {
        each
        for part in untrusted.dicts_in(config)
        for each in part.values()
        if isinstance(each, str)
    }
    objects = {
        name: found
        for name in names
        if (found := keras.saving.get_registered_object(name, dict(custom_objects or {})))
    }
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        scope = keras.StatelessScope(initialize_variables=False)
        try:
            with scope, keras.saving.custom_object_scope(objects):
                results.append(make())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]


def check_model(
    path: pathlib.Path, config: Any, custom_objects: Mapping[str, Any] | None = None
) -> None:
    """Checks the weights and other arrays of the model that a config in a file asks for.

    Keras makes a model, with all its weights, before it looks at those in the file.

    Raises:
        ValueError: if they would be far larger than the file.
        Exception: whatever Keras raises where it cannot make the model.
    """
    registration.find_ours()
    try:
        layer = without_weights(
            lambda: keras.saving.deserialize_keras_object(light(config), safe_mode=True),
            config,
            custom_objects,
        )
    except Exception as error:
        if _is_of_own_variable(error):
            return
        raise
    batch_sizes = [
        value[0]
        for part in untrusted.dicts_in(config)
        for key, value in part.items()
        if key in _SHAPES and isinstance(value, list) and value and isinstance(value[0], int)
    ]
    is_stateful = any(part.get("stateful") for part in untrusted.dicts_in(config))
    check_layer(path, layer, max(batch_sizes, default=0) if is_stateful else 0)


def check_layer(path: pathlib.Path, layer: Any, batch_size: int = 0) -> None:
    """Checks a layer that was made without weights, and its states if it were stateful.

    Raises:
        ValueError: if it would be far larger than the file.
    """
    parts = [(each.path, tuple(each.shape)) for each in getattr(layer, "variables", ())]
    _check(path, "weights", parts)
    # In a graph, no numbers are made.
    with tf.Graph().as_default():
        states = [
            (each.name, tuple(state.shape))
            for each in _recurrent_in(layer)
            for state in keras.tree.flatten(each.get_initial_state(batch_size))
            if batch_size
        ]
    _check(path, "states", states)


def _check(path: pathlib.Path, what: str, parts: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Checks the sum of arrays, given their names and shapes, of four bytes a number."""
    if parts:
        name, shape = max(parts, key=lambda part: math.prod(part[1]))
        size = 4 * sum(math.prod(shape) for _, shape in parts)
        untrusted.check_growth(
            f"the layers of {path}, such as {name!r} of shape {shape}, have {what} of",
            size,
            untrusted.stored_bytes(path),
        )


def _recurrent_in(layer: Any) -> Iterator[keras.layers.RNN]:
    if isinstance(layer, keras.layers.RNN):
        yield layer
    elif isinstance(layer, keras.layers.Layer):
        for part in sublayers(layer):
            yield from _recurrent_in(part)


def light(config: Any) -> Any:
    """Returns a config without what takes memory, though it is no variable with an initializer."""
    if isinstance(config, list):
        return [light(each) for each in config]
    if not isinstance(config, dict):
        return config
    result = {key: light(value) for key, value in config.items() if key != "compile_config"}
    kind = result.get("class_name")
    if kind == "Normalization" and isinstance(result.get("config"), dict):
        return {**result, "module": None, "registered_name": "cudnn_rnn_tf>Statistics"}
    # States begin with values. This package's own layers count theirs.
    if result.get("stateful") and "num_units" not in result:
        result["stateful"] = False
    return result


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class Statistics(keras.layers.Layer):
    """Stands for a `Normalization`, which has arrays as large as its weights beside them."""

    def __init__(self, axis: Any = -1, name: str | None = None, dtype: Any = None, **_: Any):
        super().__init__(name=name, dtype=dtype)
        self._axes = [] if axis is None else [axis] if isinstance(axis, int) else list(axis)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Makes variables for the weights and the arrays."""
        for name in ("mean", "variance", "its_mean", "its_variance"):
            self.add_weight(shape=[input_shape[axis] for axis in self._axes], name=name)

    def call(self, inputs: Any) -> Any:
        """Returns the inputs, of the type that they would have."""
        return keras.ops.cast(inputs, self.compute_dtype)


def _is_of_own_variable(error: BaseException | None) -> bool:
    """Returns whether somebody's layer makes a variable of a value, which is not possible here."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None and isinstance(trace.tb_frame.f_locals.get("self"), keras.Variable):
            return True
        error = error.__context__
    return False
