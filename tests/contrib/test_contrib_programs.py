"""Runs programs as they were written for `tf.contrib`, with other imports only.

Each is a small program that does what a public one does, for speech, questions or music.
"""

import types

import numpy as np
import pytest
import reference
import tensorflow as tf
import tensorflow.compat.v1 as v1
from contrib_layers import in_graph

from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.contrib import rnn, rnn_cell
from cudnn_rnn_tf.contrib.python.ops import cudnn_rnn_ops

RANDOM = np.random.default_rng(0)
# Float32 keeps 6 digits of these networks' sums.
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def run_reference(rnn_mode, params, inputs, num_units, lengths=None):
    """Runs a network of one layer and direction in NumPy and float64; inputs are [T, B, I]."""
    config = RnnConfig(rnn_mode, 1, num_units, inputs.shape[-1])
    states = [np.zeros(shape) for shape in config.state_shapes(inputs.shape[1], time_major=True)]
    return reference.forward(
        config,
        inputs.astype("float64"),
        states,
        *reference.split_params(config, params.astype("float64")),
        sequence_lengths=lengths,
    )


def test_towers_of_a_speech_model(tmp_path):
    """One layer is called for each device; inference runs step by step on the checkpoint."""
    inputs = RANDOM.standard_normal((6, 4, 3)).astype("float32")
    lengths = np.array([6, 2, 4, 5], "int32")

    def dense(outputs):
        weights = v1.get_variable("logits", [5, 2], initializer=v1.ones_initializer())
        return tf.tensordot(outputs, weights, 1)

    def train(session):
        cell = None
        gradients = []
        optimizer = v1.train.AdamOptimizer(0.01)
        with v1.variable_scope(v1.get_variable_scope()):
            for tower in range(2):
                with tf.device("/cpu:0"), v1.name_scope(f"tower_{tower}"):
                    part = slice(2 * tower, 2 * tower + 2)
                    if cell is None:
                        cell = cudnn_rnn.CudnnLSTM(
                            num_layers=1,
                            num_units=5,
                            input_mode="linear_input",
                            direction="unidirectional",
                            dtype=tf.float32,
                        )
                    outputs, _ = cell(
                        inputs=tf.constant(inputs[:, part]), sequence_lengths=lengths[part]
                    )
                    loss = tf.reduce_sum(dense(outputs) ** 2)
                    v1.get_variable_scope().reuse_variables()
                    gradients.append(optimizer.compute_gradients(loss))
            whole, _ = cell(tf.constant(inputs), sequence_lengths=lengths, training=False)
            expected = v1.gradients(tf.reduce_sum(dense(whole) ** 2), cell.kernel)[0] / 2
        averaged = [
            (tf.reduce_mean(tf.stack([gradient for gradient, _ in pairs]), 0), pairs[0][1])
            for pairs in zip(*gradients, strict=True)
        ]
        step = optimizer.apply_gradients(averaged)
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(step)
        received, wanted, kernel = session.run([averaged[0][0], expected, cell.kernel])
        np.testing.assert_allclose(received, wanted, rtol=1e-4, atol=1e-5)
        return saver.save(session, str(tmp_path / "train")), kernel

    checkpoint, kernel = in_graph(train)

    def infer(session):
        with v1.variable_scope("cudnn_lstm/rnn/multi_rnn_cell/cell_0"):
            outputs, _ = v1.nn.dynamic_rnn(
                cudnn_rnn.CudnnCompatibleLSTMCell(5),
                tf.constant(inputs),
                sequence_length=lengths,
                dtype=tf.float32,
                time_major=True,
                scope=v1.get_variable_scope(),
            )
        v1.train.Saver().restore(session, checkpoint)
        return session.run(outputs)

    expected = run_reference("lstm", kernel, inputs, 5, lengths).outputs
    np.testing.assert_allclose(in_graph(infer), expected, **TOLERANCE)


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_a_question_answerers_gru_with_the_old_saveable(direction, tmp_path):
    """Its parameters begin as canonical tensors, and are saved as in TensorFlow 1.2."""
    inputs = RANDOM.standard_normal((5, 2, 3)).astype("float32")
    num_dirs = 2 if direction == "bidirectional" else 1

    def program(session, checkpoint=None):
        gru = cudnn_rnn_ops.CudnnGRU(2, 4, 3, "linear_input", direction)
        zeros = tf.zeros([gru.params_size()])
        parts = [
            [tf.random.normal(p.shape) for p in each] for each in gru.params_to_canonical(zeros)
        ]
        with v1.variable_scope("document"):
            params = v1.get_variable(
                "gru_parameters",
                initializer=gru.canonical_to_params(*parts),
                validate_shape=False,
            )
        saveable = cudnn_rnn_ops.RNNParamsSaveable(
            gru,
            gru.params_to_canonical,
            gru.canonical_to_params,
            [params],
            base_variable_scope="document/rnn",
            name="gru_parameters_saveable",
        )
        v1.add_to_collection(v1.GraphKeys.SAVEABLE_OBJECTS, saveable)
        outputs, _ = gru(
            input_data=tf.constant(inputs),
            input_h=tf.zeros([2 * num_dirs, 2, 4]),
            params=params,
            is_training=False,
        )
        saver = v1.train.Saver([saveable])
        session.run(v1.global_variables_initializer())
        if checkpoint:
            saver.restore(session, checkpoint)
        return session.run(outputs), saver.save(session, str(tmp_path / f"{checkpoint is None}"))

    expected, checkpoint = in_graph(program)
    np.testing.assert_allclose(
        in_graph(lambda session: program(session, checkpoint))[0], expected, **TOLERANCE
    )
    names = [name for name, _ in tf.train.list_variables(checkpoint)]
    outer = "document/rnn/multi_rnn_cell/cell_0/cudnn_compatible_gru_cell"
    if direction == "bidirectional":
        outer = "document/rnn/stack_bidirectional_rnn/cell_0/bidirectional_rnn/fw"
        outer += "/cudnn_compatible_gru_cell"
    assert f"{outer}/gates/kernel" in names
    if direction == "bidirectional":
        return

    def by_cells(session):
        with v1.variable_scope("document"):
            cells = [cudnn_rnn.CudnnCompatibleGRUCell(4) for _ in range(2)]
            outputs, _ = v1.nn.dynamic_rnn(
                cudnn_rnn.MultiRNNCell(cells),
                tf.constant(inputs),
                dtype=tf.float32,
                time_major=True,
            )
        v1.train.Saver().restore(session, checkpoint)
        return session.run(outputs)

    np.testing.assert_allclose(in_graph(by_cells), expected, **TOLERANCE)


