"""Refuses what belongs to `tf_keras`, which is Keras 2."""

from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import _private_names

_USE_KERAS = (
    "make the model with `import keras`, or unset the environment variable TF_USE_LEGACY_KERAS, "
    "which makes tf.keras mean tf_keras"
)


def check_tensors(*values: Any) -> None:
    """Raises TypeError for a symbolic tensor of `tf_keras`, and in a call of its layers.

    `tf_keras` would turn the operations on such a tensor into a lambda layer, and in a call of its
    own layers it does not track weights of other layers. Either way, the weights would never train.
    """
    if _private_names.is_in_call_of_tf_keras():
        raise TypeError(
            "this package's layers are Keras 3 layers, but one was called in a layer or model of "
            f"tf_keras: {_USE_KERAS}"
        )
    for value in tf.nest.flatten(values):
        if type(value).__module__.partition(".")[0] == "tf_keras":
            raise TypeError(
                "this package's layers are Keras 3 layers and need Keras 3 tensors, but received "
                f"{type(value).__name__} of tf_keras: {_USE_KERAS}"
            )
