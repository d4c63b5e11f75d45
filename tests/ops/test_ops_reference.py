"""The forward and backward ops against the NumPy reference, over random configurations."""

import dataclasses
import zlib

import numpy as np
import pytest
import random_configs
import tensorflow as tf
from random_configs import Case, Results

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

pytestmark = pytest.mark.usefixtures("on_cpu")

CASES = random_configs.with_resets(random_configs.random_cases(320, seed=20240))
CASES = random_configs.with_cell_sequences(CASES)
PADDED_CASES = [
    case for case in CASES if case.sequence_lengths and min(case.sequence_lengths) < case.max_time
]
RECURRENT_CASES = [random_configs.with_recurrent_dropout(case) for case in CASES[:120]]
NORMALIZED = random_configs.layer_normalized(CASES[:60] + RECURRENT_CASES[:30])
ZONED = random_configs.with_zoneout(CASES[60:140] + RECURRENT_CASES[:30])
DTYPES = ("float64", "float32", "float16", "bfloat16")


def is_padding(case: Case) -> np.ndarray:
    """Returns which steps are past their sequence's end, in the case's layout."""
    padding = np.arange(case.max_time) >= np.array(case.sequence_lengths)[:, None]
    return padding.T if case.time_major else padding


def assert_same_bits(results: Results, expected: Results) -> None:
    for name, value in results.named().items():
        assert value.tobytes() == expected.named()[name].tobytes(), name


def test_cases_cover_all_attributes():
    configs = [case.config for case in CASES]
    for name, count in (("rnn_mode", 6), ("input_mode", 2), ("direction", 2), ("bias_mode", 4)):
        assert len({getattr(config, name) for config in configs}) == count
    assert {config.num_layers for config in configs} == {1, 2, 3}
    for name in ("num_proj", "dropout", "cell_clip"):
        assert {bool(getattr(config, name)) for config in configs} == {False, True}
    assert any(config.num_proj and config.cell_clip for config in configs)
    for name in ("time_major", "is_training", "has_resets", "has_cell_sequences"):
        assert {getattr(case, name) for case in CASES} == {False, True}
    for name in ("max_time", "batch_size"):
        assert min(getattr(case, name) for case in CASES) == 1
    assert any(0 in case.sequence_lengths for case in PADDED_CASES)


@pytest.mark.parametrize(
    "case", random_configs.mostly_slow(CASES + RECURRENT_CASES + NORMALIZED + ZONED), ids=str
)
def test_agrees_with_reference(case):
    dtype = DTYPES[zlib.crc32(str(case).encode()) % len(DTYPES)]
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = random_configs.run_ops(case, data)
    rounds_factors = random_configs.cpu_rounds_factors(dtype)
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_are_exact(dtype):
    for index in range(12):
        assert not random_configs.inexact_whole_numbers(index, dtype)


@pytest.mark.parametrize("case", PADDED_CASES[:60], ids=str)
def test_padding_is_ignored(case):
    data = random_configs.draw_data(case, DTYPES[case.index % len(DTYPES)])
    padding = is_padding(case)
    clean = data._replace(inputs=data.inputs.copy(), d_outputs=data.d_outputs.copy())
    clean.inputs[padding] = 0
    clean.d_outputs[padding] = 0
    poisoned = tf.nest.map_structure(np.copy, data)
    poisoned.inputs[padding] = np.nan
    poisoned.d_outputs[padding] = np.inf
    for d_cells in poisoned.d_cells:
        d_cells[padding] = np.inf
    results = random_configs.run_ops(case, clean)
    assert np.all(results.outputs[padding] == 0)
    assert np.all(results.d_inputs[padding] == 0)
    assert all(np.all(cells[padding] == 0) for cells in results.cells)
    assert_same_bits(random_configs.run_ops(case, poisoned), results)


