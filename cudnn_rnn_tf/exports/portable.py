"""Exports SavedModels that can be used without this package."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.exports import targets
from cudnn_rnn_tf.keras.export_copies import check_signature, unknown_steps_as_rows
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN
from cudnn_rnn_tf.ops import step_by_step

# In a SavedModel, the names of this package's ops have this prefix.
_OP_PREFIX = b"CudnnRnnTf>"


@checked
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
        path: the folder to write, which must not exist; the folder that it is in must.
        input_signature: as of `model.export`: the shapes and types of the inputs, such as
            `[tf.TensorSpec([1, None, 16])]`. None for the model's own inputs or, for one of this
            package's layers, its inputs [B, T, I] ([T, B, I] time-major), `inputs`.

    Raises:
        TypeError: if `model` is no Keras layer, or `input_signature` holds something else.
        ValueError: if it is not built, or it is another layer than this package's without an input
            signature, or `path` ends as a file of another format does (.keras, .tflite, …), or is
            a URL, or fused ops come into the SavedModel by a way that cannot be changed, such as a
            `tf.function` that was traced before.
        FileExistsError: if `path` exists.
        OSError: if it cannot be written.
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(
            f"expected model to be a Keras model or layer, but received {type(model).__name__}"
        )
    check_signature(input_signature)
    if not model.built:
        raise ValueError(f"expected {model.name!r} to be built, so that it has weights to export")

    def write(folder: pathlib.Path) -> None:
        with ops.substituted_forward(_forward), unknown_steps_as_rows(model):
            if isinstance(model, keras.Model):
                model.export(str(folder), verbose=False, input_signature=input_signature)
            else:
                _export_layer(model, str(folder), input_signature)
        if _OP_PREFIX in (folder / "saved_model.pb").read_bytes():
            raise ValueError(
                f"{model.name!r} still has fused ops when exported, as a tf.function in it was "
                "traced before: make or load the model anew, and export that first"
            )

    targets.write_whole(targets.check(path), write)


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
) -> tuple[Any, ...]:
    if is_training and config.draws_masks:
        raise ValueError(
            "a portable SavedModel is for inference, but a layer with dropout or zoneout is "
            "called with training=True in it"
        )
    return step_by_step.forward(config, *arguments, **options)


ops.substitutes_for_formats["litert"] = _forward
