"""Finds recurrent networks among the constants of TensorFlow 1's frozen graphs."""

import contextlib
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.contrib.network_calls import config_from
from cudnn_rnn_tf.convert import named_arrays, untrusted
from cudnn_rnn_tf.convert.named_arrays import StoredNetwork
from cudnn_rnn_tf.keras_weights import to_keras_weights
from cudnn_rnn_tf.pseudo_layers import cut_array

_PARTS = ("kernel", "recurrent_kernel", "bias")
_FUSED_OP = re.compile(r"CudnnRNN(V\d)?|CudnnRnnTf>Forward")
# The attributes of fused ops that tell networks with the same buffer apart.
_OF_NETWORKS = ("rnn_mode", "input_mode", "direction", "num_layers", "num_units")
_PASSED_ON = ("Identity", "Enter", "StopGradient", "ReadVariableOp")
# What graphs, and functions, may add to the name of a node whose first output is meant.
_FIRST_OUTPUT = re.compile(r"(:\w+)?:0$")
_SUMS = ("Add", "AddV2", "BiasAdd")
# The activations of an LSTM cell's gates i, c, f and o.
_ACTIVATIONS = ("Sigmoid", "Tanh", "Sigmoid", "Sigmoid")


class Constant:
    """A constant of a graph, which becomes an array when NumPy asks for it."""

    def __init__(self, node: Any, stored: int):
        tensor = node.attr["value"].tensor
        self.node_name = node.name
        self.shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
        self.dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
        self._tensor = tensor
        self.size = int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize
        untrusted.check_growth(f"constant {node.name!r} of", self.size, stored)

    @property
    def is_zero(self) -> bool:
        """Whether all numbers are zero, which those that the file holds tell."""
        held = {field.name: value for field, value in self._tensor.ListFields()}
        content = np.frombuffer(held.pop("tensor_content", b""), self.dtype)
        return not (content.any() or any(any(held[name]) for name in held if name.endswith("_val")))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(tf.make_ndarray(self._tensor), dtype)


def read(path: pathlib.Path) -> Any:
    """Returns the graph in a file.

    Raises:
        FileNotFoundError: if there is no regular file.
        ValueError: if it is larger than 2 GiB, or has no graph.
    """
    message, graph = untrusted.read_message(path), tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(message)
    except Exception as error:  # The class of protocol buffers' own errors depends on the version.
        raise ValueError(f"it is no frozen graph of TensorFlow's: {error}") from error
    return graph


def networks_in(path: pathlib.Path) -> dict[str, StoredNetwork]:
    """Returns the networks in a file with a frozen graph, by name.

    Of an LSTM, the graph may say what is added to the forget gate's bias, and the activations. Of
    one of TensorFlow's fused ops, there is a network if the sizes of its buffer are known, and fit.

    Raises:
        FileNotFoundError: as of `read`.
        ValueError: as of `read`, or if a constant is much larger than the file.
    """
    graph, stored = read(path), untrusted.stored_bytes(path)
    arrays = {
        # Where constants are folded, what read a variable has become the constant.
        node.name.removesuffix("/read"): Constant(node, stored)
        for node in graph.node
        if node.op == "Const" and tf.as_dtype(node.attr["value"].tensor.dtype).is_floating
    }
    links = _Links(graph, arrays)
    networks: dict[str, StoredNetwork] = {}
    for name, copies in fused_ops(graph.node).items():
        for node in copies:
            # Whatever is wrong with a node, there may be other networks.
            with contextlib.suppress(Exception):
                if found := links.network_of(node):
                    networks.setdefault(name, found)
            untrusted.check_growth("the fused ops' buffers have", links.bytes_read, stored)
    for name, network in named_arrays.networks_in(arrays).items():
        if any(links.clips(cell["kernel"]) for cell in network.cells if "kernel" in cell):
            network = network._replace(refusal="its cells clip their states")
        if network.rnn_mode == constants.CUDNN_LSTM and network.unsaid:
            biases = {links.forget_bias(cell["kernel"]) for cell in network.cells}
            if len(biases) == 1 and (bias := biases.pop()) is not None:
                network = network._replace(forget_bias=bias, unsaid="")
        networks[name] = network
    return networks


