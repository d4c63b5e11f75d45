"""Gives `from_onnx` graphs whose recurrent nodes read what other nodes compute.

Each graph is refused, or its layer computes what ONNX Runtime does.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tensorflow as tf

from cudnn_rnn_tf import convert

EXPECTED = ()
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_STEPS, _BATCH, _FEATURES, _UNITS = 5, 2, 4, 3
_SOURCES = ("input", "zeros", "numbers", "constant", "of_shape_0", "of_shape_2", "expanded")
# What leaves a tensor as it is, what changes the order of its numbers, and what changes them.
_IDLE = ("Identity", "Cast", "Reshape", "Squeeze", "Transpose", "Slice", "Dropout")
_MOVES = ("Reverse", "Swap")
_CHANGES = ("Neg", "NegNeg", "Mul", "Where", "Round", "Concat")
_ATTRIBUTES = (
    *(("clip", 0.25), ("direction", "reverse"), ("linear_before_reset", 0), ("input_forget", 1)),
    *(("layout", 1), ("hidden_size", _UNITS + 1), ("activations", ["Sigmoid", "Softsign", "Tanh"])),
    *(("activations", ["Sigmoid", "Tanh", "Tanh"]), ("activation_alpha", [0.5]), ("owner", 3)),
)
_JOINS = ("squeeze", "dropout", "training", "relu", "other_shape", "other_order")


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws nodes, and changes: where their inputs come from, attributes, and what joins them."""
    op, layers = rng.choice(tuple(_GATES)), rng.randrange(1, 3)
    changes: list[list[Any]] = []
    for layer in range(layers):
        for name in _INPUTS:
            if rng.random() > 0.3 or (name in ("initial_c", "P") and op != "LSTM"):
                continue
            # Mostly the kinds of sources that have an equivalent.
            usual = {"X": ["input"], "sequence_lens": ["input"], "P": ["zeros"]}
            usual |= dict.fromkeys(("W", "R", "B"), ["numbers", "constant"])
            usual |= dict.fromkeys(("initial_h", "initial_c"), ["input", "zeros", "of_shape_0"])
            source = rng.choice(usual[name] if rng.random() < 0.8 else _SOURCES)
            moves = [rng.choice(_IDLE) for _ in range(rng.randrange(3))]
            if rng.random() < 0.15:
                moves.insert(rng.randrange(len(moves) + 1), rng.choice(_MOVES + _CHANGES))
            changes.append([layer, name, [source, moves]])
        if rng.random() < 0.1:
            changes.append([layer, "attribute", rng.choice(_ATTRIBUTES)])
    if layers == 2 and rng.random() < 0.5:
        changes.append([0, "join", rng.choice(_JOINS)])
    numbers = rng.randrange(1000)
    return {"op": op, "layers": layers, "dirs": rng.randrange(1, 3), "numbers": numbers,
            "changes": changes}  # fmt: skip


def run(case: dict[str, Any]) -> str:
    graph = _Graph(case)
    try:
        layer = convert.from_onnx(graph.proto, time_major=True, return_state=True)
    except ValueError:
        return "refused"
    try:
        seen = graph.run()
    except Exception:  # ONNX Runtime raises types of its own, and has not all of ONNX.
        return "taken, but not by ONNX Runtime"
    if not graph.given("X", 0):
        return "its inputs are constants"
    given = lambda name, layer: seen[graph.given(name, layer)]  # noqa: E731
    states = []
    for name in ("initial_h", "initial_c")[: 1 + (case["op"] == "LSTM")]:
        zeros = np.zeros((case["dirs"], _BATCH, _UNITS), np.float32)
        layers = range(layer.num_layers)
        states.append(
            np.concatenate([given(name, i) if graph.given(name, i) else zeros for i in layers])
        )
    lengths = given("sequence_lens", 0) if graph.given("sequence_lens", 0) else None
    # ONNX's shapes may be anything, but what is given to the layer is of the right one.
    outputs, h, *_ = layer(given("X", 0), initial_state=states, sequence_lengths=lengths)
    if layer.go_backwards:
        # Its outputs come in the order of reading.
        ends = [_STEPS] * _BATCH if lengths is None else lengths
        outputs = tf.reverse_sequence(outputs, ends, seq_axis=0, batch_axis=1)
    top = layer.num_layers - 1
    y = seen[f"Y_{top}"].transpose(0, 2, 1, 3).reshape(_STEPS, _BATCH, -1)
    for name, value, expected in (
        ("Y", outputs, y),
        ("Y_h", h[-case["dirs"] :], seen[f"Y_h_{top}"]),
    ):
        assert np.allclose(value, expected, rtol=0, atol=1e-5), f"{name} differs"
    return "computes the same"


