"""Reads the recurrent networks of an ONNX graph, and refuses what has no equivalent."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.config import DTYPES
from cudnn_rnn_tf.convert import network, onnx_cells, onnx_states
from cudnn_rnn_tf.convert.onnx_tensors import (
    ATTRIBUTE_TYPES,
    Scope,
    Source,
    input_of,
    operator,
    subgraphs,
)
from cudnn_rnn_tf.pseudo_layers import GRU_OF_KERAS, LSTM_OF_ONNX, reorder

# By operator, the order of its gates.
ORDERS = {"LSTM": LSTM_OF_ONNX, "GRU": GRU_OF_KERAS, "RNN": (0,)}
# By operator: the activations of one direction and their mode; the first are the default.
_MODES: dict[str, dict[tuple[str, ...], str]] = {
    "LSTM": {("sigmoid", "tanh", "tanh"): constants.CUDNN_LSTM},
    "GRU": {("sigmoid", "tanh"): constants.CUDNN_GRU},
    "RNN": {("tanh",): constants.CUDNN_RNN_TANH, ("relu",): constants.CUDNN_RNN_RELU},
}
# ONNX Runtime's operator with weights in 8 bits, [D, fan_in, 4 * H], and where it has, for W and R,
# the scale and the zero point of each direction, or of each of its rows.
_QUANTIZED = "com.microsoft.DynamicQuantizeLSTM"
_SCALES = {"W": (8, 9), "R": (10, 11)}
# Attributes of recurrent operators without an effect on what is read: activations that take
# parameters are refused, and the old output_sequence says which outputs are wanted.
_WITHOUT_EFFECT = ("activation_alpha", "activation_beta", "output_sequence")
# The optional inputs behind X, W, R and B, by operator.
_OPTIONAL_INPUTS = {
    "LSTM": ("sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("sequence_lens", "initial_h"),
    "RNN": ("sequence_lens", "initial_h"),
}
# Operators whose output has values of their first input, and no others. Concat takes those of all.
_MOVES = (
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
)


class Graph(Scope):
    """An ONNX graph and the recurrent networks in it.

    Args:
        source: the model.
        graph: an `onnx.GraphProto`.
        outer: the graph that it is a branch of; None for the model's own.
        place: what the names of the networks in it begin with.
    """

    def __init__(self, source: Source, graph: Any, outer: Scope | None = None, place: str = ""):
        super().__init__(source, graph, outer)
        self._place = place

    def networks(self) -> dict[str, "NodeStack | onnx_cells.Cell"]:
        """Returns the networks in this graph and in its branches by name."""
        found: dict[str, NodeStack | onnx_cells.Cell] = {
            self._place + name: NodeStack(self, nodes) for name, nodes in self._stacks().items()
        }
        for node, cell in onnx_cells.cells_in(self):
            name = self._place + (node.name or node.output[0])
            found[f"{name}_{len(found)}" if name in found else name] = cell
        for node in self.nodes:
            for name, graph in subgraphs(self.source.onnx, node):
                place = f"{self._place}{node.name or next(iter(node.output), '')}/{name}/"
                for each, inner in Graph(self.source, graph, self, place).networks().items():
                    # Names should be unique, but need not be.
                    found[f"{each}_{len(found)}" if each in found else each] = inner
        return found

    def _stacks(self) -> dict[str, list[Any]]:
        """Returns the networks of this graph by name, each as its nodes from bottom to top."""
        stacks: dict[str, list[Any]] = {}
        for node in self.nodes:
            if not kind_of(node):
                continue
            try:
                below = self.layer_below(node)
                is_like_below = below is not None and self._shared(below) == self._shared(node)
            except ValueError:  # Of a damaged node, which is to be listed.
                is_like_below = False
            stack = next((s for s in stacks.values() if is_like_below and s[-1] is below), None)
            if stack is not None:
                stack.append(node)
                continue
            output = next(filter(None, node.output), "")
            stacks[output if node.name in ("", *stacks) else node.name] = [node]
        return stacks

    def rnn_mode(self, node: Any) -> str:
        """Returns the mode that a node's activations, and a GRU's reset gate, stand for.

        Raises:
            ValueError: if there is none.
        """
        modes = _MODES[kind_of(node)]
        given = [name.decode().lower() for name in self.attributes(node).get("activations", ())]
        for activations, mode in modes.items():
            if not given or given == list(activations) * self.num_dirs(node):
                if mode == constants.CUDNN_GRU and not self._resets_after(node):
                    return constants.GRU_RESET_BEFORE
                return constants.LSTM_PEEPHOLE if self._has_peepholes(node) else mode
        raise ValueError(
            f"activations {given} of ONNX node {node.name!r} have no equivalent: expected, per "
            f"direction, {' or '.join(map(str, modes))}"
        )

    def _resets_after(self, node: Any) -> int:
        return self.attributes(node).get("linear_before_reset", 0)

    def _has_peepholes(self, node: Any) -> bool:
        """Returns whether an LSTM has peepholes, which may be zeros that stand for none."""
        if kind_of(node) != "LSTM" or not (name := input_of(node, 7)):
            return False
        sources = self._sources(name, is_state=True)
        return any(not isinstance(source, np.ndarray) or np.any(source) for source in sources)

    def pseudo_layers(self, node: Any) -> list[network.PseudoLayer]:
        """Returns a node's weights.

        Raises:
            ValueError: if it has no equivalent, or its weights are not constants of the shapes that
                they must have.
        """
        self._check(node)
        num_dirs = self.num_dirs(node)
        kernels, recurrent_kernels = self.weight(node, 1, "W", 3), self.weight(node, 2, "R", 3)
        units = recurrent_kernels.shape[2]
        if (given := self.attributes(node).get("hidden_size", units)) != units:
            raise ValueError(
                f"hidden_size={given} of ONNX node {node.name!r} contradicts its R of shape "
                f"{recurrent_kernels.shape}"
            )
        rows = network.NUM_GATES[self.rnn_mode(node)] * units
        shapes: dict[str, tuple[int, ...]] = {
            "W": (num_dirs, rows, kernels.shape[2]),
            "R": (num_dirs, rows, recurrent_kernels.shape[2]),
        }
        tensors = {"W": kernels, "R": recurrent_kernels}
        if input_of(node, 3):
            tensors["B"], shapes["B"] = self.weight(node, 3, "B", 2), (num_dirs, 2 * rows)
        if self._has_peepholes(node):
            tensors["P"], shapes["P"] = self.weight(node, 7, "P", 2), (num_dirs, 3 * units)
        for argument, tensor in tensors.items():
            if tensor.shape != shapes[argument]:
                raise ValueError(
                    f"expected {argument} of ONNX node {node.name!r} of shape {shapes[argument]}, "
                    f"but received {tensor.shape}"
                )
        order = np.argsort(ORDERS[kind_of(node)]).tolist()
        result = []
        for direction in range(num_dirs):
            sides = [kernels[direction], recurrent_kernels[direction]]
            if "B" in tensors:
                sides += np.split(tensors["B"][direction], 2)
            part = network.PseudoLayer(*(reorder(side, order) for side in sides))
            if "P" in tensors:
                part = part._replace(vectors=tensors["P"][direction].reshape(3, units)[[0, 2, 1]])
            result.append(part)
        return result

    def _check(self, node: Any) -> None:
        attributes = self.attributes(node)
        for attribute in node.attribute:
            if attribute.name not in (*ATTRIBUTE_TYPES, *_WITHOUT_EFFECT):
                raise ValueError(
                    f"attribute {attribute.name!r} of ONNX node {node.name!r} is not known"
                )
        if received := attributes.get("input_forget", 0):
            raise ValueError(
                f"input_forget={received} of ONNX node {node.name!r} has no equivalent: expected 0"
            )
        direction = attributes.get("direction", b"forward").decode()
        if direction not in ("forward", "reverse", "bidirectional"):
            raise ValueError(
                f"direction {direction!r} of ONNX node {node.name!r} is not known: expected "
                "'forward', 'reverse' or 'bidirectional'"
            )
        if "clip" in attributes:
            raise ValueError(
                f"clip={attributes['clip']} of ONNX node {node.name!r}, which clips what goes into "
                "its activations, has no equivalent"
            )
        last = 8 if operator(node) == _QUANTIZED else None
        for index, name in enumerate(node.input[4:last]):
            names = _OPTIONAL_INPUTS[kind_of(node)]
            if name and names[index : index + 1] != ("P",):
                self._check_input(node, name, names[index] if index < len(names) else "")

    def _check_input(self, node: Any, name: str, meaning: str) -> str:
        """Checks that an optional input is what a call of the layer takes or what it does anyway.

        Its name is empty if it is left out; `meaning` is what ONNX calls it.

        Returns:
            What it comes from: "zeros", "constants" or "inputs".

        Raises:
            ValueError: if it is something else.
        """
        takes_input = meaning in ("sequence_lens", "initial_h", "initial_c")
        takes_numbers = meaning in ("initial_h", "initial_c")
        constants, inputs = False, False
        for source in self._sources(name, is_state=takes_numbers) if name else ():
            if isinstance(source, np.ndarray):
                if takes_numbers and not np.any(source):
                    continue
                if takes_numbers and not inputs:
                    constants = True
                    continue
                source = "a constant that is not zero" if takes_numbers else "a constant"
            elif takes_input and self.is_input(source) and not constants:
                inputs = True
                continue
            expected = ["zeros", "constants"] * takes_numbers
            expected += ["an input of the model"] * takes_input
            raise ValueError(
                f"input {meaning or 'number 6 or later'} of ONNX node {node.name!r}, {name!r}, has "
                f"no equivalent: expected {' or '.join(expected) or 'none'}, but it comes from "
                f"{source}{' and from constants that are not zero' if constants else ''}"
            )
        return "constants" if constants else "inputs" if inputs else "zeros"

    def origins_of_states(self, node: Any) -> list[str]:
        """Returns what a node's initial states, h and an LSTM's c, come from.

        Returns:
            "zeros", "constants" or "inputs" for each.

        Raises:
            ValueError: if one comes from something else.
        """
        return [
            self._check_input(node, input_of(node, index), meaning)
            for index, meaning in enumerate(_OPTIONAL_INPUTS[kind_of(node)][1:3], start=5)
        ]

    def _sources(self, name: str, is_state: bool) -> Iterator[Any]:
        """Yields where a tensor's values come from, past the nodes that only move them.

        That is the name of an input of the model, the values of a constant, or text for an error.
        Of states, the order of numbers may change; of lengths, it may not.
        """
        moves = _MOVES if is_state else ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
        types = DTYPES if is_state else ("int32", "int64")
        waiting: list[tuple[Scope, str]] = [(self, name)]
        seen: set[tuple[int, str]] = set()
        while waiting:
            scope, name = waiting.pop()
            owner = scope.owner(name)
            if (id(owner), name) in seen:
                continue
            seen.add((id(owner), name))
            producer = owner.producer(name) if owner else None
            if owner is None:
                yield f"{name!r}, which nothing in the graph makes"
            elif producer is None:
                yield name if owner.is_input(name) else owner.constant(name)
            elif operator(producer) in ("Constant", "ConstantOfShape"):
                value = owner.value(producer)
                yield f"{producer.op_type} {name!r}" if value is None else value
            elif operator(producer) in moves and (
                producer.op_type != "Cast" or self._type_of_cast(producer) in types
            ):
                moved = producer.input if producer.op_type == "Concat" else producer.input[:1]
                waiting += [(owner, each) for each in moved]
            elif operator(producer) == "If" and (found := owner.alternatives(producer, name)):
                waiting += found
            else:
                value = owner.constant(name)
                yield f"{operator(producer)} {name!r}" if value is None else value

    def _shared(self, node: Any) -> tuple[Any, ...]:
        """Returns the attributes that all layers of a network have in common."""
        attributes = self.attributes(node)
        names = ("hidden_size", "direction", "activations", "layout")
        lengths = [value for value in node.input[4:5] if value]
        return (
            operator(node),
            *(attributes.get(name) for name in names),
            self._resets_after(node),
            self._has_peepholes(node),
            *(str(source) for value in lengths for source in self._sources(value, False)),
        )

    def layer_below(self, node: Any) -> Any:
        """Returns the node whose output [T, D, B, H], made [T, B, D * H], is all this one reads."""
        path: list[Any] = []
        tensor = input_of(node, 0)
        for producer in self.producers(tensor):
            if tensor != producer.output[0]:
                return None
            if kind_of(producer):
                return producer if self._joins_directions(path, producer) else None
            if operator(producer) in ("Reshape", "Squeeze", "Transpose"):
                path.insert(0, producer)
            elif operator(producer) != "Identity" and not self._is_idle_dropout(producer):
                return None
            tensor = input_of(producer, 0)
        return None

    def _is_idle_dropout(self, node: Any) -> bool:
        """Returns whether a node is dropout that does not act, as it does not in inference."""
        mode = input_of(node, 2)
        acts = self.constant(mode) if mode else np.False_
        return operator(node) == "Dropout" and acts is not None and not np.any(acts)

    def _joins_directions(self, path: Sequence[Any], layer: Any) -> bool:
        """Returns whether nodes put the directions of a layer's output side by side."""
        is_batch_major = self.attributes(layer).get("layout", 0) == 1
        kinds = [node.op_type for node in path]
        if kinds == ["Squeeze"]:
            axes = self.attributes(path[0]).get("axes", self.constant(input_of(path[0], 1)))
            return axes is not None and list(axes) == [2 if is_batch_major else 1]
        if not is_batch_major and kinds == ["Transpose", "Reshape"]:
            swaps = list(self.attributes(path[0]).get("perm", ())) == [0, 2, 1, 3]
            return swaps and self._keeps_two_dimensions(path[1])
        return is_batch_major and kinds == ["Reshape"] and self._keeps_two_dimensions(path[0])

    def _keeps_two_dimensions(self, reshape: Any) -> bool:
        """Returns whether a node joins all dimensions but the first two."""
        shape = self.constant(input_of(reshape, 1))
        if shape is None or self.attributes(reshape).get("allowzero", 0):
            return False
        # A number in place of -1 must be right, or the model is wrong.
        return shape.shape == (3,) and list(shape[:2]) == [0, 0]

    def num_dirs(self, node: Any) -> int:
        """Returns how many directions a node has."""
        return 2 if self.attributes(node).get("direction") == b"bidirectional" else 1

    def weight(self, node: Any, index: int, argument: str, rank: int) -> np.ndarray:
        """Returns the values of W, R, B or P.

        Raises:
            ValueError: if it is no constant, or its rank is another one.
        """
        weight = self._constant_input(node, index, argument)
        if weight.ndim != rank:
            raise ValueError(
                f"expected {argument} of ONNX node {node.name!r} of rank {rank}, but received "
                f"shape {weight.shape}"
            )
        if operator(node) != _QUANTIZED or argument not in _SCALES:
            return weight
        # One scale for each direction, or for each of its rows.
        scale, zero = (
            self._constant_input(node, at, f"the {what} of {argument}")
            for at, what in zip(_SCALES[argument], ("scale", "zero point"), strict=True)
        )
        if zero.shape != scale.shape or scale.shape not in (
            weight.shape[:1],
            (weight.shape[0], weight.shape[2]),
        ):
            raise ValueError(
                f"expected the scale and zero point of {argument} of ONNX node {node.name!r} of "
                f"shape {weight.shape[:1]} or {(weight.shape[0], weight.shape[2])}, but received "
                f"{scale.shape} and {zero.shape}"
            )
        rows = (len(weight), 1, -1)
        exact = weight.astype(np.int32) - zero.astype(np.int32).reshape(rows)
        dequantized = exact.astype(scale.dtype) * scale.reshape(rows)
        return np.ascontiguousarray(dequantized.transpose(0, 2, 1))

    def _constant_input(self, node: Any, index: int, argument: str) -> np.ndarray:
        constant = self.constant(input_of(node, index))
        if constant is None:
            raise ValueError(
                f"{argument} of ONNX node {node.name!r} is no constant, nor computed of constants "
                "by operators that move, scale or add numbers"
            )
        return constant

    def _type_of_cast(self, node: Any) -> str:
        try:
            to = self.attributes(node)["to"]
            return self.source.onnx.helper.tensor_dtype_to_np_dtype(to).name
        except KeyError:  # It has none, or one that onnx does not know.
            return ""


