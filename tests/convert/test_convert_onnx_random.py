"""Random ONNX graphs: each is refused, or its layer computes what ONNX Runtime does."""

import numpy as np
import pytest
import tensorflow as tf

from cudnn_rnn_tf import convert

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": ("initial_h", "initial_c"), "GRU": ("initial_h",), "RNN": ("initial_h",)}
STEPS, BATCH, FEATURES, UNITS = 5, 2, 4, 3
# What becomes of each kind is whether it has an equivalent.
OF_STATES = {
    "none": True,
    "zeros": True,
    "numbers": True,
    "input": True,
    "input_moved": True,
    "input_of_branches": True,
    "input_as_integers": False,
    "input_changed": False,
    "input_or_numbers": False,
    "expanded_zeros": True,
    "expanded_numbers": True,
    "expanded_to_batch": True,
    "computed_zeros": True,
    "computed_numbers": True,
    "numbers_of_branches": True,
    "other_numbers_of_branches": False,
    "numbers_of_batch_size": False,
    "zeros_of_shape": True,
    "ones_of_shape": True,
    "scalar_constant": True,
    "sparse": False,
}
OF_LENGTHS = {
    "none": True,
    "input": True,
    "input_cast": True,
    "input_of_branches": True,
    "constant": False,
    "input_reversed": False,
    "computed": False,
}
OF_PEEPHOLES = {"none": True, "zeros": True, "computed_zeros": True, "numbers": True}
OF_PEEPHOLES["given"] = False
# How W, R and B come into being: exporters that fold no constants leave the nodes to the runtime.
OF_WEIGHTS = {
    "initializer": True,
    "transposed": True,
    "gates_joined": True,
    "quantized": True,
    "scaled": True,
    "of_shapes": True,
    "of_a_branch": True,
    "of_equal_branches": True,
    "of_other_branches": False,
    "input": False,
    "drawn": False,
}
OF_ATTRIBUTES = {
    "none": True,
    "defaults": True,
    "parameters": True,
    "clip": False,
    "input_forget": False,
    "other_activation": False,
    "reverse": True,
}
# The ways from one layer's Y to the next one's X.
OF_JOINS = {
    "transpose_and_reshape": True,
    "squeeze": True,
    "dropout": True,
    "training_dropout": False,
    "reshape_to_other_shape": False,
    "relu": False,
}
KINDS = (OF_STATES, OF_LENGTHS, OF_PEEPHOLES, OF_WEIGHTS, OF_ATTRIBUTES, OF_JOINS)
FLAWS = [kind for kinds in KINDS for kind, is_carried in kinds.items() if not is_carried]


