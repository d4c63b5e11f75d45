"""Finds the recurrent networks in a file by reading what it says, without making a model."""

import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants, messages
from cudnn_rnn_tf._private_names import saved_model_pb2
from cudnn_rnn_tf.contrib.checkpoint_format import CELL_NAMES
from cudnn_rnn_tf.convert import (
    file_kinds,
    frozen_graphs,
    keras_inspection,
    named_arrays,
    network,
    onnx_format,
    torch_format,
    untrusted,
    variables,
)
from cudnn_rnn_tf.convert.network import Network

__all__ = ["Network", "inspect_file"]


def inspect_file(path: str | os.PathLike[str]) -> list[Network]:
    """Returns the recurrent networks in what the command `inspect` reads, as its help says.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if it is none of these, or damaged.
        ImportError: if a format needs a package that is not installed.
    """
    path = pathlib.Path(path)
    try:
        return list(_READERS[file_kinds.kind_of(path)](path))
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:
        # The libraries that read the formats may raise anything for a damaged file.
        raise messages.of_file(path, "read", error) from error


# PyTorch and ONNX.


def _of_torch(path: pathlib.Path) -> Iterator[Network]:
    for name, parameters in torch_format.networks_in(torch_format.read_state_dict(path)).items():
        refusal = torch_format.why_not(parameters)
        kernel, recurrent = parameters.get("weight_ih_l0"), parameters.get("weight_hh_l0")
        units, gates = None, 0
        projected = "weight_hr_l0" in parameters
        if recurrent is not None and recurrent.ndim == 2:
            units = recurrent.shape[0] // 4 if projected else recurrent.shape[1]
            gates = 4 if projected else recurrent.shape[0] // max(units, 1)
        yield Network(
            name,
            "torch.nn",
            {4: "lstm", 3: "gru", 1: "rnn"}.get(gates),
            1 + max(int(layer) for key in parameters for layer in re.findall(r"_l(\d+)", key)),
            network.direction(any(key.endswith("_reverse") for key in parameters)),
            kernel.shape[1] if kernel is not None and kernel.ndim == 2 else None,
            units,
            next(iter(parameters.values())).dtype.name,
            f"no: {refusal}" if refusal else "yes",
        )


def _of_onnx(path: pathlib.Path) -> Iterator[Network]:
    for found in onnx_format.networks_in(path):
        yield Network(*found)


# TensorFlow.


def _of_saved_model(path: pathlib.Path) -> Iterator[Network]:
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString(untrusted.read_message(path / "saved_model.pb"))
    yield from _ops_in(*(meta_graph.graph_def for meta_graph in saved_model.meta_graphs))
    # A SavedModel without fused ops has layers of Keras's own, of which the variables tell.
    networks = named_arrays.networks_in(variables.of_saved_model(path))
    yield from keras_inspection.of_arrays(networks)


def _of_frozen_graph(path: pathlib.Path) -> Iterator[Network]:
    networks = frozen_graphs.networks_in(path)
    yield from (op for op in _ops_in(frozen_graphs.read(path)) if op.name not in networks)
    yield from keras_inspection.of_arrays(networks)


def _ops_in(*graphs: Any) -> Iterator[Network]:
    """Yields the fused ops in graphs, of this package's or TensorFlow's own."""
    found: dict[str, Network] = {}
    for graph in graphs:
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        for body in bodies:
            for name, copies in frozen_graphs.fused_ops(body).items():
                # The function of each signature has a copy of the same node.
                found.setdefault(name, _of_node(name, copies[0]))
    yield from found.values()


def _of_node(name: str, node: Any) -> Network:
    attributes = node.attr

    def text(key: str, default: str) -> str:
        return attributes[key].s.decode(errors="replace") if key in attributes else default

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
        "no: it is an op; convert takes the model's .keras file",
    )


_OWN_TENSOR = re.compile(
    r"(.*?)/?(?:\.ATTRIBUTES/)?layer_(\d+)_(forward|backward)_(\w*)(?:kernel|(?<=_diag|gamma))"
)
_OWN_GATES = {"w_i_diag": "lstm_peephole", "cell_state_gamma": "lstm_layer_norm"}
_OWN_GATES |= {"candidate_gamma": "gru_layer_norm", "forget_gate_": "lstm", "update_gate_": "gru"}
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


def _of_checkpoint(path: pathlib.Path) -> Iterator[Network]:
    arrays = variables.variables_in(file_kinds.checkpoint_prefix(path))
    ours: dict[str, dict[str, Any]] = {}
    contribs: dict[str, dict[str, Any]] = {}
    others: dict[str, variables.Variable] = {}
    for key, array in arrays.items():
        shape = array.shape
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
            others[key] = array
            continue
        found["dtype"] = np.dtype(array.dtype).name
    for name, found in ours.items():
        yield _of_own_tensors(name, found)
    for name, found in contribs.items():
        yield _of_contribs_tensors(name, found)
    yield from keras_inspection.of_arrays(named_arrays.networks_in(others))


def _of_own_tensors(name: str, found: dict[str, Any]) -> Network:
    gates = found["gates"]
    mode = next((mode for gate, mode in _OWN_GATES.items() if gate in gates), "rnn")
    recurrent = next((gates[gate] for gate in gates if gate.endswith("recurrent_")), [None])
    others = ("recurrent_", "projection_", "_diag", "_gamma")
    of_inputs = (gate for gate in gates if not gate.endswith(others))
    inputs = next((gates[gate][1] for gate in of_inputs), None)
    return Network(
        name,
        "cudnn_rnn_tf",
        mode,
        len(found["layers"]),
        network.direction(len(found["sides"]) == 2),
        inputs,
        recurrent[0],
        found["dtype"],
        "no: restore it with tf.train.Checkpoint into a layer, and convert that",
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
        network.direction(not found["one"]),
        inputs,
        units,
        found["dtype"],
        "no: cudnn_rnn_tf.contrib.restore_keras_layer reads it into a layer",
    )


_READERS: dict[str, Callable[[pathlib.Path], Iterable[Network]]] = {
    "keras": keras_inspection.in_archive,
    "hdf5": keras_inspection.in_hdf5,
    "torch": _of_torch,
    "safetensors": _of_torch,
    "onnx": _of_onnx,
    "saved_model": _of_saved_model,
    "checkpoint": _of_checkpoint,
    "frozen_graph": _of_frozen_graph,
}
