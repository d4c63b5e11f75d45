"""Tells the versions of this installation, and what it can do."""

import ctypes
import functools
import platform
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import native, ops
from cudnn_rnn_tf.commands import known_gpus
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import op_library

__version__: str = native.build_info.VERSION


def info() -> dict[str, Any]:
    """Tells what is installed, what it was built with, and which backends are present.

    Returns:
        A dictionary of plain values: versions of this package, Python, TensorFlow and Keras; the
        TensorFlows, compiler and build type of the compiled code; the processor's features and the
        instruction set in use; `backends`, which maps each backend to "available" or to the
        reason why it is not; and `gpu`: `kernels`, which maps each persistent kernel that was
        wanted to how it divides a layer among blocks, and for which architecture; `replay`,
        whether CUDA graphs may be replayed; and `replays`, how often a pass was.
    """
    gpu = _gpu()  # Asked first, since cuDNN's pass below is replayed too.
    return {
        "version": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        **native.info(),
        "op_library": op_library.op_library_path(),
        "backends": {"cpu": "available", "cudnn": _cudnn(), "xla": _xla()},
        "gpu": gpu,
    }


def _gpu() -> dict[str, Any]:
    # This is the library that TensorFlow has loaded already.
    library = ctypes.CDLL(op_library.op_library_path())
    library.cudnn_rnn_tf_gpu_kernels.restype = ctypes.c_char_p
    library.cudnn_rnn_tf_gpu_replays.restype = ctypes.c_int64
    kernels = dict(
        line.split("\t") for line in library.cudnn_rnn_tf_gpu_kernels().decode().splitlines()
    )
    return {
        "kernels": kernels,
        "replay": bool(library.cudnn_rnn_tf_gpu_replay_is_on()),
        "replays": library.cudnn_rnn_tf_gpu_replays(),
    }


def gpu_lines() -> list[str]:
    """Returns what tells times on one GPU from those on another: the GPUs and their kernels.

    There are two lines for each GPU, of which one is its row in the table of GPUs, and one for each
    persistent kernel that the process has wanted.
    """
    lines = []
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, details.get("compute_capability", "?")))
        name = details.get("device_name", "unknown")
        lines.append(f"GPU            {name}, compute capability {capability}")
        row = known_gpus.row_of(name, capability)
        limits = ", ".join(f"{title} {value}" for title, value in row.items()) or "no row"
        lines.append(f"in the table   {limits}")
    if imitated := op_library.imitated_architecture():
        lines.append(f"imitated       architecture {imitated}")
    kernels = _gpu()["kernels"].items()
    return lines + [f"kernel         {name}: {division}" for name, division in kernels]


def _xla() -> str:
    reason = op_library.no_xla
    return f"not available: {reason}" if reason else "available"


def _cudnn() -> str:
    # Listing logical devices would initialize TensorFlow, after which programs can no longer set
    # options of the devices, such as memory growth.
    if not tf.config.list_physical_devices("GPU"):
        return "not available: TensorFlow sees no GPU"
    try:
        _run_cudnn()
    except tf.errors.OpError as error:
        return f"not available: {error.message}"
    return "available"


@functools.cache  # An error is not kept.
def _run_cudnn() -> None:
    """Runs cuDNN, since only a use of it shows whether it can be loaded."""
    config = RnnConfig("rnn_relu", num_layers=1, num_units=1, input_size=1)
    with tf.init_scope(), tf.device("GPU:0"):
        inputs, states = tf.ones([1, 1, 1]), [tf.ones([1, 1, 1])]
        params = tf.ones([config.layout.size])
        # Without this name, a kernel of this package would run.
        ops.forward(config, inputs, states, params, is_training=False, algorithm="cudnn")
