"""`contrib.GRUBlockCell` in TensorFlow 1's programs, beside NumPy in float64 and the fused op."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from contrib_layers import in_graph
from layer_reference import normal
from test_stored_weights import GRU_BLOCK_CELL, GRU_CELL, gru_cell

from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf import convert

v1 = tf.compat.v1
CELLS = {cudnn_rnn.GRUBlockCell: GRU_BLOCK_CELL, cudnn_rnn.GRUBlockCellV2: GRU_CELL}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("cell_class", CELLS)
def test_dynamic_rnn(cell_class, dtype, tmp_path):
    """Its outputs, its variables' names, and the fused layer that its checkpoint becomes."""
    inputs, lengths = normal(2, 5, 4).astype(dtype), [5, 3]
    arrays = [
        normal(*shape, seed=i).astype(dtype) for i, shape in enumerate([(7, 6), (6,), (7, 3), (3,)])
    ]

    def program(session):
        cell = cell_class(3)
        outputs, state = v1.nn.dynamic_rnn(cell, inputs, lengths, dtype=dtype, scope="net")
        variables = v1.global_variables()
        gradients = v1.gradients(outputs, variables)
        names = [variable.op.name for variable in variables]
        assert names == [f"net/gru_cell/{name}" for name in CELLS[cell_class]]
        assert cell.state_size == cell.output_size == 3
        session.run(v1.global_variables_initializer())
        biases = session.run([variables[1], variables[3]])
        np.testing.assert_array_equal(np.concatenate(biases), [1] * 6 + [0] * 3)
        for variable, array in zip(variables, arrays, strict=True):
            variable.load(array, session)
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
        return path, *session.run([outputs, state, gradients])

    path, outputs, state, gradients = in_graph(program)
    tolerance = {"float64": 1e-12, "float32": 1e-6}[dtype]
    expected = gru_cell(*(np.float64(array) for array in (inputs, *arrays)))
    np.testing.assert_allclose(state, [expected[0, 4], expected[1, 2]], rtol=0, atol=tolerance)
    expected[1, 3:] = 0
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=tolerance)
    convert.convert_file(path, tmp_path / "m.keras", rnn_mode="gru_reset_before")
    layer = keras.saving.load_model(tmp_path / "m.keras").layers[-1]
    assert layer.rnn_mode == "gru_reset_before"
    with tf.GradientTape() as tape:
        fused = layer(inputs, sequence_lengths=lengths)
    np.testing.assert_allclose(fused, outputs, rtol=0, atol=tolerance)
    (of_kernel,) = tape.gradient(fused, layer.trainable_variables)
    # Sums do not depend on the order in which the op has the same weights.
    of_matrices = sum(np.sum(gradient) for gradient in gradients[::2])
    of_biases = sum(np.sum(gradient) for gradient in gradients[1::2])
    counts = {"single_input": 1, "single_recurrent": 1, "double": 2}[layer.bias_mode]
    total = np.sum(of_kernel)
    np.testing.assert_allclose(total, of_matrices + counts * of_biases, rtol=1e3 * tolerance)


def test_arguments():
    for cell in (cudnn_rnn.GRUBlockCell(3), cudnn_rnn.GRUBlockCell(cell_size=3)):
        assert cell.output_size == 3
    for wrong in ({}, {"num_units": 3, "cell_size": 3}):
        with pytest.raises(ValueError, match="expected num_units for GRUBlockCell, or cell_size"):
            cudnn_rnn.GRUBlockCell(**wrong)
