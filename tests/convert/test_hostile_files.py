"""The command line on small files that would cost gigabytes or a wait without end.

Each is refused in one line, with little memory, and nothing is written.
"""

import io
import json
import os
import pathlib
import re
import resource
import struct
import subprocess
import sys
import zipfile
from typing import Any

import fresh_process
import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_reference import write
from layer_reference import make, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection, untrusted
from cudnn_rnn_tf.convert.keras_files import load_keras_model

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

MIB = 1 << 20
# The list of networks in these needs no weights.
LISTED = ("weights.keras", "arrays.keras", "hole.keras", "packed.keras")
LISTED += ("units.h5", "initializer.h5", "nested.h5", "shapes.h5", "adapted.keras", "given.keras")
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


def layer_of(rnn_mode: str = "gru", units: int = 3) -> keras.layers.Layer:
    return randomize(make(rnn_mode, 1, units), (None, None, 4))


def good_keras(path: pathlib.Path) -> dict[str, bytes]:
    """Writes a good file; returns the members of it."""
    keras.Sequential([keras.Input((None, 4)), layer_of()]).save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_archive(path: pathlib.Path, members: dict[str, bytes], compression: int) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def archives(folder: pathlib.Path) -> dict[str, str]:
    members = good_keras(folder / "good.keras")
    spaces = b" " * (200 * MIB)
    for name, changes in (
        ("config", {"config.json": spaces + members["config.json"]}),
        ("metadata", {"metadata.json": spaces + members["metadata.json"]}),
        ("weights", {"model.weights.h5": members["model.weights.h5"] + spaces}),
        ("asset", {"assets/a": spaces}),
    ):
        changed = members | changes
        write_archive(folder / f"{name}.keras", changed, zipfile.ZIP_DEFLATED)
    stored = members | {"config.json": b" " * (17 * MIB) + members["config.json"]}
    write_archive(folder / "long_config.keras", stored, zipfile.ZIP_STORED)
    nested = io.BytesIO()
    with zipfile.ZipFile(nested, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", spaces)
    arrays = {name: content for name, content in members.items() if not name.endswith(".h5")}
    arrays |= {"model.weights.npz": nested.getvalue()}
    write_archive(folder / "arrays.keras", arrays, zipfile.ZIP_STORED)
    for name, options in (("hole", {}), ("packed", {"compression": "gzip"})):
        weights = io.BytesIO(members["model.weights.h5"])
        with h5py.File(weights, "a") as file:
            array = file.create_dataset("large", (50 * MIB,), "f4", chunks=(MIB,), **options)
            if options:
                array[: 20 * MIB] = 0
        changed = members | {"model.weights.h5": weights.getvalue()}
        write_archive(folder / f"{name}.keras", changed, zipfile.ZIP_DEFLATED)
    growth = "expected of a file of"
    return {
        **{f"{name}.keras": growth for name in ("config", "metadata", "weights", "asset")},
        **{f"{name}.keras": growth for name in ("arrays", "hole", "packed")},
        "long_config.keras": "config.json .* 17,8",
    }


def configs(folder: pathlib.Path) -> dict[str, str]:
    """Writes archives of models that Keras would make much of."""
    members = good_keras(folder / "good.keras")

    def write(name: str, config: Any) -> None:
        changed = members | {
            "config.json": config if isinstance(config, bytes) else json.dumps(config).encode()
        }
        write_archive(folder / f"{name}.keras", changed, zipfile.ZIP_DEFLATED)

    def of(*layers: Any, batch: int | None = None) -> dict:
        first = {"module": "keras.layers", "class_name": "InputLayer"}
        first["config"] = {"batch_shape": [batch, 5, 4], "name": "input"}
        config = {"name": "model", "layers": [first, *layers]}
        return {"module": "keras", "class_name": "Sequential", "config": config}

    def layer(kind: str, **config: Any) -> dict:
        return {"module": "keras.layers", "class_name": kind, "config": {"name": "a", **config}}

    inner = of(layer("Dense", units=1 << 27))
    lstm = layer("LSTM", units=3, activation=inner)
    forward = layer("LSTM", units=3, go_backwards=True)
    write("activation", of(lstm))
    write("backwards", of(layer("Bidirectional", layer=forward, backward_layer=lstm)))
    write("cell", of(layer("RNN", cell=inner)))
    write("units", of(layer("LSTM", units=[{"": 0}] * 3500)))
    write("brackets", of(layer("LSTM", units=[{"": 0}] * 200_000)))
    write("layers", of(*[layer("LSTM", units=3)] * 90_000))
    write("many", of(*[layer("LSTM", units=3)] * 400))
    write("stateful", of(layer("LSTM", units=3, stateful=True), batch=1 << 27))
    wide = [layer("Flatten"), layer("RepeatVector", n=1 << 24), layer("Flatten", name="b")]
    wide[1]["config"]["name"] = "c"
    growth = "expected of a file of"
    write("adapted", of(*wide, layer("Normalization", name="d")))
    write("given", of(*wide, layer("Normalization", name="d", mean=0.5, variance=2.0)))
    return {
        **dict.fromkeys(("activation.keras", "backwards.keras"), f"'.*kernel' of .*{growth}"),
        "cell.keras": "`state_size`",
        "units.keras": "'<=' not supported",
        "brackets.keras": "brackets, but no more than 200,000",
        "layers.keras": "layers, but no more than 5,000",
        "many.keras": "unique names|more than 300 recurrent layers",
        "stateful.keras": f"'a' of .* states of .*{growth}",
        **dict.fromkeys(("adapted.keras", "given.keras"), f"'.*mean' of .* weights of .*{growth}"),
    }


# What the list of networks says, where it is another thing than the error of other commands.
INSPECTED = {
    **dict.fromkeys(("activation.keras", "backwards.keras"), "no: its activation is neither"),
    "cell.keras": "no: convert takes no layers of class RNN",
    "units.keras": "no: its units is neither",
    "stateful.keras": "yes",
}


def hdf5_files(folder: pathlib.Path) -> dict[str, str]:
    """Writes files of Keras 2 that say of large weights, and hold none or holes."""

    def model(*layers: dict) -> dict:
        first = {"class_name": "InputLayer", "config": {"batch_input_shape": [None, 5, 4]}}
        config = {"name": "model", "layers": [first, *layers]}
        return {"class_name": "Sequential", "config": config}

    def layer(kind: str, **config) -> dict:
        return {"class_name": kind, "config": {"name": "a", **config}}

    arrays = [("a/kernel:0", np.zeros((4, 12), "f4")), ("a/recurrent_kernel:0", np.zeros((3, 12)))]
    huge = layer("LSTM", units=1 << 15, use_bias=False)
    inner = model(layer("Dense", units=1 << 26))
    wrapped = {"class_name": "TimeDistributed", "config": {"name": "b", "layer": inner}}
    for name, config in (
        ("units", model(huge)),
        ("initializer", model(layer("Embedding", input_dim=1 << 20, output_dim=1 << 10))),
        ("nested", model(wrapped)),
        ("shapes", model(layer("RepeatVector", n=1 << 20), layer("Flatten"), huge)),
    ):
        write(folder / f"{name}.h5", {"a": arrays}, config)
    for name, options in (("h5_hole", {}), ("h5_packed", {"compression": "gzip"})):
        write(folder / f"{name}.h5", {"a": arrays}, model(layer("LSTM", units=3, use_bias=False)))
        with h5py.File(folder / f"{name}.h5", "a") as file:
            array = file.create_dataset("large", (50 * MIB,), "f4", chunks=(MIB,), **options)
            if options:
                array[: 20 * MIB] = 0
    deep = '{"a":' * 100_000
    write(folder / "deep.h5", {"a": arrays}, model(huge))
    with h5py.File(folder / "deep.h5", "a") as file:
        del file.attrs["model_config"]
        file.create_group("texts", track_order=True)
        file.attrs.create("model_config", deep, dtype=h5py.string_dtype())
    growth = "expected of a file of"
    return {
        **dict.fromkeys(("units.h5", "initializer.h5"), growth),
        **dict.fromkeys(("nested.h5", "shapes.h5"), f"incompatible with the layer|{growth}"),
        **dict.fromkeys(("h5_hole.h5", "h5_packed.h5"), growth),
        "deep.h5": "recursion",
    }


class ByteArray:
    """A byte array of 200 MiB, which a pickle makes of its size."""

    def __reduce__(self):
        return bytearray, (200 * MIB,)


def state_dicts(folder: pathlib.Path) -> dict[str, str]:
    good = dict(torch.nn.GRU(4, 3).state_dict())
    torch.save(good, folder / "good.pt")
    one, units = torch.zeros(1), 5000
    strides = {
        "weight_ih_l0": one.expand(3 * units, 4),
        "weight_hh_l0": one.expand(3 * units, units),
    }
    torch.save(strides, folder / "strides.pt")
    torch.save(strides, folder / "old_strides.pt", _use_new_zipfile_serialization=False)
    matrix = torch.zeros(3 * 300, 300)
    aliases = {f"weight_{side}_l{i}": matrix for side in ("ih", "hh") for i in range(100)}
    torch.save(aliases, folder / "aliases.pt")
    torch.save(good | {"bytes": ByteArray()}, folder / "bytes.pt")
    torch.save(good | {"b": ByteArray()}, folder / "old.pth", _use_new_zipfile_serialization=False)
    shared = good
    for _ in range(40):
        shared = {"a": shared, "b": shared}
    torch.save(shared, folder / "shared.pt")
    with zipfile.ZipFile(folder / "good.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (data,) = (name for name in members if name.endswith("/data/0"))
    members[data] += bytes(200 * MIB)
    write_archive(folder / "zeros.pt", members, zipfile.ZIP_DEFLATED)
    growth = "expected of a file of"
    return {
        **dict.fromkeys(("strides.pt", "old_strides.pt", "aliases.pt", "zeros.pt"), growth),
        **dict.fromkeys(("bytes.pt", "old.pth"), "has byte arrays"),
        "shared.pt": "more than 1,000,000 entries",
    }


def safetensors_files(folder: pathlib.Path) -> dict[str, str]:
    convert.convert_file(folder / "good.pt", folder / "good.safetensors")

    def write(name: str, header: dict, size: int) -> None:
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + bytes(size)
        (folder / f"{name}.safetensors").write_bytes(content)

    array = {"dtype": "F32", "shape": [900, 300], "data_offsets": [0, 4 * 900 * 300]}
    names = [f"weight_{side}_l{i}" for side in ("ih", "hh") for i in range(100)]
    write("aliases", dict.fromkeys(names, array), 4 * 900 * 300)
    write("shape", {"weight_ih_l0": array | {"shape": [1 << 20, 1 << 20]}}, 4 * 900 * 300)
    (folder / "length.safetensors").write_bytes(struct.pack("<Q", 1 << 40))
    names = ("aliases", "shape", "length")
    return {f"{name}.safetensors": "(no|not a) safetensors file" for name in names}


def onnx_models(folder: pathlib.Path) -> dict[str, str]:
    onnx.save(convert.to_onnx(layer_of()), str(folder / "good.onnx"))
    numbers = np.zeros((1, 900, 300), np.float32)
    (folder / "numbers.bin").write_bytes(numbers.tobytes())
    os.mkfifo(folder / "pipe.bin")

    def write(name: str, tensors: list, weights: list[str]) -> None:
        nodes, x = [], "X"
        for i, weight in enumerate(weights):
            options = {"hidden_size": 300, "linear_before_reset": 1}
            nodes.append(onnx.helper.make_node("GRU", [x, weight, weight], [f"Y{i}"], **options))
            x = f"X{i}"
            nodes.append(onnx.helper.make_node("Squeeze", [f"Y{i}", "axes"], [x]))
        tensors = [*tensors, onnx.numpy_helper.from_array(np.array([1]), "axes")]
        graph = onnx.helper.make_graph(nodes, "graph", [], [], tensors)
        onnx.save(onnx.helper.make_model(graph), str(folder / f"{name}.onnx"))

    def elsewhere(name: str, location: str):
        tensor = onnx.TensorProto(name=name, data_type=1, dims=numbers.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        return tensor

    write("aliases", [onnx.numpy_helper.from_array(numbers, "W")], ["W"] * 100)
    names = [f"W{i}" for i in range(100)]
    write("elsewhere", [elsewhere(name, "numbers.bin") for name in names], names)
    write("pipe", [elsewhere("W", "pipe.bin")], ["W"])

    def write_computed(name: str, *nodes: tuple) -> None:
        """Writes a graph of which the weights are what the nodes compute of a few numbers."""
        numbers = {"one": np.ones((1, 1, 1), np.float32), "row": np.ones((1, 1, 3000), np.float32)}
        numbers |= {"shape": np.array([1, 1 << 14, 1 << 14])}
        made = [
            onnx.helper.make_node(op, inputs, [out], **attrs) for op, inputs, out, attrs in nodes
        ]
        made.append(onnx.helper.make_node("LSTM", ["X", "W", "W"], ["Y"], hidden_size=300))
        tensors = [onnx.numpy_helper.from_array(array, key) for key, array in numbers.items()]
        graph = onnx.helper.make_graph(made, "graph", [], [], tensors)
        onnx.save(onnx.helper.make_model(graph), str(folder / f"{name}.onnx"))

    doubled = [("Concat", [f"d{i}"] * 2, f"d{i + 1}", {"axis": 1}) for i in range(40)]
    write_computed("doubled", ("Identity", ["one"], "d0", {}), *doubled, ("Neg", ["d40"], "W", {}))
    write_computed("expanded", ("Expand", ["one", "shape"], "W", {}))
    write_computed("tiled", ("Tile", ["one", "shape"], "W", {}))
    write_computed("filled", ("ConstantOfShape", ["shape"], "f", {}), ("Neg", ["f"], "W", {}))
    write_computed("joined", ("Concat", ["row"] * 30000, "W", {"axis": 2}))
    write_computed(
        "outer",
        ("Transpose", ["row"], "column", {"perm": (0, 2, 1)}),
        ("Add", ["row", "column"], "square", {}),
        ("Concat", ["square"] * 20, "W", {"axis": 1}),
    )
    write_computed("drawn", ("RandomNormal", [], "W", {"shape": (1, 1 << 14, 1 << 14)}))
    huge = onnx.TensorProto(name="W", data_type=1, dims=[1, 1 << 20, 1 << 20], raw_data=b"abcd")
    write("shape", [huge], ["W"])
    with (folder / "sparse.onnx").open("wb") as file:
        file.truncate(3 << 30)
    growth = "the network's weights have .* expected of a file of"
    return {
        "aliases.onnx": growth,
        "elsewhere.onnx": growth,
        "pipe.onnx": "cannot be read: there is no file .*pipe.bin",
        "shape.onnx": "cannot be read",
        "sparse.onnx": "no more than 2 GiB",
        **dict.fromkeys(
            (
                f"{name}.onnx"
                for name in ("doubled", "expanded", "tiled", "filled", "joined", "outer")
            ),
            "constants such as .* expected of a file of",
        ),
        "drawn.onnx": "W of ONNX node '' is no constant",
    }


def directories(folder: pathlib.Path) -> dict[str, str]:
    for name in ("pipe", "saved_pipe", "saved_sparse", "list"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe" / "checkpoint")
    os.mkfifo(folder / "saved_pipe" / "saved_model.pb")
    os.mkfifo(folder / "list" / "m.index")
    (folder / "list" / "checkpoint").write_text('model_checkpoint_path: "m"\n')
    with (folder / "saved_sparse" / "saved_model.pb").open("wb") as file:
        file.truncate(3 << 30)
    os.mkfifo(folder / "pipe.keras")
    (folder / "loop.pt").symlink_to("loop.pt")
    (folder / "zero.onnx").symlink_to("/dev/zero")
    nothing = "no SavedModel and no checkpoint"
    return {
        **dict.fromkeys(("pipe", "saved_pipe", "list"), nothing),
        "saved_sparse": "no more than 2 GiB",
        **dict.fromkeys(("pipe.keras", "loop.pt", "zero.onnx"), "there is no file"),
    }


@pytest.mark.slow
def test_small_files_cost_little(tmp_path):
    pytest.importorskip("safetensors")
    expected: dict[str, str] = {}
    for make_files in (
        archives,
        configs,
        hdf5_files,
        state_dicts,
        safetensors_files,
        onnx_models,
        directories,
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
