"""Tells the formats of files by what is in them, whatever their names end in."""

import pathlib
import zipfile

import h5py
import tensorflow as tf

NAMES = {
    "hdf5": "an HDF5 file",
    "keras": "a .keras file",
    "torch": "a file of PyTorch's",
    "safetensors": "a safetensors file",
    "onnx": "an ONNX model",
    "saved_model": "a SavedModel",
    "checkpoint": "a checkpoint of TensorFlow's",
    "frozen_graph": "a frozen graph",
}
_SUFFIXES = {
    ".keras": "keras",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".onnx": "onnx",
    ".pt": "torch",
    ".pth": "torch",
    ".safetensors": "safetensors",
    ".pb": "frozen_graph",
}
_NEXT_IN_ONNX = (b"\x12", b"\x1a", b"\x3a", b"\x42")


def kind_of(path: pathlib.Path) -> str:
    """Returns "keras", "hdf5", "onnx", "torch", "safetensors", "saved_model" and so on.

    Only the name, which ends in `.pb`, tells a "frozen_graph"; other names do not matter.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if it is none of these.
    """
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return "saved_model"
        checkpoint_prefix(path)
        return "checkpoint"
    if path.suffix == ".index" or path.with_name(path.name + ".index").is_file():
        return "checkpoint"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {str(path)!r}, and no directory or checkpoint of that name"
        )
    if kind := _by_content(path):
        return kind
    kind = _SUFFIXES.get(path.suffix)
    if kind in ("onnx", "frozen_graph"):
        return kind  # Its reader knows whether it is one.
    if kind:
        raise ValueError(f"{path} is not {NAMES[kind]}, or only a part of one")
    raise ValueError(
        f"{path} is no file of Keras's, PyTorch's or ONNX's, no safetensors file, and no "
        "SavedModel, checkpoint or frozen graph (.pb) of TensorFlow's"
    )


def checkpoint_prefix(path: pathlib.Path) -> str:
    """Returns the prefix of a checkpoint, given that, its `.index` file, or a directory of some.

    Raises:
        ValueError: if the directory has none.
    """
    if not path.is_dir():
        return str(path.with_suffix("") if path.suffix == ".index" else path)
    # From a pipe of that name, TensorFlow would wait for ever.
    has_list = (path / "checkpoint").is_file()
    latest = tf.train.latest_checkpoint(path) if has_list else None
    if latest is None or not pathlib.Path(f"{latest}.index").is_file():
        raise ValueError(f"the directory {str(path)!r} has no SavedModel and no checkpoint")
    return latest


def _by_content(path: pathlib.Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(9)
    if head.startswith(b"PK\x03\x04"):
        return _of_archive(path)
    if h5py.is_hdf5(path):
        return "hdf5"
    length = int.from_bytes(head[:8], "little")
    if head[8:] == b"{" and length <= path.stat().st_size - 8:
        return "safetensors"
    if head.startswith(b"\x80") and head[1:2] <= b"\x05":
        return "torch"
    # The first field of an ONNX model is the version of its format. A text, a graph or the version
    # of an operator set comes next.
    return "onnx" if head[:1] == b"\x08" and head[2:3] in _NEXT_IN_ONNX else None


def _of_archive(path: pathlib.Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return None
    if "config.json" in names:
        return "keras"
    ends = ("/data.pkl", "/.data/extern_modules")
    return "torch" if any(f"/{name}".endswith(ends) for name in names) else None
