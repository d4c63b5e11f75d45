"""Files that are cut short or changed, or are no models at all."""

import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hostile_files import good_keras, write_archive
from test_hostile_files import refused

import cudnn_rnn_tf as crnn


def changed(change: Callable[[dict], Any]) -> Callable[[bytes], bytes]:
    """Returns what changes a config that is written as JSON."""
    return lambda text: json.dumps(change(json.loads(text))).encode()


# What becomes of a member of a good file, and whether Keras 3 itself finds its config wrong: of one
# in its own format, it raises TypeError, as if a class were not known.
DAMAGE = {
    "no config": ("config.json", lambda _: None, False),
    "a list": ("config.json", lambda _: b"[]", True),
    "a number": (
        *("config.json", lambda _: b'{"class_name": "Sequential", "config": {"layers": 3}}'),
        True,
    ),
    "another class": ("config.json", changed(lambda c: {**c, "class_name": "None"}), True),
    "nothing": ("config.json", changed(lambda c: {**c, "config": None}), True),
    "a layer": ("config.json", changed(lambda c: c["config"]["layers"][1]), True),
    "no weights": ("model.weights.h5", lambda _: None, False),
    "weights of nothing": ("model.weights.h5", lambda _: b"abc", False),
    "half the weights": ("model.weights.h5", lambda text: text[: len(text) // 2], False),
    "no tree of weights": ("model.weights.h5", lambda text: text.replace(b"TREE", b"EERT"), False),
}


@pytest.mark.parametrize("version", ["2.15.0", "3.0.0"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_models(damage, version, tmp_path, capsys):
    members = good_keras(tmp_path / "good.keras")
    members["metadata.json"] = json.dumps({"keras_version": version}).encode()
    name, change, is_of_keras = DAMAGE[damage]
    members[name] = change(members[name])
    left = {name: text for name, text in members.items() if text is not None}
    write_archive(tmp_path / "m.keras", left, zipfile.ZIP_STORED)
    with pytest.raises(
        (ValueError, TypeError) if version[0] == "3" and is_of_keras else ValueError
    ):
        crnn.load_keras_model(tmp_path / "m.keras")
    capsys.readouterr()
    assert "m.keras" in refused(capsys, "convert", tmp_path / "m.keras", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_junk_is_said_to_be_no_file_of_its_kind(tmp_path, capsys):
    good_keras(tmp_path / "cut.keras")
    cut = (tmp_path / "cut.keras").read_bytes()[:-100]
    junk = {"cut.keras": cut, "a.txt": b"hello", "b.png": b"\x89PNG\r\n\x1a\n0000"}
    junk |= {"c.keras": b"", "d.h5": b"", "e.pt": b"hello", "f.safetensors": cut[:30]}
    write_archive(tmp_path / "g.keras", {"a": b"b"}, zipfile.ZIP_STORED)
    for name, content in junk.items():
        (tmp_path / name).write_bytes(content)
    for name in (*junk, "g.keras"):
        for command in (["inspect"], ["convert", tmp_path / "out.pt"], ["bench"]):
            line = refused(capsys, command[0], tmp_path / name, *command[1:])
            assert line.startswith(f"cudnn-rnn-tf {command[0]}: error: {tmp_path / name} is no")
            assert line.endswith(" a part of one\n") or name in ("a.txt", "b.png")


@pytest.mark.parametrize("metadata", [None, b"[]", b"{", b"\xff", b'{"keras_version": 3}'])
def test_models_that_do_not_say_their_version_are_those_of_keras_3(metadata, tmp_path):
    """Keras 3 does not read what says it."""
    members = good_keras(tmp_path / "good.keras") | {"metadata.json": metadata}
    left = {name: text for name, text in members.items() if text is not None}
    write_archive(tmp_path / "m.keras", left, zipfile.ZIP_STORED)
    loaded, good = (crnn.load_keras_model(tmp_path / f"{name}.keras") for name in ("m", "good"))
    inputs = np.ones((2, 5, 4))
    np.testing.assert_array_equal(loaded(inputs), good(inputs))
