"""Versions and what this installation can do."""

import platform
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import native

__version__: str = native.build_info.VERSION


def info() -> dict[str, Any]:
    """What is installed, what it was built with, and which backends are present.

    Returns:
        A dictionary of plain values: versions of this package, Python, TensorFlow and Keras; the
        TensorFlow, compiler and build type of the compiled code; the processor's features and the
        instruction set in use; and `backends`, which maps each backend to "available" or to the
        reason why it is not.
    """
    return {
        "version": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        **native.info(),
        "op_library": str(native.op_library_file()),
        "backends": {
            "cpu": "available",
            "cudnn": "not available: this build has no cuDNN kernels",
        },
    }