class NodeStack:
    """A recurrent network: nodes of one kind, of which each reads what the one below it wrote."""

    def __init__(self, graph: Graph, nodes: list[Any]):
        self._graph = graph
        self._nodes = nodes

    @property
    def form(self) -> str:
        """How the model has the network."""
        return "ONNX, quantized" if operator(self._nodes[0]) == _QUANTIZED else "ONNX"

    @property
    def kind(self) -> str:
        """The operator: LSTM, GRU or RNN."""
        return kind_of(self._nodes[0])

    @property
    def num_layers(self) -> int:
        return len(self._nodes)

    @property
    def rnn_mode(self) -> str:
        """The mode; `ValueError` if there is none for its activations."""
        return self._graph.rnn_mode(self._nodes[0])

    @property
    def direction(self) -> str:
        """ONNX's word: "forward", "reverse" or "bidirectional"."""
        return self._graph.attributes(self._nodes[0]).get("direction", b"forward").decode()

    def weights(self) -> list[network.PseudoLayer]:
        """Returns the weights of all pseudo-layers.

        Raises:
            ValueError: if a node has no equivalent, its weights are not constants of the shapes
                that they must have, or they are much larger than the model.
        """
        found: list[network.PseudoLayer] = []
        received = 0
        # If the nodes before the network form a circle, this raises an error.
        self._graph.layer_below(self._nodes[0])
        for node in self._nodes:
            parts = self._graph.pseudo_layers(node)
            found += parts
            received += sum(
                tensor.nbytes for part in parts for tensor in part if tensor is not None
            )
            self._graph.source.check_growth("the network's weights have", received)
        self.initial_states()
        return found

    def initial_states(self) -> list[np.ndarray] | None:
        """Returns the constants that the states start from; see `onnx_states.initial_states`."""
        return onnx_states.initial_states(self._graph, self._nodes)


def kind_of(node: Any) -> str:
    """Returns LSTM, GRU or RNN for a recurrent node; "" for any other."""
    if operator(node) == _QUANTIZED:
        return "LSTM"
    return operator(node) if operator(node) in _MODES else ""
