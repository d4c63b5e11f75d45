"""Full disks and disks that cannot be written to, and what is lost on them.

The disks are file systems in memory, mounted where this process alone sees them, in a user
namespace of its own, which needs no privileges. So writing really fails, for root as well.
"""

import collections
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import forks
import keras
import training

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__

_ENOUGH = "64m"


class Disk:
    """A file system of a size, in a directory that is empty otherwise."""

    def __init__(self, directory: pathlib.Path):
        self.path = directory
        directory.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={_ENOUGH}", "none", directory)

    def resize(self, kilobytes: int) -> None:
        """Leaves so much room, beside what is there."""
        used = shutil.disk_usage(self.path).used // 1024
        _mount("-o", f"remount,size={used + kilobytes}k", self.path)

    def enlarge(self) -> None:
        _mount("-o", f"remount,rw,size={_ENOUGH}", self.path)

    def forbid_writing(self) -> None:
        _mount("-o", "remount,ro", self.path)

    def clear(self) -> None:
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def __enter__(self) -> "Disk":
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", self.path], check=True)


def _mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def enter_namespace() -> None:
    """Starts this program anew where it may mount; returns in the new one.

    Raises:
        OSError: if there is no `unshare`, which fails where the system allows no such thing.
    """
    marker = "CUDNN_RNN_TF_TESTS_MAY_MOUNT"
    if marker not in os.environ:
        os.environ[marker] = "1"
        # Without site, a copy of the package takes precedence over an installed one.
        python = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
        unshare = ["unshare", "--user", "--map-root-user", "--mount"]
        os.execvp("unshare", [*unshare, *python, *sys.argv])


def run(count: int, seed: int) -> dict[str, Any]:
    """Tries so many sizes of disks with each program, and a disk that cannot be written to."""
    enter_namespace()
    rng = random.Random(seed)
    counts: dict[str, collections.Counter] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name, Disk(pathlib.Path(name, "disk")) as disk:
        directory = pathlib.Path(name)

        def attempt(what: str, program: Callable[[], str]) -> None:
            ends = counts.setdefault(what, collections.Counter())
            try:
                ends[program()] += 1
            except (AssertionError, RuntimeError, TimeoutError) as error:
                failures.append(f"{what}: {error}")
            disk.enlarge()
            disk.clear()

        runs = training.Training(directory)
        needed = sum(path.stat().st_size for path in (directory / "reference").rglob("*")) // 1024
        for _ in range(count):
            # The undisturbed run keeps all its checkpoints; other runs keep only the newest.
            size = rng.randrange(needed // 2)
            attempt("full, training", lambda size=size: _train_on_full(runs, disk, directory, size))
            size = rng.randrange(300)
            suffix = rng.choice((".keras", ".pt", ".safetensors", ".onnx"))
            attempt(
                f"full, convert to {suffix}",
                lambda size=size, suffix=suffix: _convert_on_full(disk, directory, size, suffix),
            )
        attempt("read-only, training", lambda: _train_on_read_only(runs, disk, directory))
        attempt("read-only, convert", lambda: _convert_on_read_only(disk, directory))
    return {"counts": counts, "failures": failures}


def _train_on_full(
    runs: training.Training, disk: Disk, directory: pathlib.Path, kilobytes: int
) -> str:
    """Trains until the disk is full and, with room again, to the end."""
    disk.resize(kilobytes)
    work, log = disk.path / "work", directory / "work.log"
    process = runs.start(work, log)
    if process.wait() == 0:
        runs.check_finished(work)
        return "had enough room"
    _check_one_line(process, r"char_lm.py: cannot write ")
    step = runs.check_kept(work, 0)
    disk.enlarge()
    process = runs.start(work, log)
    assert process.wait() == 0, f"it does not go on from step {step}:\n{process.printed()}"
    runs.check_finished(work)
    return "reported in one line that it could not write; later went on to the same end"


def _convert_on_full(disk: Disk, directory: pathlib.Path, kilobytes: int, suffix: str) -> str:
    source = _source(disk, directory)
    disk.resize(kilobytes)
    target = disk.path / f"m{suffix}"
    process = _convert(source, target, directory)
    if process.wait() == 0:
        assert target.exists()
        return "had enough room"
    _check_one_line(process, r"cudnn-rnn-tf convert: error: .*")
    left = [path for path in disk.path.iterdir() if path != source]
    assert not left, f"{left} is left on a full disk"
    return "reported in one line that it could not write; made no output file"


def _train_on_read_only(runs: training.Training, disk: Disk, directory: pathlib.Path) -> str:
    """A new run, and one that was trained so far."""
    for is_new in (True, False):
        work = disk.path / ("new" if is_new else "work")
        if not is_new:
            assert runs.start(work, directory / "work.log", epochs=3).wait() == 0
        disk.forbid_writing()
        process = runs.start(work, directory / "work.log")
        assert process.wait() == 1, f"it trained where nothing can be written:\n{work}"
        _check_one_line(process, r"char_lm.py: cannot write ")
        disk.enlarge()
    process = runs.start(disk.path / "work", directory / "work.log")
    assert process.wait() == 0, process.printed()
    runs.check_finished(disk.path / "work")
    return "reported in one line that it could not write; later went on to the same end"


def _convert_on_read_only(disk: Disk, directory: pathlib.Path) -> str:
    source = _source(disk, directory)
    disk.forbid_writing()
    process = _convert(source, disk.path / "m.pt", directory)
    assert process.wait() == 1
    _check_one_line(process, r"cudnn-rnn-tf convert: error: .*")
    # The file can still be read.
    assert _convert(source, directory / "elsewhere.pt", directory).wait() == 0
    return (
        "reported in one line that it could not write; the file on the read-only disk could be "
        "converted to another disk"
    )


def _check_one_line(process: forks.Fork, pattern: str) -> None:
    printed = process.printed()
    assert "Traceback" not in printed, printed
    assert re.match(pattern, printed.splitlines()[-1]), printed


def _source(disk: Disk, directory: pathlib.Path) -> pathlib.Path:
    """A model on the disk."""

    def write() -> None:
        layer = crnn.CudnnLSTM(2, 64)
        keras.Sequential([keras.Input((None, 32)), layer]).save(source)

    source = disk.path / "source.keras"
    assert forks.Fork(write, directory / "source.log").wait() == 0
    return source


def _convert(source: pathlib.Path, target: pathlib.Path, directory: pathlib.Path) -> forks.Fork:
    arguments = ["convert", str(source), str(target)]
    log = directory / "convert.log"
    return forks.Fork(lambda: sys.exit(__main__.main(arguments)), log)
