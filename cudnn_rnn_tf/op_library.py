"""Loads the compiled TensorFlow ops."""

import types

import tensorflow as tf

from cudnn_rnn_tf import native


def check_tensorflow_version(built_for: str, imported: str) -> None:
    """Checks that the op library fits the TensorFlow that is imported.

    TensorFlow's C++ interface changes with every minor version, and a library
    built for another one fails in ways that name neither.

    Args:
        built_for: the version the library was compiled against.
        imported: the version that is imported.

    Raises:
        ImportError: if the two differ in their major or minor version.
    """
    if built_for.split(".")[:2] != imported.split(".")[:2]:
        raise ImportError(
            f"cudnn_rnn_tf was built for TensorFlow {built_for}, but TensorFlow {imported} is "
            "imported. Build it again for this one, in its source directory: pip install "
            "--force-reinstall --no-deps --no-build-isolation --no-cache-dir ."
        )


def op_library_path() -> str:
    """The path of the library of the compiled ops.

    A program without Python that runs a SavedModel with these ops loads it first, with
    `TF_LoadLibrary` of TensorFlow's C API.
    """
    return str(native.op_library_file())


def load() -> types.ModuleType:
    """Loads the op library and returns the module of its raw ops.

    Raises:
        ImportError: if the library is missing or was built for another TensorFlow.
    """
    check_tensorflow_version(native.build_info.TENSORFLOW_VERSION, tf.__version__)
    path = native.op_library_file()
    try:
        return tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"cannot load cudnn_rnn_tf's op library {path}: {error.message}"
        ) from error


raw_ops = load()
