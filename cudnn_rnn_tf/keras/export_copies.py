"""Copies of models for export, in which no layer depends on whether there is a GPU."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf._compat import sublayers
from cudnn_rnn_tf.keras.acceleration import accelerated, check_built
from cudnn_rnn_tf.keras.copies import copied, take_over_weights


def new_file(path: str | os.PathLike[str], suffix: str) -> pathlib.Path:
    """Returns the path of a file that is to be written.

    Raises:
        ValueError: if it does not end in the suffix.
        FileExistsError: if there is such a file.
    """
    path = pathlib.Path(path)
    if path.suffix != suffix:
        raise ValueError(f"expected path to end in {suffix}, but received {str(path)!r}")
    if os.path.lexists(path):
        raise FileExistsError(f"{str(path)!r} exists already")
    return path


@contextlib.contextmanager
def export_copy(model: keras.Model) -> Iterator[keras.Model]:
    """Yields a copy of a model in which this package runs the recurrent layers that it can run.

    If Keras cannot copy a model of a user's class, it is the model itself. Within the context,
    Keras runs no layer by cuDNN, since exporters do not know Keras's ops for it.

    Raises:
        TypeError: if it is no Keras model.
        ValueError: if it is not built.
    """
    check_built(model)
    try:
        copy = copied(model, lambda config: accelerated(config, stacks=False))
        take_over_weights(model, copy)
    except (TypeError, ValueError):
        copy = model
    asked = [layer for layer in _with_cudnn(copy) if layer.use_cudnn != False]  # noqa: E712
    choices = [layer.use_cudnn for layer in asked]
    for layer in asked:
        layer.use_cudnn = False
    try:
        yield copy
    finally:
        for layer, choice in zip(asked, choices, strict=True):
            layer.use_cudnn = choice


def input_signature_of(model: keras.Model) -> list[Any]:
    """Returns the shapes, types and names of a model's inputs.

    Raises:
        ValueError: if its class does not say them.
    """
    if isinstance(model, keras.Sequential):
        (inputs,) = model.inputs
    else:
        inputs = getattr(model, "inputs", None) and model.input
    if inputs is None:
        raise ValueError(
            f"expected an input_signature for model {model.name!r}, whose class, "
            f"{type(model).__name__}, does not say the shapes and types of its inputs"
        )
    return [
        keras.tree.map_structure(
            lambda each: tf.TensorSpec(each.shape, each.dtype, each.name), inputs
        )
    ]


def _with_cudnn(layer: keras.layers.Layer) -> Iterator[Any]:
    """Yields Keras's own layers in a layer, the layer included, that may run by cuDNN."""
    if hasattr(layer, "use_cudnn") and not hasattr(layer, "runs_fused"):
        yield layer
    for part in sublayers(layer):
        yield from _with_cudnn(part)
