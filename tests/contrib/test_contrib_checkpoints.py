"""Checkpoints of `cudnn_rnn_tf.contrib`: of its layers, of cells, and into the Keras layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import test_saveable as saveables
from contrib_layers import (
    ALL_MODES,
    INPUTS,
    OPTIMIZERS,
    assert_close,
    in_graph,
    make,
)
from layer_reference import LAYERS as KERAS_LAYERS

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf.config import RnnConfig

v1 = tf.compat.v1


def two_layers(build):
    layers = [make("lstm", direction="bidirectional"), make("gru", name="second")]
    if build:
        for layer in layers:
            layer.build([None, None, 4])
    return layers


def save_layers(path, build):
    """Saves two layers by a default Saver; returns the path, the kernels and their outputs."""

    def program(session):
        layers = two_layers(build)
        outputs = [layer(INPUTS, training=False)[0] for layer in layers]
        session.run(v1.global_variables_initializer())
        checkpoint = v1.train.Saver().save(session, str(path / "layers"))
        return checkpoint, *session.run([[layer.kernel for layer in layers], outputs])

    return in_graph(program)


def canonical(rnn_mode, kernel, scope, **options):
    config = RnnConfig(rnn_mode, 2, 3, 4, **options)
    return {
        f"{scope}/{name}".removeprefix("/"): tensor
        for name, tensor in saveables.contrib_tensors(config, kernel).items()
    }


@pytest.mark.parametrize("build", [False, True], ids=["called", "built"])
def test_default_saver(build, tmp_path):
    """Names begin with the layer's scope if a call built the layer, else with the outer scope."""
    checkpoint, (lstm, gru), outputs = save_layers(tmp_path, build)
    scopes = ("", "") if build else ("cudnn_lstm", "second")
    expected = canonical("lstm", lstm, scopes[0], direction="bidirectional")
    expected |= canonical("gru", gru, scopes[1])
    expected |= {"cudnn_lstm/opaque_kernel": lstm, "second/opaque_kernel": gru}
    saved = saveables.contents(checkpoint)
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(saved[name], tensor, rtol=0, atol=1e-15)

    def restore(session):
        layers = two_layers(build)
        results = [layer(INPUTS, training=False)[0] for layer in layers]
        v1.train.Saver().restore(session, checkpoint)
        return session.run(results)

    assert_close(in_graph(restore), outputs)


@pytest.mark.parametrize("import_scope", [None, "again"])
def test_meta_graph(import_scope, tmp_path):
    """A Saver writes one beside each checkpoint, from which programs go on training."""

    def train(session):
        layers = two_layers(build=False)
        outputs = [layer(INPUTS)[0] for layer in layers]
        loss = tf.add_n([tf.reduce_sum(each**2) for each in outputs])
        step = v1.train.AdamOptimizer(0.02).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(step)
        checkpoint = v1.train.Saver().save(session, str(tmp_path / "model"))
        losses = [session.run([loss, step])[0] for _ in range(3)]
        return checkpoint, loss.name, step.name, losses

    checkpoint, loss, step, losses = in_graph(train)

    def go_on(session):
        saver = v1.train.import_meta_graph(f"{checkpoint}.meta", import_scope=import_scope)
        saver.restore(session, checkpoint)
        names = [f"{import_scope}/{name}" if import_scope else name for name in (loss, step)]
        fetched = session.graph.get_tensor_by_name(names[0])
        operation = session.graph.get_operation_by_name(names[1])
        return [session.run([fetched, operation])[0] for _ in range(3)]

    assert_close(in_graph(go_on), losses)


def test_several_layers_of_one_kind_that_were_built(tmp_path):
    """Contrib gave their tensors the same names. The first layer still has these names."""

    def program(session):
        layers = [make("rnn_relu") for _ in range(3)]
        for layer in layers:
            layer.build([None, None, 4])
        outputs = [layer(INPUTS)[0] for layer in layers]
        saver = v1.train.Saver(cudnn_rnn.canonical_var_list())
        session.run(v1.global_variables_initializer())
        before = session.run(outputs)
        checkpoint = saver.save(session, str(tmp_path / "model"))
        session.run(v1.global_variables_initializer())
        assert not np.allclose(session.run(outputs[2]), before[2])
        saver.restore(session, checkpoint)
        assert_close(session.run(outputs), before)
        return saveables.contents(checkpoint).keys()

    names = {
        f"rnn/multi_rnn_cell/cell_{n}/basic_rnn_cell/{part}"
        for n in (0, 1)
        for part in ("kernel", "bias")
    }
    scopes = ("", "cudnn_rnn_relu_1/", "cudnn_rnn_relu_2/")
    assert in_graph(program) == {scope + name for scope in scopes for name in names}


