"""What Keras 1 and 2 computed, in NumPy and float64, and the files that they wrote."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(0.2 * x + 0.5, 0, 1)


def lstm(x, kernel, recurrent, bias, act=sigmoid, mask=None, backwards=False) -> np.ndarray:
    """Returns an LSTM's outputs of all steps, [B, T, H]; gates i f c o."""
    c = np.zeros((len(x), recurrent.shape[0]))

    def step(x_t, h):
        nonlocal c
        i, f, g, o = np.split(x_t @ kernel + h @ recurrent + bias, 4, axis=-1)
        new = act(f) * c + act(i) * np.tanh(g)
        return act(o) * np.tanh(new), new

    def keep(new, kept):
        nonlocal c
        c = np.where(kept, new, c)

    return _loop(x, recurrent.shape[0], step, mask, backwards, keep)


def gru(x, kernel, recurrent, bias, act=sigmoid, mask=None, backwards=False) -> np.ndarray:
    """Returns a GRU's outputs; gates z r h. A bias of two rows is that of reset_after."""
    units = recurrent.shape[0]
    after = np.ndim(bias) == 2
    b, r_b = bias if after else (bias, np.zeros_like(bias))

    def step(x_t, h):
        w = x_t @ kernel + b
        u = h @ recurrent + r_b
        z = act(w[:, :units] + u[:, :units])
        r = act(w[:, units : 2 * units] + u[:, units : 2 * units])
        inner = r * u[:, 2 * units :] if after else (r * h) @ recurrent[:, 2 * units :]
        return z * h + (1 - z) * np.tanh(w[:, 2 * units :] + inner), None

    return _loop(x, units, step, mask, backwards, lambda new, kept: None)


def _loop(x, units, step, mask, backwards, keep) -> np.ndarray:
    """Runs a step over time. The outputs of a backward pass are in the order of the inputs."""
    h = np.zeros((len(x), units))
    outputs = np.zeros((*x.shape[:2], units))
    times = range(x.shape[1])
    for t in reversed(times) if backwards else times:
        new, state = step(x[:, t].astype(np.float64), h)
        kept = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        h = np.where(kept, new, h)
        keep(state, kept)
        outputs[:, t] = h
    return outputs


def as_cudnn_reads(arrays: Sequence[np.ndarray], num_gates: int) -> list[np.ndarray]:
    """Returns the kernels and biases of a CuDNNLSTM or CuDNNGRU, in Keras's layout.

    Each gate's matrix of Keras's variable is flattened, and cuDNN takes it for [units, fan_in].
    """
    kernel, recurrent, bias = (np.asarray(array, np.float64) for array in arrays)
    units = recurrent.shape[0]

    def read(matrix: np.ndarray) -> np.ndarray:
        columns = []
        for gate in range(num_gates):
            flat = matrix[:, gate * units : (gate + 1) * units].flatten()
            fan_in = matrix.shape[0]
            columns += [
                [flat[unit * fan_in + place] for place in range(fan_in)] for unit in range(units)
            ]
        return np.array(columns).T

    sides = np.array([bias[: num_gates * units], bias[num_gates * units :]])
    return [read(kernel), read(recurrent), sides.sum(0) if num_gates == 4 else sides]


def write(
    path: pathlib.Path,
    weights: Mapping[str, Sequence[tuple[str, np.ndarray]]],
    config: Any = None,
    version: str = "2.2.4",
) -> pathlib.Path:
    """Writes a file as Keras 1 and 2 do: a model, or its weights alone without a config."""
    with h5py.File(path, "w") as file:
        group = file
        if config is not None:
            group = file.create_group("model_weights")
            file.attrs["model_config"] = json.dumps(config).encode()
            file.attrs["keras_version"] = version.encode()
        group.attrs["layer_names"] = [name.encode() for name in weights]
        group.attrs["keras_version"] = version.encode()
        for layer, arrays in weights.items():
            of_layer = group.create_group(layer)
            of_layer.attrs["weight_names"] = [name.encode() for name, _ in arrays]
            for name, array in arrays:
                of_layer.create_dataset(name, data=array)
    return path
