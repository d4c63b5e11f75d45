"""The parameter layout on NumPy arrays, without TensorFlow.

`ParamLayout` says where every canonical weight and bias stands in a network's
opaque buffer and converts between the two. Nothing here imports TensorFlow.
"""

import pathlib
from typing import Any

try:
    from cudnn_rnn_tf.native import _native, build_info
    from cudnn_rnn_tf.native._native import ParamLayout, spec_fields
except ImportError as error:
    raise ImportError(
        f"{pathlib.Path(__file__).parent} has no compiled modules for this Python, or older ones; "
        "if that is the source, which Python imports because it is in the current folder, change "
        "to another folder, or install it with `pip install -e .`"
    ) from error

__all__ = ["ParamLayout", "info", "op_library_files", "spec_fields", "xla_library_files"]


def op_library_files() -> dict[str, pathlib.Path]:
    """Returns the libraries of TensorFlow ops, by the minor version of TensorFlow that each is for.

    They are next to the compiled module. In an editable installation, that is not the directory of
    this file.
    """
    return _libraries("ops")


def xla_library_files() -> dict[str, pathlib.Path]:
    """Returns the libraries that let XLA compile the ops, by the same versions."""
    return _libraries("xla")


def _libraries(kind: str) -> dict[str, pathlib.Path]:
    found = pathlib.Path(_native.__file__).parent.glob(f"libcudnn_rnn_tf_{kind}_tf*.so")
    return {path.stem.rpartition("_tf")[2]: path for path in sorted(found)}


def info() -> dict[str, Any]:
    """Returns how the code was compiled and which of its instruction sets is in use."""
    return {
        "built_for_tensorflow": list(op_library_files()),
        "compiler": build_info.COMPILER,
        "build_type": build_info.BUILD_TYPE,
        "cpu_features": _native.cpu_features(),
        "cpu_isa": _native.cpu_isa(),
    }
