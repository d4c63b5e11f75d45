"""`contrib.rnn`, whose `dynamic_rnn` is compared with TensorFlow's own loop over the same cells."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import random_configs
import tensorflow as tf

from cudnn_rnn_tf import contrib
from cudnn_rnn_tf.contrib import rnn, rnn_cell

v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")


def draw_cell(random: np.random.Generator, units: int, dtype: str) -> Any:
    """Draws a cell that runs fused, with wrappers or without."""
    cell = [
        lambda: rnn.BasicLSTMCell(units, forget_bias=0.5),
        lambda: rnn.LSTMCell(units, activation="tanh", use_peepholes=True),
        lambda: rnn.LSTMCell(units + 1, num_proj=units),
        lambda: rnn.LSTMBlockCell(units, use_peephole=bool(random.integers(2))),
        lambda: rnn.GRUCell(units),
        lambda: rnn.GRUBlockCellV2(units),
        lambda: rnn.BasicRNNCell(units, activation=tf.nn.relu),
    ][random.integers(7)]()
    if random.random() < 0.3:
        # What is kept with a probability of one, though nobody knows it, is all.
        keep = v1.placeholder_with_default(np.ones([], dtype), [])
        cell = rnn.DropoutWrapper(cell, input_keep_prob=keep, output_keep_prob=1.0)
    return cell


def draw_network(random: np.random.Generator, dtype: str) -> Any:
    units = int(random.integers(3, 5))
    cells = [draw_cell(random, units, dtype) for _ in range(random.integers(1, 4))]
    cells[1:] = [rnn.ResidualWrapper(c) if random.random() < 0.5 else c for c in cells[1:]]
    return cells[0] if len(cells) == 1 else rnn.MultiRNNCell(cells)


def trained(seed: int, is_fused: bool) -> tuple[list[str], list[Any]]:
    """Returns the names of a network's variables, and what three steps of training compute."""
    random = np.random.default_rng(seed)
    time_major, dtype = bool(random.integers(2)), str(random.choice(["float64", "float32"]))
    module = rnn if is_fused else v1.nn
    split = v1.variable_scope("split", partitioner=v1.fixed_size_partitioner(2))
    scope = split if random.random() < 0.3 else contextlib.nullcontext()
    with tf.Graph().as_default(), v1.Session() as session, scope:
        v1.set_random_seed(1)
        cells = [draw_network(random, dtype) for _ in range(2)]
        inputs = random.standard_normal((5, 5, 3)).astype(dtype)
        lengths = random.integers(0, 6, 5) if random.random() < 0.6 else None
        placeholder = v1.placeholder(dtype, [None, None, 3] if random.integers(2) else [5, 5, 3])
        options = {"sequence_length": lengths, "dtype": dtype, "time_major": time_major}
        if random.random() < 0.5:
            results = module.bidirectional_dynamic_rnn(*cells, placeholder, **options)
        else:
            cell = cells[0]
            if random.random() < 0.5:
                options["initial_state"] = tf.nest.map_structure(
                    lambda state: state + 0.1, cell.zero_state(5, dtype)
                )
            results = module.dynamic_rnn(cell, placeholder, **options)
        variables = v1.trainable_variables()
        loss = tf.add_n([tf.reduce_mean((r - 0.3) ** 2) for r in tf.nest.flatten(results)])
        step = v1.train.AdamOptimizer(0.05).minimize(loss)
        session.run(v1.global_variables_initializer())
        for variable in variables:
            shape = variable.shape.as_list()
            variable.load(random.standard_normal(shape).astype(dtype), session)
        received = [
            session.run([tf.nest.flatten(results), loss, step], {placeholder: inputs})[:2]
            for _ in range(3)
        ]
    return [variable.name for variable in variables], received


