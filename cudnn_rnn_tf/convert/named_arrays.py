"""Finds recurrent networks among named arrays, in files that hold weights alone.

Such are Keras's files of weights, TensorFlow's checkpoints and the variables of SavedModels. Keras
has a kernel [fan_in, G * H], a recurrent kernel [H, G * H] and a bias; the cells of TensorFlow 1
have one kernel [fan_in + P, G * H] for both sides.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.convert import keras_arrays, network
from cudnn_rnn_tf.keras_weights import from_keras_weights
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN
from cudnn_rnn_tf.pseudo_layers import LSTM_OF_TENSORFLOW_1, PseudoLayer, reorder


class Array(Protocol):
    """An array that is read when NumPy asks for it."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


_GATES = {4: "lstm", 3: "gru", 1: "rnn"}
_TENSORFLOW_1_CELLS = {
    "basic_lstm_cell": ("lstm", 1.0),
    "lstm_cell": ("lstm", 1.0),
    "lstm_fused_cell": ("lstm", 1.0),
    "lstm_block_fused_cell": ("lstm", 1.0),
    "layer_norm_basic_lstm_cell": ("lstm", 1.0),
    "basic_rnn_cell": ("rnn", 0.0),
    "gru_cell": (constants.GRU_RESET_BEFORE, 0.0),
    "GRUBlockCell": (constants.GRU_RESET_BEFORE, 0.0),
    "GRUBlockCellV2": (constants.GRU_RESET_BEFORE, 0.0),
}
# TensorFlow 1.0 and 1.1 had other names, and the cell of contrib's kernels has its own.
_OLD_NAMES = {
    "weights": "kernel",
    "biases": "bias",
    "w_ru": "gates/kernel",
    "b_ru": "gates/bias",
    "w_c": "candidate/kernel",
    "b_c": "candidate/bias",
}
_PARTS_OF_CELLS = re.compile(
    r"kernel|recurrent_kernel|bias|weights|biases|projection/kernel|w_[fio]_diag|[wb]_ru|[wb]_c"
    r"|(?:gates|candidate)/(?:kernel|bias|weights|biases)"
    r"|(?:input|forget|transform|output|state)/(?:gamma|beta)"
)
PEEPHOLES = ("w_i_diag", "w_f_diag", "w_o_diag")
_NORMS = [
    f"{gate}/{part}"
    for gate in ("input", "forget", "transform", "output", "state")
    for part in ("gamma", "beta")
]
# The vectors that LSTMs of these modes have, in the buffer's order.
_VECTORS = {constants.LSTM_PEEPHOLE: PEEPHOLES, constants.LSTM_LAYER_NORM: _NORMS}
_CELL_OF_KERAS = re.compile(r"cell|(lstm|gru|simple_rnn)_cell(_\d+)?")
_DIRECTIONS = (re.compile(r"forward_.*|fw"), re.compile(r"backward_.*|bw"))
_SAVED_CELL = re.compile(r"(.*cell)/vars/([012])")
_SAVED_PARTS = ("kernel", "recurrent_kernel", "bias")


