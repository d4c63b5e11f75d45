"""Bounds what reading a file may cost, so that a stranger's small file cannot fill the memory."""

import json
import math
import os
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py
import keras

# Whatever a file holds may have this many bytes, or be this many times as large as the file.
_ALWAYS_FITS = 64 << 20
_MOST_GROWTH = 10
# These members of archives become objects, which take many times as much memory as the text.
_TEXTS = ("config.json", "metadata.json", "data.pkl")
_LARGEST_TEXT = 16 << 20
_LARGEST_MESSAGE = (2 << 30) - 1
_MOST_BRACKETS = 200_000
_MOST_LAYERS = 5_000
# Where the classes of a layer's arguments are, and what they derive from.
_OF_ARGUMENTS = (keras.initializers, keras.regularizers, keras.constraints, keras.dtype_policies)
_ARGUMENTS = (
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.dtype_policies.DTypePolicy,
)


def check_growth(what: str, received: int, stored: int) -> None:
    """Raises ValueError if something from a file has many more bytes than the file."""
    limit = max(_ALWAYS_FITS, _MOST_GROWTH * stored)
    if received > limit:
        raise ValueError(
            f"{what} {received:,} bytes, but no more than {limit:,} are expected of a file of "
            f"{stored:,} bytes"
        )


def stored_bytes(path: str | os.PathLike[str]) -> int:
    """Returns the size of a file.

    Raises:
        FileNotFoundError: if there is no regular file: from a pipe, reading would wait for ever.
        IsADirectoryError: if it is a directory.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"expected a file, but {str(path)!r} is a directory")
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
    return item


def parsed(text: str | bytes, path: pathlib.Path) -> Any:
    """Returns what a text in JSON says of a model in a file.

    Raises:
        ValueError: if it is none, or says of far more than models have.
    """
    text = text.decode() if isinstance(text, bytes) else text
    brackets = text.count("{") + text.count("[")
    _check_count(path, brackets, "brackets", _MOST_BRACKETS)
    config = json.loads(text)
    _check_count(path, sum(map(_is_layer, dicts_in(config))), "layers", _MOST_LAYERS)
    return config


def _check_count(path: pathlib.Path, received: int, what: str, most: int) -> None:
    if received > most:
        raise ValueError(
            f"the model's config in {path} has {received:,} {what}, but no more than {most:,} are "
            "expected"
        )


def dicts_in(config: Any) -> Iterator[dict[str, Any]]:
    """Yields all dictionaries in what JSON may hold."""
    unread = [config]
    while unread:
        item = unread.pop()
        if isinstance(item, dict):
            yield item
        if isinstance(item, (dict, list)):
            unread += item.values() if isinstance(item, dict) else item


def is_argument(config: dict[str, Any]) -> bool:
    """Returns whether a config is that of an object of a few numbers, such as an initializer."""
    kind, module = config.get("class_name"), config.get("module") or "keras"
    registered = keras.saving.get_registered_object(config.get("registered_name") or kind)
    if kind == "function" or not isinstance(kind, str):
        return kind == "function"
    if registered is None and module.partition(".")[0] != "keras":
        return False
    owners = [registered, *(getattr(each, kind, None) for each in _OF_ARGUMENTS)]
    return any(isinstance(owner, type) and issubclass(owner, _ARGUMENTS) for owner in owners)


def _is_layer(config: dict[str, Any]) -> bool:
    kind = config.get("class_name")
    if not isinstance(kind, str) or kind.startswith("__") or "config" not in config:
        return False
    return not is_argument(config)


def _unpacked(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def _check_weights(name: str, file: Any, stored: int, is_archive: bool) -> None:
    # Keras goes by the name as well. A file may be both, as an archive's records come last.
    if is_archive:
        with zipfile.ZipFile(file) as archive:
            check_growth(f"{name} unpacks to", _unpacked(archive), stored)
        return
    received = 0

    def add(path: str, item: Any) -> str | None:
        """Adds an array's bytes; returns its path, which ends the visits, if it lies elsewhere."""
        nonlocal received
        if isinstance(item, h5py.ExternalLink):
            return path
        item = weights[path] if isinstance(item, h5py.HardLink) else None
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            if item.external or item.is_virtual:
                return path
            received += math.prod(item.shape) * item.dtype.itemsize
        return None

    with h5py.File(file, "r") as weights:
        outside = weights.visititems_links(add)
    if outside is not None:
        raise ValueError(f"{outside!r} in {name} lies in another file")
    check_growth(f"the arrays of {name} have", received, stored)
