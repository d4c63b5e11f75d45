"""Resets inside a sequence: the same steps as several sequences, in every way to call a layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import make, normal, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

KINDS = ("plain", "lengths", "mask", "ragged", "ragged_mask")
MODES = ("lstm", "gru", "gru_reset_before", "rnn_tanh")
TIME, BATCH, SIZE = 9, 5, 3


class Steps:
    """Random sequences, the steps of them that are read, and where segments begin."""

    def __init__(self, kind: str, seed: int):
        rng = np.random.default_rng(seed)
        self.inputs = rng.standard_normal((BATCH, TIME, SIZE)).astype(np.float32)
        self.resets = rng.random((BATCH, TIME)) < 0.4
        lengths = rng.integers(0, TIME + 1, BATCH) if kind != "plain" else np.full(BATCH, TIME)
        self.exists = np.arange(TIME) < lengths[:, None]
        mask = rng.random((BATCH, TIME)) < 0.6
        self.read = self.exists & mask if "mask" in kind else self.exists
        if kind == "mask":
            self.read = mask
        self.kind, self.lengths = kind, lengths

    def segments(self, b: int) -> list[list[int]]:
        """Returns the steps of a sequence that are read, those of each segment in a list."""
        numbers = np.cumsum(self.resets[b])
        return [
            [t for t in np.flatnonzero(self.read[b]) if numbers[t] == n]
            for n in range(numbers[-1] + 1)
        ]

    def call(self, layer, **arguments):
        """Calls a layer, which may be time-major, and returns outputs [B, T, n] and states."""
        swap = getattr(layer, "time_major", False)

        def given(array):
            return np.ascontiguousarray(array.swapaxes(0, 1)) if swap else array

        def ragged(array):
            rows = np.concatenate([row[:n] for row, n in zip(array, self.lengths, strict=True)])
            return tf.RaggedTensor.from_row_lengths(rows, self.lengths)

        inputs, resets = given(self.inputs), given(self.resets)
        if self.kind == "lengths":
            arguments["sequence_lengths"] = self.lengths
        elif self.kind == "mask":
            arguments["mask"] = given(self.read)
        elif self.kind.startswith("ragged"):
            inputs, resets = ragged(self.inputs), ragged(self.resets)
            if self.kind == "ragged_mask":
                arguments["mask"] = ragged(self.read)
        outputs, *states = layer(inputs, resets=resets, **arguments)
        if isinstance(outputs, tf.RaggedTensor):
            outputs = outputs.to_tensor(shape=(None, TIME, None)).numpy()
        elif swap:
            outputs = outputs.numpy().swapaxes(0, 1)
        return np.array(outputs), [np.array(state) for state in states]


def expected(layer, steps: Steps, states: list[np.ndarray], backwards: bool):
    """Runs one direction of one layer over each segment by itself, without resets."""
    outputs = np.zeros((BATCH, TIME, layer.num_units), np.float32)
    finals = [np.array(state) for state in states]
    for b in range(BATCH):
        segments = steps.segments(b)
        if backwards:
            segments = [segment[::-1] for segment in segments[::-1]]
            if not segments[0]:
                segments = [segment for segment in segments if segment]
        for number, segment in enumerate(segments):
            if not segment:
                continue
            before = [np.zeros_like(state[b : b + 1]) for state in states]
            if number == 0:
                before = [state[b : b + 1] for state in states]
            output, *after = layer(steps.inputs[b : b + 1, segment], initial_state=before)
            outputs[b, segment] = output[0]
            for final, state in zip(finals, after, strict=True):
                final[b] = state[0]
    return outputs, finals


@pytest.mark.parametrize("go_backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rnn_mode", MODES)
def test_are_several_sequences(rnn_mode, kind, go_backwards):
    one = randomize(make(rnn_mode, 1, 4, return_state=True), (None, None, SIZE))
    for seed in range(3):
        steps = Steps(kind, seed)
        time_major = seed % 2 == 1
        options = {"time_major": time_major, "go_backwards": go_backwards, "return_state": True}
        layer = randomize(make(rnn_mode, 1, 4, **options), (None, None, SIZE))
        states = [normal(BATCH, 1, 4, seed=n) for n in range(1 + (rnn_mode == "lstm"))]
        given = [state.swapaxes(0, 1) if time_major else state for state in states]
        outputs, finals = steps.call(layer, initial_state=given)
        right, right_finals = expected(one, steps, states, go_backwards)
        if go_backwards:
            # Outputs are in the order of reading; past a sequence's end only with a mask.
            ends = [TIME] * BATCH if kind == "mask" else steps.lengths
            for row, end in zip(right, ends, strict=True):
                row[:end] = row[:end][::-1].copy()
        np.testing.assert_allclose(outputs, right, rtol=1e-5, atol=1e-5)
        for final, other in zip(finals, right_finals, strict=True):
            final = final.swapaxes(0, 1) if time_major else final
            np.testing.assert_allclose(final, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("kind", ["plain", "mask"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
def test_drop_ins(name, kind, go_backwards):
    """Keras's own layer runs each segment."""
    options = {"return_sequences": True, "return_state": True}
    layer = getattr(drop_ins, name)(4, go_backwards=go_backwards, **options)
    stock = getattr(keras.layers, name)(4, **options)
    steps = Steps(kind, 1)
    steps.resets[:, 0] = False
    layer.build((None, None, SIZE))
    stock.build((None, None, SIZE))
    stock.set_weights(layer.get_weights())
    stock.num_units = 4
    layer.zero_output_for_mask = True
    states = [normal(BATCH, 4, seed=n) for n in range(1 + (name == "LSTM"))]
    outputs, finals = steps.call(layer, initial_state=states)
    right, right_finals = expected(stock, steps, states, go_backwards)
    if go_backwards:
        right = right[:, ::-1]
    np.testing.assert_allclose(outputs, right, rtol=1e-4, atol=1e-5)
    for final, other in zip(finals, right_finals, strict=True):
        np.testing.assert_allclose(final, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [drop_ins.LSTM, lambda n: drop_ins.Bidirectional(drop_ins.GRU(n))])
