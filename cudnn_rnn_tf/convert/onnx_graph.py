"""Reads the recurrent networks of an ONNX graph, and refuses what has no equivalent."""

import pathlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.config import DTYPES
from cudnn_rnn_tf.convert import network, untrusted
from cudnn_rnn_tf.pseudo_layers import reorder

# By operator: for each place in cuDNN's order, the index of that gate in ONNX's order.
_FROM_ONNX = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
# By operator: the activations of one direction and their mode; the first are the default.
_MODES: dict[str, dict[tuple[str, ...], str]] = {
    "LSTM": {("sigmoid", "tanh", "tanh"): constants.CUDNN_LSTM},
    "GRU": {("sigmoid", "tanh"): constants.CUDNN_GRU},
    "RNN": {("tanh",): constants.CUDNN_RNN_TANH, ("relu",): constants.CUDNN_RNN_RELU},
}
# The attributes that are read, with ONNX's names for their types.
_ATTRIBUTE_TYPES = {
    "activations": "STRINGS",
    "allowzero": "INT",
    "axes": "INTS",
    "clip": "FLOAT",
    "direction": "STRING",
    "hidden_size": "INT",
    "input_forget": "INT",
    "layout": "INT",
    "linear_before_reset": "INT",
    "perm": "INTS",
    "to": "INT",
    "value": "TENSOR",
    "value_float": "FLOAT",
    "value_floats": "FLOATS",
    "value_int": "INT",
    "value_ints": "INTS",
}
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


