"""The arrays in which Keras of any version stores a layer's weights, in the order of Keras 3."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from cudnn_rnn_tf._private_names import sublayers
from cudnn_rnn_tf.keras.held_state import refresh
from cudnn_rnn_tf.pseudo_layers import LSTM_OF_TENSORFLOW_1

# For each gate in the order of today's kernels, its place in Keras 1's files, where each gate has
# an input-side matrix, a recurrent one and a bias of its own. A GRU's order is today's.
_KERAS_1_GATES = {12: LSTM_OF_TENSORFLOW_1, 9: (0, 1, 2)}
_NUM_GATES = {keras.layers.LSTM: 4, keras.layers.GRU: 3}
_RECURRENT = (*_NUM_GATES, keras.layers.SimpleRNN)


def assign(layer: keras.layers.Layer, named: Mapping[str, Any]) -> None:
    """Gives a built layer, or a model within a model, the weights that a file has for it.

    The arrays have their names in the file, and are in the file's order.

    Raises:
        ValueError: if their number or shapes are others than the layer's, or they are in another
            order, which the names do not tell.
    """
    _assign(layer, {name: np.asarray(array) for name, array in named.items()})
    refresh(layer)


def _assign(layer: keras.layers.Layer, named: dict[str, np.ndarray]) -> None:
    parts = _parts(layer)
    if parts:
        for part, own in zip(parts, _shared_out(layer, parts, named), strict=True):
            _assign(part, own)
        return
    weights = layer.trainable_weights + layer.non_trainable_weights
    # What is frozen comes last, now and when the file was written.
    last_parts = {_last(name): array for name, array in named.items()}
    arrays = list(named.values())
    if last_parts.keys() == {weight.name for weight in weights} and len(weights) == len(arrays):
        arrays = [last_parts[weight.name] for weight in layer.weights]
        weights = layer.weights
    for kind, num_gates in _NUM_GATES.items():
        if isinstance(layer, kind):
            arrays = of_today(arrays, num_gates)
    _check_count(layer, len(weights), len(arrays))
    for weight, array in zip(weights, arrays, strict=True):
        if tuple(weight.shape) != array.shape:
            raise ValueError(
                f"expected weight {weight.name!r} of layer {layer.name!r} to have the shape "
                f"{tuple(weight.shape)}, but the file has {array.shape}"
            )
        weight.assign(array)


def _parts(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the layers in a layer that have all of its weights; none if it has some itself."""
    if isinstance(layer, _RECURRENT):
        return []
    inner = layer.layers if isinstance(layer, keras.Model) else sublayers(layer)
    found = [part for part in inner if part.weights]
    return found if sum(len(part.weights) for part in found) == len(layer.weights) else []


def _shared_out(
    layer: keras.layers.Layer, parts: Sequence[keras.layers.Layer], named: dict[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """Returns the weights of each part of a layer.

    In a file, what was trained precedes what was not, across all parts.
    """
    is_wrapper = isinstance(layer, keras.layers.Bidirectional)
    owners = {}
    for name in named:
        folders = name.split("/")
        if is_wrapper:
            # Keras has given one part this name; the other one's may be a user's.
            owners[name] = [parts[not any(each.startswith("forward_") for each in folders)]]
        else:
            # A name in the file may have slashes, in place of which Keras 3 has underscores.
            ends = range(1, len(folders))
            runs = {"_".join(folders[i:j]) for j in ends for i in range(j)}
            owners[name] = [part for part in parts if part.name in runs]
    by_name = [
        {name: array for name, array in named.items() if owners[name] == [part]} for part in parts
    ]
    if [len(own) for own in by_name] == [len(part.weights) for part in parts]:
        return by_name
    names = list(named)
    if is_wrapper:
        half = len(names) // 2
        shares = [names[:half], names[half:]]
    else:
        _check_count(layer, sum(len(part.weights) for part in parts), len(names))
        count = sum(len(part.trainable_weights) for part in parts)
        trained, others = iter(names[:count]), iter(names[count:])
        shares = [
            [next(trained) for _ in part.trainable_weights]
            + [next(others) for _ in part.non_trainable_weights]
            for part in parts
        ]
    _check_order(layer, shares)
    return [{name: named[name] for name in share} for share in shares]


def _check_order(layer: keras.layers.Layer, shares: Sequence[Sequence[str]]) -> None:
    """Raises ValueError if names say that weights are not those of the parts that would get them.

    Weights of one of the file's layers would go into several parts, or layers that the file numbers
    as `dense` and `dense_1` into parts in another order.
    """
    folders = [[name.split("/")[:-1] for name in share] for share in shares]
    depth = len(os.path.commonprefix([each for share in folders for each in share]))
    scopes = [{"/".join(each[depth : depth + 1]) for each in share} for share in folders]
    for above, below in itertools.combinations(scopes, 2):
        is_reversed = any(
            kind == other_kind and number >= other_number
            for kind, number in map(_numbered, above)
            for other_kind, other_number in map(_numbered, below)
        )
        if is_reversed and "" not in above | below:
            raise ValueError(
                f"the layers in {layer.name!r} have other names in the file ({sorted(above)} and "
                f"{sorted(below)}), and other ones were frozen when it was written, so that it "
                "does not say which weights are whose: name the layers as in the file, or freeze "
                "the same ones before loading"
            )


def _last(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]


def _numbered(name: str) -> tuple[str, int]:
    """Returns the two parts of a name that Keras made, such as dense_1; 0 if it has no number."""
    kind, _, number = name.rpartition("_")
    return (kind, int(number)) if kind and number.isdecimal() else (name, 0)


def of_today(arrays: Sequence[np.ndarray], num_gates: int) -> list[np.ndarray]:
    """Returns a kernel, recurrent kernel and bias, given those of an LSTM or GRU of any version."""
    if (order := _KERAS_1_GATES.get(len(arrays))) and len(order) == num_gates:
        return [
            np.concatenate([arrays[3 * gate + kind] for gate in order], axis=-1)
            for kind in range(3)
        ]
    if is_of_cudnn([array.shape for array in arrays], num_gates):
        kernel, recurrent, bias = arrays
        # CuDNNLSTM and CuDNNGRU hand their matrices to cuDNN as they lie in memory, and cuDNN reads
        # each of them as [units, fan_in].
        kernel, recurrent = (
            np.hstack([gate.reshape(gate.shape[::-1]).T for gate in np.hsplit(side, num_gates)])
            for side in (kernel, recurrent)
        )
        biases = bias.reshape(2, -1)
        return [kernel, recurrent, biases.sum(0) if num_gates == 4 else biases]
    return list(arrays)


def is_of_cudnn(shapes: Sequence[tuple[int, ...]], num_gates: int) -> bool:
    """Returns whether these are the shapes of the weights of a `CuDNNLSTM` or `CuDNNGRU`."""
    return (
        len(shapes) == 3
        and len(shapes[1]) == 2
        and shapes[2] == (2 * num_gates * shapes[1][0],)
        and shapes[1][1] == num_gates * shapes[1][0]
    )


def _check_count(layer: keras.layers.Layer, expected: int, received: int) -> None:
    if received != expected:
        raise ValueError(
            f"expected {expected} weights of layer {layer.name!r}, but the file has {received}"
        )