# Programs with cells, as they were written for `tf.contrib.rnn` and `tf.nn.rnn_cell`. Each takes a
# module, for which a program without this package has TensorFlow's loops, and returns its loss.


def dense(inputs, columns):
    rows = inputs.shape.as_list()[-1]
    return tf.tensordot(inputs, v1.get_variable("dense", [rows, columns]), 1)


def language_model(nn):
    """The states of a batch are those that the batch before ended with."""
    tokens = v1.placeholder(tf.int32, [4, 7])
    embedded = tf.nn.embedding_lookup(v1.get_variable("embedding", [9, 5]), tokens[:, :-1])
    cells = [nn.DropoutWrapper(nn.BasicLSTMCell(5, forget_bias=0.0)) for _ in range(2)]
    stack = nn.MultiRNNCell(cells)
    states = tf.nest.map_structure(
        lambda zeros: v1.Variable(zeros, trainable=False), stack.zero_state(4, tf.float32)
    )
    with v1.variable_scope("RNN"):
        outputs, finals = nn.dynamic_rnn(stack, embedded, initial_state=states)
    kept = [v1.assign(*pair) for pair in zip(*map(tf.nest.flatten, (states, finals)), strict=True)]
    with tf.control_dependencies(kept):
        logits = dense(outputs, 9)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, 1:], logits)
    return tokens, tf.reduce_mean(losses)


def tagger(nn):
    """Characters make words, and words of different numbers make sentences."""
    tokens = v1.placeholder(tf.int32, [4, 7])
    characters = tf.one_hot(tf.reshape(tokens[:, :6], [-1, 3]), 9)
    with v1.variable_scope("chars"):
        _, ends = nn.bidirectional_dynamic_rnn(
            *(nn.LSTMCell(3, state_is_tuple=True) for _ in range(2)), characters, dtype=tf.float32
        )
    words = tf.reshape(tf.concat([end.h for end in ends], 1), [4, 2, 6])
    lengths = 1 + tokens[:, 6] % 2
    with v1.variable_scope("words"):
        both, _ = nn.bidirectional_dynamic_rnn(
            *(nn.GRUCell(4) for _ in range(2)), words, sequence_length=lengths, dtype=tf.float32
        )
    logits = dense(tf.concat(both, -1), 9)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, :2], logits)
    return tokens, tf.reduce_mean(tf.boolean_mask(losses, tf.sequence_mask(lengths, 2)))


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")
@pytest.mark.parametrize("program", [language_model, tagger])
def test_programs_with_cells_learn_as_in_tensorflows_loop(program):
    stock = types.SimpleNamespace(**{name: getattr(rnn_cell, name) for name in rnn_cell.__all__})
    stock.dynamic_rnn = v1.nn.dynamic_rnn
    stock.bidirectional_dynamic_rnn = v1.nn.bidirectional_dynamic_rnn
    batches = np.random.default_rng(1).integers(0, 9, (5, 4, 7))
    values = np.random.default_rng(2)
    weights = {}

    def train(nn):
        def run(session):
            tokens, loss = program(nn)
            variables = v1.trainable_variables()
            optimizer = v1.train.AdamOptimizer(0.05)
            gradients, _ = tf.clip_by_global_norm(v1.gradients(loss, variables), 1.0)
            step = optimizer.apply_gradients(zip(gradients, variables, strict=True))
            session.run(v1.global_variables_initializer())
            for variable in variables:
                shape = variable.shape.as_list()
                drawn = weights.setdefault(variable.name, values.normal(0, 0.4, shape))
                variable.load(drawn, session)
            losses = [session.run([loss, step], {tokens: batch})[0] for batch in batches]
            kinds = {op.type for op in session.graph.get_operations()}
            has_loop = bool(kinds & {"While", "StatelessWhile", "LoopCond"})
            return losses, [variable.name for variable in variables], has_loop

        return in_graph(run)

    (losses, names, has_loop), expected = train(rnn), train(stock)
    assert names == expected[1] and (has_loop, expected[2]) == (False, True)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    assert len(set(losses)) == 5
