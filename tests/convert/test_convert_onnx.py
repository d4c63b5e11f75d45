"""Layers from ONNX's recurrent operators and back, with numbers from ONNX Runtime."""

import itertools

import numpy as np
import pytest
from layer_reference import LAYERS, make, normal, randomize

from cudnn_rnn_tf import convert

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
ort = pytest.importorskip("onnxruntime")

MODES = (*LAYERS, "gru_reset_before", "lstm_peephole")
# Sums of a few dozen products in float32 keep 6 digits; steps and layers cost one more.
TOLERANCE = 1e-5


def run(model, **inputs: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    return session.run(None, inputs)


def assert_close(values, expected):
    for value, reference in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("num_layers", "direction", "bias_mode", "time_major", "return_sequences"),
    [
        (1, "unidirectional", "double", False, True),
        (2, "unidirectional", "none", True, False),
        (3, "bidirectional", "double", False, False),
        (2, "bidirectional", "single_recurrent", True, True),
    ],
)
@pytest.mark.parametrize("rnn_mode", MODES)
def test_layer_there_and_back(
    rnn_mode, num_layers, direction, bias_mode, time_major, return_sequences
):
    options = {"time_major": time_major, "return_sequences": return_sequences, "return_state": True}
    layer = make(rnn_mode, num_layers, 3, direction=direction, bias_mode=bias_mode, **options)
    randomize(layer, (None, None, 4))
    model = convert.to_onnx(layer)
    inputs = normal(5, 2, 4)
    assert_close(run(model, inputs=inputs), layer(inputs))
    again = convert.from_onnx(model, bias_mode=bias_mode, **options)
    assert again.rnn_mode == rnn_mode
    assert (again.num_layers, again.direction) == (num_layers, direction)
    np.testing.assert_array_equal(again.kernel, layer.kernel)
    assert convert.from_onnx(model).bias_mode == ("none" if bias_mode == "none" else "double")
    assert convert.to_onnx(again).graph.node == model.graph.node


@pytest.mark.parametrize("rnn_mode", MODES)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("are_constant", [False, True])
def test_lengths_and_initial_states(rnn_mode, time_major, are_constant):
    """A sequence without steps ends in the states that it starts from."""
    options = {"time_major": time_major, "return_state": True, "return_sequences": time_major}
    layer = make(rnn_mode, 2, 3, direction="bidirectional", **options)
    lead = (5, 3) if time_major else (3, 5)
    randomize(layer, (*lead, 4))
    states = [normal(*shape, seed=2) for shape in layer.state_shape(3)]
    how = {"initial_state": states} if are_constant else {"with_initial_state": True}
    model = convert.to_onnx(layer, with_sequence_lengths=True, **how)
    inputs, lengths = normal(*lead, 4), np.array([3, 5, 0], np.int32)
    expected = layer(inputs, initial_state=states, sequence_lengths=lengths)
    named = {} if are_constant else dict(zip(("initial_h", "initial_c"), states, strict=False))
    assert_close(run(model, inputs=inputs, sequence_lengths=lengths, **named), expected)
    again, _ = convert.from_onnx(model, return_initial_state=True)
    np.testing.assert_array_equal(again.kernel, layer.kernel)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types(dtype):
    """Files hold all types, but ONNX Runtime computes only in float32."""
    layer = randomize(make("gru", dtype=dtype), (None, None, 4))
    model = convert.to_onnx(layer)
    again = convert.from_onnx(model)
    assert again.variable_dtype == dtype
    np.testing.assert_array_equal(again.kernel, layer.kernel)
    schema = onnx.defs.get_schema("GRU", model.opset_import[0].version)
    allowed = schema.type_constraints[0].allowed_type_strs
    # ONNX's name of a type is that of C++.
    assert f"tensor({dtype.replace('float64', 'double')})" in allowed


@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter warns about itself.
@pytest.mark.parametrize(
    ("rnn_mode", "bidirectional", "folds"), [("lstm", True, False), ("gru", False, True)]
)
def test_what_torch_exports(rnn_mode, bidirectional, folds, tmp_path):
    """A graph that is not ours, with a network of three layers in it.

    Without folding, other nodes put the gates in order and compute the weights.
    """
    torch = pytest.importorskip("torch")
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[rnn_mode](
        4, 3, 3, bidirectional=bidirectional, batch_first=True
    )
    inputs = normal(2, 5, 4)
    path = tmp_path / "m.onnx"
    options = {"dynamo": False, "do_constant_folding": folds}
    torch.onnx.export(module, (torch.from_numpy(inputs),), str(path), **options)
    layer = convert.from_onnx(path)
    assert layer.num_layers == 3
    np.testing.assert_array_equal(layer.kernel, convert.from_torch(module).kernel)


