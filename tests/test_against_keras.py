"""The layers against stacks of `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `Bidirectional`."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf

import cudnn_rnn_tf as crnn

# The largest errors, as parts of the largest magnitude in a tensor. Two programs that add up a few
# hundred products in different orders agree in 13 digits in float64 and in 6 in float32; steps and
# layers cost one more.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}

BATCH_SIZE, MAX_TIME, INPUT_SIZE, NUM_UNITS = 4, 6, 5, 7
# One sequence is empty. Keras allows any masks, but these are padded on the right.
LENGTHS = (3, 6, 0, 1)
MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu", "gru_reset_before")


@dataclasses.dataclass(frozen=True)
class Network:
    rnn_mode: str
    dtype: str = "float64"
    num_layers: int = 1
    bidirectional: bool = False
    masked: bool = False
    go_backwards: bool = False
    use_bias: bool = True

    @property
    def num_dirs(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def num_states(self) -> int:
        return 2 if self.rnn_mode == "lstm" else 1

    def __str__(self) -> str:
        flags = ("bidirectional", "masked", "go_backwards", "use_bias")
        parts = [self.rnn_mode, self.dtype, f"L{self.num_layers}"]
        return "-".join(parts + [name for name in flags if getattr(self, name)])


def make_keras_layers(network: Network) -> list[keras.layers.Layer]:
    """Makes the stack, one Keras layer per layer, with random biases."""
    options = {
        "units": NUM_UNITS,
        "use_bias": network.use_bias,
        "return_sequences": True,
        "return_state": True,
        "dtype": network.dtype,
    }
    layers = []
    for index in range(network.num_layers):
        # Only the first layer reads its input backwards; the others read its outputs in the order
        # in which it wrote them.
        options["go_backwards"] = network.go_backwards and index == 0
        options["bias_initializer"] = keras.initializers.RandomNormal(seed=10 + index)
        options["kernel_initializer"] = keras.initializers.GlorotUniform(seed=20 + index)
        options["recurrent_initializer"] = keras.initializers.Orthogonal(seed=30 + index)
        if network.rnn_mode == "lstm":
            layer = keras.layers.LSTM(unit_forget_bias=False, **options)
        elif network.rnn_mode.startswith("gru"):
            layer = keras.layers.GRU(reset_after=network.rnn_mode == "gru", **options)
        else:
            activation = network.rnn_mode.removeprefix("rnn_")
            layer = keras.layers.SimpleRNN(activation=activation, **options)
        if network.bidirectional:
            layer = keras.layers.Bidirectional(layer, dtype=network.dtype)
        layers.append(layer)
    return layers


def make_fused_layer(network: Network, **options: Any) -> crnn.CudnnLSTM:
    if network.rnn_mode == "gru_reset_before":
        options["reset_after"] = False
    layer_class = {
        "lstm": crnn.CudnnLSTM,
        "gru": crnn.CudnnGRU,
        "gru_reset_before": crnn.CudnnGRU,
        "rnn_tanh": crnn.CudnnRNNTanh,
        "rnn_relu": crnn.CudnnRNNRelu,
    }[network.rnn_mode]
    # Only Keras's GRU with reset_after has two bias sets.
    with_bias = "double" if network.rnn_mode == "gru" else "single_input"
    return layer_class(
        network.num_layers,
        NUM_UNITS,
        direction="bidirectional" if network.bidirectional else "unidirectional",
        bias_mode=with_bias if network.use_bias else "none",
        go_backwards=network.go_backwards,
        dtype=network.dtype,
        **options,
    )


def opaque_buffer(network: Network, weights: Sequence[Any]) -> np.ndarray:
    """Returns Keras's weights, or their gradients, in the order of the opaque buffer.

    Keras stacks the gates as i f c o and z r h, cuDNN as i f c o and r z h.
    """
    order = {"lstm": (0, 1, 2, 3), "rnn_tanh": (0,), "rnn_relu": (0,)}
    order = order.get(network.rnn_mode, (1, 0, 2))

    def gates(stacked: np.ndarray) -> Iterator[np.ndarray]:
        parts = np.split(stacked, len(order), axis=-1)
        yield from (parts[gate].T for gate in order)

    weights = iter([np.asarray(weight) for weight in weights])
    matrices, biases = [], []
    for _ in range(network.num_layers * network.num_dirs):
        matrices += [*gates(next(weights)), *gates(next(weights))]
        if network.use_bias:
            for bias in np.atleast_2d(next(weights)):
                biases += gates(bias)
    return np.concatenate([tensor.ravel() for tensor in matrices + biases])


def draw(network: Network, *shape: int, seed: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype(network.dtype))


def draw_states(network: Network, seed: int) -> list[tf.Tensor]:
    shape = (BATCH_SIZE, network.num_layers * network.num_dirs, NUM_UNITS)
    return [draw(network, *shape, seed=seed + index) for index in range(network.num_states)]


def run_keras(
    network: Network, layers: Sequence[Any], inputs: tf.Tensor, states: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns outputs, zero past each sequence's end, and states as the fused layers have them."""
    mask = tf.sequence_mask(LENGTHS, MAX_TIME) if network.masked else None
    outputs, final = inputs, [[] for _ in states]
    for index, layer in enumerate(layers):
        # Keras lists the states of the forward direction before those of the backward one.
        first = index * network.num_dirs
        initial = [
            state[:, first + direction] for direction in range(network.num_dirs) for state in states
        ]
        outputs, *returned = layer(outputs, initial_state=initial, mask=mask)
        for position, state in enumerate(returned):
            final[position % network.num_states].append(state)
        if network.masked and network.go_backwards and index == 0:
            # Keras now has the padding at the beginning, so it is moved back to the end.
            outputs = tf.reverse_sequence(tf.reverse(outputs, [1]), LENGTHS, seq_axis=1)
    if network.masked:
        outputs = tf.where(mask[..., tf.newaxis], outputs, tf.zeros_like(outputs))
    if network.masked and network.go_backwards:
        # The fused layer also returns its outputs with the padding at the beginning.
        outputs = tf.reverse(tf.reverse_sequence(outputs, LENGTHS, seq_axis=1), [1])
    return outputs, [tf.stack(parts, axis=1) for parts in final]