@pytest.mark.parametrize("use_resource", [False, True])
def test_canonical_tensors_win_over_a_stored_buffer(use_resource, tmp_path):
    """Contrib's files have both, and the buffer in them has a layout of its own."""
    config = RnnConfig("lstm", 2, 3, 4)
    params = saveables.draw_params(config)
    tensors = {
        f"cudnn_lstm/{name}": tensor
        for name, tensor in saveables.contrib_tensors(config, params).items()
    }
    buffer = {"cudnn_lstm/opaque_kernel": np.full(params.shape, 7.0)}
    checkpoint = saveables.write_by_hand(tensors | buffer, tmp_path)

    def program(session):
        with v1.variable_scope("", use_resource=use_resource):
            outputs, _ = make("lstm")(INPUTS, training=False)
        saver = v1.train.Saver()
        results = []
        for _ in range(5):  # A race would not always end in the same way.
            saver.restore(session, checkpoint)
            results.append(session.run(outputs))
        return results

    expected = saveables.run_cells(config, saveables.contrib_tensors(config, params), INPUTS)
    for outputs in in_graph(program):
        assert_close(outputs, expected)


def cells(rnn_mode, count):
    make_cell = {
        "lstm": cudnn_rnn.CudnnCompatibleLSTMCell,
        "gru": cudnn_rnn.CudnnCompatibleGRUCell,
        "rnn_tanh": cudnn_rnn.BasicRNNCell,
        "rnn_relu": lambda units: cudnn_rnn.BasicRNNCell(units, tf.nn.relu),
    }[rnn_mode]
    return [make_cell(3) for _ in range(count)]


def run_cells(rnn_mode, direction, lengths=(5, 3)):
    """Runs TensorFlow's loops over cells, which is contrib's way to run without its op."""
    with v1.variable_scope("net", initializer=v1.random_normal_initializer(stddev=0.5)):
        if direction == "unidirectional":
            return v1.nn.dynamic_rnn(
                cudnn_rnn.MultiRNNCell(cells(rnn_mode, 2)),
                tf.constant(INPUTS),
                sequence_length=lengths,
                dtype=tf.float64,
                time_major=True,
            )[0]
        return cudnn_rnn.stack_bidirectional_dynamic_rnn(
            cells(rnn_mode, 2),
            cells(rnn_mode, 2),
            tf.constant(INPUTS),
            sequence_length=lengths,
            dtype=tf.float64,
            time_major=True,
        )[0]


@ALL_MODES
def test_cells_run_eagerly(rnn_mode):
    cell = cudnn_rnn.MultiRNNCell(cells(rnn_mode, 2))
    with v1.variable_scope("", initializer=v1.random_normal_initializer(stddev=0.5)):
        outputs, _ = v1.nn.dynamic_rnn(cell, tf.constant(INPUTS), dtype=tf.float64, time_major=True)
    tensors = {v.name.partition(":")[0]: v.numpy() for v in cell.trainable_variables}
    config = RnnConfig(rnn_mode, 2, 3, 4)
    assert_close(outputs, saveables.run_cells(config, tensors, INPUTS))
    state = cell.zero_state(2, tf.float64)
    first, _ = cell(tf.constant(INPUTS[0]), state)
    assert_close(first, outputs[0])
    assert (cell.output_size, first.shape) == (3, (2, 3))


def run_layer(rnn_mode, direction):
    return make(rnn_mode, direction=direction, name="net")(INPUTS, sequence_lengths=[5, 3])[0]


def randomize_biases(session):
    for variable in v1.trainable_variables():
        if "bias" in variable.name:
            session.run(variable.assign(v1.random_normal(variable.shape, dtype=tf.float64)))


