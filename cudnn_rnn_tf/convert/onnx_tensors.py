"""Reads the tensors of an ONNX model, and computes those that other constants are computed into."""

import importlib
import math
import pathlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cudnn_rnn_tf import messages
from cudnn_rnn_tf.convert import untrusted

# The operators of which constants are computed: whatever exporters lead weights through. None of
# them draws numbers, runs other graphs, or needs much more memory than its inputs and outputs.
_COMPUTED = (
    *("Add", "Cast", "CastLike", "Concat", "ConstantOfShape", "DequantizeLinear", "Div", "Equal"),
    *("Expand", "Flatten", "Gather", "Identity", "MatMul", "Mul", "Neg", "Not", "Pad", "Range"),
    *("ReduceSum", "Reshape", "Shape", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile"),
    *("Transpose", "Unsqueeze", "Where"),
)
# Arrays of at most this many elements are shown to ONNX's shape inference: they may be shapes.
_LARGEST_SHAPE = 1024
_MOST_NODES = 1000


class Source:
    """A model, and the files with tensors beside it.

    Args:
        onnx: the package.
        model: an `onnx.ModelProto`.
        path: of the file that it comes from; None if it comes from none.
    """

    def __init__(self, onnx: types.ModuleType, model: Any, path: pathlib.Path | None = None):
        self.onnx = onnx
        self._model = model
        self._directory = path.parent if path else pathlib.Path()
        self._stored = untrusted.stored_bytes(path) if path else model.ByteSize()
        self._files: set[pathlib.Path] = set()

    @property
    def functions(self) -> Sequence[Any]:
        """The functions of the model's own, each an `onnx.FunctionProto`."""
        return self._model.functions

    def check_growth(self, what: str, received: int) -> None:
        """Raises ValueError if something has many more bytes than the model and its files."""
        stored = self._stored + sum(map(untrusted.stored_bytes, self._files))
        untrusted.check_growth(what, received, stored)

    def array(self, tensor: Any) -> np.ndarray:
        """Returns the values of a tensor, from another file if they are there.

        Raises:
            ValueError: if it cannot be read.
        """
        try:
            if self.onnx.external_data_helper.uses_external_data(tensor):
                return self._external_array(tensor)
            return self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx raises various types.
            raise ValueError(
                f"ONNX tensor {tensor.name!r} cannot be read: {messages.reason(error)}"
            ) from error

    def _external_array(self, tensor: Any) -> np.ndarray:
        """Reads a tensor from another file, and does not keep it in the model."""
        information = self.onnx.external_data_helper.ExternalDataInfo(tensor)
        path = self._directory / information.location
        untrusted.stored_bytes(path)
        self._files.add(path)
        copy = self.onnx.TensorProto()
        copy.CopyFrom(tensor)
        return self.onnx.numpy_helper.to_array(copy, str(self._directory))

    def compute(self, node: Any, inputs: Mapping[str, np.ndarray], held: int) -> list[np.ndarray]:
        """Returns the outputs of a node as ONNX's reference implementation computes them.

        The node's operator is one of those of which constants are computed. `inputs` are its values
        by name, and `held` how many bytes the caller holds already.

        Raises:
            ValueError: if it cannot be computed, or its outputs are far larger than the model.
        """
        helper = self.onnx.helper
        try:
            values = [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in inputs.items()
            ]
            known = [
                self.onnx.numpy_helper.from_array(array, name)
                for name, array in inputs.items()
                if array.size <= _LARGEST_SHAPE
            ]
            outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
            model = helper.make_model(
                helper.make_graph([node], "constant", values, outputs, known),
                opset_imports=[helper.make_opsetid("", self._version_for(node))],
                ir_version=max(self._model.ir_version, 4),
            )
            # The size is known before the memory is taken.
            inferred = self.onnx.shape_inference.infer_shapes(
                model, strict_mode=True, data_prop=True
            )
            size = sum(map(self._bytes_of, inferred.graph.output))
            self.check_growth(f"constants such as {node.output[0]!r} have", held + size)
            # The package's own import has not this module in it, and is quicker for that.
            reference = importlib.import_module("onnx.reference")
            results = reference.ReferenceEvaluator(model).run(None, dict(inputs))
        except Exception as error:  # onnx raises various types.
            raise ValueError(
                f"ONNX tensor {next(iter(node.output), '')!r} cannot be computed: "
                f"{messages.reason(error)}"
            ) from error
        return [np.asarray(result) for result in results]

    def _version_for(self, node: Any) -> int:
        """Returns the version of ONNX's operators by which a node is computed."""
        versions = [
            each.version for each in self._model.opset_import if each.domain in ("", "ai.onnx")
        ]
        version = max(versions, default=1)
        # Of this operator, there is no older implementation, and it was only extended.
        return max(version, 19) if node.op_type == "DequantizeLinear" else version

    def _bytes_of(self, value: Any) -> int:
        kind = value.type.tensor_type
        item = self.onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        is_known = kind.HasField("shape") and all(
            dimension.HasField("dim_value") for dimension in kind.shape.dim
        )
        if item.hasobject or not is_known:
            raise ValueError(f"the size of {value.name!r} cannot be told beforehand")
        return item.itemsize * math.prod(dimension.dim_value for dimension in kind.shape.dim)


class Scope:
    """The tensors of a graph, and of the graphs that it is a branch of.

    Args:
        source: the model.
        graph: an `onnx.GraphProto`.
        outer: the graph that it is a branch of; None for the model's own.
    """

    def __init__(self, source: Source, graph: Any, outer: "Scope | None" = None):
        self.source = source
        self.nodes = list(graph.node)
        self._outer = outer
        self._producers = {output: node for node in self.nodes for output in node.output if output}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        # An input that has an initializer is a constant, unless a caller gives another value.
        self._inputs = {value.name for value in graph.input} - self._initializers.keys()
        self._types = {value.name: value.type for value in (*graph.input, *graph.value_info)}
        self._outputs = [value.name for value in graph.output]
        self._branches: dict[str, list[Scope]] = {}

    def owner(self, name: str) -> "Scope | None":
        """Returns the innermost scope that has a tensor; None if none has it."""
        scope: Scope | None = self
        while scope is not None and not (
            name in scope._initializers or name in scope._producers or name in scope._inputs
        ):
            scope = scope._outer
        return scope

    def is_input(self, name: str) -> bool:
        """Returns whether a tensor is an input of the graph that it belongs to."""
        owner = self.owner(name)
        return owner is not None and name in owner._inputs

    def producer(self, name: str) -> Any:
        """Returns the node of this graph that writes a tensor; None if there is none."""
        return None if name in self._initializers else self._producers.get(name)

    def producers(self, name: str) -> Iterator[Any]:
        """Yields the node that writes a tensor, the node that writes its first input, and so on.

        Raises:
            ValueError: if these nodes form a circle, which ONNX forbids.
        """
        seen: set[str] = set()
        while name and (producer := self._producers.get(name)) is not None:
            if name in seen:
                raise _cycle(name)
            seen.add(name)
            yield producer
            name = input_of(producer, 0)

    def alternatives(self, node: Any, name: str) -> list["tuple[Scope, str]"]:
        """Returns the tensors of which a named output of a node If of this graph is one.

        Returns:
            For each branch that may run, its scope and the tensor's name there. If the condition is
            a constant, there is one.

        Raises:
            ValueError: if the condition cannot be computed.
        """
        key = node.output[0]
        if key not in self._branches:
            condition = self.constant(input_of(node, 0))
            self._branches[key] = [
                Scope(self.source, graph, self)
                for branch, graph in subgraphs(self.source.onnx, node)
                if condition is None or np.all(condition) == (branch == "then_branch")
            ]
        index = list(node.output).index(name)
        return [
            (scope, scope._outputs[index])
            for scope in self._branches[key]
            if index < len(scope._outputs)
        ]

    def constant(self, name: str, size_of: Callable[[str], int] | None = None) -> np.ndarray | None:
        """Returns the value of a tensor that depends on constants alone; None for any other.

        Args:
            name: the tensor's.
            size_of: the size of a dimension that the model leaves open, given the dimension's name,
                for tensors that depend on the shapes of others as well.

        Raises:
            ValueError: if it cannot be read or computed, or is far larger than the model.
        """
        values: dict[tuple[int, str], np.ndarray] = {}
        entered: set[tuple[int, str]] = set()
        waiting: list[tuple[Scope, str]] = [(self, name)]
        held = 0
        while waiting:
            scope, wanted = waiting[-1]
            owner = scope.owner(wanted)
            if owner is None:
                return None
            key = (id(owner), wanted)
            if key not in values:
                node = owner.producer(wanted)
                if wanted in owner._initializers:
                    values[key] = self.source.array(owner._initializers[wanted])
                elif node is None:
                    return None
                elif operator(node) == "Constant":
                    value = owner.value(node)
                    if value is None:
                        return None
                    values[key] = value
                elif size_of and (shape := owner._shape(node, size_of)) is not None:
                    values[key] = shape
                elif operator(node) != "If" and operator(node) not in _COMPUTED:
                    return None
                else:
                    is_choice = operator(node) == "If"
                    needed = (
                        owner.alternatives(node, wanted)
                        if is_choice
                        else [(owner, each) for each in node.input if each]
                    )
                    keys = [of_scope._key(each) for of_scope, each in needed]
                    missing = [
                        each for each, at in zip(needed, keys, strict=True) if at not in values
                    ]
                    if missing:
                        if key in entered:
                            raise _cycle(wanted)
                        entered.add(key)
                        if len(entered) > _MOST_NODES:
                            raise ValueError(
                                f"ONNX tensor {name!r} is computed by more than {_MOST_NODES} nodes"
                            )
                        waiting += missing
                        continue
                    if is_choice:
                        arrays = [values[at] for at in keys]
                        if not arrays or not all(np.array_equal(arrays[0], a) for a in arrays):
                            return None
                        values[key] = arrays[0]
                    else:
                        found = {
                            each: values[at] for (_, each), at in zip(needed, keys, strict=True)
                        }
                        results = self.source.compute(node, found, held)
                        named = zip(node.output, results, strict=True)
                        values |= {(id(owner), each): array for each, array in named}
                held += values[key].nbytes
            waiting.pop()
        return values[self._key(name)]

    def _key(self, name: str) -> tuple[int, str]:
        return id(self.owner(name)), name

    def _shape(self, node: Any, size_of: Callable[[str], int]) -> np.ndarray | None:
        """Returns what a node Shape of this graph gives; None for others and unknown shapes."""
        name = input_of(node, 0)
        owner = self.owner(name)
        kind = owner._types.get(name) if owner is not None else None
        if operator(node) != "Shape" or kind is None or not kind.tensor_type.HasField("shape"):
            return None
        sizes = [
            each.dim_value
            if each.HasField("dim_value")
            else size_of(each.dim_param or f"{name}, {axis}")
            for axis, each in enumerate(kind.tensor_type.shape.dim)
        ]
        attributes = self.attributes(node)
        return np.array(sizes, np.int64)[attributes.get("start") : attributes.get("end")]

    def value(self, node: Any) -> np.ndarray | None:
        """Returns the values of a node Constant or ConstantOfShape, or None for other kinds."""
        attributes = self.attributes(node)
        if "value" in attributes:
            return self.source.array(attributes["value"])
        for name in ("value_float", "value_floats", "value_int", "value_ints"):
            if name in attributes:
                kind = np.float32 if "float" in name else np.int64
                return np.array(attributes[name], kind)
        return np.zeros(1, np.float32) if node.op_type == "ConstantOfShape" else None

    def attributes(self, node: Any) -> dict[str, Any]:
        """Returns those attributes of a node that this package reads.

        Raises:
            ValueError: if one is of another type than ONNX's operators have.
        """
        types = self.source.onnx.AttributeProto
        for attribute in node.attribute:
            expected = ATTRIBUTE_TYPES.get(attribute.name)
            if expected is not None and attribute.type != types.AttributeType.Value(expected):
                received = types.AttributeType.Name(attribute.type)
                raise ValueError(
                    f"expected attribute {attribute.name!r} of ONNX node {node.name!r} to be of "
                    f"type {expected}, but received {received}"
                )
        return {
            attribute.name: self.source.onnx.helper.get_attribute_value(attribute)
            for attribute in node.attribute
            if attribute.name in ATTRIBUTE_TYPES
        }


# The attributes that are read, with ONNX's names for their types.
ATTRIBUTE_TYPES = {
    "activations": "STRINGS",
    "allowzero": "INT",
    "axes": "INTS",
    "clip": "FLOAT",
    "direction": "STRING",
    "end": "INT",
    "hidden_size": "INT",
    "input_forget": "INT",
    "layout": "INT",
    "linear_before_reset": "INT",
    "perm": "INTS",
    "start": "INT",
    "to": "INT",
    "value": "TENSOR",
    "value_float": "FLOAT",
    "value_floats": "FLOATS",
    "value_int": "INT",
    "value_ints": "INTS",
}


def operator(node: Any) -> str:
    """Returns a node's operator, with its domain before it where that is not ONNX's own."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}.{node.op_type}" if domain else node.op_type


def input_of(node: Any, index: int) -> str:
    """Returns the name of a node's input; empty if it has none."""
    return node.input[index] if index < len(node.input) else ""


def subgraphs(onnx: types.ModuleType, node: Any) -> Sequence[tuple[str, Any]]:
    """Returns the graphs among a node's attributes, each with the attribute's name."""
    found: list[tuple[str, Any]] = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found.append((attribute.name, attribute.g))
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            found += [(f"{attribute.name}_{i}", graph) for i, graph in enumerate(attribute.graphs)]
    return found


def _cycle(name: str) -> ValueError:
    return ValueError(f"the ONNX graph has a cycle at {name!r}")
