"""Gives files that are damaged, small but costly, or no files, to the command `cudnn-rnn-tf`.

Each ends in exit status 1 and one line, or succeeds; in little time and memory, and with nothing
written where it fails.
"""

import contextlib
import functools
import io
import os
import pathlib
import random
import resource
import signal
import tempfile
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import damage
import keras
import numpy as np
import torch

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert

EXPECTED = ()
_SUFFIXES = (".keras", ".pt", ".safetensors", ".onnx")
_COMMANDS = ("convert", "inspect", "accelerate", "export")
# What stands in place of the source or the target, or in a directory that is the source.
_PLACES = ("fifo", "dangling", "loop", "directory", "device", "socket")
_PARTS = {
    ".keras": ("config.json", "metadata.json", "model.weights.h5", "assets/a.txt"),
    ".pt": ("m/data.pkl", "m/data/0", "m/version", "m/byteorder"),
}


def draw(rng: random.Random) -> dict[str, Any]:
    suffix = rng.choice(_SUFFIXES)
    # Some files are damaged, and most of the others are archives, of which one can make more.
    if suffix not in _PARTS or rng.random() < 0.3:
        changes = damage.draw(rng, len(good(suffix)))
        return {"command": rng.choice(_COMMANDS), "suffix": suffix, "changes": changes}
    changes = []
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        kind = rng.choice(("bomb", "bomb", "nested", "lie", "stride", "place", "place"))
        if kind in ("bomb", "nested", "lie"):
            # The numbers are of MiB of zeros, which take a thousandth of that, and of a header.
            changes.append([kind, rng.choice(_PARTS[suffix]), rng.choice((1, 300, 3000))])
        elif kind == "stride":
            changes.append([kind, rng.choice((10**6, 10**9, 10**12, 2**60)), 0])
        else:
            at = rng.choice(("source", "target", "checkpoint", "checkpoint.index"))
            changes.append([kind, at, rng.choice(_PLACES)])
    return {"command": rng.choice(_COMMANDS), "suffix": suffix, "changes": changes}


def run(case: dict[str, Any]) -> str:
    # The oldest cases of the corpus have no command.
    suffix, command = case["suffix"], case.get("command", "convert")
    with tempfile.TemporaryDirectory() as directory:
        source, target = pathlib.Path(directory, f"m{suffix}"), pathlib.Path(directory, "t")
        # The target has another library's format, so that nothing can be copied unread.
        if command == "accelerate":
            target = target.with_suffix(".keras")
        elif command == "convert":
            target = target.with_suffix(".safetensors" if suffix == ".keras" else ".keras")
        source.write_bytes(_content(case))
        for kind, at, what in case["changes"]:
            if kind == "place":
                path = {"source": source, "target": target}.get(at, source / at)
                _put(path, what, directory)
        arguments = [command, str(source), str(target)]
        arguments = arguments[:2] if command == "inspect" else arguments
        before = _found(directory)
        said = io.StringIO()
        with (
            limits(1 << 30, 20),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(said),
        ):
            status = __main__.main(arguments)
        lines = [line for line in said.getvalue().splitlines() if "error: " in line]
        after = _found(directory)
        assert before.items() <= after.items(), "what was there is replaced"
        if status == 0:
            written = after.keys() - before.keys()
            others = [path for path in written if not path.startswith(str(target))]
            assert not others, f"more is written\n{others}"
            return "done"
        assert status == 1 and len(lines) == 1, f"status {status}, {len(lines)} lines"
        assert said.getvalue().rstrip().endswith(lines[0]), f"more lines\n{said.getvalue()}"
        assert lines[0].isprintable(), f"control characters\n{lines[0]!r}"
        assert any(str(path) in lines[0] for path in (source, target)), lines[0]
        assert after == before, "something is written"
        return "refused"


