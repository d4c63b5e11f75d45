"""Small files that would cost gigabytes or a wait without end, each with what is said of it."""

import io
import json
import os
import pathlib
import struct
import zipfile
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras_reference import write
from layer_reference import make, randomize

from cudnn_rnn_tf import convert

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

MIB = 1 << 20
# The list of networks in these needs no weights.
LISTED = ("weights.keras", "arrays.keras", "hole.keras", "packed.keras")
LISTED += ("units.h5", "initializer.h5", "nested.h5", "shapes.h5", "adapted.keras", "given.keras")


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