class StoredNetwork(NamedTuple):
    """A network of which a file has the arrays alone.

    Attributes:
        kind: the class that wrote it.
        rnn_mode: "lstm", "lstm_peephole", "lstm_layer_norm", "gru", "gru_reset_before", "rnn".
        cells: the arrays of each pseudo-layer, by name.
        num_dirs: 1 or 2.
        forget_bias: what an LSTM adds to its forget gate's bias.
        unsaid: what the file leaves open; "" if nothing.
        refusal: why the ops cannot run it; "" if they can.
        cell_clip: the bound of an LSTM's cell states; 0 for none.
        go_backwards: whether it reads sequences from their ends.
    """

    kind: str
    rnn_mode: str
    cells: list[dict[str, Array]]
    num_dirs: int = 1
    forget_bias: float = 0.0
    unsaid: str = ""
    refusal: str = ""
    cell_clip: float = 0.0
    go_backwards: bool = False

    @property
    def num_units(self) -> int:
        cell, gates = self.cells[0], _num_gates(self.rnn_mode)
        if "recurrent_kernel" in cell:
            return cell["recurrent_kernel"].shape[0]
        if "candidate/kernel" in cell:
            return cell["candidate/kernel"].shape[1]
        return cell["kernel"].shape[1] // gates

    @property
    def input_size(self) -> int:
        cell = self.cells[0]
        if "recurrent_kernel" in cell:
            return cell["kernel"].shape[0]
        joined = cell["gates/kernel"] if "gates/kernel" in cell else cell["kernel"]
        return joined.shape[0] - self.output_size

    @property
    def output_size(self) -> int:
        projection = self.cells[0].get("projection/kernel")
        return self.num_units if projection is None else projection.shape[1]

    @property
    def dtype(self) -> str:
        return np.dtype(next(iter(self.cells[0].values())).dtype).name

    @property
    def not_converted(self) -> str:
        """Why `convert` does not take it, or not unless it is told more; "" if it does."""
        return self.refusal or self.unsaid

    def layer(self, rnn_mode: str | None, **options: Any) -> CudnnRNN:
        """Returns a built layer with the same weights.

        Args:
            rnn_mode: says what the file leaves open.
            **options: to the layer's constructor.
        """
        if self.refusal:
            raise ValueError(self.refusal)
        if rnn_mode is None and self.unsaid:
            raise ValueError(self.unsaid)
        mode = rnn_mode or self.rnn_mode
        if mode not in self._modes:
            raise ValueError(f"the arrays are those of {self.rnn_mode}, but rnn_mode is {mode!r}")
        parts = [self._pseudo_layer(cell, mode) for cell in self.cells]
        if self.cell_clip:
            options.setdefault("cell_clip", self.cell_clip)
        if self.go_backwards:
            options.setdefault("go_backwards", True)
        return network.make_layer(mode, parts, self.num_dirs, options)

    @property
    def _modes(self) -> tuple[str, ...]:
        """The modes that the arrays may be of."""
        if self.rnn_mode == "rnn":
            return constants.CUDNN_RNN_TANH, constants.CUDNN_RNN_RELU
        # Only the bias tells Keras's two kinds of GRUs apart.
        if self.kind == "GRU" and "bias" not in self.cells[0]:
            return constants.CUDNN_GRU, constants.GRU_RESET_BEFORE
        return (self.rnn_mode,)

    def _pseudo_layer(self, cell: dict[str, Array], mode: str) -> PseudoLayer:
        arrays = {name: np.asarray(array) for name, array in cell.items()}
        if "recurrent_kernel" in arrays:
            weights = [arrays[name] for name in _SAVED_PARTS if name in arrays]
            weights = keras_arrays.of_today(weights, _num_gates(mode))
            tensors = from_keras_weights(mode, *weights)
            return PseudoLayer(*(None if each is None else each.numpy() for each in tensors))
        width = self.output_size
        if mode == constants.GRU_RESET_BEFORE:
            # The gates are r, z and the candidate here as well.
            parts = [("gates/kernel", "candidate/kernel"), ("gates/bias", "candidate/bias")]
            arrays |= {
                name: np.concatenate([arrays[part] for part in each], axis=-1)
                for name, each in zip(("kernel", "bias"), parts, strict=True)
                if each[0] in arrays
            }
        rows = arrays["kernel"].T
        bias, projection = arrays.get("bias"), arrays.get("projection/kernel")
        if mode == constants.LSTM_LAYER_NORM:
            beta = arrays["forget/beta"]
            arrays["forget/beta"] = beta + np.asarray(self.forget_bias, beta.dtype)
        vectors = np.stack([arrays[name] for name in _VECTORS[mode]]) if mode in _VECTORS else None
        if mode == constants.CUDNN_LSTM or mode in _VECTORS:
            rows = reorder(rows, LSTM_OF_TENSORFLOW_1)
            if bias is not None:
                bias = reorder(bias, LSTM_OF_TENSORFLOW_1)
                gate = slice(self.num_units, 2 * self.num_units)
                bias[gate] += np.asarray(self.forget_bias, bias.dtype)
        return PseudoLayer(
            rows[:, :-width],
            rows[:, -width:],
            bias,
            projection=None if projection is None else projection.T,
            vectors=vectors,
        )


def networks_in(arrays: Mapping[str, Array]) -> dict[str, StoredNetwork]:
    """Returns the networks among arrays, by name."""
    cells: dict[str, dict[str, Array]] = {}
    for key, array in arrays.items():
        if found := _cell_and_part(key):
            cells.setdefault(found[0], {})[found[1]] = array
    single = {name: stored for name, cell in cells.items() if (stored := _of_cell(name, cell))}
    return dict(_grouped(single))


def _cell_and_part(key: str) -> tuple[str, str] | None:
    """Returns the name of the cell that an array belongs to, and what it is in it."""
    name = re.sub(r"/\.ATTRIBUTES/VARIABLE_VALUE$|:0$", "", key)
    if saved := _SAVED_CELL.fullmatch(name):
        return saved[1], _SAVED_PARTS[int(saved[2])]
    for depth in (2, 1):
        parts = name.rsplit("/", depth)
        part = "/".join(parts[1:])
        if len(parts) > depth and _PARTS_OF_CELLS.fullmatch(part):
            *scope, last = part.split("/")
            return parts[0], "/".join([*scope, _OLD_NAMES.get(last, last)])
    return None


def _of_cell(name: str, cell: dict[str, Array]) -> StoredNetwork | None:
    if "recurrent_kernel" in cell and "kernel" in cell:
        return _of_keras_cell(cell)
    last = re.sub(r"_\d+$", "", name.rpartition("/")[2])
    if last not in _TENSORFLOW_1_CELLS:
        return None
    rnn_mode, forget_bias = _TENSORFLOW_1_CELLS[last]
    kind = f"TensorFlow 1's {last}"
    stored = StoredNetwork(kind, rnn_mode, [cell], forget_bias=forget_bias)
    if rnn_mode == constants.GRU_RESET_BEFORE:
        is_whole = {"gates/kernel", "candidate/kernel"} <= cell.keys()
        return stored._replace(unsaid=_unsaid(rnn_mode, "")) if is_whole else None
    if "kernel" not in cell or len(cell["kernel"].shape) != 2:
        return None
    for mode, vectors in _VECTORS.items():
        if any(part in cell for part in vectors):
            if any(part not in cell for part in vectors):
                return None
            rnn_mode = mode
            stored = stored._replace(rnn_mode=rnn_mode)
    bias = ", and of 1 that is added to the forget gate's bias" if forget_bias else ""
    return stored._replace(unsaid=_unsaid(rnn_mode, bias))


