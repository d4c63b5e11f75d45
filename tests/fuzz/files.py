"""Gives damaged files to `python -m cudnn_rnn_tf convert`."""

import contextlib
import functools
import io
import pathlib
import random
import tempfile
from typing import Any

import damage
import keras
import numpy as np
import torch

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert

EXPECTED = ()
SUFFIXES = (".pt", ".safetensors", ".keras", ".onnx")


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws a format and changes that damage a file of it."""
    suffix = rng.choice(SUFFIXES)
    changes = damage.draw(rng, len(good(suffix)))
    return {"suffix": suffix, "changes": changes}


def run(case: dict[str, Any]) -> str:
    content = damage.apply(good(case["suffix"]), case["changes"])
    with tempfile.TemporaryDirectory() as directory:
        source, target = pathlib.Path(directory, f"m{case['suffix']}"), pathlib.Path(directory, "t")
        # The target has another library's format, so that nothing can be copied unread.
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
