"""Writes files and folders completely or not at all."""

import os
import pathlib
import re
import stat
import tempfile
from collections.abc import Callable

import tensorflow as tf

from cudnn_rnn_tf import messages
from cudnn_rnn_tf.exports import target_names

_HIDDEN = ".cudnn_rnn_tf."


def check(
    target: str | os.PathLike[str],
    *suffixes: str,
    force: bool = False,
    argument: str = "path",
) -> pathlib.Path:
    """Checks the place of what is to be written, before the work for it begins, and returns it.

    `suffixes` are those that a file's name may have; none for a SavedModel's folder. With `force`,
    something that exists may be replaced: a file by a file, and a SavedModel or an empty folder by
    a SavedModel. Errors call the target `argument`.

    Raises:
        ValueError: if its name ends otherwise or is a URL, or something exists in its place that is
            never replaced.
        FileNotFoundError: if the folder that it is to be in does not exist.
        FileExistsError: if it exists and `force` is false.
        OSError: if the system refuses its name.
    """
    target = pathlib.Path(name := os.fspath(target))
    if re.match(r"\w+://", name):
        raise ValueError(f"expected {argument} to be a path on this machine, but received {name!r}")
    target_names.check(name, *suffixes, is_folder=not suffixes, argument=argument)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {str(target.parent)!r}")
    _replaced(target, bool(suffixes), force)
    return target


def write_whole(
    target: pathlib.Path, write: Callable[[pathlib.Path], object], *, force: bool = False
) -> None:
    """Has `write` write a file or folder beside its place, and moves it there when it is complete.

    A link is followed, and a file that is replaced keeps its permissions.

    Raises:
        FileExistsError: if the target exists and `force` is false.
        OSError: if it cannot be written; it names the target.
    """
    place = pathlib.Path(os.path.realpath(target)) if force else target
    partial = None
    try:
        with tempfile.TemporaryDirectory(prefix=_HIDDEN, dir=place.parent) as folder:
            # A file's format may go by its name.
            partial = pathlib.Path(folder, "new", target.name)
            partial.parent.mkdir()
            write(partial)
            _move(partial, place, force)
    except FileExistsError:
        raise
    except (OSError, RuntimeError, tf.errors.OpError) as error:  # PyTorch raises the second.
        text = messages.reason(OSError(str(error).replace(str(partial), str(target))))
        if isinstance(error, OSError) and _HIDDEN in str(error.filename):
            text = str(error.strerror)
        already_said = f"cannot write {target}: "
        raise OSError(already_said + text.removeprefix(already_said)) from error


def _move(partial: pathlib.Path, place: pathlib.Path, force: bool) -> None:
    state = _replaced(place, partial.is_file(), force)
    if state is None or partial.is_file():
        if state is not None:
            partial.chmod(stat.S_IMODE(state.st_mode))
        partial.replace(place)
        return
    # The old folder goes with what is beside the new one.
    old = place.replace(partial.parent.with_name("old"))
    try:
        partial.replace(place)
    except BaseException:
        old.replace(place)
        raise


def _replaced(target: pathlib.Path, by_file: bool, force: bool) -> os.stat_result | None:
    """Returns the state of what will be replaced; None if nothing has that name."""
    try:
        state = target.lstat()
        if not force:
            raise FileExistsError(f"{str(target)!r} exists already")
        state = target.stat()
    except FileNotFoundError:
        return None
    if by_file:
        fits = stat.S_ISREG(state.st_mode)
    else:
        fits = stat.S_ISDIR(state.st_mode) and (
            (target / "saved_model.pb").is_file() or not any(target.iterdir())
        )
    if not fits:
        kind = "a file" if by_file else "a SavedModel"
        raise ValueError(f"{str(target)!r} is not {kind}, so nothing replaces it")
    return state
