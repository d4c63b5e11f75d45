"""Bounds what reading a file may cost, so that a stranger's small file cannot fill the memory."""

import contextlib
import contextvars
import json
import math
import os
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import keras
import numpy as np

# Whatever a file holds may have this many bytes, or be this many times as large as the file.
_ALWAYS_FITS = 64 << 20
_MOST_GROWTH = 10
# These members of archives become objects, which take many times as much memory as the text.
_TEXTS = ("config.json", "metadata.json", "data.pkl")
_LARGEST_TEXT = 16 << 20
_LARGEST_MESSAGE = (2 << 30) - 1


def largest_growth(stored: int) -> int:
    """Returns how many bytes there may be in a file of `stored` bytes."""
    return max(_ALWAYS_FITS, _MOST_GROWTH * stored)


def check_growth(what: str, received: int, stored: int) -> None:
    """Raises ValueError if something from a file has many more bytes than the file."""
    limit = largest_growth(stored)
    if received > limit:
        raise ValueError(
            f"{what} {received:,} bytes, but no more than {limit:,} are expected of a file of "
            f"{stored:,} bytes"
        )


def stored_bytes(path: str | os.PathLike[str]) -> int:
    """Returns the size of a file.

    Raises:
        FileNotFoundError: if there is no regular file: from a pipe, reading would wait for ever.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    return path.stat().st_size


def read_message(path: pathlib.Path) -> bytes:
    """Reads a file with one message of protocol buffers, which are at most 2 GiB.

    Raises:
        FileNotFoundError: if there is no regular file.
        ValueError: if it is larger.
        OSError: if it cannot be read.
    """
    if (size := stored_bytes(path)) > _LARGEST_MESSAGE:
        raise ValueError(f"{path} has {size:,} bytes, but no more than 2 GiB are expected")
    return path.read_bytes()


def check_archive(path: pathlib.Path) -> None:
    """Checks a zip archive of Keras's or PyTorch's, and the weights of Keras's in it.

    Raises:
        ValueError: if it would unpack to far more than it is large.
        zipfile.BadZipFile: if it is damaged.
        OSError: if it cannot be read.
    """
    stored = stored_bytes(path)
    with zipfile.ZipFile(path) as archive:
        # The module zipfile reads no more of a member than it claims to have.
        check_growth(f"{path} unpacks to", _unpacked(archive), stored)
        for member in archive.infolist():
            name = member.filename.rpartition("/")[2]
            if name in _TEXTS and member.file_size > _LARGEST_TEXT:
                raise ValueError(
                    f"{member.filename} in {path} has {member.file_size:,} bytes, but no more than "
                    f"{_LARGEST_TEXT:,} are expected"
                )
            if name.endswith((".h5", ".npz")):
                with (
                    archive.open(member) as source,
                    tempfile.SpooledTemporaryFile(_ALWAYS_FITS) as copy,
                ):
                    shutil.copyfileobj(source, copy)
                    is_archive = name.endswith(".npz")
                    _check_weights(f"{member.filename} in {path}", copy, stored, is_archive)


def check_hdf5(path: pathlib.Path) -> None:
    """Checks a file of HDF5, as `check_archive` does archives."""
    stored = stored_bytes(path)
    with path.open("rb") as file:
        _check_weights(str(path), file, stored, is_archive=False)


def h5_item(group: h5py.Group, name: str) -> Any:
    """Returns what lies under a path in a file of HDF5, and never in another file.

    Raises:
        ValueError: if there is nothing, or a link leads elsewhere.
    """
    item: Any = group
    for part in filter(None, name.split("/")):
        link = item.get(part, getlink=True) if isinstance(item, h5py.Group) else None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"it has no {name!r}")
        item = item[part]
    if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
        raise ValueError(f"{name!r} in it lies in another file")
    return item


def check_keras_config(path: pathlib.Path) -> None:
    """Checks the layers that the configuration in a file of Keras's asks for.

    Keras makes a model, with all its weights, before it looks at those in the file.

    Raises:
        ValueError: if their matrices alone would be far larger than the file.
        zipfile.BadZipFile, KeyError, OSError: if it is damaged.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            text = archive.read("config.json")
    else:
        with h5py.File(path, "r") as file:
            text = file.attrs.get("model_config", "null")
    numbers = sum(_numbers_of(config) for config in _dicts_in(json.loads(text)))
    check_growth(f"the layers of {path} have weights of", 4 * numbers, stored_bytes(path))


def _dicts_in(config: Any) -> Iterator[dict[str, Any]]:
    unread = [config]
    while unread:
        item = unread.pop()
        if isinstance(item, dict):
            yield item
        if isinstance(item, (dict, list)):
            unread += item.values() if isinstance(item, dict) else item


def _numbers_of(config: dict[str, Any]) -> int:
    """Returns how many numbers the largest matrices of a layer have at least."""
    inner, build = config.get("config"), config.get("build_config")
    if not isinstance(inner, dict):
        return 0

    def size(name: str, default: int = 0) -> int:
        value = inner.get(name, default)
        return value if isinstance(value, int) and value > 0 else default

    shape = build.get("input_shape") if isinstance(build, dict) else None
    inputs = shape[-1] if isinstance(shape, list) and shape else None
    inputs = inputs if isinstance(inputs, int) and inputs > 0 else 1
    units = size("units") or size("num_units")
    numbers = units * inputs + size("input_dim") * size("output_dim")
    if "recurrent_initializer" in inner:
        numbers += size("num_layers", 1) * units**2
    return numbers


def _unpacked(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def _check_weights(name: str, file: Any, stored: int, is_archive: bool) -> None:
    # Keras goes by the name as well. A file may be both, as an archive's records come last.
    if is_archive:
        with zipfile.ZipFile(file) as archive:
            check_growth(f"{name} unpacks to", _unpacked(archive), stored)
        return
    received = 0

    def add(_: str, item: Any) -> None:
        nonlocal received
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            received += math.prod(item.shape) * item.dtype.itemsize

    with h5py.File(file, "r") as weights:
        weights.visititems(add)
    check_growth(f"the arrays of {name} have", received, stored)


_budget: contextvars.ContextVar[int] = contextvars.ContextVar("budget", default=0)


@contextlib.contextmanager
def memory_budget(size: int) -> Iterator[None]:
    """Has `BoundedZeros` make no more than `size` bytes in all."""
    token = _budget.set(size)
    try:
        yield
    finally:
        _budget.reset(token)


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class BoundedZeros(keras.initializers.Initializer):
    """Begins weights as zeros, as long as the `memory_budget` lasts."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        size = math.prod(shape) * np.dtype(dtype or "float32").itemsize
        if size > _budget.get():
            raise ValueError(
                f"the model has weights of shape {tuple(shape)}, of which the file cannot hold "
                "the values"
            )
        _budget.set(_budget.get() - size)
        return keras.ops.zeros(shape, dtype)