class Model:
    """A random model of one or two layers, with what its inputs are to be.

    Args:
        rng: what makes it random.
        flaw: the one thing in it that has no equivalent; None for a model that has one.
    """

    def __init__(self, rng: np.random.Generator, flaw: str | None):
        self.rng, self.flaw = rng, flaw
        self.nodes, self.initializers = [], []
        self.inputs = {"X": self.numbers(STEPS, BATCH, FEATURES)}
        self.lengths = None
        self.states = []
        self.op_type = str(rng.choice(list(GATES)))
        if flaw == "input_forget" or (flaw in OF_PEEPHOLES and flaw != "none"):
            self.op_type = "LSTM"
        # A network starts from inputs of the model, or else from constants.
        self.starts_from_inputs = bool(rng.integers(2))
        if flaw in OF_STATES:
            self.starts_from_inputs = "input" in flaw
        self.num_dirs = int(rng.integers(1, 3))
        # All layers of a network have peepholes, or none has.
        self.kind_of_peepholes = self.choose(OF_PEEPHOLES)
        self.has_bias = bool(rng.integers(2))
        self.kind_of_reset = int(rng.integers(3))
        self.kind_of_attributes = self.choose(OF_ATTRIBUTES)
        self.kind_of_lengths = self.choose(OF_LENGTHS)
        self.steps_read = rng.integers(0, STEPS + 1, BATCH).astype(np.int32)
        num_layers = 2 if flaw in OF_JOINS else int(rng.integers(1, 3))
        x = "X"
        for layer in range(num_layers):
            y = self.add_layer(layer, x)
            if layer + 1 < num_layers:
                x = self.join(y, self.choose(OF_JOINS))
        self.output = y

    def choose(self, kinds: dict[str, bool]) -> str:
        if self.flaw in kinds and not kinds[self.flaw]:
            return self.flaw
        others = [kind for kind, is_carried in kinds.items() if is_carried]
        if kinds is OF_STATES:
            has = ("none", "zero", "input") if self.starts_from_inputs else ("",)
            others = [
                kind
                for kind in others
                if any(word in kind for word in has)
                and ("input" not in kind or self.starts_from_inputs)
            ]
        return str(self.rng.choice(others))

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)

    def constant(self, value) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op_type: str, *inputs: str, count: int = 1, **attributes) -> str:
        outputs = [f"{op_type}_{len(self.nodes)}_{i}" for i in range(count)]
        name = f"node_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, inputs, outputs, name, **attributes))
        return outputs[0]

    def if_node(self, then: str, other: str, condition: str | None = None) -> str:
        """Adds a node of whose branches each gives a tensor of the graph or a constant."""
        branches = []
        for tensor in (then, other):
            name = f"branch_{len(self.nodes)}_{len(branches)}"
            node = onnx.helper.make_node("Identity", [tensor], [name])
            value = onnx.helper.make_empty_tensor_value_info(name)
            branches.append(onnx.helper.make_graph([node], name, [], [value]))
        if condition is None:
            self.inputs.setdefault("condition", np.array(True))
            condition = "condition"
        return self.node("If", condition, then_branch=branches[0], else_branch=branches[1])

    def add_layer(self, layer: int, x: str) -> str:
        rows = GATES[self.op_type] * UNITS
        fan_in = self.num_dirs * UNITS if layer else FEATURES
        inputs = [
            x,
            self.weight(self.num_dirs, rows, fan_in),
            self.weight(self.num_dirs, rows, UNITS),
            self.weight(self.num_dirs, 2 * rows) if self.has_bias else "",
            self.sequence_lengths(),
        ]
        for state in STATES[self.op_type]:
            inputs.append(self.initial_state(f"{state}_{layer}", self.choose(OF_STATES)))
        if self.op_type == "LSTM":
            kind = self.kind_of_peepholes
            peepholes = self.numbers(self.num_dirs, 3 * UNITS) * (kind != "zeros")
            if kind == "computed_zeros":
                inputs.append(self.node("Sub", *[self.constant(peepholes)] * 2))
            elif kind == "given":
                inputs.append(f"peepholes_{layer}")
                self.inputs[inputs[-1]] = peepholes
            else:
                inputs.append("" if kind == "none" else self.constant(peepholes))
        attributes = {"hidden_size": UNITS, **self.node_attributes()}
        return self.node(self.op_type, *inputs, **attributes)

    def weight(self, *shape: int) -> str:
        kind, numbers = self.choose(OF_WEIGHTS), self.numbers(*shape)
        match kind:
            case "initializer":
                return self.constant(numbers)
            case "transposed":
                order = list(range(len(shape)))[::-1]
                return self.node("Transpose", self.constant(numbers.T), perm=order)
            case "gates_joined":
                # As PyTorch's exporter writes it: pieces of each direction's matrix, put together.
                rows = shape[1]
                pieces = []
                for direction in numbers:
                    ends = [self.constant(np.array([i])) for i in (0, rows // 3, rows)]
                    axis, whole = self.constant(np.array([0])), self.constant(direction)
                    halves = [self.node("Slice", whole, *ends[i : i + 2], axis) for i in (0, 1)]
                    joined = self.node("Concat", *halves, axis=0)
                    pieces.append(self.node("Unsqueeze", joined, axis))
                return self.node("Concat", *pieces, axis=0)
            case "quantized":
                integers = self.constant(np.round(50 * numbers).astype(np.int8))
                return self.node("DequantizeLinear", integers, self.constant(np.float32(0.02)))
            case "scaled":
                factors = self.constant(self.numbers(1, shape[1], *[1] * (len(shape) - 2)))
                return self.node("Mul", self.constant(numbers), factors)
            case "of_shapes":
                whole = self.constant(numbers)
                flat = self.node("Reshape", whole, self.constant(np.array([-1])))
                return self.node("Reshape", flat, self.node("Shape", whole))
            case "of_a_branch":
                size = self.node("Size", self.constant(numbers))
                is_same = self.node("Equal", size, self.constant(np.array(numbers.size)))
                other = self.constant(self.numbers(*shape))
                return self.if_node(other, self.constant(numbers), self.node("Not", is_same))
            case "of_equal_branches":
                return self.if_node(self.constant(numbers), self.constant(numbers))
            case "of_other_branches":
                return self.if_node(self.constant(numbers), self.constant(-numbers))
            case "input":
                name = f"weight_{len(self.inputs)}"
                self.inputs[name] = numbers
                return name
            case "drawn":
                return self.node("RandomNormal", shape=shape, seed=1.0)

    def node_attributes(self) -> dict:
        kind, num_dirs = self.kind_of_attributes, self.num_dirs
        attributes = {"direction": "bidirectional"} if num_dirs == 2 else {}
        if self.op_type == "GRU":
            attributes |= [{}, {"linear_before_reset": 0}, {"linear_before_reset": 1}][
                self.kind_of_reset
            ]
        names = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
        names = names.get(self.op_type, ["Relu"])
        if kind == "defaults":
            attributes |= {"activations": names * num_dirs, "input_forget": 0}
            attributes.setdefault("direction", "forward")
            if self.op_type != "LSTM":
                del attributes["input_forget"]
        elif kind == "parameters":
            attributes |= {"activations": names * num_dirs}
            attributes |= {f"activation_{name}": [0.5] * 3 * num_dirs for name in ("alpha", "beta")}
        elif kind == "clip":
            attributes["clip"] = 0.25
        elif kind == "other_activation":
            attributes["activations"] = [*names[:-1], "Softsign"] * num_dirs
        elif kind == "reverse" and num_dirs == 1:
            attributes["direction"] = "reverse"
        elif kind == "input_forget":
            attributes["input_forget"] = 1
        return attributes

    def sequence_lengths(self) -> str:
        kind = self.kind_of_lengths
        if kind == "none":
            return ""
        lengths = self.steps_read
        if kind == "constant":
            return self.constant(lengths)
        if kind == "computed":
            steps = self.node("Gather", self.node("Shape", "X"), self.constant(np.array([0, 0])))
            less = self.node("Sub", steps, self.constant(np.array([2, 1])))
            return self.node("Cast", less, to=onnx.TensorProto.INT32)
        self.lengths = lengths.astype(np.int64) if kind == "input_cast" else lengths
        self.inputs["lengths"] = self.lengths
        if kind == "input_cast":
            return self.node("Cast", "lengths", to=onnx.TensorProto.INT32)
        if kind == "input_of_branches":
            return self.if_node("lengths", self.node("Identity", "lengths"))
        if kind == "input_reversed":
            ends = [self.constant(np.array([value])) for value in (1, -3, 0, -1)]
            return self.node("Slice", "lengths", *ends)
        return "lengths"

    def initial_state(self, name: str, kind: str) -> str:
        shape = (self.num_dirs, BATCH, UNITS)
        numbers = self.numbers(*shape)
        if kind.startswith("input"):
            self.inputs[name] = 3 * numbers
            self.states.append(3 * numbers)
        else:
            self.states.append(np.zeros(shape, np.float32))
        match kind:
            case "none":
                return ""
            case "zeros" | "numbers":
                return self.constant(numbers * (kind == "numbers"))
            case "input":
                return name
            case "input_moved":
                flat = self.node("Reshape", name, self.constant(np.array([-1, BATCH * UNITS])))
                parts = [self.constant(np.array([i])) for i in (0, self.num_dirs, 0)]
                flat = self.node("Slice", self.node("Identity", flat), *parts)
                return self.node("Reshape", flat, self.constant(np.array(shape)))
            case "input_of_branches":
                moved = self.node("Unsqueeze", name, self.constant(np.array([0])))
                moved = self.node("Squeeze", moved, self.constant(np.array([0])))
                return self.if_node(moved, name)
            case "input_as_integers":
                integers = self.node("Cast", name, to=onnx.TensorProto.INT32)
                return self.node("Cast", integers, to=onnx.TensorProto.FLOAT)
            case "input_changed":
                return self.node("Neg", name)
            case "input_or_numbers":
                joined = self.node("Concat", name, self.constant(numbers), axis=0)
                parts = [self.constant(np.array([i])) for i in (1, 1 + self.num_dirs, 0)]
                return self.node("Slice", joined, *parts)
            case "expanded_zeros" | "expanded_numbers":
                row = self.numbers(self.num_dirs, 1, UNITS) * (kind == "expanded_numbers")
                return self.node("Expand", self.constant(row), self.constant(np.array(shape)))
            case "expanded_to_batch":
                # As PyTorch's exporter writes a learned state that is expanded to the batch.
                size = self.node("Gather", self.node("Shape", "X"), self.constant(np.array([1])))
                ends = [self.constant(np.array([each])) for each in (self.num_dirs, UNITS)]
                shape = self.node("Concat", ends[0], size, ends[1], axis=0)
                return self.node("Expand", self.constant(numbers[:, :1]), shape)
            case "numbers_of_branches":
                condition = self.constant(np.array(False))
                return self.if_node(self.constant(-numbers), self.constant(numbers), condition)
            case "other_numbers_of_branches":
                return self.if_node(self.constant(-numbers), self.constant(numbers))
            case "numbers_of_batch_size":
                size = self.node("Gather", self.node("Shape", "X"), self.constant(np.array(1)))
                size = self.node("Cast", size, to=onnx.TensorProto.FLOAT)
                return self.node(
                    "Expand",
                    self.node("Mul", size, self.constant(numbers)),
                    self.constant(np.array(shape)),
                )
            case "computed_zeros" | "computed_numbers":
                factor = self.constant(np.float32(kind == "computed_numbers"))
                return self.node("Mul", self.constant(numbers), factor)
            case "zeros_of_shape" | "ones_of_shape":
                value = onnx.numpy_helper.from_array(np.float32([kind == "ones_of_shape"]))
                shape = self.constant(np.array(shape))
                return self.node("ConstantOfShape", shape, value=value)
            case "scalar_constant":
                scalar = self.node("Constant", value_float=0.5)
                return self.node("Expand", scalar, self.constant(np.array(shape)))
            case "sparse":
                value = onnx.numpy_helper.from_array(np.float32([2.0]), "")
                index = onnx.numpy_helper.from_array(np.int64([0]), "")
                tensor = onnx.helper.make_sparse_tensor(value, index, [np.prod(shape)])
                dense = self.node("Constant", sparse_value=tensor)
                return self.node("Reshape", dense, self.constant(np.array(shape)))

    def join(self, y: str, kind: str) -> str:
        if kind == "squeeze" and self.num_dirs == 1:
            return self.node("Squeeze", y, self.constant(np.array([1])))
        order, shape = [0, 2, 1, 3], [0, 0, -1]
        if kind == "reshape_to_other_shape":
            order, shape = [2, 0, 1, 3], [STEPS, BATCH, -1]
        x = self.node("Transpose", y, perm=order)
        x = self.node("Reshape", x, self.constant(np.array(shape)))
        if kind == "relu":
            return self.node("Relu", x)
        if kind.endswith("dropout"):
            training = self.constant(np.array(kind == "training_dropout"))
            rate = self.constant(np.float32(0.5))
            return self.node("Dropout", x, rate, training, count=2)
        return x

    def proto(self):
        def value(name, array):
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            return onnx.helper.make_tensor_value_info(name, kind, array.shape)

        inputs = [value(name, array) for name, array in self.inputs.items()]
        # The number of steps and the batch size are open.
        for axis, name in enumerate(("T", "B")):
            inputs[0].type.tensor_type.shape.dim[axis].dim_param = name
        graph = onnx.helper.make_graph(
            self.nodes,
            "graph",
            inputs,
            [onnx.helper.make_tensor_value_info(self.output, onnx.TensorProto.FLOAT, None)],
            self.initializers,
        )
        opset = onnx.helper.make_opsetid("", 14)
        return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def expected(self) -> np.ndarray:
        """Returns what ONNX Runtime computes, [T, B, D * H]."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(self.proto().SerializeToString(), options)
        (outputs,) = session.run([self.output], self.inputs)
        return outputs.transpose(0, 2, 1, 3).reshape(STEPS, BATCH, -1)

    def computed(self) -> np.ndarray:
        """Returns what the layer computes; raises ValueError if there is none."""
        layer, states = convert.from_onnx(self.proto(), time_major=True, return_initial_state=True)
        count = len(STATES[self.op_type])
        if states is None:
            states = [np.concatenate(self.states[place::count]) for place in range(count)]
        else:
            shapes = layer.state_shape(BATCH)
            states = list(map(np.broadcast_to, states, shapes))
        outputs = layer(self.inputs["X"], initial_state=states, sequence_lengths=self.lengths)
        if layer.go_backwards:
            lengths = [STEPS] * BATCH if self.lengths is None else self.lengths
            outputs = tf.reverse_sequence(outputs, lengths, seq_axis=0, batch_axis=1)
        return outputs.numpy()


@pytest.mark.parametrize("seed", range(80))
def test_what_is_taken_computes_the_same(seed):
    model = Model(np.random.default_rng(seed), None)
    # States of ReLU networks grow to hundreds, of which float32 holds seven digits.
    np.testing.assert_allclose(model.computed(), model.expected(), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("flaw", FLAWS)
def test_what_has_no_equivalent_is_refused(flaw, seed):
    """One flaw is enough, and ONNX Runtime has an answer for the model."""
    model = Model(np.random.default_rng(seed), flaw)
    with pytest.raises(ValueError, match="ONNX"):
        model.computed()
    assert np.all(np.isfinite(model.expected()))
