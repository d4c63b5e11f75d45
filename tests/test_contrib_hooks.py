"""What programs override of contrib's saveables, and contrib's object-based checkpoints."""

import numpy as np
import pytest
import tensorflow as tf
from contrib_layers import INPUTS, in_graph, make

from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf.contrib.python.ops import cudnn_rnn_ops

v1 = tf.compat.v1


class OtherCellsConverter(cudnn_rnn_ops.CudnnParamsFormatConverterLSTM):
    """Of cells that add 1 to the forget gate's bias themselves, as TensorFlow 1's basic one did."""

    def _cudnn_to_tf_biases(self, *cu_biases):
        (bias,) = super()._cudnn_to_tf_biases(*cu_biases)
        i, c, f, o = tf.split(bias, 4)
        return (tf.concat([i, c, f - 1.0, o], 0),)

    def _tf_to_cudnn_biases(self, *tf_biases):
        (bias,) = tf_biases
        i, c, f, o = tf.split(bias, 4)
        return super()._tf_to_cudnn_biases(tf.concat([i, c, f + 1.0, o], 0))


class OtherCellsSaveable(cudnn_rnn_ops.CudnnLSTMSaveable):
    _format_converter_cls = OtherCellsConverter

    def _tf_canonical_name_prefix(self, layer, is_fwd=True):
        if self._direction == "unidirectional":
            return f"multi_rnn_cell/cell_{layer}/lstm_cell"
        return f"cell_{layer}/bidirectional_rnn/{'fw' if is_fwd else 'bw'}/lstm_cell"


def encoder(direction: str):
    """A variational autoencoder's encoder, as programs had it: its layers are asked for `call`."""
    with v1.variable_scope("encoder"):
        layer = make("lstm", 2, 3, direction=direction)
        layer._saveable_cls = OtherCellsSaveable
        outputs, _ = layer(tf.constant(INPUTS), training=False)
    return layer, outputs


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_a_derived_saveable_names_and_converts_what_a_saver_saves(direction, tmp_path):
    def save(session):
        layer, outputs = encoder(direction)
        saver = v1.train.Saver(cudnn_rnn.canonical_var_list())
        session.run(v1.global_variables_initializer())
        return saver.save(session, str(tmp_path / "model")), *session.run([outputs, layer.kernel])

    path, expected, kernel = in_graph(save)
    reader = tf.train.load_checkpoint(path)
    names = set(reader.get_variable_to_shape_map())
    cells = (
        [f"encoder/cudnn_lstm/multi_rnn_cell/cell_{i}/lstm_cell" for i in range(2)]
        if direction == "unidirectional"
        else [
            f"encoder/cudnn_lstm/cell_{i}/bidirectional_rnn/{side}/lstm_cell"
            for i in range(2)
            for side in ("fw", "bw")
        ]
    )
    assert names == {f"{cell}/{part}" for cell in cells for part in ("kernel", "bias")}
    # The first cell computes the same with its 1 at the forget gate: contrib's step by step.
    biases = kernel[-len(cells) * 8 * 3 :].reshape(len(cells), 2, 4, 3).sum(1)
    for cell, (i, f, c, o) in zip(cells, biases, strict=True):
        np.testing.assert_allclose(
            reader.get_tensor(f"{cell}/bias"), np.concatenate([i, c, f - 1, o])
        )

    def restore(session):
        _, outputs = encoder(direction)
        v1.train.Saver(cudnn_rnn.canonical_var_list()).restore(session, path)
        return session.run(outputs)

    np.testing.assert_allclose(in_graph(restore), expected, rtol=1e-12)


def test_a_second_saveable_of_one_kernel_beside_saver(tmp_path):
    def program(session):
        layer = make("lstm")
        layer.build((None, None, 4))
        second = cudnn_rnn.CudnnLSTMSaveable(
            layer.kernel, 2, 3, 4, scope="other", name="other_saveable"
        )
        v1.add_to_collection(v1.GraphKeys.SAVEABLE_OBJECTS, second)
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "model"))
        saver.restore(session, path)
        return path

    names = tf.train.load_checkpoint(in_graph(program)).get_variable_to_shape_map()
    cell = "rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/kernel"
    assert {cell, f"other/{cell}"} <= set(names)


