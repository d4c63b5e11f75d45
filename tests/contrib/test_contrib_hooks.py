"""Tests overriding contrib's private methods, and contrib's object-based checkpoints."""

import numpy as np
import pytest
import tensorflow as tf
from contrib_layers import INPUTS, LAYERS, in_graph, make

from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf.contrib.python.ops import cudnn_rnn_ops

v1 = tf.compat.v1


class OtherCellsConverter(cudnn_rnn_ops.CudnnParamsFormatConverterLSTM):
    """Converts to cells that add 1 to the forget gate's bias, as TensorFlow 1's basic one did."""

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
    """Builds a variational autoencoder's encoder, as a program that calls `call` of its layers."""
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
    # The first cell computes the same as contrib's step-by-step cell, which adds 1 at the forget
    # gate.
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
    # The two halves of a sum add up to it, though they differ from the original numbers.
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


@pytest.mark.parametrize("rnn_mode", LAYERS)
def test_dropout_of_all_that_a_layer_hands_on(rnn_mode):
    """In training, a rate of 1 has the same effect as zero weights above the layer."""
    layer = make(rnn_mode, direction="bidirectional", dropout=1.0)
    with tf.GradientTape() as tape:
        outputs, _ = layer(INPUTS, training=True)
    gradient = tape.gradient(outputs, layer.kernel)
    model = getattr(cudnn_rnn_ops, type(layer).__name__)(
        2, 3, 4, direction="bidirectional", dtype=tf.float64
    )
    weights, biases = model.params_to_canonical(layer.kernel)
    gates = len(weights) // 8
    upper = [4 * gates + i for i in (*range(gates), *range(2 * gates, 3 * gates))]
    deaf = [tf.zeros_like(w) if i in upper else w for i, w in enumerate(weights)]
    plain = make(rnn_mode, direction="bidirectional")
    plain.build(INPUTS.shape)
    plain.kernel.assign(model.canonical_to_params(deaf, biases))
    np.testing.assert_allclose(outputs, plain(INPUTS, training=False)[0], rtol=1e-12)
    gradients, _ = model.params_to_canonical(gradient)
    assert not any(np.any(gradients[i]) for i in [*range(4 * gates), *upper])
    if rnn_mode != "rnn_relu":  # A ReLU unit may be dead.
        assert all(np.any(gradients[i]) for i in range(4 * gates, 8 * gates) if i not in upper)
    plain.kernel.assign(layer.kernel)
    np.testing.assert_array_equal(
        layer(INPUTS, training=False)[0], plain(INPUTS, training=False)[0]
    )


def test_dropout_masks_repeat_where_contribs_variable_says_so(monkeypatch):
    model = cudnn_rnn_ops.CudnnGRU(3, 4, 4, dropout=0.5, seed=None, dtype=tf.float64)
    random = np.random.default_rng(0)
    params = random.standard_normal(model.params_size())
    arguments = (INPUTS, np.zeros((3, 2, 4)), params)
    assert np.any(model(*arguments)[0] != model(*arguments)[0])
    monkeypatch.setenv("TF_CUDNN_RESET_RND_GEN_STATE", "True")
    np.testing.assert_array_equal(model(*arguments)[0], model(*arguments)[0])


@pytest.mark.parametrize("rnn_mode", LAYERS)
def test_the_function_of_all_modes(rnn_mode):
    """Programs call contrib's private function, also on inputs whose size only the buffer tells."""
    layer = make(rnn_mode, 2, 3)
    expected, states = layer(INPUTS, training=False)
    zeros = np.zeros((2, 2, 3))

    @tf.function(input_signature=[tf.TensorSpec((5, 2, None), tf.float64)])
    def run(inputs):
        return cudnn_rnn_ops._cudnn_rnn(
            inputs, zeros, zeros, layer.kernel, False, rnn_mode, seed=1, num_proj=None
        )

    outputs, h, c = run(INPUTS)
    np.testing.assert_array_equal(outputs, expected)
    np.testing.assert_array_equal(h, states[0])
    assert c.shape == ((2, 2, 3) if rnn_mode == "lstm" else (0,))
    with pytest.raises(ValueError, match="rnn_mode to be one of"):
        cudnn_rnn_ops._cudnn_rnn(INPUTS, zeros, zeros, layer.kernel, False, "elman")


def test_what_arguments_are_checked_by():
    cudnn_rnn_ops.check_direction("bidirectional")
    cudnn_rnn_ops.check_input_mode("auto_select")
    with pytest.raises(ValueError, match="direction to be one of .* received 'both'"):
        cudnn_rnn_ops.check_direction("both")
    with pytest.raises(ValueError, match="input_mode to be one of .* received 'linear'"):
        cudnn_rnn_ops.check_input_mode("linear")
    assert cudnn_rnn_ops._get_num_params("gru", 2, "bidirectional") == 24


