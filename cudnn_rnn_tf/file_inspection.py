"""Finds the recurrent networks in a file by reading what it says, without making a model."""

import json
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from cudnn_rnn_tf import constants
from cudnn_rnn_tf._compat import saved_model_pb2
from cudnn_rnn_tf.contrib_format import CELL_NAMES
from cudnn_rnn_tf.convert import network, onnx_format, torch_format, untrusted


class Network(NamedTuple):
    """A recurrent network in a file. A value is None if the file does not say it."""

    name: str
    kind: str
    rnn_mode: str | None
    num_layers: int | None
    direction: str | None
    input_size: int | None
    num_units: int | None
    dtype: str | None


def inspect_file(path: str | os.PathLike[str]) -> list[Network]:
    """Returns the recurrent networks of any library in a file or SavedModel.

    Args:
        path: a `.keras` file, a PyTorch state dict (`.pt`, `.pth`, `.safetensors`), an ONNX model
            (`.onnx`), the directory of a SavedModel, in which only fused ops are found, or
            a checkpoint of TensorFlow: its prefix or its `.index` file.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if it is none of these, or damaged.
        ImportError: if a format needs a package that is not installed.
    """
    path = pathlib.Path(path)
    try:
        return list(_reader(path)(path))
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:
        # The libraries that read the formats may raise anything for a damaged file.
        raise ValueError(f"cannot read {path}: {network.reason(error)}") from error