def _of_keras_cell(cell: dict[str, Array]) -> StoredNetwork | None:
    shapes = [tuple(cell[part].shape) for part in _SAVED_PARTS if part in cell]
    if any(len(shape) != 2 for shape in shapes[:2]) or shapes[0][1] != shapes[1][1]:
        return None
    units, columns = shapes[1]
    rnn_mode = _GATES.get(columns // units if units and columns % units == 0 else 0)
    if rnn_mode is None:
        return None
    if rnn_mode != "rnn" and keras_arrays.is_of_cudnn(shapes, columns // units):
        return StoredNetwork(f"CuDNN{rnn_mode.upper()}", rnn_mode, [cell])
    kind = {"lstm": "LSTM", "gru": "GRU", "rnn": "SimpleRNN"}[rnn_mode]
    condition = " (before Keras 2.3, the default was hard_sigmoid)"
    if rnn_mode == constants.CUDNN_GRU:
        if len(shapes) == 2:
            other = f"; {constants.GRU_RESET_BEFORE!r} if reset_after is False"
            condition = f" with reset_after=True{condition}{other}"
        elif shapes[2] == (columns,):
            rnn_mode = constants.GRU_RESET_BEFORE
    return StoredNetwork(kind, rnn_mode, [cell], unsaid=_unsaid(rnn_mode, condition))


def _unsaid(rnn_mode: str, condition: str) -> str:
    if rnn_mode == "rnn":
        return "weights alone do not say the activation: pass rnn_mode 'rnn_tanh' or 'rnn_relu'"
    return (
        f"weights alone do not say the activations: pass rnn_mode {rnn_mode!r} for tanh and "
        f"sigmoid{condition}"
    )


def _grouped(cells: Mapping[str, StoredNetwork]) -> Iterator[tuple[str, StoredNetwork]]:
    """Yields networks of the two directions, and of the layers of TensorFlow 1, by name."""
    groups: dict[str, dict[tuple[int, int], StoredNetwork]] = {}
    names: dict[str, list[str]] = {}
    for full, stored in cells.items():
        name, place = _place(full)
        groups.setdefault(name, {})[place] = stored
        names.setdefault(name, []).append(full)
    for name, group in groups.items():
        merged = _merged([group[place] for place in sorted(group)], sorted(group))
        if merged and len(group) == len(names[name]):
            yield name, merged
        else:
            yield from ((full, cells[full]) for full in names[name])


def _place(full: str) -> tuple[str, tuple[int, int]]:
    """Returns the name of the network that a cell is in, and the cell's layer and direction."""
    # Keras 2 repeats the names of layers.
    parts = [part for part, _ in itertools.groupby(full.split("/"))]
    if len(parts) > 1 and (
        _CELL_OF_KERAS.fullmatch(parts[-1])
        or re.sub(r"_\d+$", "", parts[-1]) in _TENSORFLOW_1_CELLS
    ):
        parts.pop()
    layer = direction = 0
    numbers = [index for index, part in enumerate(parts) if re.fullmatch(r"cell_\d+", part)]
    sides = [
        (index, side)
        for index, part in enumerate(parts)
        for side, pattern in enumerate(_DIRECTIONS)
        if pattern.fullmatch(part)
    ]
    drop = set(numbers[-1:])
    if numbers:
        layer = int(parts[numbers[-1]].rpartition("_")[2])
    # A cell of several layers in one direction is a network of its own.
    if sides and not (numbers and numbers[-1] > sides[-1][0]):
        direction = sides[-1][1]
        drop.add(sides[-1][0])
    return "/".join(part for index, part in enumerate(parts) if index not in drop) or full, (
        layer,
        direction,
    )


def _merged(
    parts: Sequence[StoredNetwork], places: Sequence[tuple[int, int]]
) -> StoredNetwork | None:
    """Returns the network of several cells; None if they do not fit together."""
    first = parts[0]
    num_dirs = 1 + max(direction for _, direction in places)
    num_layers = len(parts) // num_dirs
    if list(places) != [(i, d) for i in range(num_layers) for d in range(num_dirs)]:
        return None
    for (layer, _), part in zip(places, parts, strict=True):
        fan_in = num_dirs * first.output_size if layer else first.input_size
        if part._replace(cells=[]) != first._replace(cells=[]) or (
            part.num_units,
            part.output_size,
            part.input_size,
        ) != (first.num_units, first.output_size, fan_in):
            return None
    return first._replace(cells=[part.cells[0] for part in parts], num_dirs=num_dirs)


def _num_gates(rnn_mode: str) -> int:
    return network.NUM_GATES.get(rnn_mode, 1)
