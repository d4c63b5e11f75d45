"""The cells against the fused layers whose weights they take over."""

from typing import Any

import keras
import numpy as np
import pytest

import cudnn_rnn_tf as crnn

BATCH_SIZE, MAX_TIME, INPUT_SIZE, NUM_UNITS = 3, 5, 4, 6
# Both compute the same sums of some ten products, in float64.
TOLERANCE = {"rtol": 0, "atol": 1e-12}

CELLS = {"lstm": crnn.CudnnCompatibleLSTMCell, "gru": crnn.CudnnCompatibleGRUCell}
LAYERS = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU}
NUM_CANONICAL = {"lstm": 8, "gru": 6}

with_modes = pytest.mark.parametrize("mode", CELLS)
with_biases = pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no_bias"])


def draw_inputs() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((BATCH_SIZE, MAX_TIME, INPUT_SIZE))


def make_fused(mode: str, num_layers: int = 1, use_bias: bool = True, **options: Any) -> Any:
    layer = LAYERS[mode](
        num_layers,
        NUM_UNITS,
        bias_mode="double" if use_bias else "none",
        bias_initializer=keras.initializers.RandomNormal(seed=1),
        return_state=True,
        dtype="float64",
        **options,
    )
    layer.build((None, None, INPUT_SIZE))
    return layer


def make_cells(mode: str, fused: Any, **options: Any) -> list[Any]:
    """Makes one cell per pseudo-layer, with the weights of the pseudo-layer."""
    weights, biases = fused.params_to_canonical()
    cells, count = [], NUM_CANONICAL[mode]
    for index in range(fused.num_layers * fused.num_dirs):
        part = slice(index * count, (index + 1) * count)
        cell = CELLS[mode](NUM_UNITS, use_bias=bool(biases), dtype="float64", **options)
        cell.build((None, weights[index * count].shape[1]))
        cell.set_canonical(weights[part], biases[part])
        cells.append(cell)
    return cells


@with_biases
@with_modes
def test_agrees_with_fused_layer(mode, use_bias):
    fused = make_fused(mode, use_bias=use_bias)
    (cell,) = make_cells(mode, fused)
    inputs = draw_inputs()
    rng = np.random.default_rng(1)
    states = [rng.standard_normal((BATCH_SIZE, NUM_UNITS)) for _ in range(1 + (mode == "lstm"))]
    rnn = keras.layers.RNN(cell, return_sequences=True, return_state=True, dtype="float64")
    outputs, *final = rnn(inputs, initial_state=states)
    expected, *expected_final = fused(inputs, initial_state=[s[:, np.newaxis] for s in states])
    np.testing.assert_allclose(outputs, expected, **TOLERANCE)
    for state, expected_state in zip(final, expected_final, strict=True):
        np.testing.assert_allclose(state, expected_state[:, 0], **TOLERANCE)


@with_modes
def test_biases_start_at_zero(mode):
    """In Keras's LSTM, in contrast, the forget gate has a bias of one."""
    cell = CELLS[mode](NUM_UNITS)
    cell.build((None, INPUT_SIZE))
    assert np.all(np.asarray(cell.bias) == 0)


# Configuration.


# Keras itself causes this warning when it writes a variable to a file.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@with_modes
def test_keras_file(mode, tmp_path):
    cells = make_cells(mode, make_fused(mode, num_layers=2, use_bias=False), dropout=0.25)
    cell = keras.layers.StackedRNNCells(cells, dtype="float64")
    model = keras.Sequential(
        [
            keras.Input((None, INPUT_SIZE), dtype="float64"),
            keras.layers.RNN(cell, return_sequences=True, dtype="float64"),
            keras.layers.Dense(2, dtype="float64"),
        ]
    )
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    again = loaded.layers[0].cell.cells
    assert [type(cell) for cell in again] == [CELLS[mode]] * 2
    assert again[0].units == NUM_UNITS and again[0].dropout == 0.25
    assert [cell.get_config() for cell in again] == [cell.get_config() for cell in cells]
    np.testing.assert_array_equal(loaded(draw_inputs()), model(draw_inputs()))


# Errors.


@with_modes
def test_wrong_weights(mode):
    kind, count = CELLS[mode], NUM_CANONICAL[mode]
    weights, biases = [np.zeros((NUM_UNITS, NUM_UNITS))] * count, [np.zeros(NUM_UNITS)] * count

    def built(size: int = NUM_UNITS, **options: bool):
        cell = kind(NUM_UNITS, **options)
        cell.build((None, size))
        return cell

    built().set_canonical(weights, biases)
    name = kind.__name__
    for cell, given, message in (
        (built(), (weights[1:], biases), f"{count} canonical weights .* {name}, .* {count - 1}$"),
        (built(), (weights, []), f"{count} canonical biases .* {name}, .* 0$"),
        (built(use_bias=False), (weights, biases), f"0 canonical biases .* {name}, .* {count}$"),
        (built(INPUT_SIZE), (weights, biases), "shape"),
        (kind(NUM_UNITS), (weights, biases), "expecting 0 weights"),
    ):
        with pytest.raises(ValueError, match=message):
            cell.set_canonical(*given)


def test_wrong_arguments():
    assert crnn.CudnnCompatibleGRUCell(NUM_UNITS, reset_after=True).reset_after
    with pytest.raises(ValueError, match="expected reset_after=True"):
        crnn.CudnnCompatibleGRUCell(NUM_UNITS, reset_after=False)
    for cell in CELLS.values():
        with pytest.raises(TypeError, match="num_units"):
            cell()
        with pytest.raises(ValueError, match="positive integer"):
            cell(0)