def test_mask_that_comes_with_the_sequences(make):
    ids, layer = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]]), make(3)
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(ids)
    received = layer(embedded, resets=ids % 3 == 1)
    np.testing.assert_array_equal(received, layer(embedded, resets=ids % 3 == 1, mask=ids > 0))


def test_in_bidirectional():
    layer = drop_ins.Bidirectional(drop_ins.LSTM(4, return_sequences=True))
    steps = Steps("mask", 2)
    outputs, _ = steps.call(lambda *args, **kwargs: (layer(*args, **kwargs),))
    zeros = [np.zeros((BATCH, 4), np.float32)] * 2
    parts = []
    for part, backwards in ((layer.forward_layer, False), (layer.backward_layer, True)):
        stock = keras.layers.LSTM(4, return_sequences=True, return_state=True)
        stock.build((None, None, SIZE))
        stock.set_weights(part.get_weights())
        stock.num_units = 4
        parts.append(expected(stock, steps, zeros, backwards)[0])
    np.testing.assert_allclose(outputs, np.concatenate(parts, -1), rtol=1e-4, atol=1e-5)
    dropped = drop_ins.Bidirectional(drop_ins.LSTM(4, dropout=0.5))
    with pytest.raises(ValueError, match="expected no resets of layer .*dropout of 'forward_lstm"):
        dropped(steps.inputs, resets=steps.resets)


def test_in_a_stateful_layer():
    layer = make("lstm", 1, 4, stateful=True)
    layer.build((2, 5, SIZE))
    inputs, resets = normal(2, 10, SIZE), np.zeros((2, 10), bool)
    resets[0, 5] = resets[1, 7] = True
    parts = [layer(inputs[:, i : i + 5], resets=resets[:, i : i + 5]) for i in (0, 5)]
    layer.reset_state()
    other = make("lstm", 1, 4)
    other.build((2, 10, SIZE))
    other.kernel.assign(layer.kernel.value)
    whole = other(inputs, resets=resets)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-5, atol=1e-6)


def test_in_models_and_files(tmp_path):
    steps = Steps("plain", 3)
    inputs = keras.Input((TIME, SIZE))
    resets = keras.Input((TIME,), dtype="bool")
    hidden = crnn.CudnnLSTM(1, 4)(inputs, resets=resets)
    model = keras.Model([inputs, resets], drop_ins.GRU(2)(hidden, resets=resets))
    given = [steps.inputs, steps.resets]
    right = model(given).numpy()
    without = model([steps.inputs, np.zeros_like(steps.resets)]).numpy()
    assert np.abs(right - without).max() > 1e-3
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(given, verbose=0), right, rtol=1e-5, atol=1e-6)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(given), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_in_a_predictor(go_backwards, time_major):
    options = {"go_backwards": go_backwards, "time_major": time_major, "return_state": True}
    layer = randomize(make("lstm", 2, 4, **options), (None, None, SIZE))
    steps = Steps("lengths", 4)
    predictor = crnn.CpuPredictor(layer)

    def predict(*args, **kwargs):
        outputs, states = predictor(*args, **kwargs)
        return tf.constant(outputs), *states

    predict.time_major = time_major
    outputs, finals = steps.call(predict)
    right, right_finals = steps.call(layer)
    np.testing.assert_allclose(outputs, right, rtol=1e-5, atol=1e-6)
    for final, other in zip(finals, right_finals, strict=True):
        np.testing.assert_allclose(final, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("resets", "error", "message"),
    [
        (np.zeros((2, 4)), TypeError, "expected resets.* to be boolean, but received float"),
        (np.zeros((2, 3), bool), ValueError, r"expected resets.* of shape \(2, 4\).* \(2, 3\)"),
    ],
)
def test_errors(resets, error, message):
    inputs, mask = normal(2, 4, SIZE), np.ones((2, 4), bool)
    layer = make("lstm", 1, 4)
    with pytest.raises(error, match=message):
        layer(inputs, resets=resets)
    with pytest.raises(error, match=message):
        layer(inputs, resets=resets, mask=mask)
    with pytest.raises(error, match=message):
        drop_ins.LSTM(4)(inputs, resets=resets)
    predictor = crnn.CpuPredictor(randomize(layer, (None, None, SIZE)))
    with pytest.raises(error, match="expected resets"):
        predictor(inputs, resets=resets)
    looped = drop_ins.LSTM(4, activation="selu")
    with pytest.raises(ValueError, match="expected no resets of layer .* activation='selu'"):
        looped(inputs, resets=np.zeros((2, 4), bool))
