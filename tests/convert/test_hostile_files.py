"""The command line on small files that would cost gigabytes or a wait without end.

Each is refused in one line, with little memory, and nothing is written.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import zipfile

import fresh_process
import h5py
import hostile_files
import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_files import INSPECTED, LISTED, MIB, layer_of, onnx, torch, write_archive
from layer_reference import make

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection, untrusted
from cudnn_rnn_tf.convert.keras_files import load_keras_model

# Runs the commands of a list in JSON, and prints what came of them and how the memory grew.
PROGRAM = """
import contextlib, io, json, pathlib, resource, sys, time
import onnx, onnx.reference, safetensors.numpy, torch
from cudnn_rnn_tf import __main__

with contextlib.redirect_stdout(sys.stderr):
    for suffix in (".keras", ".pt", ".onnx", ".safetensors"):  # What is imported late is, now.
        assert __main__.main(["inspect", sys.argv[1] + suffix]) == 0
        assert __main__.main(["convert", sys.argv[1] + suffix, sys.argv[1] + "_out.onnx"]) == 0
        pathlib.Path(sys.argv[1] + "_out.onnx").unlink()
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for command in json.load(sys.stdin):
    printed, begin = io.StringIO(), time.process_time()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        status = __main__.main(command)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.process_time() - begin
    print(json.dumps([status, printed.getvalue(), (after - before) >> 10, seconds]), flush=True)
"""


@pytest.mark.slow
def test_small_files_cost_little(tmp_path):
    pytest.importorskip("safetensors")
    expected: dict[str, str] = {}
    for make_files in (
        hostile_files.archives,
        hostile_files.configs,
        hostile_files.hdf5_files,
        hostile_files.state_dicts,
        hostile_files.safetensors_files,
        hostile_files.onnx_models,
        hostile_files.directories,
    ):
        expected |= make_files(tmp_path)
    graphs = {name for name in expected if name.endswith(".onnx")} - {"sparse.onnx", "zero.onnx"}
    commands = []
    for name in expected:
        file = str(tmp_path / name)
        # The list of networks in an archive needs no weights, and in a graph takes one by one.
        if name not in LISTED:
            commands.append(["inspect", file])
        if (tmp_path / name).suffix:
            commands.append(["convert", file, str(tmp_path / "out.onnx")])
        if name.endswith((".keras", ".h5")):
            commands.append(["export", file, str(tmp_path / "out")])
    before = sorted(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "good")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(commands), done.stderr[-2000:]
    for command, (status, printed, growth, seconds) in zip(commands, results, strict=True):
        name = pathlib.Path(command[1]).name
        message = expected[name]
        if command[0] == "inspect" and (name in graphs or name in INSPECTED):
            # A network that cannot be had is listed, with the reason.
            message = INSPECTED.get(name, f"no: .*{message}")
            assert status == 0 and printed.startswith("name "), (command, printed)
        else:
            assert status == 1, command
            assert printed.count("\n") == 1 and printed.startswith("cudnn-rnn-tf"), printed
        assert re.search(message, printed), (command, printed)
        assert growth < 150, (command, growth)  # In MiB.
        assert command[0] != "inspect" or seconds < 5, (command, seconds)
    assert sorted(tmp_path.iterdir()) == before


# Puts something else in a file's place, in turn, and runs a command on the whole.
IN_A_FILES_PLACE = """
import os, pathlib, socket, sys
from cudnn_rnn_tf import __main__

for line in sys.argv[1:]:
    source, part, target = line.split()
    content = pathlib.Path(part).read_bytes()
    for put in (
        os.mkfifo,
        lambda part: socket.socket(socket.AF_UNIX).bind(part),
        lambda part: os.symlink("/dev/zero", part),
    ):
        os.unlink(part)
        put(part)
        mode = [] if source.endswith(".onnx") else ["--rnn-mode=lstm"]
        for command in (["inspect", source], ["convert", source, target, *mode]):
            print("status", __main__.main(command))
    os.unlink(part)
    pathlib.Path(part).write_bytes(content)
