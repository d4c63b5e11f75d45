"""Exports SavedModels that can be used without this package."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import core_network, ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import network
from cudnn_rnn_tf.keras.export_copies import unknown_steps_as_rows
from cudnn_rnn_tf.rnn_layer import CudnnRNN

# In a SavedModel, the names of this package's ops have this prefix.
_OP_PREFIX = b"CudnnRnnTf>"


def export_portable(
    model: keras.Model | keras.layers.Layer,
    path: str | os.PathLike[str],
    *,
    input_signature: Sequence[Any] | None = None,
) -> None:
    """Writes a SavedModel for inference that consists of TensorFlow's own operations only.

    It has the same signatures as one that `model.export` writes, and computes the same numbers
    except for the last digits, more slowly. TensorFlow, TensorFlow Serving and, with a static batch
    size, `tf.lite.TFLiteConverter` take it without this package.

    Args:
        model: a built Keras model with layers of this package anywhere in it, or a built Keras
            layer. It is not changed.
        path: the directory to write, which must not exist.
        input_signature: as of `model.export`: the shapes and types of the inputs, such as
            `[tf.TensorSpec([1, None, 16])]`. None for the model's own inputs or, for one of this
            package's layers, its inputs [B, T, I] ([T, B, I] time-major), `inputs`.

    Raises:
        TypeError: if `model` is no Keras layer.
        ValueError: if it is not built, or it is another layer than this package's without an input
            signature, or `path` ends as a file of another format does (.keras, .h5, .tflite), or
            fused ops come into the SavedModel by a way that cannot be changed, such as a
            `tf.function` that was traced before.
        FileExistsError: if `path` exists.
        OSError: if it cannot be written.
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"expected a Keras model or layer, but received {type(model).__name__}")
    if not model.built:
        raise ValueError(f"expected {model.name!r} to be built, so that it has weights to export")
    path = os.fspath(path)
    check_directory_name("path", path)
    with new_directory(path):
        with ops.substituted_forward(_forward), unknown_steps_as_rows(model):
            if isinstance(model, keras.Model):
                model.export(path, verbose=False, input_signature=input_signature)
            else:
                _export_layer(model, path, input_signature)
        with tf.io.gfile.GFile(os.path.join(path, "saved_model.pb"), "rb") as file:
            if _OP_PREFIX in file.read():
                raise ValueError(
                    f"{model.name!r} still has fused ops when exported, as a tf.function in it was "
                    "traced before: make or load the model anew, and export that first"
                )


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[None]:
    """Removes a directory that the context is to write, if the context fails.

    Raises:
        FileExistsError: if the path exists, if only as a link that leads nowhere.
        OSError: if TensorFlow cannot write there.
    """
    if tf.io.gfile.exists(path) or os.path.lexists(path):
        raise FileExistsError(f"{path!r} exists already")
    try:
        yield
    except BaseException as error:
        if tf.io.gfile.exists(path):
            tf.io.gfile.rmtree(path)
        if isinstance(error, tf.errors.OpError):
            raise OSError(f"cannot write {path}: {network.reason(error)}") from error
        raise


def check_directory_name(argument: str, path: str) -> None:
    """Raises ValueError, naming the argument, for the name of a file of another format."""
    if path.endswith((".keras", ".h5", ".tflite")):
        raise ValueError(
            f"expected {argument} to name the directory that is written, a SavedModel, but "
            f"received {path!r}, which names a file of another format"
        )


def _export_layer(
    layer: keras.layers.Layer, path: str, input_signature: Sequence[Any] | None
) -> None:
    if input_signature is None:
        if not isinstance(layer, CudnnRNN):
            raise ValueError(
                f"expected an input_signature for layer {layer.name!r}, which is no model"
            )
        shape: list[int | None] = [None, None, layer.input_size]
        if layer.stateful:
            batch_axis = 1 if layer.time_major else 0
            shape[batch_axis] = layer.states[0].shape[batch_axis]
        input_signature = [tf.TensorSpec(shape, layer.compute_dtype, "inputs")]
    archive = keras.export.ExportArchive()
    archive.track(layer)
    archive.add_endpoint("serve", layer.__call__, input_signature=input_signature)
    archive.write_out(path, verbose=False)


def _forward(
    config: RnnConfig, *arguments: Any, is_training: bool, **options: Any
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    if is_training and (config.dropout or config.recurrent_dropout):
        raise ValueError(
            "a portable SavedModel is for inference, but a layer with dropout is called with "
            "training=True in it"
        )
    return core_network.forward(config, *arguments, **options)


ops.substitutes_for_formats["litert"] = _forward