class _Graph:
    """An ONNX graph of the case's nodes, with values for its inputs."""

    def __init__(self, case: dict[str, Any]):
        self._rng, self._case = np.random.default_rng(case["numbers"]), case
        self._nodes: list[Any] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._values: dict[str, np.ndarray] = {}
        self._given: dict[tuple[str, int], str] = {}
        self._ends: list[str] = []
        changes = {(layer, name): value for layer, name, value in case["changes"]}
        x, dirs, rows = "", case["dirs"], _GATES[case["op"]] * _UNITS
        for layer in range(case["layers"]):
            fan_in = dirs * _UNITS if layer else _FEATURES
            state = (dirs, _BATCH, _UNITS)
            shapes = {"X": (_STEPS, _BATCH, _FEATURES), "W": (dirs, rows, fan_in)}
            shapes |= {"R": (dirs, rows, _UNITS), "B": (dirs, 2 * rows), "sequence_lens": (_BATCH,)}
            shapes |= {"initial_h": state, "initial_c": state, "P": (dirs, 3 * _UNITS)}
            inputs = []
            for name in _INPUTS[: 8 if case["op"] == "LSTM" else 6]:
                default = {"X": ["input", []], "W": ["numbers", []], "R": ["numbers", []]}.get(name)
                source = changes.get((layer, name), default)
                if name == "X" and layer:
                    source = None
                inputs.append(self._input(name, layer, shapes[name], *source) if source else "")
            inputs[0] = inputs[0] or x
            attributes = {"hidden_size": _UNITS}
            attributes |= {"direction": "bidirectional"} if dirs == 2 else {}
            attributes |= {"linear_before_reset": 1} if case["op"] == "GRU" else {}
            attributes |= [changes[layer, "attribute"]] if (layer, "attribute") in changes else []
            outputs = [f"Y_{layer}", f"Y_h_{layer}"]
            self._add(case["op"], inputs, outputs, **attributes)
            self._ends += outputs
            x = self._join(outputs[0], changes.get((layer, "join")), fan_out=dirs * _UNITS)
        graph = onnx.helper.make_graph(
            self._nodes,
            "graph",
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
                )
                for name, value in self._values.items()
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in self._ends],
            [onnx.numpy_helper.from_array(value, name) for name, value in self._arrays.items()],
        )
        opset = onnx.helper.make_opsetid("", 14)
        self.proto = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def given(self, name: str, layer: int) -> str:
        """Returns the tensor that has what a call of the layer is given; "" if there is none."""
        return self._given.get((name, layer), "")

    def run(self) -> dict[str, np.ndarray]:
        """Returns all tensors as ONNX Runtime computes them."""
        proto = onnx.ModelProto.FromString(self.proto.SerializeToString())
        names = {*self._ends, *self._given.values()} - self._values.keys()
        del proto.graph.output[:]
        proto.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, sorted(names)))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        results = session.run(sorted(names), self._values)
        return {**self._values, **dict(zip(sorted(names), results, strict=True))}

    def _add(self, op: str, inputs: Sequence[str], outputs: Any = 1, **attributes: Any) -> str:
        """Adds a node, and returns its first output."""
        if isinstance(outputs, int):
            outputs = [f"{op}_{len(self._nodes)}_{i}" for i in range(outputs)]
        name = f"node_{len(self._nodes)}"
        self._nodes.append(onnx.helper.make_node(op, inputs, outputs, name, **attributes))
        return outputs[0]

    def _constant(self, value: Any) -> str:
        name = f"constant_{len(self._arrays)}"
        self._arrays[name] = np.asarray(value)
        return name

    def _input(self, name: str, layer: int, shape: Sequence[int], source: str, moves: Any) -> str:
        is_lengths = name == "sequence_lens"
        value, given = self._rng.standard_normal(shape).astype("float32"), source == "input"
        if is_lengths:
            value = self._rng.integers(1, _STEPS + 1, shape).astype("int32")
        if source == "input":
            tensor = self._given[name, layer] = f"{name}_{layer}"
            self._values[tensor] = value
        elif source in ("zeros", "numbers"):
            tensor = self._constant(value * (source == "numbers"))
        elif source == "constant":
            tensor = self._add("Constant", [], value=onnx.numpy_helper.from_array(value))
        elif source == "expanded":
            tensor = self._add("Expand", [self._constant(value[:1]), self._constant(shape)])
        else:
            fill = np.array([int(source[-1])], value.dtype)
            fill = onnx.numpy_helper.from_array(fill)
            tensor = self._add("ConstantOfShape", [self._constant(shape)], value=fill)
        for move in moves:
            tensor = self._move(tensor, shape, value.dtype, move)
            # A call gives the inputs as the node reads them, and states in the graph's order. What
            # a graph computes of its inputs is for the graph, which `from_onnx` leaves behind.
            moves_state = name.startswith("initial") and move in _MOVES
            if given and (name == "X" or move in _IDLE or moves_state):
                self._given[name, layer] = tensor
            else:
                given = False
        return tensor

    def _move(self, tensor: str, shape: Sequence[int], dtype: np.dtype, move: str) -> str:
        """Adds nodes that make a tensor of the same shape and type from this one."""
        add, constant = self._add, self._constant
        kinds, is_float = onnx.TensorProto, dtype == np.float32
        order, back = list(range(len(shape)))[::-1], constant(shape)
        other, row = self._rng.random(shape).astype(dtype), np.array([0])

        def cast(to: int) -> str:
            return add(
                "Cast", [add("Cast", [tensor], to=to)], to=kinds.FLOAT if is_float else kinds.INT32
            )

        def slice_(of: str, *ends: int) -> str:
            return add("Slice", [of, *(constant(np.array([end])) for end in ends)])

        return {
            "Identity": lambda: add("Identity", [tensor]),
            "Cast": lambda: cast(kinds.DOUBLE if is_float else kinds.INT64),
            "Reshape": lambda: add("Reshape", [add("Reshape", [tensor, constant([-1])]), back]),
            "Squeeze": lambda: add(
                "Squeeze", [add("Unsqueeze", [tensor, constant(row)]), constant(row)]
            ),
            "Transpose": lambda: add(
                "Transpose", [add("Transpose", [tensor], perm=order)], perm=order
            ),
            "Slice": lambda: slice_(tensor, 0, 99, 0),
            "Dropout": lambda: add("Dropout" if is_float else "Identity", [tensor]),
            "Reverse": lambda: slice_(tensor, -1, -99, len(shape) - 1, -1),
            "Swap": lambda: add("Reshape", [add("Transpose", [tensor], perm=order), back]),
            "Neg": lambda: add("Neg", [tensor]),
            "NegNeg": lambda: add("Neg", [add("Neg", [tensor])]),
            "Mul": lambda: add("Mul", [tensor, constant(np.array(2, dtype))]),
            "Where": lambda: add("Where", [constant(other > 0.5), tensor, constant(other)]),
            "Round": lambda: cast(kinds.INT64),
            "Concat": lambda: slice_(
                add("Concat", [constant(other), tensor], axis=0), 0, shape[0], 0
            ),
        }[move]()

    def _join(self, y: str, kind: str | None, fan_out: int) -> str:
        """Adds nodes that make Y, [T, D, B, H], the next layer's X, [T, B, D * H]."""
        if kind == "squeeze":
            return self._add("Squeeze", [y, self._constant([1])])
        order, shape = [0, 2, 1, 3], [0, 0, -1]
        if kind == "other_order":
            order = [0, 1, 2, 3]
        elif kind == "other_shape":
            shape = [_STEPS, _BATCH, fan_out]
        x = self._add("Transpose", [y], perm=order)
        x = self._add("Reshape", [x, self._constant(shape)])
        if kind in ("dropout", "training"):
            rate, acts = self._constant(np.float32(0.5)), self._constant(kind == "training")
            return self._add("Dropout", [x, rate, acts])
        return self._add("Relu", [x]) if kind == "relu" else x
