"""Damaged files, given to `python -m cudnn_rnn_tf convert`."""

import contextlib
import functools
import io
import pathlib
import random
import tempfile
from typing import Any

import keras
import numpy as np
import torch

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert

EXPECTED = ()
SUFFIXES = (".pt", ".safetensors", ".keras", ".onnx")


def draw(rng: random.Random) -> dict[str, Any]:
    """A file of a format, with bytes changed, put in, taken out, or cut off."""
    suffix = rng.choice(SUFFIXES)
    size = len(_good(suffix))
    changes = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        # Headers are where most of what is read stands, at either end.
        place = rng.choice(
            (
                rng.randrange(size),
                rng.randrange(min(300, size)),
                size - 1 - rng.randrange(min(700, size)),
            )
        )
        what = rng.choice(("flip", "flip", "set", "insert", "delete", "cut"))
        value = {
            "flip": lambda: 1 << rng.randrange(8),
            "set": lambda: rng.choice((0, 1, 0x7F, 0x80, 0xFF)),
            "insert": lambda: list(rng.randbytes(rng.randrange(1, 9))),
            "delete": lambda: rng.randrange(1, 9),
            "cut": lambda: 0,
        }[what]()
        changes.append([what, place, value])
    return {"suffix": suffix, "changes": changes}


def run(case: dict[str, Any]) -> str:
    content = bytearray(_good(case["suffix"]))
    for what, place, value in case["changes"]:
        if what == "cut":
            del content[place:]
        elif what == "delete":
            del content[place : place + value]
        elif what == "insert":
            content[place:place] = bytes(value)
        elif place < len(content):
            content[place] = content[place] ^ value if what == "flip" else value
    with tempfile.TemporaryDirectory() as directory:
        source, target = pathlib.Path(directory, f"m{case['suffix']}"), pathlib.Path(directory, "t")
        # The other library's format, so that nothing can be copied as it is.
        target = target.with_suffix(".safetensors" if case["suffix"] == ".keras" else ".keras")
        source.write_bytes(content)
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            status = __main__.main(["convert", str(source), str(target)])
        files = sorted(path.name for path in pathlib.Path(directory).iterdir())
        lines = [line for line in said.getvalue().splitlines() if "error: " in line]
        if status == 0:
            assert files == sorted([source.name, target.name]), files
            return "converted"
        assert status == 1 and len(lines) == 1, (status, lines)
        assert str(source) in lines[0], lines[0]
        assert files == [source.name], files
        return "refused"


@functools.cache
def _good(suffix: str) -> bytes:
    """A file of a network of two layers."""
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
