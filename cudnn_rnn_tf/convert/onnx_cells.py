"""Finds recurrent cells that an ONNX graph has as single operators: products, gates and sums.

PyTorch's exporters write `LSTMCell` and `GRUCell` so. The node that makes the new hidden state
stands for the cell. The nodes before it are compared with the cell's formula.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudnn_rnn_tf import constants, messages
from cudnn_rnn_tf.convert import network
from cudnn_rnn_tf.convert.onnx_tensors import Scope, input_of, operator
from cudnn_rnn_tf.pseudo_layers import reorder

# Formulas of operators, in which a word stands for any tensor, and for the same wherever it is.
_LSTM = (
    "Mul",
    ("Sigmoid", "o"),
    (
        "Tanh",
        ("Add", ("Mul", ("Sigmoid", "f"), "c"), ("Mul", ("Sigmoid", "i"), ("Tanh", "g"))),
    ),
)
_GRU = ("Add", ("Mul", ("Sub", "h", "n"), ("Sigmoid", ("Add", "z_x", "z_h"))), "n")
_GRU_CANDIDATE = ("Tanh", ("Add", "n_x", ("Mul", "n_h", ("Sigmoid", ("Add", "r_x", "r_h")))))


class _Product(NamedTuple):
    """A product of a tensor with a constant matrix [rows, columns], to which a bias is added."""

    source: str
    name: str
    matrix: np.ndarray
    bias: np.ndarray | None


class Cell:
    """A recurrent cell, which is one step of a network of one layer.

    Args:
        rnn_mode: its mode.
        products: those of the inputs and of the hidden state.
        order: for each gate in cuDNN's order, its place in the products.
        refusal: why it is not known which product is the state's; empty if it is known.
    """

    form = "ONNX, as single operators"
    direction = "forward"
    num_layers = 1

    def __init__(
        self, rnn_mode: str, products: Sequence[_Product], order: Sequence[int], refusal: str = ""
    ):
        self.rnn_mode = rnn_mode
        self._products = products
        self._order = order
        self._refusal = refusal

    @property
    def kind(self) -> str:
        """ONNX's operator for a network of such cells: LSTM or GRU."""
        return self.rnn_mode.upper()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights."""
        return tuple(sorted(product.name for product in self._products))

    def weights(self) -> list[network.PseudoLayer]:
        """Returns the weights.

        Raises:
            ValueError: if it is not known which of them are the state's.
        """
        if self._refusal:
            raise ValueError(self._refusal)
        of_inputs, of_state = self._products
        tensors = (of_inputs.matrix, of_state.matrix, of_inputs.bias, of_state.bias)
        parts = (None if tensor is None else reorder(tensor, self._order) for tensor in tensors)
        return [network.PseudoLayer(*parts)]

    def initial_states(self) -> None:
        """Returns None, since each step is given its states."""


def cells_in(scope: Scope) -> Iterator[tuple[Any, Cell]]:
    """Yields the cells of a graph, one for each set of weights, with the nodes of their states."""
    seen: set[tuple[str, ...]] = set()
    for node in scope.nodes:
        try:
            cell = _lstm(scope, node) or _gru(scope, node)
        except ValueError as error:  # A weight cannot be read or computed.
            mode = constants.CUDNN_LSTM if node.op_type == _LSTM[0] else constants.CUDNN_GRU
            yield node, Cell(mode, (), (), messages.reason(error))
            continue
        # A loop that is written out has a cell for each step.
        if cell and cell.names not in seen:
            seen.add(cell.names)
            yield node, cell


def _lstm(scope: Scope, node: Any) -> Cell | None:
    for found in _matches(scope, _LSTM, next(iter(node.output), ""), {}):
        parts = [_part(scope, found[gate], 4) for gate in "ifgo"]
        splits = {part[0] for part in parts if part}
        if None in parts or len(splits) != 1:
            continue
        for sides in _matches(scope, ("Add", "a", "b"), splits.pop(), {}):
            both = [_product(scope, sides[side], 4) for side in "ab"]
            order = [part[1] for part in parts if part]
            if cell := _lstm_of(scope, both, order, found["c"]):
                return cell
    return None


def _lstm_of(
    scope: Scope, both: Sequence[_Product | None], order: Sequence[int], c: str
) -> Cell | None:
    """Returns the LSTM of two products, the second of which may be the state's."""
    of_inputs, of_state = both
    if of_inputs is None or of_state is None:
        return None
    units = len(of_inputs.matrix) // 4
    if len(of_state.matrix) != len(of_inputs.matrix) or of_state.matrix.shape[1] != units:
        return None
    refusal = ""
    if of_inputs.matrix.shape[1] == units:
        # Both matrices could be the state's. PyTorch's names tell, or where the states come from.
        is_named = ["weight_hh" in product.name for product in (of_inputs, of_state)]
        origins = [_origin(scope, name) for name in (c, of_inputs.source, of_state.source)]
        if is_named[0] != is_named[1]:
            if is_named[0]:
                return None
        elif (origins[0] == origins[1]) != (origins[0] == origins[2]):
            if origins[0] == origins[1]:
                return None
        else:
            refusal = (
                f"both {of_inputs.name!r} and {of_state.name!r} may be the matrix of the hidden "
                f"state, which the inputs have the size of: expected one to be named 'weight_hh'"
            )
    return Cell(constants.CUDNN_LSTM, (of_inputs, of_state), order, refusal)


