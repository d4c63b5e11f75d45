"""Finds recurrent networks among the constants of TensorFlow 1's frozen graphs."""

import contextlib
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

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
_ARRAYS = ("TensorArrayScatterV3", "TensorArrayGatherV3")
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
    named = named_arrays.networks_in(arrays)
    for name, network in named.items():
        is_lstm = network.rnn_mode in (constants.CUDNN_LSTM, constants.LSTM_PEEPHOLE)
        if is_lstm and network.unsaid:
            said = {links.lstm(cell) for cell in network.cells}
            if len(said) == 1 and (each := said.pop()) is not None:
                network = network._replace(forget_bias=each[0], cell_clip=each[1], unsaid="")
        if not network.cell_clip and any(
            links.clips(cell["kernel"]) for cell in network.cells if "kernel" in cell
        ):
            network = network._replace(refusal="its cells clip their states")
        named[name] = network
    return networks | links.with_directions(named)


def fused_ops(nodes: Iterable[Any]) -> dict[str, list[Any]]:
    """Returns the fused ops of a graph or a function, by the names of their networks.

    Ops that read the same weights are copies of one network, whose name is without a copy's number.
    """
    by_name = {node.name: node for node in nodes}
    scopes: dict[str, dict[Any, list[Any]]] = {}
    for node in by_name.values():
        if _FUSED_OP.fullmatch(node.op):
            told = [node.attr[key].SerializeToString() for key in _OF_NETWORKS if key in node.attr]
            key = (_origin(by_name, _input(node, 3)), *told)
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


def _input(node: Any, index: int) -> str:
    """Returns an input's name, "" in a damaged graph."""
    return "".join(node.input[index : index + 1])


class _Loop(NamedTuple):
    """What is known of a loop over the steps of sequences."""

    source: str
    reads_backwards: bool
    writes_backwards: bool


