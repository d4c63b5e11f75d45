"""Copies of models for export, in which no layer depends on whether there is a GPU."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf._private_names import layers_in
from cudnn_rnn_tf.keras.acceleration import accelerated, check_built
from cudnn_rnn_tf.keras.class_changes import fuse_layers
from cudnn_rnn_tf.keras.copies import copied, take_over_weights

_OF_BFLOAT16 = ("bfloat16", "mixed_bfloat16")


@contextlib.contextmanager
def export_copy(model: keras.Model, is_float32: bool = False) -> Iterator[keras.Model]:
    """Yields a copy of a model in which this package runs the recurrent layers that it can run.

    With `is_float32`, the layers compute in float32 in place of bfloat16. If Keras cannot copy a
    model of a user's class, it is the model itself. Within the context, Keras runs no layer by
    cuDNN, since exporters do not know Keras's ops for it.

    Raises:
        TypeError: if it is no Keras model.
        ValueError: if it is not built.
    """
    check_built(model)

    def rewrite(config: Any) -> Any:
        config = accelerated(config, stacks=False)
        return _in_float32(config) if is_float32 else config

    try:
        copy = copied(model, rewrite)
        fuse_layers(copy)
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


def _in_float32(config: Any) -> Any:
    """Returns a config with float32 as the dtype policy in place of those of bfloat16."""
    if isinstance(config, (list, tuple)):
        return type(config)(map(_in_float32, config))
    if not isinstance(config, dict):
        return config
    result = {key: _in_float32(value) for key, value in config.items()}
    if result.get("dtype") in _OF_BFLOAT16:
        result["dtype"] = "float32"
    if config.get("class_name") == "DTypePolicy" and config["config"]["name"] in _OF_BFLOAT16:
        result["config"] = {"name": "float32"}
    return result


@contextlib.contextmanager
def unknown_steps_as_rows(model: keras.layers.Layer) -> Iterator[None]:
    """Has `TimeDistributed` layers take unknown numbers of steps as so many more sequences.

    In a graph, Keras 3.15 takes the number of sequences for that of the steps.
    """
    found = [part for part in layers_in(model) if type(part) is keras.layers.TimeDistributed]
    for layer in found:
        vars(layer)["call"] = functools.partial(_call_as_rows, layer)
    try:
        yield
    finally:
        for layer in found:
            vars(layer).pop("call")


def _call_as_rows(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    if inputs.shape[1] is not None:
        return type(layer).call(layer, inputs, training=training, mask=mask)
    size = tf.shape(inputs)[:2]

    def rows(tensor: Any) -> Any:
        shape = tf.concat([[size[0] * size[1]], tf.shape(tensor)[2:]], axis=0)
        result = tf.reshape(tensor, shape)
        result.set_shape([None, *tensor.shape[2:]])
        return result

    options: dict[str, Any] = {}
    if mask is not None and "mask" in inspect.signature(layer.layer.call).parameters:
        options["mask"] = rows(mask)
    if "training" in inspect.signature(layer.layer.call).parameters:
        options["training"] = training
    outputs = layer.layer.call(rows(inputs), **options)
    by_step = tf.reshape(outputs, tf.concat([size, tf.shape(outputs)[1:]], axis=0))
    by_step.set_shape([inputs.shape[0], None, *outputs.shape[1:]])
    return by_step


def check_signature(signature: Sequence[Any] | None) -> None:
    """Raises a TypeError if an `input_signature` holds anything but shapes and types."""
    for each in keras.tree.flatten(signature or []):
        if not (hasattr(each, "shape") and hasattr(each, "dtype")):
            raise TypeError(
                "expected input_signature to hold shapes and types, such as "
                f"tf.TensorSpec([1, None, 16]), but received {each!r}"
            )


def input_signature_of(model: keras.Model, given: Sequence[Any] | None) -> Sequence[Any]:
    """Returns the shapes, types and names of a model's inputs: those given, if any, or its own.

    Raises:
        TypeError: as `check_signature`.
        ValueError: if nothing is given and the model's class does not say them.
    """
    check_signature(given)
    if given:
        return given
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


def _with_cudnn(model: keras.layers.Layer) -> list[Any]:
    """Returns Keras's own layers in a model that may run by cuDNN."""
    return [
        layer
        for layer in layers_in(model)
        if hasattr(layer, "use_cudnn") and not hasattr(layer, "runs_fused")
    ]
