"""Converts recurrent networks from and to those of other libraries.

`from_…` functions return a built layer of this package with the same weights, `to_…` functions take
one. `python -m cudnn_rnn_tf convert` does the same with files.
"""

from cudnn_rnn_tf.convert.files import convert_file
from cudnn_rnn_tf.convert.keras_files import load_keras_model, load_keras_weights
from cudnn_rnn_tf.convert.keras_format import from_keras, to_keras
from cudnn_rnn_tf.convert.onnx_format import from_onnx, to_onnx
from cudnn_rnn_tf.convert.torch_format import from_torch, to_torch
from cudnn_rnn_tf.keras.fusion import keras_2_hard_sigmoid

__all__ = [
    "convert_file",
    "from_keras",
    "from_onnx",
    "from_torch",
    "keras_2_hard_sigmoid",
    "load_keras_model",
    "load_keras_weights",
    "to_keras",
    "to_onnx",
    "to_torch",
]