@pytest.mark.parametrize("rnn_mode", ["lstm", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_checkpoints_move_between_cells_and_layers(rnn_mode, num_layers, tmp_path):
    """They move in both directions under contrib's names, also for a cell without a stack."""
    make_cell = {
        "lstm": cudnn_rnn.CudnnCompatibleLSTMCell,
        "rnn_tanh": cudnn_rnn.BasicRNNCell,
        "rnn_relu": lambda units: cudnn_rnn.BasicRNNCell(units, tf.nn.relu),
    }[rnn_mode]

    def stack():
        return cudnn_rnn.MultiRNNCell([make_cell(3) for _ in range(num_layers)])

    def run(cell):
        state = cell.zero_state(2, tf.float64)
        for inputs in INPUTS:
            outputs, state = cell(tf.constant(inputs), state)
        return outputs

    with v1.variable_scope("", initializer=v1.random_normal_initializer(stddev=0.5)):
        source = make_cell(3) if num_layers == 1 else stack()
        expected = run(source)
    path = tf.train.Checkpoint(cell=source).write(str(tmp_path / "cells"))
    layer = make(rnn_mode, num_layers, 3)
    if num_layers == 1:  # Others are built after the checkpoint was read.
        layer.build(INPUTS.shape)
    tf.train.Checkpoint(cell=layer).read(path).assert_nontrivial_match()
    outputs, _ = layer(INPUTS, training=False)
    np.testing.assert_allclose(outputs[-1], expected, rtol=1e-12)
    path = tf.train.Checkpoint(cell=layer).write(str(tmp_path / "layer"))
    cells = {f"cell-{index}/{part}" for index in range(num_layers) for part in ("kernel", "bias")}
    assert {
        name.removeprefix("cell/").removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
        for name, _ in tf.train.list_variables(path)
        if name.startswith("cell/")
    } == ({"kernel", "bias"} if num_layers == 1 else cells)  # The shortest names are written.
    target = stack()
    tf.train.Checkpoint(cell=target).read(path)
    np.testing.assert_allclose(run(target), expected, rtol=1e-12)
    # A layer can read the whole checkpoint, too.
    other = make(rnn_mode, num_layers, 3)
    other.build(INPUTS.shape)
    tf.train.Checkpoint(cell=other).read(path).assert_consumed()
    np.testing.assert_allclose(other(INPUTS, training=False)[0], outputs, rtol=1e-12)


def test_checkpoints_with_gates_are_read_by_every_layer(tmp_path):
    """Such checkpoints keep both biases separate."""
    layer = make("lstm", 2, 3)
    layer.build(INPUTS.shape)
    root = tf.train.Checkpoint(layer=tf.train.Checkpoint(_saveable=layer.saveable))
    path = root.write(str(tmp_path / "gates"))
    other = make("lstm", 2, 3)
    other.build(INPUTS.shape)
    tf.train.Checkpoint(layer=other).read(path).assert_nontrivial_match()
    np.testing.assert_array_equal(other.kernel, layer.kernel)


def test_contribs_object_based_checkpoints_are_read_in_a_graph(tmp_path):
    source = make("lstm", 3, 3)
    expected, _ = source(INPUTS, training=False)
    path = tf.train.Checkpoint(layer=source).write(str(tmp_path / "objects"))

    def restore(session):
        layer = make("lstm", 3, 3)
        outputs, _ = layer(tf.constant(INPUTS), training=False)
        session.run(v1.global_variables_initializer())
        tf.train.Checkpoint(layer=layer).read(path).run_restore_ops(session)
        return session.run(outputs)

    np.testing.assert_allclose(in_graph(restore), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "cell_class", [cudnn_rnn.CudnnCompatibleLSTMCell, cudnn_rnn.CudnnCompatibleGRUCell]
)
def test_a_cell_that_reuses_anothers_variables(cell_class):
    with tf.Graph().as_default():
        cells = [cell_class(3), cell_class(3, reuse=True)]
        for cell in cells:
            cell(tf.constant(INPUTS[0]), cell.zero_state(2, tf.float64))
        assert cells[0].variables == cells[1].variables == v1.global_variables() != []


class DerivedLSTM(cudnn_rnn.CudnnLSTM):
    """A layer as programs derived it: its forget gates start open, and it scales outputs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.forward_arguments = None

    def _canonical_to_opaque(self, cu_weights, cu_biases):
        biases = [
            bias + 1.0 if index % (self._num_params_per_layer // 2) == 1 else bias
            for index, bias in enumerate(cu_biases)
        ]
        return super()._canonical_to_opaque(cu_weights, biases)

    def _forward(self, inputs, h, c, opaque_params, sequence_lengths, time_major, training):
        self.forward_arguments = (sequence_lengths, time_major, training)
        outputs, states = super()._forward(
            inputs, h, c, opaque_params, sequence_lengths, time_major, training
        )
        return 2.0 * outputs, states


def test_derived_layers():
    def run(session):
        layer = DerivedLSTM(2, 3, direction="bidirectional", seed=1, dtype=tf.float64)
        plain = cudnn_rnn.CudnnLSTM(2, 3, direction="bidirectional", seed=1, dtype=tf.float64)
        outputs, states = layer(tf.constant(INPUTS), training=False)
        assert layer.forward_arguments == (None, True, False)
        plain.build(INPUTS.shape)
        session.run(v1.global_variables_initializer())
        model = cudnn_rnn_ops.CudnnLSTM(
            2, 3, INPUTS.shape[2], direction="bidirectional", dtype=tf.float64
        )
        expected, *expected_states = model(
            tf.constant(INPUTS),
            *layer._zero_state(INPUTS.shape[1]),
            layer.kernel,
            is_training=False,
        )
        biases = [model.params_to_canonical(each.kernel)[1] for each in (layer, plain)]
        return session.run([(outputs, *states), (2.0 * expected, *expected_states), biases])

    received, expected, (biases, plain_biases) = in_graph(run)
    for value, expected_value in zip(received, expected, strict=True):
        np.testing.assert_array_equal(value, expected_value)
    for index, (bias, plain_bias) in enumerate(zip(biases, plain_biases, strict=True)):
        np.testing.assert_array_equal(bias - plain_bias, float(index % 4 == 1))


@pytest.mark.parametrize("rnn_mode", LAYERS)
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("input_mode", ["linear_input", "skip_input"])
def test_shapes_of_one_layer(rnn_mode, direction, input_mode):
    layer = make(rnn_mode, 3, 5, direction=direction, input_mode=input_mode)
    for method, arguments in (
        (layer._canonical_weight_shape, [0]),
        (layer._canonical_to_opaque, [[], []]),
    ):
        with pytest.raises(RuntimeError, match="is not built yet"):
            method(*arguments)
    layer.build([None, None, 5])
    gates, dirs = layer._num_params_per_layer // 2, layer.num_dirs
    hidden = [(5, 5)] * gates
    assert layer._canonical_weight_shape(0) == (
        hidden * dirs if input_mode == "skip_input" else ([(5, 5)] * gates + hidden) * dirs
    )
    for index in (1, 2):
        expected = ([(5, 5 * dirs)] * gates + hidden) * dirs
        assert layer._canonical_weight_shape(index) == expected
        assert layer._canonical_bias_shape(index) == [(5,)] * (2 * gates * dirs)
    for index in (-1, 3):
        with pytest.raises(ValueError, match=r"expected layer to lie in \[0, 3\), but received"):
            layer._canonical_weight_shape(index)


class TiedGRU(cudnn_rnn.CudnnGRU):
    """A layer whose initializers see other shapes than contrib's."""

    def _canonical_weight_shape(self, layer):
        return [(1, cols) for _, cols in super()._canonical_weight_shape(layer)]

    def _canonical_bias_shape(self, layer):
        return [(1,) for _ in super()._canonical_bias_shape(layer)]

    def _canonical_to_opaque(self, cu_weights, cu_biases):
        weights = [tf.repeat(weight, self._num_units, axis=0) for weight in cu_weights]
        return super()._canonical_to_opaque(
            weights, [tf.repeat(bias, self._num_units) for bias in cu_biases]
        )


def test_a_derived_layer_of_other_shapes():
    layer = TiedGRU(2, 3, dtype=tf.float64)
    layer.build([None, None, 4])
    model = cudnn_rnn_ops.CudnnGRU(2, 3, 4, dtype=tf.float64)
    for weight in model.params_to_canonical(layer.kernel)[0]:
        np.testing.assert_array_equal(weight, weight[:1] * np.ones((3, 1)))
        assert np.any(weight)


def test_added_losses_and_updates():
    with tf.Graph().as_default():
        layer = make("gru", 1, 3)
        layer(tf.constant(INPUTS))
        loss, update = tf.reduce_sum(layer.kernel**2), v1.assign(layer.kernel, layer.kernel + 1.0)
        layer.add_loss(loss)
        layer.add_update(update)
        layer(tf.constant(INPUTS))  # As in TensorFlow 1, a call adds them to the collection.
        assert layer.losses == [loss] == v1.losses.get_regularization_losses()
        assert layer.updates == [update.op] == v1.get_collection(v1.GraphKeys.UPDATE_OPS)