def fused_ops(nodes: Iterable[Any]) -> dict[str, list[Any]]:
    """Returns the fused ops of a graph or a function, by the names of their networks.

    Ops that read the same weights are copies of one network, whose name is without a copy's number.
    """
    by_name = {node.name: node for node in nodes}
    scopes: dict[str, dict[Any, list[Any]]] = {}
    for node in by_name.values():
        if _FUSED_OP.fullmatch(node.op):
            told = [node.attr[key].SerializeToString() for key in _OF_NETWORKS if key in node.attr]
            key = (_origin(by_name, "".join(node.input[3:4])), *told)
            scope = re.sub(r"_\d+$", "", node.name.rpartition("/")[0] or node.name)
            scopes.setdefault(scope, {}).setdefault(key, []).append(node)
    named: dict[str, list[Any]] = {}
    for scope, networks in scopes.items():
        for copies in networks.values():
            own = copies[0].name
            name = scope if len(networks) == 1 else own.rpartition("/")[0]
            named[own if name in named else name or own] = copies
    return named


def _origin(nodes: dict[str, Any], name: str) -> str:
    """Returns the output that an output is passed on from; no node has that of an argument."""
    passed: set[str] = set()
    while True:
        name = _FIRST_OUTPUT.sub("", name)
        node = nodes.get(name)
        if node is None or node.op not in _PASSED_ON or not node.input or name in passed:
            return name
        passed.add(name)
        name = node.input[0]


