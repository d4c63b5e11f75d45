"""Cells that an ONNX graph has as single operators, with numbers from ONNX Runtime."""

import itertools

import numpy as np
import pytest
from layer_reference import normal

from cudnn_rnn_tf import convert
from cudnn_rnn_tf.convert import file_inspection

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

GATES = {"lstm": "ifgo", "gru": "rzn"}


class Graph:
    """A graph with cells of 3 units, whose gates are in a random order.

    Args:
        size: of the inputs.
        swaps: whether sums and products have their operands in the other order.
        changes: by operator, another one that takes its first place; None for none.
    """

    def __init__(self, mode: str, size: int, swaps: bool = False, changes=None, seed: int = 0):
        self.mode, self.swaps, self.changes = mode, swaps, changes or {}
        self.nodes, self.names = [], itertools.count()
        self.gates = np.random.default_rng(seed).permutation(list(GATES[mode]))
        rows = 3 * len(self.gates)
        self.arrays = {
            "W": normal(rows, size, seed=1),
            "R": normal(3, rows, seed=2),
            "b_W": normal(rows, seed=3),
            "b_R": normal(rows, seed=4),
        }
        self.states = ["h", "c"][: 2 if mode == "lstm" else 1]

    def node(self, op_type: str, *inputs: str, count: int = 1, **attributes) -> str:
        op_type = self.changes.pop(op_type, op_type)
        if op_type in ("Add", "Mul") and self.swaps:
            inputs = inputs[::-1]
        outputs = [f"{op_type}_{next(self.names)}" for _ in range(count)]
        self.nodes.append(onnx.helper.make_node(op_type, inputs, outputs, outputs[0], **attributes))
        return outputs if count > 1 else outputs[0]

    def split(self, tensor: str) -> dict[str, str]:
        """Returns the names of the gates' parts of a tensor."""
        parts = self.node("Split", tensor, count=len(self.gates), axis=1)
        return dict(zip(self.gates, parts, strict=True))

    def step(self, x: str, states: list[str]) -> list[str]:
        """Adds a cell; returns its new states."""
        h, *cells = states
        of_inputs = self.node("Gemm", x, "W", "b_W", transB=1)
        of_state = self.node("Gemm", h, "R", "b_R")
        sigmoid = lambda *name: self.node("Sigmoid", *name)  # noqa: E731
        if self.mode == "lstm":
            gates = self.split(self.node("Add", of_state, of_inputs))
            kept = self.node("Mul", sigmoid(gates["f"]), cells[0])
            added = self.node("Mul", sigmoid(gates["i"]), self.node("Tanh", gates["g"]))
            c = self.node("Add", kept, added)
            return [self.node("Mul", sigmoid(gates["o"]), self.node("Tanh", c)), c]
        a, b = self.split(of_inputs), self.split(of_state)
        r, z = (sigmoid(self.node("Add", b[gate], a[gate])) for gate in "rz")
        n = self.node("Tanh", self.node("Add", a["n"], self.node("Mul", b["n"], r)))
        return [self.node("Add", self.node("Mul", self.node("Sub", h, n), z), n)]

    def model(self, inputs: list[str], outputs: list[str]):
        def value(name):
            size = self.arrays["W"].shape[1] if name.startswith("x") else 3
            return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (None, size))

        tensors = [onnx.numpy_helper.from_array(array, key) for key, array in self.arrays.items()]
        ends = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = onnx.helper.make_graph(self.nodes, "graph", list(map(value, inputs)), ends, tensors)
        opset = onnx.helper.make_opsetid("", 14)
        return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def run(model, **inputs: np.ndarray) -> list[np.ndarray]:
    return ort.InferenceSession(model.SerializeToString()).run(None, inputs)


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", list(GATES))
def test_cells(mode, seed, swaps, tmp_path):
    """A layer computes two steps as two cells do, which are one network."""
    graph = Graph(mode, 4, swaps, seed=seed)
    states = graph.step("x_1", graph.step("x_0", graph.states))
    model = graph.model(["x_0", "x_1", *graph.states], states)
    onnx.save(model, str(tmp_path / "m.onnx"))
    (found,) = file_inspection.inspect_file(tmp_path / "m.onnx")
    kind = "ONNX, as single operators"
    assert found[1:] == (kind, mode, 1, "unidirectional", 4, 3, "float32", "yes")
    inputs, initial = normal(2, 2, 4), [normal(2, 3, seed=i + 5) for i in range(len(states))]
    named = dict(zip(graph.states, initial, strict=True))
    expected = run(model, x_0=inputs[0], x_1=inputs[1], **named)
    layer = convert.from_onnx(model, time_major=True, return_state=True)
    _, *received = layer(inputs, initial_state=[state[None] for state in initial])
    for each, wanted in zip(received, expected, strict=True):
        np.testing.assert_allclose(each[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "operator", "other"),
    [
        ("lstm", "Sigmoid", "HardSigmoid"),
        ("lstm", "Tanh", "Relu"),
        ("gru", "Sub", "Add"),
        ("gru", "Sigmoid", "Tanh"),
    ],
)
def test_what_computes_something_else(mode, operator, other):
    graph = Graph(mode, 4, changes={operator: other})
    states = graph.step("x", graph.states)
    with pytest.raises(ValueError, match="there are none"):
        convert.from_onnx(graph.model(["x", *graph.states], states))


@pytest.mark.parametrize("swaps", [False, True])
def test_inputs_of_the_size_of_the_state(swaps):
    """Of two square matrices, PyTorch's names tell which is the state's, or the state's origin."""
    graph = Graph("lstm", 3, swaps)
    model = graph.model(["x", "h", "c"], graph.step("x", ["h", "c"]))
    with pytest.raises(ValueError, match="which the inputs have the size of: expected one to be"):
        convert.from_onnx(model)
    for part in (*model.graph.initializer, *model.graph.node):
        names = {"R": "rnn.weight_hh", "W": "rnn.weight_ih"}
        if isinstance(part, onnx.TensorProto):
            part.name = names.get(part.name, part.name)
            continue
        for place, name in enumerate(part.input):
            part.input[place] = names.get(name, name)
    graph = Graph("lstm", 3, swaps)
    h, c = graph.node("Split", "states", count=2, axis=0)
    other = graph.model(["x", "states"], graph.step("x", [h, c]))
    order = [list(graph.gates).index(gate) for gate in "ifgo"]
    gates = graph.arrays["R"].T.reshape(4, 3, 3)[order]
    for each in (model, other):
        named = convert.from_onnx(each).named_weights()
        recurrent = [value for key, value in named.items() if key.endswith("recurrent_kernel")]
        np.testing.assert_array_equal(recurrent, gates)
