"""Loads the compiled TensorFlow ops from the library for the version that is imported."""

import ctypes
import importlib.metadata
import json
import pathlib
import shlex
import types
import urllib.parse

import tensorflow as tf

from cudnn_rnn_tf import native
from cudnn_rnn_tf.ops.plain_errors import with_plain_errors


def find(tensorflow: str) -> pathlib.Path:
    """Finds the op library for a version of TensorFlow.

    TensorFlow's C++ interface changes with every minor version. A library that was built for
    another version fails with errors that do not name either version.

    Raises:
        ImportError: if no library is for it.
    """
    libraries = native.op_library_files()
    minor = ".".join(tensorflow.split(".")[:2])
    if minor in libraries:
        return libraries[minor]
    if not libraries:
        raise ImportError(f"cudnn_rnn_tf has no op library: {_build_command(tensorflow)} builds it")
    *others, last = libraries
    fitting = f"{', '.join(others)} or {last}" if others else last
    raise ImportError(
        f"cudnn_rnn_tf is installed for TensorFlow {fitting}, but TensorFlow {tensorflow} is "
        f"imported. Install one that fits, or build for this one: {_build_command(tensorflow)}"
    )


def _build_command(tensorflow: str) -> str:
    return (
        f"CUDNN_RNN_TF_TENSORFLOW={tensorflow} pip install --force-reinstall --no-deps "
        f"--no-cache-dir {_source()}"
    )


def _source() -> str:
    """Returns pip's arguments to install the source: the folder it came from, or a release."""
    # Without --no-binary, pip prefers wheels of a package index.
    release = f"--no-binary cudnn_rnn_tf cudnn_rnn_tf=={native.build_info.VERSION}"
    try:
        text = importlib.metadata.distribution("cudnn_rnn_tf").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return release
    origin = json.loads(text) if text else {}
    if "archive_info" in origin:
        # The source distribution is in the same place as the wheel, or on the package index.
        return f"--find-links {shlex.quote(origin['url'].rpartition('/')[0])} {release}"
    if "dir_info" not in origin:
        return release
    path = shlex.quote(urllib.parse.unquote(urllib.parse.urlsplit(origin["url"]).path))
    return f"--editable {path}" if origin["dir_info"].get("editable") else path


def op_library_path() -> str:
    """Returns the path of the library of the compiled ops, for the TensorFlow that is imported.

    A program without Python that runs a SavedModel with these ops loads it first, with
    `TF_LoadLibrary` of TensorFlow's C API. Without such a library, it raises an ImportError.
    """
    return str(find(tf.__version__))


def imitated_architecture() -> int:
    """Returns the GPU architecture that `CUDNN_RNN_TF_IMITATE_GPU` asks for, such as 80.

    It is 0 without the variable, and if its value is wrong, which ops on a GPU then say.
    """
    # This is the library that TensorFlow has loaded already.
    return ctypes.CDLL(op_library_path()).cudnn_rnn_tf_gpu_imitated_architecture()


def load() -> types.ModuleType:
    """Loads the op library and returns the module of its raw ops.

    Raises:
        ImportError: if no library is for the TensorFlow that is imported, or it cannot be loaded.
    """
    path = op_library_path()
    try:
        return tf.load_op_library(path)
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"cannot load cudnn_rnn_tf's op library {path}: {error.message}"
        ) from error


def _public_ops(module: types.ModuleType) -> types.SimpleNamespace:
    ops = {name: op for name, op in vars(module).items() if name.startswith("cudnn_rnn_tf_")}
    return types.SimpleNamespace(**{name: with_plain_errors(op) for name, op in ops.items()})


def _load_for_xla() -> str:
    """Loads the library that lets XLA compile the ops; returns why there is none, else "".

    The ops' library must be loaded already, since the other one takes functions from it.
    """
    minor = ".".join(tf.__version__.split(".")[:2])
    path = native.xla_library_files().get(minor)
    if path is None:
        return f"cudnn_rnn_tf was built without XLA for TensorFlow {minor}"
    try:
        tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        return f"{path} cannot be loaded: {error.message}"
    return ""


raw_ops = _public_ops(load())
# Why XLA cannot compile the ops; "" if it can.
no_xla = _load_for_xla()
