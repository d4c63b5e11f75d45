"""Gives small files, of which Keras would make much, to the commands that read models.

Their configs are those of good models in which values have grown: numbers, lists, layers in the
place of anything. `inspect` takes little memory and time whatever a file says; what makes a model
takes little more memory than a file's weights may.
"""

import contextlib
import copy
import io
import json
import pathlib
import random
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import archives
import h5py

from cudnn_rnn_tf import __main__

EXPECTED = ()
_COMMANDS = {"inspect": (300 << 20, 5), "convert": (600 << 20, 60), "accelerate": (600 << 20, 60)}
_LARGEST_FILE = 100_000


def draw(rng: random.Random) -> dict[str, Any]:
    # Each change says which of the config's values grows, and into what.
    changes = [
        [rng.random(), rng.choice(("number", "number", "list", "layer", "repeated")), rng.random()]
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    suffix = rng.choice((".keras", ".h5"))
    return {"command": rng.choice((*_COMMANDS, "inspect")), "suffix": suffix, "changes": changes}


def run(case: dict[str, Any]) -> str:
    config = _model()
    for at, kind, size in case["changes"]:
        places = list(_places(config))
        owner, key = places[int(at * len(places))]
        if kind == "number":
            owner[key] = 1 << int(5 + size * 40)
        elif kind == "list":
            owner[key] = [{"": 0}] * int(10 ** (size * 5))
        elif kind == "layer":
            owner[key] = _dense(1 << int(10 + size * 20))
        else:
            owner[key] = [copy.deepcopy(owner[key])] * int(10 ** (size * 3.5))
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory, f"m{case['suffix']}")
        _write(source, config)
        if source.stat().st_size > _LARGEST_FILE:
            return "large"
        target = {"convert": ["t.pt"], "accelerate": ["t.keras"]}.get(case["command"], [])
        arguments = [case["command"], str(source), *(f"{directory}/{name}" for name in target)]
        said = io.StringIO()
        memory, seconds = _COMMANDS[case["command"]]
        with (
            archives.limits(memory, seconds),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(said),
        ):
            status = __main__.main(arguments)
        lines = [line for line in said.getvalue().splitlines() if "error: " in line]
        assert len(lines) == status, f"status {status}, {len(lines)} lines\n{said.getvalue()}"
        return "refused" if status else "done"


def _model() -> dict[str, Any]:
    first = {"class_name": "InputLayer", "config": {"batch_shape": [2, 5, 4], "name": "x"}}
    gru = _layer("GRU", "inner", units=2, return_sequences=True)
    layers = [
        first,
        _layer("Normalization", "statistics", mean=0.5, variance=2.0),
        _layer("Normalization", "adapted"),
        _layer("Conv1D", "conv", filters=4, kernel_size=1),
        _layer("LSTM", "lstm", units=3, return_sequences=True, stateful=True, activation="tanh"),
        _layer("Bidirectional", "both", layer=gru),
        _layer("TimeDistributed", "each", layer=_dense(3)),
        _layer("RNN", "cells", cell=_layer("LSTMCell", "cell", units=2)),
        _layer("RepeatVector", "repeated", n=2),
        _layer("Flatten", "flat"),
    ]
    return {**_layer("Sequential", "model", layers=layers), "module": "keras"}


def _dense(units: int) -> dict[str, Any]:
    inputs = {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "x"}}
    return {
        **_layer("Sequential", "inside", layers=[inputs, _layer("Dense", "dense", units=units)]),
        "module": "keras",
    }


def _layer(kind: str, name: str, **config: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": kind, "config": {"name": name, **config}}


def _places(config: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each place of a value in a config."""
    items = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in items:
        yield config, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _write(path: pathlib.Path, config: Any) -> None:
    text = json.dumps(config)
    if path.suffix == ".h5":
        with h5py.File(path, "w", track_order=True) as file:
            file.attrs["keras_version"] = "2.15.0"
            file.create_group("model_weights").attrs["layer_names"] = []
            file.attrs.create("model_config", text, dtype=h5py.string_dtype())
        return
    with (
        zipfile.ZipFile(io.BytesIO(archives.good(".keras"))) as good,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as changed,
    ):
        for name in good.namelist():
            changed.writestr(name, text if name == "config.json" else good.read(name))