class Graph:
    """An ONNX graph and the recurrent networks in it.

    Args:
        onnx: the package.
        graph: an `onnx.GraphProto`.
        path: of the file that it comes from; None if it comes from none.
    """

    def __init__(self, onnx: types.ModuleType, graph: Any, path: pathlib.Path | None = None):
        self._onnx = onnx
        self._directory = path.parent if path else pathlib.Path()
        # The files that were read, for which other files with tensors are added.
        self._files = {path} if path else set()
        self._nodes = [node for node in graph.node if node.domain in ("", "ai.onnx")]
        self._producers = {output: node for node in self._nodes for output in node.output}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        # An input that has an initializer is a constant, unless a caller gives another value.
        self._inputs = {value.name for value in graph.input} - self._initializers.keys()

    def weights(self, nodes: Sequence[Any]) -> list[network.PseudoLayer]:
        """Returns the weights of a network, as `pseudo_layers` those of a node.

        Raises:
            ValueError: as `pseudo_layers` does, or if they are much larger than the files.
        """
        found: list[network.PseudoLayer] = []
        received = 0
        for node in nodes:
            parts = self.pseudo_layers(node)
            found += parts
            received += sum(
                tensor.nbytes for part in parts for tensor in part if tensor is not None
            )
            if self._files:
                stored = sum(map(untrusted.stored_bytes, self._files))
                untrusted.check_growth("the network's weights have", received, stored)
        return found

    def stacks(self) -> dict[str, list[Any]]:
        """Returns the networks by name, each as its layers' nodes from bottom to top."""
        stacks: dict[str, list[Any]] = {}
        for node in self._nodes:
            if node.op_type not in _MODES:
                continue
            below = self._layer_below(node)
            for stack in stacks.values():
                if stack[-1] is below and self._kind(below) == self._kind(node):
                    stack.append(node)
                    break
            else:
                output = next(filter(None, node.output), "")
                stacks[output if node.name in ("", *stacks) else node.name] = [node]
        return stacks

    def rnn_mode(self, node: Any) -> str:
        """Returns the mode that a node's activations stand for.

        Raises:
            ValueError: if there is none.
        """
        modes = _MODES[node.op_type]
        given = [name.decode().lower() for name in self._attributes(node).get("activations", ())]
        for activations, mode in modes.items():
            if not given or given == list(activations) * self._num_dirs(node):
                return mode
        raise ValueError(
            f"activations {given} of ONNX node {node.name!r} have no equivalent: expected, per "
            f"direction, {' or '.join(map(str, modes))}"
        )

    def pseudo_layers(self, node: Any) -> list[network.PseudoLayer]:
        """Returns a node's weights.

        Raises:
            ValueError: if it has no equivalent, or its weights are not constants of the shapes that
                they must have.
        """
        self._check(node)
        num_dirs = self._num_dirs(node)
        kernels, recurrent_kernels = self._weight(node, 1, "W", 3), self._weight(node, 2, "R", 3)
        units = recurrent_kernels.shape[2]
        if (given := self._attributes(node).get("hidden_size", units)) != units:
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
        if _input(node, 3):
            tensors["B"], shapes["B"] = self._weight(node, 3, "B", 2), (num_dirs, 2 * rows)
        for argument, tensor in tensors.items():
            if tensor.shape != shapes[argument]:
                raise ValueError(
                    f"expected {argument} of ONNX node {node.name!r} of shape {shapes[argument]}, "
                    f"but received {tensor.shape}"
                )
        order = _FROM_ONNX[node.op_type]
        result = []
        for direction in range(num_dirs):
            sides = [kernels[direction], recurrent_kernels[direction]]
            if "B" in tensors:
                sides += np.split(tensors["B"][direction], 2)
            result.append(network.PseudoLayer(*(reorder(side, order) for side in sides)))
        return result

    def _check(self, node: Any) -> None:
        attributes = self._attributes(node)
        expected = {"input_forget": 0}
        if node.op_type == "GRU":
            expected["linear_before_reset"] = 1
        for attribute in node.attribute:
            if attribute.name not in (*_ATTRIBUTE_TYPES, *_WITHOUT_EFFECT):
                raise ValueError(
                    f"attribute {attribute.name!r} of ONNX node {node.name!r} is not known"
                )
        for name, value in expected.items():
            if (received := attributes.get(name, 0)) != value:
                raise ValueError(
                    f"{name}={received} of ONNX node {node.name!r} has no equivalent: expected "
                    f"{value}"
                )
        direction = attributes.get("direction", b"forward").decode()
        if direction not in ("forward", "bidirectional"):
            raise ValueError(
                f"direction {direction!r} of ONNX node {node.name!r} has no equivalent: expected "
                "'forward' or 'bidirectional'"
            )
        if "clip" in attributes:
            raise ValueError(
                f"clip={attributes['clip']} of ONNX node {node.name!r}, which clips what goes into "
                "its activations, has no equivalent"
            )
        for index, name in enumerate(node.input[4:]):
            names = _OPTIONAL_INPUTS[node.op_type]
            if name:
                self._check_input(node, name, names[index] if index < len(names) else "")

    def _check_input(self, node: Any, name: str, meaning: str) -> None:
        """Checks that an optional input is what a call of the layer takes or what it does anyway.

        Raises:
            ValueError: if it is something else.
        """
        takes_input = meaning in ("sequence_lens", "initial_h", "initial_c")
        takes_zeros = meaning in ("initial_h", "initial_c", "P")
        for source in self._sources(name, is_state=takes_zeros):
            if isinstance(source, np.ndarray):
                if takes_zeros and not np.any(source):
                    continue
                source = "a constant" if not takes_zeros else "a constant that is not zero"
            elif takes_input and source in self._inputs:
                continue
            expected = ["zeros"] * takes_zeros + ["an input of the model"] * takes_input
            raise ValueError(
                f"input {meaning or 'number 6 or later'} of ONNX node {node.name!r}, {name!r}, has "
                f"no equivalent: expected {' or '.join(expected) or 'none'}, but it comes from "
                f"{source}"
            )

    def _sources(self, name: str, is_state: bool) -> Iterator[Any]:
        """Yields where a tensor's values come from, past the nodes that only move them.

        Args:
            name: the tensor's.
            is_state: whether it has numbers whose order may change, or lengths, for which it may
                not.

        Yields:
            The name of an input of the model, the values of a constant, or text for an error.
        """
        moves = _MOVES if is_state else ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
        types = DTYPES if is_state else ("int32", "int64")
        waiting, seen = [name], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            producer = self._producers.get(name)
            if name in self._initializers:
                yield self._array(self._initializers[name])
            elif producer is None:
                yield (
                    name if name in self._inputs else f"{name!r}, which nothing in the graph makes"
                )
            elif producer.op_type in ("Constant", "ConstantOfShape"):
                value = self._value(producer)
                yield f"{producer.op_type} {name!r}" if value is None else value
            elif producer.op_type in moves and (
                producer.op_type != "Cast" or self._type_of_cast(producer) in types
            ):
                waiting += producer.input if producer.op_type == "Concat" else producer.input[:1]
            else:
                yield f"{producer.op_type} {name!r}"

    def _kind(self, node: Any) -> tuple[Any, ...]:
        """Returns the attributes that all layers of a network have in common."""
        attributes = self._attributes(node)
        names = ("hidden_size", "direction", "activations", "layout")
        lengths = [value for value in node.input[4:5] if value]
        return (
            node.op_type,
            *(attributes.get(name) for name in names),
            *(str(source) for value in lengths for source in self._sources(value, False)),
        )

    def _layer_below(self, node: Any) -> Any:
        """Returns the node whose output [T, D, B, H], made [T, B, D * H], is all this one reads."""
        path: list[Any] = []
        tensor = _input(node, 0)
        for producer in self._producers_of(tensor):
            if tensor != producer.output[0]:
                return None
            if producer.op_type in _MODES:
                return producer if self._joins_directions(path, producer) else None
            if producer.op_type in ("Reshape", "Squeeze", "Transpose"):
                path.insert(0, producer)
            elif producer.op_type != "Identity" and not self._is_idle_dropout(producer):
                return None
            tensor = _input(producer, 0)
        return None

    def _is_idle_dropout(self, node: Any) -> bool:
        """Returns whether a node is dropout that does not act, as it does not in inference."""
        mode = _input(node, 2)
        acts = self._constant(mode) if mode else np.False_
        return node.op_type == "Dropout" and acts is not None and not np.any(acts)

    def _producers_of(self, tensor: str) -> Iterator[Any]:
        """Yields the node that writes a tensor, the node that writes its first input, and so on.

        Raises:
            ValueError: if these nodes form a circle, which ONNX forbids.
        """
        seen: set[str] = set()
        while tensor and (producer := self._producers.get(tensor)) is not None:
            if tensor in seen:
                raise ValueError(f"the ONNX graph has a cycle at {tensor!r}")
            seen.add(tensor)
            yield producer
            tensor = _input(producer, 0)

    def _joins_directions(self, path: Sequence[Any], layer: Any) -> bool:
        """Returns whether nodes put the directions of a layer's output side by side."""
        is_batch_major = self._attributes(layer).get("layout", 0) == 1
        kinds = [node.op_type for node in path]
        if kinds == ["Squeeze"]:
            axes = self._attributes(path[0]).get("axes", self._constant(_input(path[0], 1)))
            return axes is not None and list(axes) == [2 if is_batch_major else 1]
        if not is_batch_major and kinds == ["Transpose", "Reshape"]:
            swaps = list(self._attributes(path[0]).get("perm", ())) == [0, 2, 1, 3]
            return swaps and self._keeps_two_dimensions(path[1])
        return is_batch_major and kinds == ["Reshape"] and self._keeps_two_dimensions(path[0])

    def _keeps_two_dimensions(self, reshape: Any) -> bool:
        """Returns whether a node joins all dimensions but the first two."""
        shape = self._constant(_input(reshape, 1))
        if shape is None or self._attributes(reshape).get("allowzero", 0):
            return False
        # A number in place of -1 must be right, or the model is wrong.
        return shape.shape == (3,) and list(shape[:2]) == [0, 0]

    def _num_dirs(self, node: Any) -> int:
        return 2 if self._attributes(node).get("direction") == b"bidirectional" else 1

    def _attributes(self, node: Any) -> dict[str, Any]:
        types = self._onnx.AttributeProto
        for attribute in node.attribute:
            expected = _ATTRIBUTE_TYPES.get(attribute.name)
            if expected is not None and attribute.type != types.AttributeType.Value(expected):
                received = types.AttributeType.Name(attribute.type)
                raise ValueError(
                    f"expected attribute {attribute.name!r} of ONNX node {node.name!r} to be of "
                    f"type {expected}, but received {received}"
                )
        return {
            attribute.name: self._onnx.helper.get_attribute_value(attribute)
            for attribute in node.attribute
            if attribute.name in _ATTRIBUTE_TYPES
        }

    def _weight(self, node: Any, index: int, argument: str, rank: int) -> np.ndarray:
        weight = self._constant(_input(node, index))
        if weight is None:
            raise ValueError(
                f"{argument} of ONNX node {node.name!r} is no constant: fold the model's constants "
                "first"
            )
        if weight.ndim != rank:
            raise ValueError(
                f"expected {argument} of ONNX node {node.name!r} of rank {rank}, but received "
                f"shape {weight.shape}"
            )
        return weight

    def _constant(self, name: str) -> np.ndarray | None:
        if name in self._initializers:
            return self._array(self._initializers[name])
        for producer in self._producers_of(name):
            if producer.op_type == "Constant":
                return self._value(producer)
            if producer.op_type != "Identity":
                return None
            if _input(producer, 0) in self._initializers:
                return self._array(self._initializers[_input(producer, 0)])
        return None

    def _value(self, node: Any) -> np.ndarray | None:
        """Returns the values of a node Constant or ConstantOfShape, or None for other kinds."""
        attributes = self._attributes(node)
        if "value" in attributes:
            return self._array(attributes["value"])
        for name in ("value_float", "value_floats", "value_int", "value_ints"):
            if name in attributes:
                return np.array(attributes[name])
        return np.zeros(1) if node.op_type == "ConstantOfShape" else None

    def _type_of_cast(self, node: Any) -> str:
        try:
            return self._onnx.helper.tensor_dtype_to_np_dtype(self._attributes(node)["to"]).name
        except KeyError:  # It has none, or one that onnx does not know.
            return ""

    def _array(self, tensor: Any) -> np.ndarray:
        try:
            if self._onnx.external_data_helper.uses_external_data(tensor):
                return self._external_array(tensor)
            return self._onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx raises various types.
            raise ValueError(
                f"ONNX tensor {tensor.name!r} cannot be read: {network.reason(error)}"
            ) from error

    def _external_array(self, tensor: Any) -> np.ndarray:
        """Reads a tensor from another file, and does not keep it in the model."""
        information = self._onnx.external_data_helper.ExternalDataInfo(tensor)
        path = self._directory / information.location
        untrusted.stored_bytes(path)
        self._files |= {path} if self._files else set()
        copy = self._onnx.TensorProto()
        copy.CopyFrom(tensor)
        return self._onnx.numpy_helper.to_array(copy, str(self._directory))


def _input(node: Any, index: int) -> str:
    """Returns the name of a node's input; empty if it has none."""
    return node.input[index] if index < len(node.input) else ""
