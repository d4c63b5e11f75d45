"""`python -m cudnn_rnn_tf convert` on files that are damaged, hostile or merely strange.

Each ends in exit status 1 and one line that names the file and what is wrong with it, and nothing
is written.
"""

import re

import numpy as np
import pytest
from layer_reference import make, randomize

from cudnn_rnn_tf import __main__, convert, messages

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
safetensors_torch = pytest.importorskip("safetensors.torch")


def refused(source, capsys, target: str = "out.pt") -> str:
    """Runs a conversion that must fail, and returns what it says."""
    before = sorted(source.parent.iterdir())
    assert __main__.main(["convert", str(source), str(source.with_name(target))]) == 1
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if "error: " in line]
    assert captured.out == "" and len(lines) == 1, captured.err
    assert captured.err.rstrip("\n").endswith(lines[0]), captured.err
    assert str(source) in lines[0]
    assert sorted(source.parent.iterdir()) == before
    return lines[0]


# PyTorch's.


def test_empty_and_garbage_files(tmp_path, capsys):
    for suffix in (".pt", ".pth", ".safetensors", ".keras", ".onnx"):
        for name, content in (("empty", b""), ("garbage", bytes(range(256)) * 4), ("nul", b"\0")):
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(content)
            refused(path, capsys)
            path.unlink()


def gru_state_dict() -> dict:
    return dict(torch.nn.GRU(2, 3).state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor.to(torch.int32), "weight_hh_l0 of a floating-point type.*int32"),
        (lambda tensor: tensor.to(torch.complex64), "floating-point type.*complex64"),
        (lambda tensor: tensor.to(torch.float8_e4m3fn), "floating-point type.*float8_e4m3fn"),
        (lambda tensor: tensor.to_sparse(), "weight_hh_l0 to be dense.*sparse"),
        (lambda tensor: tensor.to("meta"), "weight_hh_l0 to be dense and to have values.*meta"),
        (lambda tensor: [[1, 2], [3]], "inhomogeneous"),
        (lambda tensor: "text", "a matrix weight_hh_l0"),
        (lambda tensor: tensor[:0], r"weight_hh_l0 of shape"),
    ],
    ids=["integers", "complex", "float8", "sparse", "meta", "ragged_list", "text", "no_rows"],
)
def test_strange_tensors(change, message, tmp_path, capsys):
    state_dict = gru_state_dict()
    state_dict["weight_hh_l0"] = change(state_dict["weight_hh_l0"])
    torch.save(state_dict, tmp_path / "m.pt")
    line = refused(tmp_path / "m.pt", capsys)
    assert re.search(message, line), line


def test_state_dict_that_contains_itself(tmp_path, capsys):
    state_dict = gru_state_dict()
    state_dict["self"] = state_dict
    torch.save(state_dict, tmp_path / "m.pt")
    assert "contains itself" in refused(tmp_path / "m.pt", capsys)


def test_packages_of_pytorch(tmp_path, capsys):
    with torch.package.PackageExporter(str(tmp_path / "m.pt")) as package:
        package.extern("**")
        package.save_pickle("model", "model.pkl", torch.nn.LSTM(2, 3))
    assert "torch.package.PackageImporter(path) reads one" in refused(tmp_path / "m.pt", capsys)


def test_what_the_file_does_not_say(tmp_path):
    torch.save(torch.nn.GRU(2, 3, dtype=torch.float16).state_dict(), tmp_path / "m.pt")
    line = convert.convert_file(tmp_path / "m.pt", tmp_path / "m.keras")
    assert "in float16: a layer of dtype='float32' takes what its get_weights() returns" in line
    assert line.endswith(", batch-major, with return_sequences=True")


def test_a_reason_does_not_end_in_a_colon():
    assert messages.reason(ValueError("cannot read the weights:\n\n")) == "cannot read the weights"


def test_float8_safetensors(tmp_path, capsys):
    tensors = {key: value.to(torch.float8_e4m3fn) for key, value in gru_state_dict().items()}
    safetensors_torch.save_file(tensors, tmp_path / "m.safetensors")
    refused(tmp_path / "m.safetensors", capsys)


# ONNX's.


def damaged_model(change, rnn_mode="gru"):
    model = convert.to_onnx(randomize(make(rnn_mode, 2, 3), (None, None, 4)))
    nodes = [node for node in model.graph.node if node.op_type in ("LSTM", "GRU", "RNN")]
    change(model.graph, nodes)
    return model


def attribute(node, name):
    return next(attribute for attribute in node.attribute if attribute.name == name)


def no_inputs(graph, nodes):
    del nodes[0].input[:]


def no_outputs(graph, nodes):
    for node in nodes:
        del node.output[:]


def reads_itself(graph, nodes):
    """Makes the first layer read the last one's output through nodes that the reader follows."""
    graph.node.append(onnx.helper.make_node("Identity", ["loop_2"], ["loop_1"]))
    graph.node.append(onnx.helper.make_node("Identity", ["loop_1"], ["loop_2"]))
    nodes[0].input[0] = "loop_1"


def weights_in_a_cycle(graph, nodes):
    graph.node.append(onnx.helper.make_node("Identity", ["loop_2"], ["loop_1"]))
    graph.node.append(onnx.helper.make_node("Identity", ["loop_1"], ["loop_2"]))
    nodes[0].input[1] = "loop_1"


def another_hidden_size(graph, nodes):
    attribute(nodes[0], "hidden_size").i = 7
    attribute(nodes[1], "hidden_size").i = 7


def hidden_size_of_text(graph, nodes):
    nodes[0].attribute.remove(attribute(nodes[0], "hidden_size"))
    nodes[0].attribute.append(onnx.helper.make_attribute("hidden_size", "three"))


def integer_weights(graph, nodes):
    for tensor in graph.initializer:
        if tensor.name in nodes[0].input:
            value = onnx.numpy_helper.to_array(tensor).astype(np.int32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))


def short_weights(graph, nodes):
    for tensor in graph.initializer:
        tensor.raw_data = tensor.raw_data[:-1]


def external_weights(graph, nodes):
    tensor = graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "no_such_file.bin")
    tensor.ClearField("raw_data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_inputs, "is no constant"),
        (no_outputs, ""),
        (reads_itself, "cycle at 'loop_1'"),
        (weights_in_a_cycle, "cycle at 'loop_1'"),
        (another_hidden_size, "hidden_size=7"),
        (hidden_size_of_text, "'hidden_size'.*type INT, but received STRING"),
        (integer_weights, "weights to be float64.*int32"),
        (short_weights, "cannot be read"),
        (external_weights, "no_such_file.bin"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_strange_onnx_models(change, message, tmp_path, capsys):
    path = tmp_path / "m.onnx"
    path.write_bytes(damaged_model(change).SerializeToString())
    line = refused(path, capsys)
    assert re.search(message, line), line