def _reader(path: pathlib.Path) -> Callable[[pathlib.Path], Iterable[Network]]:
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return _of_saved_model
        # From a pipe of that name, TensorFlow would wait for ever.
        has_list = (path / "checkpoint").is_file()
        latest = tf.train.latest_checkpoint(path) if has_list else None
        if latest is None or not pathlib.Path(f"{latest}.index").is_file():
            raise ValueError(f"the directory {path} has no SavedModel and no checkpoint")
        return lambda _: _of_checkpoint(pathlib.Path(latest))
    if path.suffix == ".index" or path.with_name(path.name + ".index").is_file():
        return lambda _: _of_checkpoint(path.with_suffix("") if path.suffix == ".index" else path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file, directory or checkpoint {str(path)!r}")
    readers = {
        ".keras": _of_keras,
        ".onnx": _of_onnx,
        **dict.fromkeys((".pt", ".pth", ".safetensors"), _of_torch),
    }
    if path.suffix not in readers:
        raise ValueError(
            f"expected a SavedModel, a checkpoint or a name that ends in {', '.join(readers)}"
        )
    return readers[path.suffix]


# Keras.

_STOCK_MODES = {"LSTM": "lstm", "GRU": "gru"}
_OWN_MODES = {layer.__name__: mode for mode, layer in network.LAYERS.items()}


def _of_keras(path: pathlib.Path) -> Iterator[Network]:
    untrusted.check_archive(path)
    with zipfile.ZipFile(path) as archive:
        model = json.loads(archive.read("config.json"))
    # The outermost model's name is left out, since it would begin the name of every network.
    yield from _in_config(model["config"], "")


def _in_config(config: Any, scope: str) -> Iterator[Network]:
    if isinstance(config, list):
        for item in config:
            yield from _in_config(item, scope)
    if not isinstance(config, dict):
        return
    kind, inner = config.get("class_name"), config.get("config")
    if isinstance(kind, str) and isinstance(inner, dict):
        name = f"{scope}{inner.get('name')}"
        shape = (config.get("build_config") or {}).get("input_shape") or [None]
        if kind in _OWN_MODES:
            yield Network(
                name,
                kind,
                _OWN_MODES[kind],
                inner.get("num_layers"),
                inner.get("direction"),
                shape[-1],
                inner.get("num_units"),
                _dtype_of(inner),
            )
            return
        if config.get("registered_name") == "cudnn_rnn_tf>Stack":
            yield from _in_stack(inner["layers"], shape[-1], scope)
            return
        wrapped = inner["layer"] if kind == "Bidirectional" else config
        if wrapped.get("class_name") in (*_STOCK_MODES, "SimpleRNN"):
            yield _of_stock(wrapped, kind, name, shape[-1])
            return
        if "layers" in inner:
            scope = f"{name}/"
    for value in config.values():
        yield from _in_config(value, scope)


def _in_stack(layers: list[Any], input_size: int | None, scope: str) -> Iterator[Network]:
    """Yields the layers of a stack, which are written without their input sizes."""
    for layer in layers:
        for found in _in_config({**layer, "build_config": {"input_shape": [input_size]}}, scope):
            yield found
            input_size = (found.num_units or 0) * (1 + (found.direction == "bidirectional"))


def _of_stock(config: dict[str, Any], kind: str, name: str, input_size: int | None) -> Network:
    inner, layer_class = config["config"], config["class_name"]
    wraps = kind != layer_class
    return Network(
        name,
        f"{kind} of {layer_class}" if wraps else layer_class,
        _STOCK_MODES.get(layer_class) or f"rnn_{inner.get('activation')}",
        1,
        _direction(wraps),
        input_size,
        inner.get("units"),
        _dtype_of(inner),
    )


def _dtype_of(config: dict[str, Any]) -> str | None:
    dtype = config.get("dtype")
    return dtype["config"].get("name") if isinstance(dtype, dict) else dtype


# PyTorch and ONNX.


def _of_torch(path: pathlib.Path) -> Iterator[Network]:
    for name, parameters in torch_format.networks_in(torch_format.read_state_dict(path)).items():
        kernel, recurrent = parameters["weight_ih_l0"], parameters["weight_hh_l0"]
        num_gates = recurrent.shape[0] // recurrent.shape[1]
        projected = "weight_hr_l0" in parameters
        yield Network(
            name,
            "torch.nn",
            "lstm" if projected else {4: "lstm", 3: "gru", 1: "rnn"}.get(num_gates),
            1 + max(int(layer) for key in parameters for layer in re.findall(r"_l(\d+)", key)),
            _direction(any(key.endswith("_reverse") for key in parameters)),
            kernel.shape[1],
            recurrent.shape[0] // 4 if projected else recurrent.shape[1],
            kernel.dtype.name,
        )


def _of_onnx(path: pathlib.Path) -> Iterator[Network]:
    for name, rnn_mode, weights, num_dirs in onnx_format.networks_in(path):
        bottom = weights[0]
        yield Network(
            name,
            "ONNX",
            rnn_mode,
            len(weights) // num_dirs,
            _direction(num_dirs == 2),
            bottom.kernel.shape[1],
            bottom.recurrent_kernel.shape[1],
            bottom.kernel.dtype.name,
        )


# TensorFlow.


def _of_saved_model(path: pathlib.Path) -> Iterator[Network]:
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString(untrusted.read_message(path / "saved_model.pb"))
    found: dict[str, Network] = {}
    for meta_graph in saved_model.meta_graphs:
        graph = meta_graph.graph_def
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        for node in (node for body in bodies for node in body):
            if node.op == "CudnnRnnTf>Forward" or re.fullmatch(r"CudnnRNN(V\d)?", node.op):
                # The function of each signature has a copy of the same node.
                scope = re.sub(r"_\d+$", "", node.name.rpartition("/")[0] or node.name)
                found.setdefault(scope, _of_node(scope, node))
    yield from found.values()


def _of_node(name: str, node: Any) -> Network:
    attributes = node.attr

    def text(key: str, default: str) -> str:
        return attributes[key].s.decode() if key in attributes else default

    ours = node.op.startswith("CudnnRnnTf>")
    dtype = tf.as_dtype(attributes["T"].type).name if "T" in attributes else None
    # Attributes with their default values are left out.
    return Network(
        name,
        node.op,
        text("rnn_mode", "lstm"),
        (attributes["num_layers"].i if "num_layers" in attributes else 1) if ours else None,
        text("direction", "unidirectional"),
        None,
        attributes["num_units"].i if ours else None,
        dtype,
    )


_OWN_TENSOR = re.compile(r"(.*?)/?(?:\.ATTRIBUTES/)?layer_(\d+)_(forward|backward)_(\w*)kernel")
_OWN_GATES = {"forget_gate_": "lstm", "update_gate_": "gru"}
# The mode of each of contrib's cells, and the number of gates in its kernel.
_CONTRIB_MODES = {
    CELL_NAMES[constants.CUDNN_LSTM]: ("lstm", 4),
    CELL_NAMES[constants.CUDNN_GRU]: ("gru", 1),
    CELL_NAMES[constants.CUDNN_RNN_TANH]: ("rnn", 1),
}
_CONTRIB_TENSOR = re.compile(
    r"(.*?)/?(?:(rnn/multi_rnn_cell)|stack_bidirectional_rnn)/cell_(\d+)/(?:bidirectional_rnn/[fb]w/)?"
    rf"({'|'.join(_CONTRIB_MODES)})/"
    r"(kernel|candidate/(?:input|hidden)_projection/kernel)"
)


def _of_checkpoint(prefix: pathlib.Path) -> Iterator[Network]:
    reader = tf.train.load_checkpoint(str(prefix))
    types = reader.get_variable_to_dtype_map()
    ours: dict[str, dict[str, Any]] = {}
    contribs: dict[str, dict[str, Any]] = {}
    for key, shape in sorted(reader.get_variable_to_shape_map().items()):
        if match := _OWN_TENSOR.fullmatch(key):
            found = ours.setdefault(match[1], {"layers": set(), "sides": set(), "gates": {}})
            found["layers"].add(match[2])
            found["sides"].add(match[3])
            if match[2] == "0":
                found["gates"][match[4]] = shape
        elif match := _CONTRIB_TENSOR.fullmatch(key):
            found = contribs.setdefault(
                match[1], {"layers": set(), "cell": match[4], "shapes": {}, "one": bool(match[2])}
            )
            found["layers"].add(match[3])
            if match[3] == "0":
                found["shapes"][match[5]] = shape
        else:
            continue
        found["dtype"] = types[key].name
    for name, found in ours.items():
        yield _of_own_tensors(name, found)
    for name, found in contribs.items():
        yield _of_contribs_tensors(name, found)


def _of_own_tensors(name: str, found: dict[str, Any]) -> Network:
    gates = found["gates"]
    mode = next((mode for gate, mode in _OWN_GATES.items() if gate in gates), "rnn")
    recurrent = next((gates[gate] for gate in gates if gate.endswith("recurrent_")), [None])
    of_inputs = (g for g in gates if not g.endswith(("recurrent_", "projection_")))
    inputs = next((gates[gate][1] for gate in of_inputs), None)
    return Network(
        name,
        "cudnn_rnn_tf",
        mode,
        len(found["layers"]),
        _direction(len(found["sides"]) == 2),
        inputs,
        recurrent[0],
        found["dtype"],
    )


def _of_contribs_tensors(name: str, found: dict[str, Any]) -> Network:
    mode, gates = _CONTRIB_MODES[found["cell"]]
    shapes = found["shapes"]
    if mode == "gru":
        units = shapes["candidate/hidden_projection/kernel"][1]
        inputs = shapes.get("candidate/input_projection/kernel", [None])[0]
    else:
        rows, columns = shapes["kernel"]
        units = columns // gates
        inputs = rows - units
    return Network(
        name,
        "tf.contrib.cudnn_rnn",
        mode,
        len(found["layers"]),
        _direction(not found["one"]),
        inputs,
        units,
        found["dtype"],
    )


def _direction(has_two: bool) -> str:
    return "bidirectional" if has_two else "unidirectional"