@pytest.mark.parametrize("case", CASES[:20], ids=str)
def test_full_lengths_are_as_none(case):
    dtype = DTYPES[case.index % len(DTYPES)]
    case = dataclasses.replace(case, sequence_lengths=None)
    full = dataclasses.replace(case, sequence_lengths=(case.max_time,) * case.batch_size)
    data = random_configs.draw_data(case, dtype)
    assert_same_bits(random_configs.run_ops(full, data), random_configs.run_ops(case, data))


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("time_major", [True, False], ids=["time_major", "batch_major"])
@pytest.mark.parametrize(
    "max_time, batch_size, with_lengths",
    [(0, 3, False), (4, 0, False), (0, 0, False), (0, 3, True), (4, 0, True), (4, 3, True)],
)
@pytest.mark.parametrize(
    "config",
    [
        RnnConfig("lstm", 2, 5, 3, direction="bidirectional", num_proj=2, dropout=0.5),
        RnnConfig("lstm", 1, 4, 4, input_mode="skip_input"),
        RnnConfig("gru", 2, 3, 2, dropout=0.5),
        RnnConfig("rnn_tanh", 1, 3, 2, direction="bidirectional"),
        RnnConfig("rnn_relu", 1, 3, 2, bias_mode="none"),
    ],
    ids=lambda config: f"{config.rnn_mode}-P{config.num_proj}",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_steps_states_pass_through(
    config, max_time, batch_size, with_lengths, time_major, is_training, dtype
):
    """There may be no time steps, no sequences, or only empty ones."""
    case = Case(
        index=0,
        config=config,
        max_time=max_time,
        batch_size=batch_size,
        time_major=time_major,
        is_training=is_training,
        sequence_lengths=(0,) * batch_size if with_lengths else None,
        has_cell_sequences=config.is_lstm,
    )
    data = random_configs.draw_data(case, dtype)
    results = random_configs.run_ops(case, data)
    assert results.outputs.shape == data.d_outputs.shape
    assert np.all(results.outputs == 0)
    for state, initial in zip(results.states, data.states, strict=True):
        np.testing.assert_array_equal(state, initial)
    for gradient, upstream in zip(results.d_states, data.d_states, strict=True):
        np.testing.assert_array_equal(gradient, upstream)
    np.testing.assert_array_equal(results.d_inputs, np.zeros_like(data.inputs))
    np.testing.assert_array_equal(results.d_params, np.zeros_like(data.params))


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_nan_stays_in_its_sequence(rnn_mode):
    """A NaN in the inputs affects its own sequence from its step on, and nothing else."""
    config = RnnConfig(rnn_mode, 1, 19, 3)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4, 5, 3)).astype(np.float32)
    inputs[2, 1, 0] = np.nan
    states = [tf.zeros(shape) for shape in config.state_shapes(5, time_major=True)]
    params = rng.standard_normal(config.layout.size).astype(np.float32)
    outputs, _ = ops.forward(config, tf.constant(inputs), states, tf.constant(params))
    expected = np.zeros((4, 5, 19), bool)
    expected[2:, 1] = True
    np.testing.assert_array_equal(np.isnan(outputs), expected)


def test_cell_clip_by_hand():
    """The op clips a cell state when a step reads it; the wrapper also clips the returned one."""
    config = RnnConfig("lstm", 1, 1, 1, bias_mode="single_input", cell_clip=0.5)
    # All matrices are zero, and gates are open: i = f = o = 1 except for rounding, and g =
    # tanh(0.4).
    params = tf.constant([0.0] * 8 + [40.0, 40.0, 0.4, 40.0], tf.float64)
    g = np.tanh(0.4)
    inputs = tf.zeros([2, 3, 1], tf.float64)
    h = tf.zeros([1, 3, 1], tf.float64)
    c = tf.constant([0.1, -2.0, 9.0], tf.float64)[None, :, None]
    # In step 1, the initial state is clipped and g is added; step 2 does the same to the result.
    first = np.clip(c.numpy().ravel(), -0.5, 0.5) + g
    last = np.clip(first, -0.5, 0.5) + g
    assert np.any(np.abs(first) > 0.5) and np.any(np.abs(first) < 0.5)
    outputs, (final_h, final_c) = ops.forward(config, inputs, [h, c], params)
    expected = np.tanh(np.clip([first, last], -0.5, 0.5))
    np.testing.assert_allclose(outputs[..., 0], expected, rtol=1e-14)
    np.testing.assert_allclose(final_h[0, :, 0], expected[-1], rtol=1e-14)
    np.testing.assert_allclose(final_c[0, :, 0], np.clip(last, -0.5, 0.5), rtol=1e-14)
    _, _, raw_c, *_ = raw_ops.cudnn_rnn_tf_forward(
        input=inputs,
        input_h=h,
        input_c=c,
        params=params,
        sequence_lengths=tf.zeros([0], tf.int32),
        seed=[],
        resets=[],
        cell_clip=config.cell_clip,
        **config.spec_attrs(),
    )
    np.testing.assert_allclose(raw_c[0, :, 0], last, rtol=1e-14)


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_nan_state_of_an_empty_sequence_stays_there(direction):
    config = RnnConfig("lstm", 1, 3, 2, direction=direction)
    case = Case(0, config, 2, 3, True, True, (2, 0, 1))
    data = random_configs.draw_data(case, "float32")
    expected = random_configs.run_ops(case, data)
    data.states[0][:, 1] = np.nan
    results = random_configs.run_ops(case, data)
    np.testing.assert_array_equal(results.d_params, expected.d_params)
    np.testing.assert_array_equal(results.d_inputs, expected.d_inputs)