"""


def test_what_is_no_file_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # The names of sockets are short.
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.LSTM(3)])
    tf.train.Checkpoint(model=model).write("c")
    crnn.export_portable(model, "s")
    onnx.save(
        convert.to_onnx(layer_of("lstm", 300)), "m.onnx", save_as_external_data=True, location="w"
    )
    parts = ["c c.index", "c.index c.index", "c c.data-00000-of-00001", "m.onnx w"]
    parts += ["s s/variables/variables.index", "s s/variables/variables.data-00000-of-00001"]
    lines = [f"{part} {tmp_path}/out.keras" for part in parts]
    done = fresh_process.run(["-c", IN_A_FILES_PLACE, *lines], timeout=120)
    # The list of networks tells of weights in another file that they cannot be read.
    expected = [status for part in parts for status in [int(part != "m.onnx w"), 1] * 3]
    received = [int(status) for status in re.findall(r"^status (\d)$", done.stdout, re.M)]
    assert received == expected, done.stderr[-3000:]
    assert not pathlib.Path("out.keras").exists()


@pytest.mark.parametrize("link", ["external", "virtual", "linked"])
def test_weights_in_other_files_are_not_read(link, tmp_path, capsys):
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.LSTM(3)])
    model.save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = np.zeros((4, 12), "f4")
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        (name,) = (name for name in weights_of(file) if name.endswith("/kernel"))
        del file[name]
        if link == "external":
            outside = [(str(tmp_path / "other.h5"), 0, h5py.h5f.UNLIMITED)]
            file.create_dataset(name, (4, 12), "f4", external=outside)
        elif link == "virtual":
            layout = h5py.VirtualLayout((4, 12), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "a", (4, 12))
            file.create_virtual_dataset(name, layout)
        else:
            file[name] = h5py.ExternalLink("other.h5", "a")
    for command in (["inspect"], ["convert", tmp_path / "out.pt"]):
        line = refused(capsys, command[0], tmp_path / "m.h5", *command[1:])
        assert "lies in another file" in line


def weights_of(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(
        lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
    )
    return names


def refused(capsys, *command: object) -> str:
    """Runs a command that must fail, and returns the one line that it says."""
    assert __main__.main([str(part) for part in command]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured
    assert captured.err.isascii() and captured.err[:-1].isprintable()
    return captured.err


def test_growth_is_measured_by_the_file():
    """Compression, and tensors that share memory, have their place in files that are large."""
    untrusted.check_growth("it has", 64 * MIB, 1)
    untrusted.check_growth("it has", 1000 * MIB, 100 * MIB)
    for received, stored in ((64 * MIB + 1, 1), (1000 * MIB + 1, 100 * MIB)):
        with pytest.raises(ValueError, match="it has .* bytes, but no more than .* of a file of"):
            untrusted.check_growth("it has", received, stored)


HUGE_LAYERS = {
    "LSTM": lambda: keras.layers.LSTM(3),
    "Bidirectional": lambda: keras.layers.Bidirectional(keras.layers.GRU(3)),
    "drop-in": lambda: crnn.keras.SimpleRNN(3),
    "own": lambda: make("lstm", 2, 3),
    "Dense": lambda: keras.layers.Dense(3),
    "TimeDistributed": lambda: keras.layers.TimeDistributed(keras.layers.Dense(3)),
}
IN_HDF5 = ("LSTM", "Bidirectional", "drop-in", "own")  # HDF5 has no shapes of inputs.


@pytest.mark.parametrize(
    ("name", "suffix"),
    [*((name, ".keras") for name in HUGE_LAYERS), *((name, ".h5") for name in IN_HDF5)],
)
def test_layers_that_a_file_has_no_weights_for_are_not_made(name, suffix, tmp_path):
    path = tmp_path / f"m{suffix}"
    keras.Sequential([keras.Input((None, 3)), HUGE_LAYERS[name]()]).save(path)
    load_keras_model(path)

    def huge(text: str) -> str:
        return re.sub(
            r'("(num_)?units": |"(?:input|batch)_shape": \[(?:null, )+)3\b', r"\g<1>40000", text
        )

    if suffix == ".h5":
        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = huge(file.attrs["model_config"])
    else:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        members["config.json"] = huge(members["config.json"].decode()).encode()
        write_archive(path, members, zipfile.ZIP_STORED)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="have weights of .* bytes, but no more than .* of a file"):
        load_keras_model(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # In KiB.


class OfValues(keras.layers.Layer):
    """A layer of a user's, with a variable that Keras cannot make without its value."""

    def build(self, shape):
        self.scale = keras.Variable(np.arange(1.0, shape[-1] + 1), dtype="float32")

    def call(self, inputs):
        return inputs * self.scale


@pytest.mark.parametrize("in_scope", [False, True])
def test_own_layers_are_made_before_they_are_loaded(in_scope, tmp_path):
    """The scope of custom objects is that of the caller's thread."""
    model = keras.Sequential([keras.Input((None, 3)), OfValues(), keras.layers.LSTM(2)])
    model.save(tmp_path / "m.keras")
    custom = {"OfValues": OfValues}
    with keras.saving.custom_object_scope(custom if in_scope else {}):
        loaded = crnn.load_keras_model(tmp_path / "m.keras", None if in_scope else custom)
    inputs = np.ones((2, 5, 3))
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_names_do_not_move_the_cursor(tmp_path, capsys):
    name = "a\x1b[2Jb\tc"
    gru = torch.nn.ModuleDict({name: torch.nn.GRU(2, 3)})
    torch.save(gru.state_dict(), tmp_path / "m.pt")
    assert file_inspection.inspect_file(tmp_path / "m.pt")[0].name == name
    assert __main__.main(["inspect", str(tmp_path / "m.pt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith(r"a\x1b[2Jb\tc")
    refused(capsys, "convert", tmp_path / "m.pt", tmp_path / "out.onnx", f"--name={name}x")