@contextlib.contextmanager
def limits(memory: int, seconds: int) -> Iterator[None]:
    """Raises an error if what is run takes too long, and checks the memory that it takes.

    Args:
        memory: the most bytes.
        seconds: the most seconds, of the processor.
    """
    status = pathlib.Path("/proc/self/status")
    # Resets the highest memory in use.
    pathlib.Path("/proc/self/clear_refs").write_text("5")

    def size(name: str) -> int:
        return next(
            int(line.split()[1]) << 10
            for line in status.read_text().splitlines()
            if line.startswith(name)
        )

    rang = []

    def on_alarm(*_: Any) -> None:
        rang.append(True)
        raise SystemExit(f"hang of more than {seconds} s")

    before, soft = size("VmHWM"), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size("VmSize") + 2 * memory, soft[1]))
    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(50)  # What waits takes no time of the processor.
    end = time.process_time() + seconds
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, soft)
    # The alarm may have been taken for an error of what was waited for.
    assert not rang and time.process_time() < end, f"hang of more than {seconds} s"
    used = size("VmHWM") - before
    assert used < memory, f"much memory\n{used >> 20} MiB"


def _found(directory: str) -> dict[str, Any]:
    """Returns all that is in a directory, by name, and what tells whether it was changed."""
    found = {}
    for parent, directories, names in os.walk(directory):
        for name in (*directories, *names):
            path = pathlib.Path(parent, name)
            state = path.lstat()
            found[str(path)] = (state.st_mode, state.st_ino, state.st_mtime_ns)
    return found


def _put(path: pathlib.Path, what: str, directory: str) -> None:
    """Puts something that is no file in a place; a directory's place may have been a file."""
    if path.parent.name.startswith("m.") and not path.parent.is_dir():
        path.parent.unlink()
        path.parent.mkdir()
    if path.is_file() or path.is_symlink():
        path.unlink()
    if os.path.lexists(path):
        return
    if what in ("fifo", "socket"):
        os.mknod(path, 0o600 | (0o010000 if what == "fifo" else 0o140000))
    elif what == "directory":
        path.mkdir()
    else:
        links = {"dangling": f"{directory}/nothing", "loop": path, "device": "/dev/full"}
        path.symlink_to(links[what])


@functools.cache
def good(suffix: str) -> bytes:
    """Returns a good file of a network of two layers."""
    layer = crnn.CudnnGRU(2, 3)
    layer.build((None, None, 4))
    layer.kernel.assign(np.linspace(-1, 1, layer.params_size(), dtype=np.float32))
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, f"m{suffix}")
        if suffix == ".keras":
            keras.Sequential([keras.Input((None, 4)), layer]).save(path)
        elif suffix == ".pt":
            torch.save(convert.to_torch(layer).state_dict(), path)
        elif suffix == ".onnx":
            path.write_bytes(convert.to_onnx(layer).SerializeToString(deterministic=True))
        else:
            from safetensors.torch import save_file

            save_file(convert.to_torch(layer).state_dict(), path)
        return path.read_bytes()


def _content(case: dict[str, Any]) -> bytes:
    content = good(case["suffix"])
    for kind, part, size in case["changes"]:
        if kind == "stride" and case["suffix"] == ".pt":
            content = _strided(part)
        elif kind in ("bomb", "nested", "lie"):
            content = _with_part(content, kind, part, size)
    return damage.apply(content, [each for each in case["changes"] if each[0] in damage.KINDS])


def _with_part(content: bytes, kind: str, part: str, size: int) -> bytes:
    """Returns an archive in which a part is very large, an archive, or said to be small."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return content
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        for info in old.infolist():
            if info.filename != part or kind == "lie":
                new.writestr(info.filename, old.read(info))
        if kind == "nested":
            new.writestr(part, content)
        elif kind == "bomb":
            new.compression = zipfile.ZIP_DEFLATED
            with new.open(part, "w", force_zip64=True) as file:
                for _ in range(size):
                    file.write(bytes(1 << 20) if size % 2 else b" " * (1 << 20))
    changed = bytearray(result.getvalue())
    if kind == "lie":
        # The header of a part in the directory has its sizes at these places.
        found = changed.rfind(b"PK\x01\x02")
        changed[found + 20 : found + 28] = (size << 20).to_bytes(4, "little") * 2
    return bytes(changed)


def _strided(rows: int) -> bytes:
    """Returns a state dict of a small file whose matrices have very many rows."""
    tensor = torch.zeros(1)
    result = io.BytesIO()
    shapes = {"weight_ih_l0": (rows, 4), "weight_hh_l0": (rows, 3)}
    state = {name: tensor.as_strided(shape, (0, 0)) for name, shape in shapes.items()}
    state |= {f"bias_{side}_l0": tensor.as_strided((rows,), (0,)) for side in ("ih", "hh")}
    torch.save(state, result)
    return result.getvalue()
