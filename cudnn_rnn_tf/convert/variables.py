"""Reads the variables of TensorFlow's checkpoints and SavedModels."""

import glob
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf._private_names import trackable_object_graph_pb2
from cudnn_rnn_tf.convert import untrusted

_NUMBERED = re.compile(r"(?:variables|_all_variables)/\d+/\.ATTRIBUTES/VARIABLE_VALUE")
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"


class Variable:
    """A variable in a checkpoint, which is read when NumPy asks for it."""

    def __init__(self, reader: Any, key: str, shape: list[int], dtype: Any):
        self._reader = reader
        self._key = key
        self.shape = tuple(shape)
        self.dtype = dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._reader.get_tensor(self._key), dtype)


def variables_in(prefix: str) -> dict[str, Variable]:
    """Returns the variables of a checkpoint by name.

    A SavedModel may number its variables; then these are the names that the variables had.

    Raises:
        FileNotFoundError: if one of its files is no regular file: from a pipe, TensorFlow would
            wait for ever.
    """
    place = pathlib.Path(prefix)
    data = place.parent.glob(f"{glob.escape(place.name)}.data-*")
    for path in (place.with_name(f"{place.name}.index"), *data):
        untrusted.stored_bytes(path)
    reader = tf.train.load_checkpoint(prefix)
    types = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    names: dict[str, str] = {}
    if _OBJECTS in shapes and any(map(_NUMBERED.fullmatch, shapes)):
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(reader.get_tensor(_OBJECTS))
        for attribute in (each for node in graph.nodes for each in node.attributes):
            if _NUMBERED.fullmatch(attribute.checkpoint_key):
                names.setdefault(attribute.full_name, attribute.checkpoint_key)
    else:
        names = {key: key for key in shapes if key != _OBJECTS}
    return {
        name: Variable(reader, key, shapes[key], types[key].as_numpy_dtype)
        for name, key in sorted(names.items())
    }


def of_saved_model(path: pathlib.Path) -> dict[str, Variable]:
    """Returns the variables of a SavedModel in a directory, of which there may be none."""
    prefix = path / "variables" / "variables"
    has_variables = prefix.with_name("variables.index").is_file()
    return variables_in(str(prefix)) if has_variables else {}
