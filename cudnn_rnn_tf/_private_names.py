"""The private names of TensorFlow and Keras that this package needs, each with its reason.

The package uses private names through this module only. If a class of this package overrides or
calls a private method of theirs, that method is listed in `EXTENSION_POINTS`. If a new version of
TensorFlow or Keras lacks one of the names, `tests/test_private_names.py` fails and says which.
"""

import inspect
import sys
from typing import Any, NamedTuple

import keras
import tensorflow as tf

# In a call of a layer in mixed precision, this scope alone gives weights as they are stored.
from keras.src.backend import AutocastScope

# SavedModels are parsed without loading them, so that nothing in them runs. The variables of one
# that Keras exports have numbers, and only the graph of its objects has their names. Every
# TensorFlow wheel has the protocol buffers, but only some of them have public names.
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

# These tell a tape of an operation as its user wants it recorded. The public way,
# `tf.custom_gradient`, copies all outputs, and a tape keeps what runs in it as well.
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.record import (
    could_possibly_record,
    record_operation_backprop_only,
    stop_recording,
)

# TensorFlow 1's layers and cells are kept on this base; the reason is where that is done.
from tensorflow.python.keras.engine import base_layer_v1

# `tf.compat.v1.nn.rnn_cell` and `tf.compat.v1.layers` raise errors where Keras 3 is installed. The
# attributes of the cells that `contrib.rnn` reads are private, too.
from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl as legacy_rnn_cells

# Only this tells whether XLA will compile the function that is being traced.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# `tf.compat.v1.train.Saver` takes custom objects only if they are of this class.
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

__all__ = [
    "EXTENSION_POINTS",
    "AutoTrackable",
    "AutocastScope",
    "SaveSpec",
    "SaveableObject",
    "Trackable",
    "could_possibly_record",
    "decays",
    "format_of_exporter",
    "is_compiled_by_xla",
    "is_in_call_of_tf_keras",
    "is_reference",
    "is_resolving_auto_jit_compile",
    "keras_mask",
    "legacy_rnn_cells",
    "layers_in",
    "pack_tangents",
    "record_operation_backprop_only",
    "renew_call_signature",
    "saved_model_pb2",
    "set_keras_mask",
    "stop_recording",
    "sublayers",
    "trackable_object_graph_pb2",
]

# Object-based checkpoints and SavedModels find the objects to save through these classes. The
# public `tf.Module` is such a class too, but its attributes clash with those of Keras's and
# contrib's layers.
Trackable = tf.__internal__.tracking.Trackable
AutoTrackable = tf.__internal__.tracking.AutoTrackable


# When one of TensorFlow's old layers or cells is made in a graph, and then one outside, or the
# reverse, TensorFlow changes the bases of the class that all of them have in common, and those that
# are there already fail. The base of TensorFlow 1 serves in both modes, so it is kept.
legacy_rnn_cells.base_layer.Layer.__bases__ = (base_layer_v1.Layer,)
legacy_rnn_cells.base_layer.Layer.__new__ = lambda cls, *_, **__: object.__new__(cls)


class ExtensionPoint(NamedTuple):
    """A private method or attribute of another package's class."""

    owner: type
    name: str
    reason: str