@pytest.mark.parametrize("seed", random_configs.mostly_slow(range(20), 8, one_of=3))
def test_random_cells_compute_and_learn_what_tensorflows_loop_does(seed, fused_calls):
    names, received = trained(seed, is_fused=True)
    assert fused_calls
    fused_calls.clear()
    expected_names, expected = trained(seed, is_fused=False)
    assert names == expected_names and not fused_calls
    for one, other in zip(tf.nest.flatten(received), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def make_lstm(**options: Any) -> Callable[[], Any]:
    return lambda: rnn.LSTMCell(3, **options)


@pytest.mark.parametrize(
    "make",
    [
        make_lstm(use_peepholes=True, num_proj=2),
        make_lstm(num_proj=2, proj_clip=1.0),
        make_lstm(cell_clip=1.0),
        lambda: rnn.LSTMBlockCell(3, cell_clip=1.0),
        make_lstm(activation=tf.nn.relu),
        make_lstm(activation=lambda x: x),
        lambda: rnn.BasicLSTMCell(3, state_is_tuple=False),
        lambda: rnn.GRUCell(3, activation=tf.nn.relu),
        lambda: rnn.DropoutWrapper(rnn.GRUCell(3), state_keep_prob=0.5, seed=1),
        lambda: rnn.DropoutWrapper(
            rnn.GRUCell(3), 0.5, variational_recurrent=True, input_size=3, dtype=tf.float32
        ),
        lambda: rnn.ResidualWrapper(rnn.GRUCell(3), residual_fn=lambda x, y: x - y),
        lambda: rnn.MultiRNNCell([rnn.GRUCell(3), contrib.CudnnCompatibleGRUCell(3)]),
    ],
)
def test_what_tensorflows_loop_runs(make, fused_calls):
    inputs = np.random.default_rng(0).standard_normal((4, 5, 3)).astype("float32")
    with tf.Graph().as_default(), v1.Session() as session:
        outputs, _ = rnn.dynamic_rnn(make(), tf.constant(inputs), dtype=tf.float32)
        session.run(v1.global_variables_initializer())
        assert np.isfinite(session.run(outputs)).all() and not fused_calls


def test_dropout_of_a_wrapper_is_of_each_number_and_step():
    ones = tf.ones((50, 20, 6))
    with tf.Graph().as_default(), v1.Session() as session:
        cell = rnn.DropoutWrapper(rnn.BasicRNNCell(6), output_keep_prob=0.25, seed=1)
        outputs, _ = rnn.dynamic_rnn(cell, tf.ones((50, 20, 6)), dtype=tf.float32)
        session.run(v1.global_variables_initializer())
        first, second = session.run(outputs), session.run(outputs)
    assert ones.shape == first.shape
    assert np.mean(first == 0) == pytest.approx(0.75, abs=0.03)
    assert np.abs(np.mean(first == 0, axis=(0, 2)) - 0.75).max() < 0.15
    assert (first[:, 0] == 0).tolist() != (first[:, 1] == 0).tolist()
    assert (first == 0).tolist() != (second == 0).tolist()


@pytest.mark.parametrize("use_peephole", [False, True])
def test_fused_cells_are_lstm_cells_with_other_names(use_peephole, fused_calls):
    """A model's part as taggers have it: two directions, time-major, over different lengths."""
    data = np.random.default_rng(0).standard_normal((6, 4, 3)).astype("float32")
    lengths = [6, 2, 0, 4]
    with tf.Graph().as_default(), v1.Session() as session:
        fused, backwards = (rnn.LSTMBlockFusedCell(5, use_peephole=use_peephole) for _ in range(2))
        backwards = rnn.TimeReversedFusedRNN(backwards)
        with v1.variable_scope("bi"):
            results = [
                each(tf.constant(data), dtype=tf.float32, sequence_length=lengths)
                for each in (fused, backwards)
            ]
        assert len(fused_calls) == 2
        per_cell = 5 if use_peephole else 2
        names = [variable.op.name for variable in v1.trainable_variables()]
        assert names == [
            f"bi/lstm_fused_cell{suffix}/{name}"
            for suffix in ("", "_1")
            for name in ("kernel", "bias", "w_i_diag", "w_f_diag", "w_o_diag")[:per_cell]
        ]
        cells = [rnn.LSTMCell(5, use_peepholes=use_peephole) for _ in range(2)]
        (forward, backward), finals = v1.nn.bidirectional_dynamic_rnn(
            *cells, tf.constant(data), lengths, dtype=tf.float32, time_major=True
        )
        session.run(v1.global_variables_initializer())
        variables = v1.trainable_variables()
        targets = {v.op.name.replace("/lstm_cell/", "/"): v for v in variables[2 * per_cell :]}
        for index, source in enumerate(variables[: 2 * per_cell]):
            side = "fw" if index < per_cell else "bw"
            name = source.op.name.rpartition("/")[2]
            session.run(targets[f"bidirectional_rnn/{side}/{name}"].assign(source))
        received, expected = session.run([results, [(forward, finals[0]), (backward, finals[1])]])
    for one, other in zip(tf.nest.flatten(received), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert rnn.LSTMBlockFusedCell(5).num_units == 5
    with pytest.raises(NotImplementedError, match="LSTMBlockFusedCell has no cell_clip"):
        rnn.LSTMBlockFusedCell(5, cell_clip=1.0)


def test_a_program_of_tensorflow_1_2_is_told_where_its_class_is():
    with pytest.raises(TypeError, match="took input_size there, .* is cudnn_rnn_ops.CudnnGRU"):
        contrib.CudnnGRU(1, 4, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda units: contrib.CudnnLSTM(1, units),
        rnn.LSTMBlockFusedCell,
        contrib.CudnnCompatibleGRUCell,
        rnn.BasicLSTMCell,
    ],
)
@pytest.mark.parametrize("eager_first", [False, True])
def test_layers_of_a_graph_and_of_none_take_turns(make, eager_first):
    graph, layers = tf.Graph(), {}
    for is_eager in (eager_first, not eager_first) * 2:
        with contextlib.nullcontext() if is_eager else graph.as_default():
            layer = layers[is_eager] = layers.get(is_eager) or make(3)
            is_cell = isinstance(layer, rnn_cell.RNNCell)
            state = [layer.zero_state(2, tf.float32)] if is_cell else []
            received, _ = layer(tf.ones([2, 4] if is_cell else [5, 2, 4]), *state)
            assert received.shape[-1] == 3 and make(3).variables == []


def test_eagerly_and_names():
    inputs = tf.constant(np.random.default_rng(0).standard_normal((4, 5, 3)), tf.float32)
    lstm, gru = rnn_cell.BasicLSTMCell(4), rnn.GRUCell(4)
    for cell, part in ((gru, inputs), (lstm, inputs), (lstm, inputs[:, :0])):
        state = tf.nest.map_structure(lambda zeros: zeros + 0.5, cell.zero_state(4, tf.float32))
        received = rnn.dynamic_rnn(cell, part, initial_state=state)
        expected = v1.nn.dynamic_rnn(cell, part, initial_state=state)
        # The loop's outputs have no shape where there are no steps.
        assert received[0].shape == (4, part.shape[1], 4)
        for one, other in zip(tf.nest.flatten(received), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(tf.reshape(one, tf.shape(other)), other, atol=1e-6)
    with pytest.raises(ValueError, match="dtype"):
        rnn.dynamic_rnn(lstm, inputs)
    assert all(getattr(rnn, name) is getattr(rnn_cell, name) for name in rnn_cell.__all__)
    assert contrib.stack_bidirectional_dynamic_rnn is rnn.stack_bidirectional_dynamic_rnn