def assert_close(network: Network, value: Any, expected: Any, name: str) -> None:
    value, expected = np.asarray(value), np.asarray(expected)
    scale = np.abs(expected).max()
    assert scale > 0, name
    np.testing.assert_allclose(
        value / scale, expected / scale, rtol=0, atol=TOLERANCE[network.dtype], err_msg=name
    )


NETWORKS = [
    Network(*settings)
    for settings in itertools.product(
        MODES, ("float64", "float32"), (1, 2), (False, True), (False, True)
    )
]
NETWORKS += [
    Network(mode, num_layers=2, masked=masked, go_backwards=True)
    for mode, masked in itertools.product(MODES, (False, True))
]
NETWORKS += [Network(mode, bidirectional=True, use_bias=False) for mode in MODES]


@pytest.mark.parametrize("network", random_configs.mostly_slow(NETWORKS, 3, one_of=2), ids=str)
def test_agrees_with_keras(network):
    layers = make_keras_layers(network)
    fused = make_fused_layer(network, return_state=True)
    fused.build((BATCH_SIZE, MAX_TIME, INPUT_SIZE))
    inputs = draw(network, BATCH_SIZE, MAX_TIME, INPUT_SIZE, seed=0)
    states = draw_states(network, seed=1)
    with tf.GradientTape() as tape:
        tape.watch([inputs, *states])
        outputs, final = run_keras(network, layers, inputs, states)
    weights = [weight.value for layer in layers for weight in layer.trainable_weights]
    upstream = [draw(network, *outputs.shape, seed=5), *draw_states(network, seed=6)]
    d_inputs, *d_others = tape.gradient(
        [outputs, *final], [inputs, *states, *weights], output_gradients=upstream
    )
    d_states, d_weights = d_others[: len(states)], d_others[len(states) :]

    fused.kernel.assign(opaque_buffer(network, weights))
    mask = tf.sequence_mask(LENGTHS, MAX_TIME) if network.masked else None
    with tf.GradientTape() as tape:
        tape.watch([inputs, *states])
        fused_outputs, *fused_final = fused(inputs, initial_state=states, mask=mask)
    d_fused_inputs, d_fused_params, *d_fused_states = tape.gradient(
        [fused_outputs, *fused_final],
        [inputs, fused.kernel.value, *states],
        output_gradients=upstream,
    )
    assert_close(network, fused_outputs, outputs, "outputs")
    assert_close(network, d_fused_inputs, d_inputs, "gradient of inputs")
    assert_close(network, d_fused_params, opaque_buffer(network, d_weights), "gradient of params")
    for index, name in enumerate(("h", "c")[: network.num_states]):
        assert_close(network, fused_final[index], final[index], name)
        assert_close(network, d_fused_states[index], d_states[index], f"gradient of {name}")


@pytest.mark.parametrize("return_state", [False, True], ids=["outputs", "states"])
@pytest.mark.parametrize("return_sequences", [False, True], ids=["last", "sequences"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_returns_what_keras_returns(rnn_mode, bidirectional, return_sequences, return_state):
    """A functional model has default initial states, and masks that come from an Embedding."""
    network = Network(rnn_mode, "float32", bidirectional=bidirectional)
    token_ids = np.array([[1, 2, 3, 0, 0], [4, 4, 1, 2, 3], [2, 0, 0, 0, 0]])
    options = {"return_sequences": return_sequences, "return_state": return_state}
    layer = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[rnn_mode](NUM_UNITS, **options)
    layer = keras.layers.Bidirectional(layer) if bidirectional else layer
    fused = make_fused_layer(network, **options)
    ids = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(5, INPUT_SIZE, mask_zero=True)(ids)

    def returned_by(layer: keras.layers.Layer) -> list[np.ndarray]:
        results = keras.Model(ids, layer(embedded))(token_ids)
        return [np.asarray(result) for result in keras.tree.flatten(results)]

    outputs, *states = returned_by(layer)
    fused(embedded)
    fused.kernel.assign(opaque_buffer(network, [weight.value for weight in layer.weights]))
    fused_outputs, *fused_states = returned_by(fused)

    if return_sequences:
        # Past a sequence's end, Keras repeats the last output or writes zeros, so these are not
        # compared.
        padding = token_ids == 0
        assert np.all(fused_outputs[padding] == 0)
        outputs = np.where(padding[..., np.newaxis], 0, outputs)
    assert_close(network, fused_outputs, outputs, "outputs")
    assert len(fused_states) == (network.num_states if return_state else 0)
    for index, state in enumerate(fused_states):
        expected = np.stack(states[index :: network.num_states], axis=1)
        assert_close(network, state, expected, f"state {index}")