@pytest.mark.parametrize(
    ("rnn_mode", "direction"),
    [
        ("lstm", "unidirectional"),
        pytest.param("gru", "bidirectional", marks=pytest.mark.slow),
        pytest.param("rnn_tanh", "bidirectional", marks=pytest.mark.slow),
    ],
)
def test_training_moves_between_implementations(rnn_mode, direction, tmp_path):
    """Cells train, then the layer, then cells again, and Adam's moments move with the weights.

    The layer has two biases for each of the cells'. So its biases get other values in training,
    but its kernels do not.
    """

    def program(session, make_outputs, checkpoint, steps, name):
        outputs = make_outputs(rnn_mode, direction)
        optimizer = v1.train.AdamOptimizer(0.01, epsilon=1e-3)
        step = optimizer.minimize(tf.reduce_sum((outputs - 0.3) ** 2))
        saver = v1.train.Saver(cudnn_rnn.canonical_var_list([optimizer]))
        session.run(v1.global_variables_initializer())
        if checkpoint:
            saver.restore(session, checkpoint)
        else:
            randomize_biases(session)
        before = session.run(outputs)
        for _ in range(steps):
            session.run(step)
        return before, saver.save(session, str(tmp_path / name))

    def run(*arguments):
        return in_graph(lambda session: program(session, *arguments))

    _, first = run(run_cells, None, 3, "cells")
    by_cells, second_of_cells = run(run_cells, first, 1, "cells_again")
    by_layer, second_of_layer = run(run_layer, first, 1, "layer")
    assert_close(by_layer, by_cells)
    saved, expected = saveables.contents(second_of_layer), saveables.contents(second_of_cells)
    assert saved.keys() == expected.keys()
    compared = [name for name in expected if "bias" not in name.rpartition("cell")[2]]
    assert sum(name.endswith("kernel/Adam_1") for name in compared) >= 2
    moments = [name for name in expected if name.endswith(("bias/Adam", "bias/Adam_1"))]
    assert moments
    for name in {*compared, *moments}:
        # Squares of a ReLU network's gradients can be large, so there is a relative tolerance too.
        np.testing.assert_allclose(
            saved[name], expected[name], rtol=1e-12, atol=1e-12, err_msg=name
        )
    # The way back also works.
    again, _ = run(run_cells, second_of_layer, 0, "back")
    by_layer, _ = run(run_layer, second_of_layer, 0, "stayed")
    assert_close(again, by_layer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_of_every_optimizer(name, tmp_path):
    """Slots of both kinds of variables are saved under the names of cells' slots, and restored."""

    def program(session):
        with v1.variable_scope("", use_resource=name in ("sgd", "adam")):
            outputs, _ = make("gru", name="net")(INPUTS)
        optimizer = OPTIMIZERS[name]()
        step = optimizer.minimize(tf.reduce_mean(outputs**2))
        variables = v1.global_variables()
        saver = v1.train.Saver(cudnn_rnn.canonical_var_list([optimizer]))
        session.run(v1.global_variables_initializer())
        session.run(step)
        # Both sides' numbers are equal where the format has one bias for two.
        values = [session.run(v) for v in variables if "/opaque_kernel/" in v.name]
        checkpoint = saver.save(session, str(tmp_path / "model"))
        session.run(v1.global_variables_initializer())
        saver.restore(session, checkpoint)
        again = [session.run(v) for v in variables if "/opaque_kernel/" in v.name]
        assert_close(again, values)
        return len(values), saveables.contents(checkpoint).keys()

    count, names = in_graph(program)
    assert count == {"sgd": 0, "adam": 2, "rmsprop": 2}.get(name, 1)
    assert not any("opaque_kernel" in stored for stored in names)
    cell = "net/rnn/multi_rnn_cell/cell_1/cudnn_compatible_gru_cell"
    slots = [n for n in names if n.startswith(f"{cell}/gates/kernel/")]
    assert len(slots) == count


def test_object_based_checkpoint(tmp_path):
    """A bidirectional layer is stored as one tensor per gate, without the buffer."""
    layer = make("lstm", direction="bidirectional")
    outputs, _ = layer(INPUTS)
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "objects"))
    keys = [name for name, _ in tf.train.list_variables(path)]
    assert sum("forget_gate_recurrent_kernel" in key for key in keys) == 4
    assert not any("opaque_kernel/" in key.replace("opaque_kernel_saveable", "") for key in keys)
    other = make("lstm", direction="bidirectional")
    other.build(INPUTS.shape)
    tf.train.Checkpoint(layer=other).read(path).assert_consumed()
    assert_close(other(INPUTS)[0], outputs)