def node(op_type: str = "LSTM", name: str = "rnn", **changes) -> onnx.ModelProto:
    """Returns a model of one node with 4 inputs and 3 units."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    options = {"hidden_size": 3, **changes.pop("attributes", {})}
    if op_type == "GRU":
        options.setdefault("linear_before_reset", 1)
    arrays = {
        "W": normal(1, gates * 3, 4),
        "R": normal(1, gates * 3, 3),
        "B": normal(1, gates * 6),
        **changes,
    }
    initial_h, peepholes = (name if name in arrays else "" for name in ("h", "P"))
    inputs = ["X", "W", "R", "B", "", initial_h, *(("", peepholes) if op_type == "LSTM" else ())]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, inputs, ["Y", "Y_h"], name, **options)],
        "graph",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, (None, None, 4))],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v, k) for k, v in arrays.items() if v is not None],
    )
    opset = onnx.helper.make_opsetid("", 14)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize("join", ["squeeze", "reshape", "of_time_major"])
def test_batch_major_nodes(join):
    """Nodes with layout=1, which ONNX Runtime lacks, have outputs [B, T, 1, 3]."""
    model = node(attributes={"layout": 1})
    upper = node(attributes={"layout": 1}, name="upper").graph
    joins = {
        "squeeze": [("Squeeze", ["Y", "axes"], ["X_upper"], {})],
        "reshape": [("Reshape", ["Y", "shape"], ["X_upper"], {})],
        "of_time_major": [
            ("Transpose", ["Y"], ["transposed"], {"perm": (0, 2, 1, 3)}),
            ("Reshape", ["transposed", "shape"], ["X_upper"], {}),
        ],
    }
    for op_type, inputs, outputs, attributes in joins[join]:
        model.graph.node.append(onnx.helper.make_node(op_type, inputs, outputs, **attributes))
    weights = {"W": normal(1, 12, 3, seed=1), "R": normal(1, 12, 3, seed=2)}
    upper.node[0].input[:] = ["X_upper", "W_upper", "R_upper"]
    upper.node[0].output[:] = ["Y_upper", ""]
    model.graph.node.append(upper.node[0])
    arrays = {f"{name}_upper": weight for name, weight in weights.items()}
    arrays |= {"axes": np.array([2]), "shape": np.array([0, 0, -1])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in arrays.items())
    if join == "of_time_major":
        with pytest.raises(ValueError, match="say which by name; there are: 'rnn', 'upper'"):
            convert.from_onnx(model)
        return
    inputs = normal(2, 5, 4)
    (expected,) = reference.ReferenceEvaluator(model).run(["Y_upper"], {"X": inputs})
    layer = convert.from_onnx(model)
    assert layer.num_layers == 2
    np.testing.assert_allclose(layer(inputs), expected[:, :, 0], rtol=0, atol=TOLERANCE)


def test_constants_and_names():
    """Weights may be constant nodes, and a node without a name has its output's name."""
    model = node("GRU", name="")
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    expected = convert.from_onnx(model, name="Y").kernel.numpy()
    del model.graph.initializer[:]
    constants = [
        onnx.helper.make_node("Constant", [], [f"{name}_0"], value=tensor)
        for name, tensor in weights.items()
    ] + [onnx.helper.make_node("Identity", [f"{name}_0"], [name]) for name in weights]
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(constants + nodes)
    np.testing.assert_array_equal(convert.from_onnx(model).kernel, expected)


def with_inputs(*names: str) -> onnx.ModelProto:
    """Returns a model of a GRU with these inputs behind B, where X is computed."""
    model = node("GRU")
    gru = model.graph.node[0]
    gru.input[:] = [*gru.input[:4], *names]
    model.graph.node.insert(0, onnx.helper.make_node("Relu", ["input"], ["X"]))
    model.graph.input[0].name = "input"
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (node(attributes={"direction": "sideways"}), "direction 'sideways' .* not known"),
        (node(attributes={"clip": 1.0}), "clips"),
        (node(attributes={"input_forget": 1}), "input_forget=1"),
        (node(attributes={"activations": ["Sigmoid", "Relu", "Tanh"]}), "'relu', .* no equivalent"),
        (node("RNN", attributes={"activations": ["Elu"]}), r"'elu'.* \('tanh',\) or \('relu',\)"),
        (node(P=normal(1, 8)), r"P of ONNX node 'rnn' of shape \(1, 9\), .* \(1, 8\)"),
        (node(h=normal(1, 2, 3)), "starts from constants that are not zero: from_onnx with"),
        (node(attributes={"output_channels": 1}), "attribute 'output_channels' .* not known"),
        (with_inputs("none"), "sequence_lens .* 'none', .* nothing in the graph makes"),
        (with_inputs("", "X"), "initial_h .* 'X', .* comes from Relu 'X'"),
        (with_inputs("", "", "X"), "input number 6 or later of ONNX node .* expected none"),
        (node(W=None), "W of ONNX node 'rnn' is no constant, nor computed of"),
        (node(R=normal(12, 3)), r"R of ONNX node 'rnn' of rank 3, .* \(12, 3\)"),
        (node(B=normal(1, 23)), r"B of ONNX node 'rnn' of shape \(1, 24\), .* \(1, 23\)"),
        (node(W=normal(1, 11, 4)), r"W .* of shape \(1, 12, 4\), .* \(1, 11, 4\)"),
    ],
    ids=itertools.count(),
)
def test_what_has_no_equivalent(model, message):
    with pytest.raises(ValueError, match=message):
        convert.from_onnx(model)


def test_wrong_sources():
    with pytest.raises(TypeError, match="expected an onnx.ModelProto or a path, .* int"):
        convert.from_onnx(3)
    model = node()
    del model.graph.node[:]
    with pytest.raises(ValueError, match="there are none"):
        convert.from_onnx(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_proj": 2}, "num_proj=2 of layer .* no equivalent in ONNX"),
        ({"cell_clip": 1.0}, "cell_clip=1.0"),
        ({"go_backwards": True}, "go_backwards=True"),
        ({"stateful": True}, "stateful=True"),
        ({"input_mode": "skip_input"}, "input_mode='skip_input'"),
    ],
)
def test_what_onnx_has_not(options, message):
    layer = randomize(make("lstm", **options), (2, None, 3))
    with pytest.raises(ValueError, match=message):
        convert.to_onnx(layer)
