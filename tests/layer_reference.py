"""Helps to compare the Keras layers with `reference` and with Keras's own layers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import reference
import reference_masks

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cudnn_rnn_ops
from cudnn_rnn_tf.config import RnnConfig

LAYERS = {
    "lstm": crnn.CudnnLSTM,
    "gru": crnn.CudnnGRU,
    "rnn_tanh": crnn.CudnnRNNTanh,
    "rnn_relu": crnn.CudnnRNNRelu,
}
# The op-level models and functions.
MODELS = {mode: getattr(cudnn_rnn_ops, layer.__name__) for mode, layer in LAYERS.items()}
FUNCTIONS = {mode: getattr(cudnn_rnn_ops, f"cudnn_{mode}") for mode in LAYERS}
# Keras stacks a GRU's gates in the order update, reset, candidate.
_STOCK_ORDER = {
    "lstm": (0, 1, 2, 3),
    "gru": (1, 0, 2),
    "gru_reset_before": (1, 0, 2),
    "rnn_tanh": (0,),
    "rnn_relu": (0,),
}


def make(rnn_mode: str, *args: Any, **kwargs: Any) -> Any:
    """Makes a layer of the mode, by default of one layer with three units."""
    if rnn_mode == "gru_reset_before":
        rnn_mode, kwargs["reset_after"] = "gru", False
    if rnn_mode == "lstm_peephole":
        rnn_mode, kwargs["use_peepholes"] = "lstm", True
    if rnn_mode.endswith("_layer_norm"):
        rnn_mode, kwargs["use_layer_norm"] = rnn_mode.removesuffix("_layer_norm"), True
    if not args and "num_layers" not in kwargs:
        args = (1, 3)
    return LAYERS[rnn_mode](*args, **kwargs)


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def randomize(layer: Any, input_shape: Sequence[int | None], seed: int = 1) -> Any:
    """Builds the layer and fills all its weights and biases with numbers of about 0.4."""
    if not layer.built:
        layer.build(tuple(input_shape))
    layer.kernel.assign(0.4 * normal(layer.params_size(), seed=seed))
    return layer


def config_of(layer: Any) -> RnnConfig:
    return RnnConfig(
        layer.rnn_mode,
        layer.num_layers,
        layer.num_units,
        layer.input_size,
        layer.input_mode,
        layer.direction,
        layer.bias_mode,
        num_proj=getattr(layer, "num_proj", None) or 0,
        dropout=layer.dropout,
        cell_clip=getattr(layer, "cell_clip", None) or 0.0,
        layer_norm_epsilon=getattr(layer, "layer_norm_epsilon", 1e-12),
        zoneout=layer.zoneout,
        cell_zoneout=getattr(layer, "cell_zoneout", 0.0),
    )


def forward(
    layer: Any,
    inputs: np.ndarray,
    states: Sequence[np.ndarray] | None = None,
    sequence_lengths: Sequence[int] | None = None,
    seed: Sequence[int] | None = None,
) -> reference.Forward:
    """Runs the reference's forward pass with the layer's weights; with a seed, dropout acts."""
    config = config_of(layer)
    batch_axis = 1 if layer.time_major else 0
    batch_size, max_time = inputs.shape[batch_axis], inputs.shape[1 - batch_axis]
    if states is None:
        states = [np.zeros(shape) for shape in layer.state_shape(batch_size)]
    masks = zones = None
    if seed is not None:
        masks = reference_masks.dropout_masks(config, seed, max_time, batch_size)
        zones = reference_masks.zones(config, seed, max_time, batch_size)
    return reference.forward(
        config,
        inputs,
        states,
        *reference.split_params(config, layer.kernel.numpy()),
        sequence_lengths=sequence_lengths,
        masks=masks,
        zones=zones,
        time_major=layer.time_major,
    )


def stock_layer(layer: Any, **kwargs: Any) -> keras.layers.Layer:
    """Returns Keras's own layer with the weights of a built fused layer of one direction."""
    weights, biases = layer.params_to_canonical()
    order = _STOCK_ORDER[layer.rnn_mode]
    gates = len(order)

    def stack(tensors: Sequence[Any]) -> np.ndarray:
        return np.concatenate([np.asarray(tensors[gate]).T for gate in order], axis=-1)

    kernels = [stack(weights[:gates]), stack(weights[gates:])]
    sides = [stack(biases[:gates]), stack(biases[gates:])] if len(biases) > gates else None
    if layer.rnn_mode == "lstm":
        stock = keras.layers.LSTM(layer.num_units, unit_forget_bias=False, **kwargs)
    elif layer.rnn_mode.startswith("gru"):
        after = layer.rnn_mode == "gru"
        stock = keras.layers.GRU(layer.num_units, reset_after=after, **kwargs)
    else:
        activation = layer.rnn_mode.removeprefix("rnn_")
        stock = keras.layers.SimpleRNN(layer.num_units, activation=activation, **kwargs)
    stock.build((kwargs.get("stateful") and 2 or None, None, layer.input_size))
    if sides is None:
        bias = stack(biases)
    else:
        bias = np.stack(sides) if layer.rnn_mode == "gru" else sum(sides)
    stock.set_weights([*kernels, bias])
    return stock
