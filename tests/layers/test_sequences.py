"""Sequences as ragged tensors, and one without a batch."""

import keras
import layer_reference
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import FUNCTIONS, MODELS

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cudnn_rnn_ops
from cudnn_rnn_tf.config import RnnConfig

ALL_MODES = pytest.mark.parametrize("rnn_mode", layer_reference.LAYERS)
LAYOUTS = pytest.mark.parametrize("time_major", [True, False], ids=["time_major", "batch_major"])
LENGTHS = [4, 0, 2, 4]


def ragged(size: int = 3, dtype: str = "float32") -> tf.RaggedTensor:
    values = layer_reference.normal(sum(LENGTHS), size, dtype=dtype)
    return tf.RaggedTensor.from_row_lengths(values, LENGTHS)


def assert_rows(result: tf.RaggedTensor, padded: np.ndarray) -> None:
    """Checks a ragged result against padded outputs [B, T, n], within the lengths."""
    assert isinstance(result, tf.RaggedTensor)
    np.testing.assert_array_equal(result.row_lengths(), LENGTHS)
    for row, expected, length in zip(result, padded, LENGTHS, strict=True):
        np.testing.assert_array_equal(row, expected[:length])


# Ragged tensors.


@LAYOUTS
@ALL_MODES
def test_ragged_in_ragged_out(rnn_mode, time_major):
    layer = layer_reference.make(
        rnn_mode, 2, 3, direction="bidirectional", return_state=True, time_major=time_major
    )
    outputs, *states = layer(ragged())
    padded = ragged().to_tensor().numpy()
    inputs = padded.swapaxes(0, 1) if time_major else padded
    expected, *expected_states = layer(inputs, sequence_lengths=LENGTHS)
    expected = expected.numpy()
    assert_rows(outputs, expected.swapaxes(0, 1) if time_major else expected)
    assert outputs.shape.as_list() == [4, None, 6]
    for state, value in zip(states, expected_states, strict=True):
        np.testing.assert_array_equal(state, value)


def test_last_outputs_of_a_ragged_tensor():
    layer = crnn.CudnnGRU(1, 3, return_sequences=False)
    outputs = layer(ragged())
    expected = layer(ragged().to_tensor(), sequence_lengths=LENGTHS)
    np.testing.assert_array_equal(outputs, expected)


@LAYOUTS
@ALL_MODES
def test_ragged_through_ops(rnn_mode, time_major):
    config = RnnConfig(rnn_mode, 2, 3, 3, direction="bidirectional")
    params = layer_reference.normal(config.layout.size)
    states = [layer_reference.normal(*s) for s in config.state_shapes(4, time_major)]
    options = {"time_major": time_major}
    padded = ragged().to_tensor().numpy()
    inputs = padded.swapaxes(0, 1) if time_major else padded
    function, model = FUNCTIONS[rnn_mode], MODELS[rnn_mode](2, 3, 3, direction="bidirectional")
    expected, *expected_states = model(inputs, *states, params, sequence_lengths=LENGTHS, **options)
    expected = expected.numpy()
    for outputs, *final in (
        function(ragged(), *states, params, True, direction="bidirectional", **options),
        model(ragged(), *states, params, **options),
    ):
        assert_rows(outputs, expected.swapaxes(0, 1) if time_major else expected)
        for state, value in zip(final, expected_states, strict=True):
            np.testing.assert_array_equal(state, value)


def test_ragged_model_trains_and_saves(tmp_path):
    """A functional model of ragged sequences works in Keras's own training loop and file."""
    inputs = keras.Input((None, 3), ragged=True)
    x = crnn.CudnnGRU(1, 4)(inputs)
    x = crnn.CudnnLSTM(1, 5, return_sequences=False)(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    targets = layer_reference.normal(4, 1)
    history = model.fit(ragged(), targets, epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(ragged()), model(ragged()))


def test_ragged_of_another_type_and_unknown_batch():
    layer = crnn.CudnnGRU(1, 3)
    function = tf.function(
        layer, input_signature=[tf.RaggedTensorSpec([None, None, 3], tf.float64, ragged_rank=1)]
    )
    inputs = ragged(dtype="float64")
    expected = layer(tf.cast(inputs.to_tensor(), tf.float32), sequence_lengths=LENGTHS).numpy()
    assert_rows(function(inputs), expected)


def test_wrong_ragged_tensors():
    layer = crnn.CudnnGRU(1, 3)
    layer.build((None, None, 3))
    with pytest.raises(ValueError, match="no sequence_lengths or mask with a ragged tensor"):
        layer(ragged(), sequence_lengths=LENGTHS)
    with pytest.raises(ValueError, match="no sequence_lengths or mask with a ragged tensor"):
        layer(ragged(), mask=np.ones((4, 4), bool))
    config = RnnConfig("gru", 1, 3, 3)
    deeper = tf.RaggedTensor.from_row_lengths(ragged(), [2, 2])
    with pytest.raises(ValueError, match="with the second dimension ragged, but received shape"):
        cudnn_rnn_ops.cudnn_gru(
            deeper, np.zeros((1, 4, 3), "float32"), np.zeros(config.layout.size, "float32"), True
        )


# One sequence without a batch.


@LAYOUTS
@ALL_MODES
def test_one_sequence(rnn_mode, time_major):
    config = RnnConfig(rnn_mode, 2, 3, 4, direction="bidirectional")
    params = layer_reference.normal(config.layout.size)
    inputs = layer_reference.normal(5, 4)
    states = [layer_reference.normal(4, size) for size in config.state_sizes()]
    model = MODELS[rnn_mode](2, 3, 4, direction="bidirectional")
    expected = model(inputs[:, None], *(state[:, None] for state in states), params)
    for results in (
        FUNCTIONS[rnn_mode](
            inputs, *states, params, True, direction="bidirectional", time_major=time_major
        ),
        model(inputs, *states, params, time_major=time_major),
    ):
        assert results[0].shape == (5, 6)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, value[:, 0])


# The mask that Keras hands on.


def test_lengths_take_precedence_over_the_mask_of_an_embedding():
    embedding = keras.layers.Embedding(7, 3, mask_zero=True)
    layer = crnn.CudnnGRU(1, 3)
    tokens = np.array([[1, 2, 3, 4], [5, 6, 0, 0]])
    lengths = np.array([3, 1])
    expected = layer(embedding(tokens).numpy(), sequence_lengths=lengths)
    np.testing.assert_array_equal(layer(embedding(tokens), sequence_lengths=lengths), expected)


def test_ragged_stack_names_the_way_out():
    arrays = [layer_reference.normal(3, 5), layer_reference.normal(1, 5)]
    layer = layer_reference.make("gru")
    with pytest.raises(ValueError, match=r"from_row_lengths\(tf\.concat\(arrays, 0\)"):
        layer(tf.ragged.stack(arrays))
    layer.build((None, None, 5))
    with pytest.raises(ValueError, match=r"from_row_lengths"):
        layer.call(tf.ragged.stack(arrays))
    ragged = tf.RaggedTensor.from_row_lengths(tf.concat(arrays, 0), [len(a) for a in arrays])
    assert layer(ragged).shape == (2, None, 3)
