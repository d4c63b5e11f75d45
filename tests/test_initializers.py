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


def test_goes_through_a_file(tmp_path):
    layer = crnn.CudnnGRU(1, 3, kernel_initializer=crnn.TorchUniform(3, seed=5))
    model = keras.Sequential([keras.Input((None, 2)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").layers[0].kernel_initializer
    assert isinstance(loaded, crnn.TorchUniform)
    assert loaded.get_config() == {"num_units": 3, "seed": 5}
    np.testing.assert_array_equal(loaded((4, 3)), crnn.TorchUniform(3, seed=5)((4, 3)))


def test_wrong_number_of_units():
    with pytest.raises(ValueError, match="expected num_units to be positive, but received 0"):
        crnn.TorchUniform(0)