class _Links:
    """Follows the edges of a graph."""

    def __init__(self, graph: Any, constants_by_name: dict[str, Constant]):
        self._constants = {each.node_name: each for each in constants_by_name.values()}
        self._nodes = {node.name: node for node in graph.node}
        self._cells: dict[Any, list[dict[str, named_arrays.Array]]] = {}
        self.bytes_read = 0
        self._readers: dict[str, list[Any]] = {}
        self._frames: dict[str, set[bytes]] = {}
        self._arrays = [node for node in graph.node if node.op in _ARRAYS]
        for node in graph.node:
            if node.op == "Enter":
                outside = _origin(self._nodes, _input(node, 0))
                self._frames.setdefault(outside, set()).add(node.attr["frame_name"].s)
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

    def lstm(self, cell: dict[str, Any]) -> tuple[float, float] | None:
        """Returns what a cell adds to its forget gate's bias, and the bound of its states, or 0.

        It is None if the graph does not say it, or the cell is another than the ops compute.
        """
        found: set[tuple[float, float] | None] = set()
        for product in self._behind(cell["kernel"].node_name):
            if "forget_bias" in product.attr:
                clip = product.attr["cell_clip"].f if "cell_clip" in product.attr else 0.0
                found.add((product.attr["forget_bias"].f, max(clip, 0.0)))
                continue
            sums = [each for each in self._behind(product.name) if each.op in _SUMS]
            splits = [each for one in sums for each in self._behind(one.name)]
            found |= {self._lstm_behind(each.name, cell) for each in splits if each.op == "Split"}
        return found.pop() if len(found) == 1 else None

    def _lstm_behind(self, split: str, cell: dict[str, Any]) -> tuple[float, float] | None:
        bias, states, passed = 0.0, [], set()
        for gate, activation in enumerate(_ACTIVATIONS):
            readers = list(self._behind(f"{split}:{gate}" if gate else split))
            while len(readers) == 1 and readers[0].op in _SUMS and readers[0].name not in passed:
                passed.add(readers[0].name)
                told = [each for each in map(self._scalar, readers[0].input) if each is not None]
                if gate == 2 and told:
                    bias += told[0]
                elif not any(self._is_peephole(name, cell) for name in readers[0].input):
                    return None
                readers = list(self._behind(readers[0].name))
            if [reader.op for reader in readers] != [activation]:
                return None
            if gate == 0:
                products = self._behind(readers[0].name)
                states = [each for product in products for each in self._behind(product.name)]
        if len(states) != 1 or (clip := self._bound_behind(states[0].name)) is None:
            return None
        if self._is_changed(states[0], cell):
            return None
        if projection := cell.get("projection/kernel"):
            outputs = self._behind(projection.node_name)
            if any(self._bound_behind(each.name) != 0 for each in outputs):
                return None
        return bias, clip

    def _is_changed(self, state: Any, cell: dict[str, Any]) -> bool:
        """Returns whether a cell changes its new c, or its h, as zoneout does."""
        low = [each for one in self._behind(state.name) for each in self._behind(one.name)]
        for bounded in (state, *(each for each in low if each.op == "Maximum")):
            for reader in self._behind(bounded.name):
                sources = [self._source(name) for name in reader.input]
                if reader.op == "Mul" and not (
                    self._is_peephole(reader.name, cell)
                    or any(source is not None and source.op == "Sigmoid" for source in sources)
                ):
                    return True
                if reader.op != _ACTIVATIONS[1]:
                    continue
                for h in self._behind(reader.name):
                    for each in self._behind(h.name):
                        is_scaled = any(self._scalar(name) is not None for name in each.input)
                        if each.op == "Mul" and is_scaled:
                            return True
        return False

    def _is_peephole(self, name: str, cell: dict[str, Any]) -> bool:
        node = self._source(name)
        vectors = {cell[part].node_name for part in named_arrays.PEEPHOLES if part in cell}
        return (
            node is not None
            and node.op == "Mul"
            and any(_origin(self._nodes, each) in vectors for each in node.input)
        )

    def _bound_behind(self, name: str) -> float | None:
        """Returns the bound of what a node puts out; 0 if there is none, None if it is unclear."""
        readers = list(self._behind(name))
        if not any(reader.op in ("Minimum", "Maximum", "ClipByValue") for reader in readers):
            return 0.0
        if [reader.op for reader in readers] == ["Minimum"]:
            bound, low = self._scalar(_input(readers[0], 1)), list(self._behind(readers[0].name))
            if bound and [each.op for each in low] == ["Maximum"]:
                return bound if self._scalar(_input(low[0], 1)) == -bound else None
        return None

    def with_directions(self, networks: dict[str, StoredNetwork]) -> dict[str, StoredNetwork]:
        """Returns networks with the directions in which the loops around their cells read.

        Two that read the same, one of them from its end, are the sides of a bidirectional network.
        """
        sides: dict[Any, tuple[list[str], list[str]]] = {}
        for name, network in networks.items():
            loops = [self._loop(cell) for cell in network.cells]
            backwards = [loop and loop.reads_backwards for loop in loops]
            if network.num_dirs == 2:
                differs = True in backwards[::2] or False in backwards[1::2]
            else:
                differs = True in backwards and not all(backwards)
                loop = loops[0] if len(loops) == 1 else None
                if loop and loop.reads_backwards == loop.writes_backwards:
                    sizes = network.input_size, network.num_units, network.output_size
                    key = (loop.source, *sizes, *network._replace(cells=[])[3:], network.kind)
                    sides.setdefault(key, ([], []))[loop.reads_backwards].append(name)
                network = network._replace(go_backwards=True in backwards)
            refusal = "its loops read in other directions than its names say" if differs else ""
            networks[name] = network._replace(refusal=refusal or network.refusal)
        for starts, ends in sides.values():
            if len(starts) == len(ends) == 1:
                start, end = networks.pop(starts[0]), networks.pop(ends[0])
                both = start._replace(cells=[*start.cells, *end.cells], num_dirs=2)
                networks[f"{starts[0]}+{ends[0]}"] = both
        return networks

    def _loop(self, cell: dict[str, Any]) -> _Loop | None:
        """Returns the loop around a cell, if there is one, over one array of sequences."""
        frames = self._frames.get(next(iter(cell.values())).node_name, set())
        arrays = [each for each in self._arrays if frames & self._frames.get(each.name, set())]
        read = [each for each in arrays if each.op == "TensorArrayScatterV3"]
        if len(frames) != 1 or len(read) != 1:
            return None
        name, axis, backwards = _origin(self._nodes, _input(read[0], 2)), 0, False
        for _ in self._nodes:
            node = self._nodes.get(name)
            if node is not None and node.op == "Transpose":
                axis = 1 - axis
            elif node is not None and self._reverses(node, axis):
                backwards = not backwards
            else:
                break
            name = _origin(self._nodes, _input(node, 0))
        written = [
            reader
            for each in self._arrays
            if frames & self._frames.get(_origin(self._nodes, _input(each, 0)), set())
            for reader in self._behind(each.name)
        ]
        turned = [
            each for one in written if one.op == "Transpose" for each in self._behind(one.name)
        ]
        writes = any(self._reverses(each, 0) for each in written)
        return _Loop(name, backwards, writes or any(self._reverses(each, 1) for each in turned))

    def _reverses(self, node: Any, axis: int) -> bool:
        """Returns whether a node reverses three-dimensional sequences along one of its axes."""
        if node.op == "ReverseV2":
            axes = self._source(_input(node, 1))
            tensor = axes.attr["value"].tensor if axes is not None else None
            is_one = tensor and [dim.size for dim in tensor.tensor_shape.dim] == [1]
            return bool(is_one) and tf.make_ndarray(tensor).item() in (axis, axis - 3)
        return node.op == "ReverseSequence" and node.attr["seq_dim"].i == axis

    def _behind(self, name: str) -> Iterator[Any]:
        """Yields what reads an output, with nothing between that changes it."""
        waiting, passed = [name], set()
        while waiting:
            for reader in self._readers.get(waiting.pop(), []):
                if reader.op not in _PASSED_ON:
                    yield reader
                elif reader.name not in passed:
                    passed.add(reader.name)
                    waiting.append(reader.name)

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
