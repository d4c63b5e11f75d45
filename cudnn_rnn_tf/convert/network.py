"""Represents a network as stacked NumPy arrays, which all formats are converted through."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.layers import CudnnGRU, CudnnLSTM, CudnnRNNRelu, CudnnRNNTanh
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN, what_to_pass
from cudnn_rnn_tf.pseudo_layers import PseudoLayer, cut, join, shapes

LAYERS = {layer.rnn_mode: layer for layer in (CudnnLSTM, CudnnGRU, CudnnRNNTanh, CudnnRNNRelu)}
NUM_GATES = {
    rnn_mode: RnnConfig(rnn_mode, 1, 1, 1).layout.num_gates
    for rnn_mode in (
        *LAYERS,
        constants.GRU_RESET_BEFORE,
        constants.LSTM_PEEPHOLE,
        constants.LSTM_LAYER_NORM,
    )
}
# Other formats know no other activations of layers with gates.
OWN_ACTIVATIONS = {"activation": "tanh", "recurrent_activation": "sigmoid"}
# The least bias mode that holds biases of the input side, or not, and of the recurrent side.
_BIAS_MODES = {
    (False, False): "none",
    (True, False): "single_input",
    (False, True): "single_recurrent",
    (True, True): "double",
}
_T = TypeVar("_T")


class Network(NamedTuple):
    """A recurrent network in a file. A value is None if the file does not say it."""

    name: str
    kind: str
    rnn_mode: str | None
    num_layers: int | None
    direction: str | None
    input_size: int | None
    num_units: int | None
    dtype: str | None
    # This says whether `convert` takes the network and, if not, why.
    convert: str = "yes"


def direction(has_two: bool) -> str:
    """Returns what the package calls a network of two directions, or of one."""
    return "bidirectional" if has_two else "unidirectional"


def check_layer(layer: Any, target: str, **supported: Any) -> None:
    """Checks that a format, `target`, can hold a layer.

    `supported` maps attributes to the one value of each that the format knows. An attribute that
    the layer lacks has that value.

    Raises:
        TypeError: if it is none of this package's layers.
        ValueError: if it is not built, or an attribute has another value.
    """
    if not isinstance(layer, CudnnRNN):
        raise TypeError(
            f"expected one of the layers {', '.join(c.__name__ for c in LAYERS.values())}, but "
            f"received {layer!r}{what_to_pass(layer)}"
        )
    layer.params_size()  # This raises the error if the layer is not built.
    of_all = {"input_mode": constants.CUDNN_INPUT_LINEAR_MODE, "zoneout": 0.0, "cell_zoneout": 0.0}
    for name, value in {**of_all, **supported}.items():
        received = getattr(layer, name, value)
        if received != value:
            raise ValueError(
                f"{name}={received!r} of layer {layer.name!r} has no equivalent in {target}: "
                f"expected {value!r}"
            )


def pseudo_layers(layer: CudnnRNN) -> list[PseudoLayer]:
    """Returns the weights of a layer, which must be built and have input-side matrices."""
    return [
        PseudoLayer(*(None if tensor is None else tensor.numpy() for tensor in pseudo_layer))
        for pseudo_layer in cut(
            layer._built_config(), tf.convert_to_tensor(layer._built_kernel().value)
        )
    ]


def make_layer(
    rnn_mode: str,
    weights: Sequence[PseudoLayer],
    num_dirs: int,
    options: Mapping[str, Any],
    batch_size: int | None = None,
) -> CudnnRNN:
    """Returns a built layer that holds the weights, which are given for each pseudo-layer.

    The options are to the layer's constructor. By default the dtype is the weights', and the bias
    mode is the least that holds all biases. A stateful layer needs `batch_size`.

    Raises:
        ValueError: if the weights do not fit together or are no floating-point numbers, or the bias
            mode has no place for them.
    """
    for pseudo_layer in weights:
        for tensor in pseudo_layer:
            if tensor is not None:
                ops.check_dtype("the type of weights", tensor.dtype.name)
    bottom = weights[0]
    options = dict(options)
    options.setdefault("dtype", bottom.kernel.dtype.name)
    sides = (
        any(layer.bias is not None for layer in weights),
        any(layer.recurrent_bias is not None for layer in weights),
    )
    options.setdefault("bias_mode", _BIAS_MODES[sides])
    if bottom.projection is not None:
        options["num_proj"] = bottom.projection.shape[0]
    if rnn_mode == constants.GRU_RESET_BEFORE:
        rnn_mode, options["reset_after"] = constants.CUDNN_GRU, False
    if rnn_mode == constants.LSTM_PEEPHOLE:
        rnn_mode, options["use_peepholes"] = constants.CUDNN_LSTM, True
    if rnn_mode == constants.LSTM_LAYER_NORM:
        rnn_mode, options["use_layer_norm"] = constants.CUDNN_LSTM, True
    layer = LAYERS[rnn_mode](
        num_layers=len(weights) // num_dirs,
        num_units=bottom.recurrent_kernel.shape[0] // NUM_GATES[rnn_mode],
        direction="bidirectional" if num_dirs == 2 else "unidirectional",
        **options,
    )
    lead = (None, batch_size) if layer.time_major else (batch_size, None)
    layer.build((*lead, bottom.kernel.shape[1]))
    _set_weights(layer, weights)
    return layer


def _set_weights(layer: CudnnRNN, weights: Sequence[PseudoLayer]) -> None:
    config = layer._built_config()
    dtype = tf.as_dtype(layer.variable_dtype).as_numpy_dtype
    complete = []
    for pseudo_layer, places in zip(weights, shapes(config), strict=True):
        biases = {}
        for side in ("bias", "recurrent_bias"):
            bias, place = getattr(pseudo_layer, side), getattr(places, side)
            if bias is None and place is not None:
                biases[side] = np.zeros(place)
            elif place is None and bias is not None and np.any(bias):
                raise ValueError(
                    f"bias_mode={layer.bias_mode!r} has no place for a bias that is there and not "
                    "zero"
                )
        tensors = pseudo_layer._replace(**biases)
        complete.append(PseudoLayer(*(None if t is None else t.astype(dtype) for t in tensors)))
    layer._built_kernel().assign(join(config, complete))


def pick(found: Mapping[str, _T], name: str | None, source: str, kind: str) -> tuple[str, _T]:
    """Picks one of the networks in a source by its name; None for the only one.

    Errors call the source `source`, and what was found in it, in the plural, `kind`.

    Raises:
        ValueError: if there is none of that name, or none or several without one.
    """
    names = ", ".join(map(repr, found)) or "none"
    if name is not None:
        if name not in found:
            raise ValueError(f"{source} has no {kind} named {name!r}; there are: {names}")
        return name, found[name]
    if len(found) != 1:
        expected = "there are none" if not found else f"say which by name; there are: {names}"
        raise ValueError(f"expected one of the {kind} in {source}, but {expected}")
    return next(iter(found.items()))
