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


def find(tensorflow: str) -> pathlib.Path:
    """Finds the op library for a version of TensorFlow.

    TensorFlow's C++ interface changes with every minor version. A library that was built for
    another version fails with errors that do not name either version.

    Args:
        tensorflow: the version that is imported.

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
    `TF_LoadLibrary` of TensorFlow's C API.
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


raw_ops = load()
