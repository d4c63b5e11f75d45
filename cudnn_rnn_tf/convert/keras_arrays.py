"""The arrays in which Keras of any version stores a layer's weights, in the order of Keras 3."""

from collections.abc import Sequence

import keras
import numpy as np

# For each gate in the order of today's kernels, its place in Keras 1's files, where each gate has
# an input-side matrix, a recurrent one and a bias of its own: i c f o, and z r h.
_KERAS_1_GATES = {12: (0, 2, 1, 3), 9: (0, 1, 2)}
_NUM_GATES = {keras.layers.LSTM: 4, keras.layers.GRU: 3}


def assign(layer: keras.layers.Layer, arrays: Sequence[np.ndarray]) -> None:
    """Gives a built layer, or a model within a model, the weights that a file has for it.

    Raises:
        ValueError: if their number or shapes are others than the layer's.
    """
    if isinstance(layer, keras.layers.Bidirectional):
        half = len(arrays) // 2
        assign(layer.forward_layer, arrays[:half])
        assign(layer.backward_layer, arrays[half:])
    elif isinstance(layer, keras.layers.Wrapper) and len(layer.weights) == len(layer.layer.weights):
        assign(layer.layer, arrays)
    elif isinstance(layer, (keras.Sequential, keras.Model)):
        _assign_nested(layer, arrays)
    else:
        _assign_leaf(layer, arrays)


def _assign_nested(model: keras.Model, arrays: Sequence[np.ndarray]) -> None:
    """Assigns a flat list, in which what is trained precedes what is not, across all layers."""
    layers = [layer for layer in model.layers if layer.weights]
    _check_count(model, sum(len(layer.weights) for layer in layers), arrays)
    trained = iter(arrays[: len(model.trainable_weights)])
    others = iter(arrays[len(model.trainable_weights) :])
    for layer in layers:
        own = [next(trained) for _ in layer.trainable_weights]
        own += [next(others) for _ in layer.non_trainable_weights]
        assign(layer, own)


def _assign_leaf(layer: keras.layers.Layer, arrays: Sequence[np.ndarray]) -> None:
    weights = layer.trainable_weights + layer.non_trainable_weights
    for kind, num_gates in _NUM_GATES.items():
        if isinstance(layer, kind):
            arrays = of_today(arrays, num_gates)
    _check_count(layer, len(weights), arrays)
    for weight, array in zip(weights, arrays, strict=True):
        if tuple(weight.shape) != array.shape:
            raise ValueError(
                f"expected weight {weight.name!r} of layer {layer.name!r} to have the shape "
                f"{tuple(weight.shape)}, but the file has {array.shape}"
            )
        weight.assign(array)


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


def _check_count(layer: keras.layers.Layer, expected: int, arrays: Sequence[np.ndarray]) -> None:
    if len(arrays) != expected:
        raise ValueError(
            f"expected {expected} weights of layer {layer.name!r}, but the file has {len(arrays)}"
        )
