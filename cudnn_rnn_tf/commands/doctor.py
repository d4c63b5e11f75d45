"""Runs a small network on each device, and says in plain words what is missing."""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import messages
from cudnn_rnn_tf.config import Algorithm
from cudnn_rnn_tf.convert.keras_format import to_keras
from cudnn_rnn_tf.layers import CudnnLSTM

_PACKAGES = {
    "torch": "conversions from and to PyTorch, and bench's comparison with it",
    "onnx": "conversions from and to ONNX",
    "tf2onnx": "exports of models to ONNX",
    "safetensors": "files of weights that end in .safetensors",
    "matplotlib": "bench --plot",
}
_AND_CUDA = "pip install 'tensorflow[and-cuda]'"
# TF32 has 10 bits of a fraction; float16 has as many.
_TOLERANCE = 0.02


class Finding(NamedTuple):
    """What is known of one thing. Its `state` is "ok", "missing", "failed" or "optional"."""

    state: str
    text: str


def findings() -> Iterator[Finding]:
    """Checks the devices that TensorFlow sees, and what would be needed to see and use more."""
    yield _run("CPU", "CPU:0", "float32")
    gpus = tf.config.get_visible_devices("GPU")
    for index in range(len(gpus)):
        device = f"GPU:{index}"
        yield _run(f"{device}, by cuDNN", device, "float32", "cudnn")
        yield _run(f"{device}, by this package's kernels", device, "float16", "persistent")
    if not gpus:
        yield Finding("missing", f"GPU: {_why_no_gpu()}; networks run on the CPU")
    for package, use in _PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            yield Finding("optional", f"{package} is not installed: it is for {use}")


def _run(what: str, device: str, dtype: str, algorithm: Algorithm = "auto") -> Finding:
    """Trains a network for a step, and compares its outputs with those of Keras's layers."""
    rng = np.random.default_rng(0)
    inputs, lengths = rng.normal(size=(4, 7, 8)), np.array([7, 3, 1, 5])
    try:
        with tf.device(device):
            layer = CudnnLSTM(2, 16, dtype=dtype, algorithm=algorithm)
            x = tf.constant(inputs, dtype)
            with tf.GradientTape() as tape:
                outputs = layer(x, sequence_lengths=lengths)
            (gradient,) = tape.gradient(outputs, layer.trainable_variables)
            gradients = tf.cast(gradient, "float64").numpy()
        with tf.device("CPU"):
            expected = _by_keras(layer, inputs, lengths)
    except Exception as error:
        # Whatever a device or a library raises is what the user is to read.
        return Finding("failed", f"{what}: {messages.reason(error)}")
    difference = np.abs(outputs.numpy().astype("float64") - expected).max()
    if not difference < _TOLERANCE:
        text = f"{what}: the outputs differ from those of Keras's layers by {difference:.2g}"
        return Finding("failed", text)
    if not np.all(np.isfinite(gradients)):
        return Finding("failed", f"{what}: a network's gradients are not finite")
    return Finding("ok", f"{what}: a network of {dtype} trains, with the outputs of Keras's layers")


def _by_keras(layer: CudnnLSTM, inputs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the outputs of Keras's layers in float32, with zeros past a sequence's end."""
    copy = CudnnLSTM.from_config(layer.get_config() | {"dtype": "float32", "algorithm": "auto"})
    copy.build(inputs.shape)
    copy.set_weights(layer.get_weights())
    mask = tf.sequence_mask(lengths, inputs.shape[1])
    x = tf.constant(inputs, "float32")
    for part in keras.Sequential(to_keras(copy)).layers:
        x = part(x, mask=mask)
    return x.numpy() * mask.numpy()[..., np.newaxis]


def _why_no_gpu() -> str:
    if not tf.test.is_built_with_cuda():
        return "this TensorFlow is built without CUDA"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed (libcuda.so.1 is not there)"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in ("", "-1"):
        return f"the environment variable CUDA_VISIBLE_DEVICES={hidden!r} hides all GPUs"
    return (
        "an NVIDIA driver is installed, but TensorFlow sees no GPU: CUDA's libraries may be missing"
        f" ({_AND_CUDA})"
    )
