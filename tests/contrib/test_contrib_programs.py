"""Runs a program as it was written for `tf.contrib`, with other imports only."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from contrib_layers import in_graph

from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf.contrib.python.ops import cudnn_rnn_ops

RANDOM = np.random.default_rng(0)
# Float32 keeps 6 digits of these networks' sums.
TOLERANCE = {"rtol": 0, "atol": 1e-5}


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
