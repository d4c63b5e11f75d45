"""The parameter layout on NumPy arrays, without TensorFlow.

`ParamLayout` says where every canonical weight and bias stands in a network's
opaque buffer and converts between the two. Nothing here imports TensorFlow.
"""

import pathlib
from typing import Any

from cudnn_rnn_tf.native import _native, build_info
from cudnn_rnn_tf.native._native import ParamLayout

__all__ = ["ParamLayout", "build_info", "info", "op_library_file"]


def op_library_file() -> pathlib.Path:
    """Where the build put the library of TensorFlow ops.

    Next to the compiled module, which need not be next to this file: an
    editable installation keeps the two apart.
    """
    return pathlib.Path(_native.__file__).with_name("libcudnn_rnn_tf_ops.so")


def info() -> dict[str, Any]:
    """What the compiled code is and which of its instruction sets is in use."""
    return {
        "built_for_tensorflow": build_info.TENSORFLOW_VERSION,
        "compiler": build_info.COMPILER,
        "build_type": build_info.BUILD_TYPE,
        "cpu_features": _native.cpu_features(),
        "cpu_isa": _native.cpu_isa(),
    }
