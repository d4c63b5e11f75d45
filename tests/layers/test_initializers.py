"""Initializers."""

import keras
import numpy as np
import pytest

import cudnn_rnn_tf as crnn


@pytest.mark.parametrize("options", [{}, {"num_proj": 4}])
def test_begins_as_torch_does(options):
    """Every tensor, biases and projections included, is uniform in ±1/√H."""
    initializer = crnn.TorchUniform(25, seed=0)
    layer = crnn.CudnnLSTM(
        2, 25, kernel_initializer=initializer, bias_initializer=initializer, **options
    )
    layer.build((None, None, 8))
    weights, biases = layer.params_to_canonical()
    tensors = [np.asarray(tensor) for tensor in weights + biases]
    assert len({tensor.tobytes() for tensor in tensors}) == len(tensors)
    values = np.concatenate([tensor.ravel() for tensor in tensors])
    for part in (values, *(tensor.ravel() for tensor in tensors if tensor.size >= 100)):
        assert 0.18 < np.abs(part).max() <= 0.2
    np.testing.assert_allclose(values.var(), 0.2**2 / 3, rtol=0.05)
    torch = pytest.importorskip("torch")
    theirs = torch.nn.LSTM(8, 25, 2)
    largest = max(float(p.detach().abs().max()) for p in theirs.parameters())
    assert 0.18 < largest <= 0.2


def test_wrong_number_of_units():
    with pytest.raises(ValueError, match="expected num_units to be positive, but received 0"):
        crnn.TorchUniform(0)


LSTM_GATES = ("input_gate", "forget_gate", "cell_candidate", "output_gate")


@pytest.mark.parametrize("bias_mode", ["double", "single_input", "single_recurrent"])
def test_biases_per_gate(bias_mode):
    """If a gate has two biases, its own initializer is used for one of them only."""
    initializer = crnn.PerGate(keras.initializers.Constant(0.25), forget_gate="ones")
    layer = crnn.CudnnLSTM(
        2, 3, direction="bidirectional", bias_mode=bias_mode, bias_initializer=initializer
    )
    layer.build((None, None, 4))
    biases = {name: w.numpy() for name, w in layer.named_weights().items() if name.endswith("bias")}
    for name, bias in biases.items():
        is_one = "forget_gate" in name and not (
            bias_mode == "double" and name.endswith("recurrent_bias")
        )
        np.testing.assert_array_equal(bias, np.full(3, 1.0 if is_one else 0.25))
    assert sum(np.all(bias == 1.0) for bias in biases.values()) == 4


def test_matrices_per_gate():
    initializer = crnn.PerGate("orthogonal", candidate="zeros")
    layer = crnn.CudnnGRU(1, 3, recurrent_initializer=initializer)
    layer.build((None, None, 4))
    weights = layer.named_weights()
    assert not np.any(weights["layer_0_forward_candidate_recurrent_kernel"])
    reset = weights["layer_0_forward_reset_gate_recurrent_kernel"].numpy()
    np.testing.assert_allclose(reset @ reset.T, np.eye(3), atol=1e-6)
    assert np.any(weights["layer_0_forward_candidate_kernel"])


@pytest.mark.parametrize(
    "layer, known", [("CudnnGRU", "reset_gate, update_gate"), ("CudnnRNNTanh", "no gates")]
)
def test_gates_that_are_not_there(layer, known):
    made = getattr(crnn, layer)(1, 3, bias_initializer=crnn.PerGate(forget_gate="ones"))
    with pytest.raises(ValueError, match=f"{known}.* received 'forget_gate'"):
        made.build((None, None, 4))


def test_all_gates_at_once():
    """As in Keras's layers, limits and orthogonality are those of the whole matrix."""
    layer = crnn.CudnnLSTM(
        2,
        20,
        direction="bidirectional",
        kernel_initializer=crnn.AllGates(keras.initializers.GlorotUniform(seed=1)),
        recurrent_initializer=crnn.AllGates("orthogonal"),
    )
    layer.build((None, None, 30))
    weights = {name: weight.numpy() for name, weight in layer.named_weights().items()}
    seen = set()
    for number, fan_in in enumerate((30, 40)):
        for direction in ("forward", "backward"):
            name = f"layer_{number}_{direction}_{{}}_{{}}kernel"
            kernel, recurrent = (
                np.concatenate([weights[name.format(gate, side)] for gate in LSTM_GATES])
                for side in ("", "recurrent_")
            )
            limit = np.sqrt(6.0 / (fan_in + 80))
            assert 0.98 * limit < np.abs(kernel).max() <= limit
            np.testing.assert_allclose(recurrent.T @ recurrent, np.eye(20), atol=1e-5)
            seen.add(kernel.flat[0])
    assert len(seen) == 4
    # With the same seed, the first kernel is that of a Keras layer.
    stock = keras.layers.LSTM(20, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    stock.build((None, None, 30))
    first = [weights[f"layer_0_forward_{gate}_kernel"] for gate in LSTM_GATES]
    np.testing.assert_array_equal(np.concatenate(first).T, stock.cell.kernel)


@pytest.mark.parametrize(
    "initializer",
    [
        crnn.AllGates("orthogonal"),
        crnn.PerGate("he_normal", forget_gate="ones"),
        crnn.TorchUniform(3, seed=5),
    ],
)
def test_configurations(initializer):
    config = keras.initializers.serialize(initializer)
    again = keras.initializers.deserialize(config)
    assert type(again) is type(initializer)
    assert keras.initializers.serialize(again) == config
    # Code that does not know about gates can use it like the initializer that it holds.
    assert initializer((3, 4)).shape == (3, 4)