EXTENSION_POINTS = (
    ExtensionPoint(
        Trackable,
        "_serialize_to_tensors",
        "A checkpoint holds a buffer's matrices and biases in place of the buffer.",
    ),
    ExtensionPoint(Trackable, "_restore_from_tensors", "The buffer is made of them again."),
    ExtensionPoint(
        Trackable,
        "_trackable_children",
        "A SavedModel needs a stateful layer's states, which a checkpoint must not have; contrib's "
        "checkpoints name the parts of a layer as those of its cells; and a stack's layers are in "
        "a list, into which TensorFlow does not look.",
    ),
    ExtensionPoint(
        Trackable, "_lookup_dependency", "Contrib's layers find such parts when they are restored."
    ),
    ExtensionPoint(
        Trackable,
        "_handle_deferred_dependencies",
        "Contrib's layers may be restored before they are built.",
    ),
    ExtensionPoint(
        legacy_rnn_cells.base_layer.Layer,
        "_set_scope",
        "Contrib's layers may be built before they are called, in their own variable scopes.",
    ),
    ExtensionPoint(
        keras.Variable,
        "_export_to_saved_model_graph",
        "It tells that a SavedModel asks for the tensors, which wants the buffer as it is.",
    ),
    ExtensionPoint(
        keras.Variable,
        "_copy_trackable_to_cpu",
        "An asynchronous checkpoint is written from a copy, which must hold the same tensors.",
    ),
    ExtensionPoint(
        keras.Variable,
        "_maybe_initialize_trackable",
        "It is called before every save and restore, and forgets an export that has failed.",
    ),
    ExtensionPoint(
        keras.layers.RNN,
        "inner_loop",
        "The drop-ins are Keras's layers with another loop over the time steps.",
    ),
    ExtensionPoint(
        keras.layers.LSTMCell,
        "get_dropout_mask",
        "The drop-ins drop out inputs by Keras's own masks.",
    ),
    ExtensionPoint(
        keras.Model,
        "_resolve_auto_jit_compile",
        "While it runs, layers are asked what the default of jit_compile is to be.",
    ),
)


def keras_mask(tensor: Any) -> Any:
    """Returns the mask that Keras keeps on a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_keras_mask(tensor: Any, mask: Any) -> None:
    """Sets the mask that layers and losses see when they take the tensor.

    `Layer.compute_mask`, the public way, does not get the lengths that a layer was called with.
    """
    tensor._keras_mask = mask


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the layers right in a layer. `Model.layers`, the public way, is for models alone."""
    return layer._flatten_layers(include_self=False, recursive=False)


def layers_in(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns a layer, and all layers within it and within these, of which no public name tells."""
    return layer._flatten_layers()


def renew_call_signature(layer: keras.layers.Layer) -> None:
    """Has Keras bind arguments to the `call` of a layer whose class has been changed.

    Keras keeps the signature that it found when the layer was made; no public name renews it.
    """
    layer._call_signature = inspect.signature(layer.call)


def decays(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Returns whether weight decay acts on a variable, which no public name tells.

    `Optimizer.exclude_from_weight_decay`, the public way, only sets it.
    """
    return optimizer._use_weight_decay(variable)


def is_reference(variable: Any) -> bool:
    """Returns whether this is a TensorFlow 1 reference variable, which no public name tells."""
    return variable.dtype._is_ref_dtype


def is_compiled_by_xla() -> bool:
    """Returns whether a `tf.function(jit_compile=True)` is being traced, or one that it calls."""
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def is_resolving_auto_jit_compile() -> bool:
    """Returns whether Keras is asking layers what `jit_compile="auto"` means for their model.

    It asks the same question if `jit_compile=True` is given.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_resolve_auto_jit_compile":
            return True
    return False


# The modules that trace a model for another format, in which this package's ops have no place.
_EXPORTERS = {
    "keras.src.export.litert": "keras_litert",
    "keras.src.export.onnx": "onnx",
    "tensorflow.lite.python.lite": "litert",
    "tf2onnx.convert": "onnx",
}


def format_of_exporter() -> str:
    """Returns the format, "onnx", "litert" or "keras_litert", that a model is being traced for.

    It is "" for none.

    No public name tells what an exporter traces a model for.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if found := _EXPORTERS.get(frame.f_globals.get("__name__", "")):
            return found
    return ""


def is_in_call_of_tf_keras() -> bool:
    """Returns whether a layer or model of `tf_keras`, the old Keras, is being called.

    Its tensors are plain TensorFlow tensors, so no public name tells such a call.
    """
    utils = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    return utils is not None and utils.call_context().in_call