def test_keras_optimizers_slots(tmp_path):
    """An object-based checkpoint can hold Adam's moments beside the weights."""

    def trained(seed):
        layer = crnn.CudnnLSTM(2, 3, dtype="float64", bias_initializer="glorot_uniform", seed=seed)
        optimizer = keras.optimizers.Adam(0.01)
        layer.build((None, None, 4))
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(INPUTS) ** 2)
            optimizer.apply_gradients(
                zip(
                    tape.gradient(loss, layer.trainable_variables),
                    layer.trainable_variables,
                    strict=True,
                )
            )
        saveable = crnn.CudnnLSTMSaveable(layer.kernel, 2, 3, 4)
        return optimizer, saveable.slots(optimizer)

    optimizer, slots = trained(1)
    assert slots.keys() == {"momentum", "velocity"}
    path = tf.train.Checkpoint(slots=slots).write(str(tmp_path / "slots"))
    keys = [name for name, _ in tf.train.list_variables(path)]
    assert sum("layer_1_forward_cell_candidate_kernel" in key for key in keys) == 2
    other, other_slots = trained(2)
    tf.train.Checkpoint(slots=other_slots).read(path).assert_consumed()
    for variable, expected in zip(other.variables[2:], optimizer.variables[2:], strict=True):
        np.testing.assert_array_equal(variable, expected)


# Restoring into the Keras layers.


def write_cells(config, path, scopes=("net",)):
    tensors = saveables.contrib_tensors(config, saveables.draw_params(config, seed=3))
    stored = {
        f"{scope}/{name}".removeprefix("/"): tensor + index
        for index, scope in enumerate(scopes)
        for name, tensor in tensors.items()
    }
    stored |= {f"{name}/Adam": tensor for name, tensor in stored.items()}
    checkpoint = saveables.write_by_hand(stored | {"global_step": np.int64(3)}, path)
    return checkpoint, saveables.run_cells(config, tensors, INPUTS[..., : config.input_size])


@pytest.mark.parametrize("scope", ["", "a/b"])
@saveables.with_configs
def test_restores_keras_layers(config, scope, tmp_path):
    checkpoint, expected = write_cells(config, tmp_path, [scope])
    layer = KERAS_LAYERS[config.rnn_mode](
        config.num_layers,
        config.num_units,
        config.input_mode,
        config.direction,
        dtype="float64",
        time_major=True,
    )
    cudnn_rnn.restore_keras_layer(layer, checkpoint)
    assert layer.input_size == config.input_size
    assert_close(layer(INPUTS[..., : config.input_size]), expected)


def test_restores_a_built_keras_layer_of_another_type(tmp_path):
    config = RnnConfig("gru", 2, 3, 4)
    checkpoint, expected = write_cells(config, tmp_path, ["first", "second"])
    layer = crnn.CudnnGRU(2, 3, time_major=True)
    layer.build((None, None, 4))
    with pytest.raises(ValueError, match=r"found 2; in the scopes \['first', 'second'\]"):
        cudnn_rnn.restore_keras_layer(layer, checkpoint)
    cudnn_rnn.restore_keras_layer(layer, checkpoint, scope="first")
    np.testing.assert_allclose(layer(INPUTS.astype("float32")), expected, rtol=0, atol=1e-5)


def test_restoring_keras_layers_that_do_not_fit(tmp_path):
    checkpoint, _ = write_cells(RnnConfig("lstm", 2, 3, 4), tmp_path)
    restore = cudnn_rnn.restore_keras_layer
    has = "the checkpoint has 'net/rnn.*': tf.contrib.cudnn_rnn, lstm, 2 layers of 3 units, unidir"
    with pytest.raises(ValueError, match=f"found 0; {has.replace('/rnn.*', '')}"):
        restore(crnn.CudnnGRU(2, 3), checkpoint)
    with pytest.raises(ValueError, match="expected a tensor other/rnn/multi_rnn_cell/cell_0"):
        restore(crnn.CudnnLSTM(2, 3), checkpoint, scope="other")
    with pytest.raises(ValueError, match="expected a tensor net/rnn/multi_rnn_cell/cell_2"):
        restore(crnn.CudnnLSTM(3, 3), checkpoint)
    wrong = crnn.CudnnLSTM(2, 3)
    wrong.build((None, None, 5))
    with pytest.raises(ValueError, match=r"cell_0/.*/kernel of shape \(8, 12\), but received"):
        restore(wrong, checkpoint)
    with pytest.raises(ValueError, match="projection"):
        restore(crnn.CudnnLSTM(2, 3, num_proj=2), checkpoint)
    with pytest.raises(ValueError, match="knows rnn_mode .*, but received 'gru_reset_before'"):
        restore(crnn.CudnnGRU(2, 3, reset_after=False), checkpoint)
    for other in (cudnn_rnn.CudnnLSTM(2, 3), crnn.keras.LSTM(3)):
        with pytest.raises(TypeError, match="CudnnRNNRelu of cudnn_rnn_tf, but received <"):
            restore(other, checkpoint)
