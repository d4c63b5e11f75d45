"""Finds the constants that the states of an ONNX model's recurrent networks start from."""

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudnn_rnn_tf.convert.onnx_tensors import input_of


def initial_states(graph: Any, nodes: Sequence[Any]) -> list[np.ndarray] | None:
    """Returns the constants that the states of a network start from: nodes from bottom to top.

    Returns:
        h and an LSTM's c, [L * D, B, H] each. B is 1 if all sequences start alike. None if all
        states are zeros or inputs of the model.

    Raises:
        ValueError: if some are constants that are not zero and others are inputs, or one comes from
            something else.
    """
    origins = [graph.origins_of_states(node) for node in nodes]
    found = set(itertools.chain(*origins))
    if "constants" not in found:
        return None
    if "inputs" in found:
        raise ValueError(
            "some initial states of the network are constants that are not zero and others are "
            "inputs of the model, but a network starts from the ones or the others"
        )
    states = [
        [
            _initial_state(graph, node, place, kinds[place])
            for node, kinds in zip(nodes, origins, strict=True)
        ]
        for place in range(len(origins[0]))
    ]
    batch_sizes = {state.shape[1] for of_layers in states for state in of_layers} - {1}
    if len(batch_sizes) > 1:
        raise ValueError(
            f"the initial states of the network are for batches of {sorted(batch_sizes)} sequences"
        )
    batch_size = max(batch_sizes, default=1)
    return [
        np.concatenate([np.broadcast_to(s, (len(s), batch_size, s.shape[2])) for s in of_layers])
        for of_layers in states
    ]


def _initial_state(graph: Any, node: Any, place: int, origin: str) -> np.ndarray:
    """Returns h for place 0, c for place 1, which comes from constants, [D, B or 1, H]."""
    name = input_of(node, 5 + place)
    recurrent_kernels = graph.weight(node, 2, "R", 3)
    num_dirs, units = graph.num_dirs(node), recurrent_kernels.shape[2]
    if origin == "zeros":
        return np.zeros((num_dirs, 1, units), recurrent_kernels.dtype)
    is_batch_major = graph.attributes(node).get("layout", 0) == 1

    def evaluated(size_of: Callable[[str], int] | None = None) -> np.ndarray:
        value = graph.constant(name, size_of)
        if value is None:
            raise ValueError(
                f"the value of initial state {name!r} of ONNX node {node.name!r} is unknown: it "
                "comes from constants by operators that are not known here"
            )
        value = value.swapaxes(0, 1) if is_batch_major and value.ndim == 3 else value
        if value.ndim != 3 or (value.shape[0], value.shape[2]) != (num_dirs, units):
            raise ValueError(
                f"expected initial state {name!r} of ONNX node {node.name!r} of {num_dirs} "
                f"directions and {units} units, but received shape {value.shape}"
            )
        are_alike = value.shape[1] > 0 and np.all(value == value[:, :1])
        return value[:, :1] if are_alike else value

    if graph.constant(name) is not None:
        return evaluated()
    # The batch size is open. Whatever the open sizes are, all sequences must start from the same.
    state = evaluated(lambda _: 1)
    sizes = collections.defaultdict[str, int](itertools.count(2).__next__)
    if not np.array_equal(state, evaluated(sizes.__getitem__)):
        raise ValueError(
            f"initial state {name!r} of ONNX node {node.name!r} is another one for each batch size"
        )
    return state
