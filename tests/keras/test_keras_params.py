"""The ops that make a buffer of the weights of Keras's layers, against NumPy's own moves."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

# The largest ones have enough numbers for several threads; sizes of 64 and 16 are those of chunks.
CONFIGS = {
    "lstm": RnnConfig("lstm", 1, 65, 7, bias_mode="single_input"),
    "lstm_two_directions": RnnConfig("lstm", 2, 5, 3, direction="bidirectional"),
    "lstm_large": RnnConfig("lstm", 1, 300, 257, bias_mode="single_recurrent"),
    "gru": RnnConfig("gru", 2, 17, 33),
    "gru_large": RnnConfig("gru", 1, 257, 300, direction="bidirectional"),
    "gru_no_bias": RnnConfig("gru", 1, 1, 1, bias_mode="none"),
    "rnn": RnnConfig("rnn_relu", 3, 64, 16, bias_mode="single_input"),
    "projection": RnnConfig("lstm", 2, 6, 4, num_proj=3),
    "skip_input": RnnConfig("rnn_tanh", 2, 5, 5, input_mode="skip_input"),
}


def keras_tensors(
    config: RnnConfig, params: np.ndarray, dtype: str = "float32"
) -> tuple[list[Any], list[Any]]:
    """Takes a buffer apart with NumPy, by the places of the canonical tensors."""
    layout = config.layout
    weights, biases = layout.params_to_canonical(params)
    canonical = dict(zip(layout.weight_names + layout.bias_names, weights + biases, strict=True))
    gates = {
        "lstm": ["input_gate_", "forget_gate_", "cell_candidate_", "output_gate_"],
        "gru": ["update_gate_", "reset_gate_", "candidate_"],
    }.get(config.rnn_mode, [""])
    matrices, vectors = [], []
    for layer in range(config.num_layers):
        for direction in ("forward", "backward")[: layout.num_dirs]:
            prefix = f"layer_{layer}_{direction}_"
            for kind in ("kernel", "recurrent_kernel"):
                found = [canonical.get(f"{prefix}{gate}{kind}") for gate in gates]
                if found[0] is not None:
                    matrices.append(np.concatenate([gate.T for gate in found], axis=1))
            projection = canonical.get(f"{prefix}projection_kernel")
            if projection is not None:
                matrices.append(projection.T)
            sides = [
                np.concatenate([canonical[f"{prefix}{gate}{kind}"] for gate in gates])
                for kind in ("bias", "recurrent_bias")
                if f"{prefix}{gates[0]}{kind}" in canonical
            ]
            if sides:
                vectors.append(np.stack(sides) if len(sides) == 2 else sides[0])
    return tuple([tf.cast(tensor, dtype) for tensor in part] for part in (matrices, vectors))


def unpack(config: RnnConfig, params: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    matrices, vectors = keras_tensors(config, np.zeros(config.layout.size))
    return raw_ops.cudnn_rnn_tf_params_to_keras(
        params=params,
        num_weights=len(matrices),
        num_biases=len(vectors),
        input_size=config.input_size,
        **config.spec_attrs(),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_moves_and_their_gradients(config, dtype):
    # Whole numbers up to 2^8 are exact in every type.
    params = (np.arange(config.layout.size) * 7919 % 251).astype(np.float32)
    factors = (np.arange(config.layout.size) * 104729 % 241).astype(np.float32)
    matrices, vectors = keras_tensors(config, params, dtype)
    with tf.GradientTape() as tape:
        tape.watch(matrices + vectors)
        packed = ops.keras_to_params(config, matrices, vectors)
        with tf.GradientTape() as inner:
            inner.watch(packed)
            again = unpack(config, packed)
        back = inner.gradient(again, packed, keras_tensors(config, factors, dtype))
    gradients = tape.gradient(packed, matrices + vectors, tf.cast(factors, dtype))
    # On a machine with a GPU, this tests the GPU's kernels.
    assert ("GPU" in packed.device) == bool(tf.config.list_physical_devices("GPU"))
    np.testing.assert_array_equal(packed, params)
    for part, expected in zip(again, (matrices, vectors), strict=True):
        for found, tensor in zip(part, expected, strict=True):
            np.testing.assert_array_equal(found, tensor)
    np.testing.assert_array_equal(back, factors)
    for found, expected in zip(gradients, sum(keras_tensors(config, factors), []), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    ("weights", "biases", "message"),
    [
        ([(2, 12), (3, 12)], [(12,)], None),
        ([(2, 12)], [(12,)], "expected 2 weights for this configuration, but received 1"),
        ([(2, 12), (3, 12)], [], "expected 1 biases for this configuration, but received 0"),
        (
            [(12, 2), (3, 12)],
            [(12,)],
            r"expected shape \[2,12\] for layer_0_forward_kernel, but received \[12,2\]",
        ),
        (
            [(2, 12), (3, 11)],
            [(12,)],
            r"expected shape \[3,12\] for layer_0_forward_recurrent_kernel, but received \[3,11\]",
        ),
        (
            [(2, 12), (3, 12)],
            [(2, 12)],
            r"expected shape \[12\] for layer_0_forward_bias, but received \[2,12\]",
        ),
    ],
)
def test_wrong_tensors(weights, biases, message, mode):
    config = RnnConfig("lstm", 1, 3, 2, bias_mode="single_input")

    def pack():
        return ops.keras_to_params(
            config, list(map(tf.zeros, weights)), list(map(tf.zeros, biases))
        )

    function = pack if mode == "eager" else tf.function(pack)
    if message is None:
        assert function().shape == config.layout.size
        return
    error = tf.errors.InvalidArgumentError if mode == "eager" else ValueError
    with pytest.raises(error, match=message):
        function()


def test_params_of_wrong_size():
    config = RnnConfig("gru", 1, 3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"params of shape \[63\].* \[62\]"):
        unpack(config, tf.zeros(62))
