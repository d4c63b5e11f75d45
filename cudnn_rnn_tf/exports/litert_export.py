"""Exports whole models to LiteRT, which was TensorFlow Lite."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import messages, ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.exports import portable, targets
from cudnn_rnn_tf.keras.export_copies import export_copy, input_signature_of


@checked
def export_litert(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    input_signature: Sequence[Any] | None = None,
    batch_size: int = 1,
    optimizations: Sequence[Any] = (),
) -> None:
    """Writes a model for LiteRT's plain interpreter, which needs no other operators than its own.

    Recurrent layers become loops over the steps, with masks and lengths. The batch size is fixed;
    the number of steps need not be. It does not matter whether there is a GPU. What is returned of
    a sequence whose length is out of range is NaN.

    Args:
        model: a built Keras model, with layers of this package, of Keras's own or both. It is not
            changed.
        path: the file to write, which ends in .tflite and must not exist.
        input_signature: as of `model.export`: the shapes and types of the inputs, such as
            `[tf.TensorSpec([1, None, 16])]`. None for the model's own inputs.
        batch_size: takes the place of an unknown first dimension of the inputs.
        optimizations: as `tf.lite.TFLiteConverter.optimizations`, such as
            `[tf.lite.Optimize.DEFAULT]` for weights in 8 bits.

    Raises:
        TypeError: if `model` is no Keras model, `batch_size` no integer, or `optimizations` or
            `input_signature` holds something else.
        ValueError: if it is not built, if `path` ends otherwise, if `batch_size` is not positive,
            or if something in the model has no equivalent in LiteRT.
        FileExistsError: if `path` exists.
        OSError: if it cannot be written.
    """
    target = targets.check(path, ".tflite")
    if batch_size < 1:
        raise ValueError(f"expected batch_size to be positive, but received {batch_size}")
    if not all(isinstance(each, tf.lite.Optimize) for each in optimizations):
        raise TypeError(
            "expected optimizations to be a sequence of tf.lite.Optimize, but received "
            f"{optimizations!r}"
        )
    with export_copy(model) as copy, tempfile.TemporaryDirectory() as directory:
        signature = keras.tree.map_structure(
            lambda spec: tf.TensorSpec(
                [batch_size if spec.shape[0] is None else spec.shape[0], *spec.shape[1:]],
                spec.dtype,
                spec.name,
            ),
            list(input_signature_of(copy, input_signature)),
        )
        saved = os.path.join(directory, "saved_model")
        portable.export_portable(copy, saved, input_signature=signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved)
        converter.optimizations = list(optimizations)
        try:
            content = converter.convert()
        except Exception as error:  # The converter raises a type of its own.
            raise ValueError(
                f"model {model.name!r} has what the converter to LiteRT does not know: "
                f"{messages.reason(error)}"
            ) from error
    targets.write_whole(target, lambda partial: partial.write_bytes(content))


def _refuse(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "model.export(format='litert') puts TensorFlow's own operators into the file for a loop's "
        "lists, which LiteRT's interpreter does not have: call cudnn_rnn_tf.export_litert(model, "
        "path), which does without them"
    )


ops.substitutes_for_formats["keras_litert"] = _refuse