class _Links:
    """Follows the edges of a graph."""

    def __init__(self, graph: Any, constants_by_name: dict[str, Constant]):
        self._constants = {each.node_name: each for each in constants_by_name.values()}
        self._nodes = {node.name: node for node in graph.node}
        self._cells: dict[Any, list[dict[str, named_arrays.Array]]] = {}
        self.bytes_read = 0
        self._readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name.removesuffix(":0"), []).append(node)

    def clips(self, kernel: Any) -> bool:
        """Returns whether a cell bounds its states, by operations in its scope or by itself."""
        if not isinstance(kernel, Constant):
            return False
        root, _, path = kernel.node_name.partition("/")
        bound = f"/{path.split('/')[-2]}/clip_by_value" if "/" in path else f"{root}/clip_by_value"
        return any(bound in name for name in self._nodes if name.startswith(root)) or any(
            product.attr["cell_clip"].f > 0
            for product in self._behind(kernel.node_name)
            if "cell_clip" in product.attr
        )

    def forget_bias(self, kernel: Any) -> float | None:
        """Returns what a cell adds to its forget gate's bias.

        It is None if the graph does not say it, or the gates' activations are others than tanh and
        sigmoid.
        """
        if not isinstance(kernel, Constant):
            return None
        found = set()
        for product in self._behind(kernel.node_name):
            if "forget_bias" in product.attr:
                found.add(product.attr["forget_bias"].f)
                continue
            sums = [each for each in self._behind(product.name) if each.op in _SUMS]
            splits = [each for one in sums for each in self._behind(one.name)]
            found |= {self._bias_behind(split.name) for split in splits if split.op == "Split"}
        return found.pop() if len(found) == 1 else None

    def _bias_behind(self, split: str) -> float | None:
        bias: float | None = 0.0
        for gate, activation in enumerate(_ACTIVATIONS):
            name = f"{split}:{gate}" if gate else split
            readers = list(self._behind(name))
            if gate == 2 and len(readers) == 1 and readers[0].op in _SUMS:
                scalars = [self._scalar(each) for each in readers[0].input]
                bias = next((each for each in scalars if each is not None), None)
                readers = list(self._behind(readers[0].name))
            if [reader.op for reader in readers] != [activation]:
                return None
        return bias

    def _behind(self, name: str) -> Iterator[Any]:
        """Yields what reads an output, with nothing between that changes it."""
        for reader in self._readers.get(name, []):
            if reader.op in _PASSED_ON:
                yield from self._behind(reader.name)
            else:
                yield reader

    def network_of(self, node: Any) -> StoredNetwork | None:
        """Returns the network of one of TensorFlow's fused ops, whose buffer is a constant."""
        inputs, h, c, params = (self._source(name) for name in node.input[:4])
        buffer = self._constants.get(params.name if params is not None else "")
        if node.op.startswith("CudnnRnnTf>") or buffer is None or len(buffer.shape) != 1:
            return None
        texts = {key: value.s.decode() for key, value in node.attr.items()}
        mode = texts.get("rnn_mode", constants.CUDNN_LSTM)
        states = (h, c) if mode == constants.CUDNN_LSTM else (h,)
        config_of = config_from(
            mode,
            "time_major" not in node.attr or node.attr["time_major"].b,
            texts.get("input_mode", constants.CUDNN_INPUT_LINEAR_MODE),
            texts.get("direction", constants.CUDNN_RNN_UNIDIRECTION),
            dropout=0.0,
        )
        shapes = [self._shape(each) for each in (inputs, *states)]
        specs = list(map(tf.TensorSpec, (*shapes, buffer.shape)))
        config = config_of(specs[0], specs[1:-1], specs[-1])
        is_plain = config.input_mode == constants.CUDNN_INPUT_LINEAR_MODE and not config.num_proj
        if not is_plain or buffer.shape != (config.layout.size,):
            return None
        is_zero = all(self._is_zero(each) for each in states)
        refusal = "" if is_zero else "it starts from states that are not zero"
        cells = self._cells_of(config, buffer)
        return StoredNetwork(node.op, mode, cells, config.layout.num_dirs, refusal=refusal)

    def _cells_of(self, config: RnnConfig, buffer: Constant) -> list[dict[str, named_arrays.Array]]:
        """Returns the arrays in a buffer, which any number of ops may share."""
        key = (buffer.node_name, config)
        if key not in self._cells:
            self.bytes_read += buffer.size
            self._cells[key] = [
                dict(zip(_PARTS, to_keras_weights(config.rnn_mode, layer), strict=True))
                for layer in cut_array(config, np.asarray(buffer))
            ]
        return self._cells[key]

    def _shape(self, node: Any) -> tf.TensorShape:
        """Returns the shape of what a node puts out, as far as the graph says it."""
        if node is not None and node.op == "Const":
            return tf.TensorShape(node.attr["value"].tensor.tensor_shape)
        if node is not None and node.op == "Placeholder":
            return tf.TensorShape(node.attr["shape"].shape)
        if node is not None and node.op == "Fill":
            sizes = self._source(node.input[0])
            if sizes is not None and sizes.op == "Const" and self._shape(sizes) == [3]:
                return tf.TensorShape(tf.make_ndarray(sizes.attr["value"].tensor))
            if sizes is not None and sizes.op == "Pack":
                told = map(self._scalar, sizes.input)
                return tf.TensorShape([None if size is None else int(size) for size in told])
        return tf.TensorShape(None)

    def _is_zero(self, node: Any) -> bool:
        """Returns whether what a node puts out is zero, or not in the graph."""
        if node.op == "Fill":
            return not self._scalar(node.input[1])
        return node.name not in self._constants or self._constants[node.name].is_zero

    def _scalar(self, name: str) -> float | None:
        node = self._source(name)
        if node is None or node.op != "Const" or node.attr["value"].tensor.tensor_shape.dim:
            return None
        return float(tf.make_ndarray(node.attr["value"].tensor))

    def _source(self, name: str) -> Any:
        """Returns the node that an output comes from; None if none, or several, change nothing."""
        return self._nodes.get(_origin(self._nodes, name))