CONVERTERS = {
    "lstm": cudnn_rnn.CudnnParamsFormatConverterLSTM,
    "gru": cudnn_rnn.CudnnParamsFormatConverterGRU,
    "rnn_tanh": cudnn_rnn.CudnnParamsFormatConverterTanh,
    "rnn_relu": cudnn_rnn.CudnnParamsFormatConverterRelu,
}


@pytest.mark.parametrize("rnn_mode", CONVERTERS)
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("input_mode", ["linear_input", "skip_input"])
def test_converters_there_and_back(rnn_mode, direction, input_mode):
    converter = CONVERTERS[rnn_mode](2, 3, 3, input_mode=input_mode, direction=direction)
    params = tf.constant(np.random.default_rng(0).standard_normal(converter._config.layout.size))
    weights, biases = converter.opaque_to_tf_canonical(params)
    again = converter.tf_canonical_to_opaque(weights + biases)
    # The halves of a sum make the same sum, though they are not what was added.
    for received, expected in zip(
        converter.opaque_to_tf_canonical(again), (weights, biases), strict=True
    ):
        for tensor, other in zip(received, expected, strict=True):
            np.testing.assert_allclose(tensor, other, rtol=1e-14)
    np.testing.assert_array_equal(converter.tf_canonical_to_opaque(weights + biases), again)
    with pytest.raises(ValueError, match="weights and biases"):
        converter.tf_canonical_to_opaque(weights[1:] + biases)


def test_a_converter_with_projection():
    converter = cudnn_rnn.CudnnParamsFormatConverterLSTM(
        2, 4, 3, num_proj=2, direction="bidirectional"
    )
    size = converter._config.layout.size
    params = tf.range(size, dtype=tf.float64)
    weights, biases, projections = converter.opaque_to_tf_canonical(params)
    assert [tuple(each.shape) for each in projections] == [(4, 2)] * 4
    assert [tuple(each.shape) for each in weights] == [(5, 16)] * 2 + [(6, 16)] * 2
    again = converter.tf_canonical_to_opaque(weights + biases, projections)
    matrices = size - 4 * 2 * 16
    np.testing.assert_array_equal(again[:matrices], params[:matrices])


def write_contrib_objects(layer, path):
    """A checkpoint as contrib's object-based one: `layer/cell-0/kernel`."""
    weights, biases = layer.saveable.format_converter.opaque_to_tf_canonical(
        tf.convert_to_tensor(layer.kernel)
    )
    root = tf.__internal__.tracking.AutoTrackable()
    for index, (kernel, bias) in enumerate(zip(weights, biases, strict=True)):
        cell = tf.train.Checkpoint(kernel=tf.Variable(kernel), bias=tf.Variable(bias))
        setattr(root, f"cell-{index}", cell)
        if len(weights) == 1:
            root.kernel, root.bias = cell.kernel, cell.bias
    return tf.train.Checkpoint(layer=root).write(str(path))


@pytest.mark.parametrize("rnn_mode", ["lstm", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("built", [True, False])
def test_contribs_object_based_checkpoints_are_read(rnn_mode, num_layers, built, tmp_path):
    source = make(rnn_mode, num_layers, 3)
    expected, _ = source(INPUTS, training=False)
    path = write_contrib_objects(source, tmp_path / "objects")
    layer = make(rnn_mode, num_layers, 3)
    if built:
        layer.build(INPUTS.shape)
    tf.train.Checkpoint(layer=layer).read(path).assert_nontrivial_match()
    outputs, _ = layer(INPUTS, training=False)
    np.testing.assert_allclose(outputs, expected, rtol=1e-12)


def test_contribs_object_based_checkpoints_are_read_in_a_graph(tmp_path):
    source = make("lstm", 3, 3)
    expected, _ = source(INPUTS, training=False)
    path = write_contrib_objects(source, tmp_path / "objects")

    def restore(session):
        layer = make("lstm", 3, 3)
        outputs, _ = layer(tf.constant(INPUTS), training=False)
        session.run(v1.global_variables_initializer())
        tf.train.Checkpoint(layer=layer).read(path).run_restore_ops(session)
        return session.run(outputs)

    np.testing.assert_allclose(in_graph(restore), expected, rtol=1e-12)