def _gru(scope: Scope, node: Any) -> Cell | None:
    for outer in _matches(scope, _GRU, next(iter(node.output), ""), {}):
        for found in _matches(scope, _GRU_CANDIDATE, outer["n"], outer):
            products, orders = [], []
            for side in ("x", "h"):
                parts = [_part(scope, found[f"{gate}_{side}"], 3) for gate in "rzn"]
                splits = {part[0] for part in parts if part}
                if None in parts or len(splits) != 1:
                    break
                products.append(_product(scope, splits.pop(), 3))
                orders.append([part[1] for part in parts if part])
            of_inputs, of_state = (*products, None, None)[:2]
            if (
                of_inputs is not None
                and of_state is not None
                and of_state.source == found["h"]
                and orders[0] == orders[1]
                and len(of_inputs.matrix) == len(of_state.matrix) == 3 * of_state.matrix.shape[1]
            ):
                return Cell(constants.CUDNN_GRU, (of_inputs, of_state), orders[0])
    return None


def _matches(
    scope: Scope, formula: Any, tensor: str, bound: Mapping[str, str]
) -> Iterator[Mapping[str, str]]:
    """Yields what a formula's words stand for in each way in which it gives a tensor."""
    if isinstance(formula, str):
        if bound.get(formula, tensor) == tensor:
            yield {**bound, formula: tensor}
        return
    kind, *parts = formula
    node = scope.producer(tensor)
    if node is None or operator(node) != kind or len(node.input) != len(parts):
        return
    orders = itertools.permutations(node.input) if kind in ("Add", "Mul") else [tuple(node.input)]
    for inputs in orders:
        found = [bound]
        for part, each in zip(parts, inputs, strict=True):
            found = [more for known in found for more in _matches(scope, part, each, known)]
        yield from found


def _part(scope: Scope, tensor: str, count: int) -> tuple[str, int] | None:
    """Returns what a tensor is one of `count` equal parts of, and which; None for others."""
    node = scope.producer(tensor)
    if node is None or operator(node) != "Split" or len(node.output) != count:
        return None
    options = _options(scope, node)
    sizes = options.get("split", [])
    if input_of(node, 1):
        sizes = scope.constant(input_of(node, 1))
    # Products of rank 2 are cut into columns.
    if sizes is None or len(set(map(int, sizes))) > 1 or options.get("axis", 0) not in (1, -1):
        return None
    return input_of(node, 0), list(node.output).index(tensor)


def _product(scope: Scope, tensor: str, num_gates: int) -> _Product | None:
    """Returns the product that a tensor is, of a matrix with rows for some gates."""
    node = scope.producer(tensor)
    if node is None or operator(node) != "Gemm":
        return None
    options = _options(scope, node)
    scales = (options.get("alpha", 1.0), options.get("beta", 1.0))
    matrix = scope.constant(input_of(node, 1))
    if scales != (1.0, 1.0) or options.get("transA", 0) or matrix is None or matrix.ndim != 2:
        return None
    matrix = matrix if options.get("transB", 0) else matrix.T
    bias = None
    if input_of(node, 2):
        bias = scope.constant(input_of(node, 2))
        if bias is None or bias.shape not in ((len(matrix),), (1, len(matrix))):
            return None
        bias = bias.reshape(-1)
    if len(matrix) % num_gates:
        return None
    return _Product(input_of(node, 0), input_of(node, 1), matrix, bias)


def _options(scope: Scope, node: Any) -> dict[str, Any]:
    value_of = scope.source.onnx.helper.get_attribute_value
    return {attribute.name: value_of(attribute) for attribute in node.attribute}


def _origin(scope: Scope, tensor: str) -> str:
    """Returns the tensor that a part of a state comes from, past nodes that take parts of it."""
    moves = ("Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze")
    for producer in scope.producers(tensor):
        if operator(producer) not in moves:
            break
        tensor = input_of(producer, 0)
    return tensor
