"""`cudnn_rnn_tf.contrib` as programs for TensorFlow 1 use it."""

import importlib
import logging

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
import test_saveable as saveables

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf import cudnn_rnn_ops
from cudnn_rnn_tf.config import RnnConfig

v1 = tf.compat.v1

LAYERS = {
    "lstm": cudnn_rnn.CudnnLSTM,
    "gru": cudnn_rnn.CudnnGRU,
    "rnn_tanh": cudnn_rnn.CudnnRNNTanh,
    "rnn_relu": cudnn_rnn.CudnnRNNRelu,
}
ALL_MODES = pytest.mark.parametrize("rnn_mode", LAYERS)
DIRECTIONS = pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
INPUTS = np.random.default_rng(9).standard_normal((5, 2, 4))


def normal_initializer(shape, dtype=None, **_):
    """So that the biases, too, are numbers of their own."""
    return v1.random_normal(shape, stddev=0.5, dtype=dtype)


def make(rnn_mode: str, *sizes: int, **options):
    """A layer in float64 with weights and biases of their own."""
    return LAYERS[rnn_mode](
        *(sizes or (2, 3)),
        dtype=tf.float64,
        kernel_initializer=normal_initializer,
        bias_initializer=normal_initializer,
        **options,
    )


def in_graph(program):
    """What the program returns of a session in a new graph, evaluated."""
    with tf.Graph().as_default(), v1.Session() as session:
        return program(session)


def expected_of(layer, kernel, inputs, states=None, lengths=None, time_major=True):
    config = RnnConfig(
        layer.rnn_mode,
        layer.num_layers,
        layer.num_units,
        layer.input_size,
        layer.input_mode,
        layer.direction,
    )
    batch_size = inputs.shape[1 if time_major else 0]
    if states is None:
        states = [np.zeros(shape) for shape in config.state_shapes(batch_size, time_major)]
    run = reference.forward(
        config,
        inputs,
        states,
        *reference.split_params(config, kernel),
        sequence_lengths=lengths,
        time_major=time_major,
    )
    return run.outputs, run.states


def assert_close(values, expected):
    for value, other in zip(tf.nest.flatten(values), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-12)


# Running.


@DIRECTIONS
@ALL_MODES
def test_runs_in_a_session(rnn_mode, direction):
    def program(session):
        layer = make(rnn_mode, direction=direction)
        inputs = v1.placeholder(tf.float64, [None, None, 4])
        outputs, states = layer(inputs, training=False)
        assert isinstance(states, tuple)
        session.run(v1.global_variables_initializer())
        return layer, session.run([layer.kernel, outputs, states], {inputs: INPUTS})

    layer, (kernel, *values) = in_graph(program)
    assert_close(values, expected_of(layer, kernel, INPUTS))


@pytest.mark.parametrize("time_major", [True, False])
@ALL_MODES
def test_runs_eagerly(rnn_mode, time_major):
    """With initial states and sequence lengths."""
    layer = make(rnn_mode, direction="bidirectional")
    inputs = INPUTS if time_major else INPUTS.swapaxes(0, 1)
    layer.build(inputs.shape)
    rng = np.random.default_rng(0)
    states = tuple(rng.standard_normal(shape) for shape in layer.state_shape(2))
    if not time_major:
        states = tuple(state.swapaxes(0, 1) for state in states)
    values = layer(inputs, states, sequence_lengths=[5, 2], time_major=time_major)
    kernel = layer.kernel.numpy()
    assert_close(values, expected_of(layer, kernel, inputs, states, [5, 2], time_major))
    assert v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS) == []


def test_gradients_in_a_function():
    layer = make("gru")

    @tf.function
    def gradient(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(inputs)[0] ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    (first,) = gradient(INPUTS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(INPUTS)[0] ** 2)
    np.testing.assert_allclose(first, tape.gradient(loss, layer.kernel), rtol=1e-12)


def test_dropout_only_in_training():
    layer = make("lstm", dropout=0.5, seed=3)
    inference = [layer(INPUTS, training=False)[0] for _ in range(2)]
    np.testing.assert_array_equal(*inference)
    assert not np.allclose(layer(INPUTS, training=True)[0], inference[0])


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.2),
    "momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.02),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01),
}


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_train_it(name, use_resource):
    def program(session):
        v1.set_random_seed(0)
        with v1.variable_scope("net", use_resource=use_resource):
            outputs, _ = make("lstm")(INPUTS)
        loss = tf.reduce_mean((outputs - 0.1) ** 2)
        step = OPTIMIZERS[name]().minimize(loss)
        session.run(v1.global_variables_initializer())
        first = session.run(loss)
        for _ in range(60):
            session.run(step)
        return first, session.run(loss)

    first, last = in_graph(program)
    assert last < 0.7 * first


# Variables and scopes.


def test_one_trainable_variable():
    with tf.Graph().as_default():
        with v1.variable_scope("outer"):
            layer = make("lstm", name="rnn_layer")
            layer(INPUTS)
        (variable,) = v1.trainable_variables()
        assert variable.name == "outer/rnn_layer/opaque_kernel:0"
        assert layer.scope_name == "outer/rnn_layer"
        assert v1.global_variables() == [variable]
        for variables in (layer.variables, layer.trainable_weights, [layer.kernel]):
            assert variables == [variable]
        assert layer.non_trainable_variables == []
        (saveable,) = v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)
        assert layer.saveable is saveable
        assert saveable.name == "outer/rnn_layer/opaque_kernel_saveable"
        layer(INPUTS)
        assert v1.global_variables() == [variable]
        assert v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS) == [saveable]


def test_names_of_layers_without_one():
    with tf.Graph().as_default():
        for layer in (make("lstm"), make("lstm"), make("rnn_tanh"), make("gru")):
            layer(INPUTS)
        assert [variable.op.name for variable in v1.global_variables()] == [
            "cudnn_lstm/opaque_kernel",
            "cudnn_lstm_1/opaque_kernel",
            "cudnn_rnn_tanh/opaque_kernel",
            "cudnn_gru/opaque_kernel",
        ]
        assert len(v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)) == 4


@pytest.mark.parametrize("reuse", [True, v1.AUTO_REUSE])
def test_reuse(reuse):
    """One variable and one saveable for both layers."""
    with tf.Graph().as_default():
        with v1.variable_scope("net"):
            first = make("gru", name="rnn_layer")
            first(INPUTS)
        with v1.variable_scope("net", reuse=reuse):
            second = make("gru", name="rnn_layer")
            second(INPUTS)
        assert second.kernel is first.kernel
        assert v1.global_variables() == [first.kernel]
        assert v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS) == [first.saveable]
        assert second.saveable is first.saveable


def test_reuse_of_nothing_is_an_error():
    with tf.Graph().as_default(), v1.variable_scope("net", reuse=True):
        with pytest.raises(ValueError, match="net/cudnn_lstm/opaque_kernel does not exist"):
            make("lstm")(INPUTS)


def test_scope_of_the_first_call():
    with tf.Graph().as_default():
        layer = make("lstm")
        layer(INPUTS, scope="given")
        layer(INPUTS)
        assert [v.op.name for v in v1.global_variables()] == ["given/opaque_kernel"]


def test_partitioner(caplog):
    """The variable is one whole, and a warning says so."""
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("net", partitioner=v1.fixed_size_partitioner(2)):
            layer = make("lstm")
            outputs, _ = layer(INPUTS)
            other = v1.get_variable("other", [4])
        session.run(v1.global_variables_initializer())
        assert session.run(outputs).shape == (5, 2, 3)
        assert len(list(other)) == 2
        assert layer.kernel.shape == [sum(map(np.prod, layer.canonical_weight_shapes)) + 48]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("partitioner does not apply" in warning for warning in warnings) == 1


def test_in_a_condition():
    """A layer that is built in a branch is not of that branch."""

    def program(session):
        layer = make("lstm")
        branch = v1.placeholder_with_default(True, [])
        outputs = tf.cond(branch, lambda: layer(INPUTS)[0], lambda: tf.zeros([5, 2, 3], tf.float64))
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        assert saver.saver_def is not None
        return layer, session.run([layer.kernel, outputs])

    layer, (kernel, outputs) = in_graph(program)
    assert_close(outputs, expected_of(layer, kernel, INPUTS)[0])


def test_default_initializers():
    layer = cudnn_rnn.CudnnLSTM(2, 8, seed=5, direction="bidirectional")
    layer.build([None, None, 4])
    weights, biases = reference.split_params(
        RnnConfig("lstm", 2, 8, 4, direction="bidirectional"), layer.kernel.numpy()
    )
    for weight in weights:
        limit = np.sqrt(6 / sum(weight.shape))
        assert 0.8 * limit < np.abs(weight).max() <= limit
    assert len({weight.tobytes() for weight in weights}) == len(weights)
    assert not np.any(biases)


def test_initializers_get_canonical_shapes():
    seen = []

    def initializer(shape, dtype=None, **_):
        seen.append(tuple(shape))
        return tf.fill(shape, tf.cast(len(seen), dtype))

    layer = cudnn_rnn.CudnnGRU(1, 3, kernel_initializer=initializer)
    layer.build([None, None, 4])
    assert seen == layer.canonical_weight_shapes == [(3, 4)] * 3 + [(3, 3)] * 3
    assert layer.canonical_bias_shapes == [(3,)] * 6
    weights, _ = cudnn_rnn_ops.CudnnGRU(1, 3, 4).params_to_canonical(layer.kernel)
    assert [np.unique(weight).tolist() for weight in weights] == [[n] for n in range(1, 7)]


@ALL_MODES
def test_properties(rnn_mode):
    layer = make(rnn_mode, 2, 4, input_mode="auto_select", direction="bidirectional", name="x")
    assert (layer.name, layer.dtype, layer.rnn_mode) == ("x", tf.float64, rnn_mode)
    assert (layer.num_layers, layer.num_units, layer.num_dirs) == (2, 4, 2)
    assert (layer.input_mode, layer.direction) == ("auto_select", "bidirectional")
    assert layer.state_shape(7) == ([4, 7, 4],) * (2 if rnn_mode == "lstm" else 1)
    assert layer.variables == [] and layer.saveable is None
    for name in ("input_size", "canonical_weight_shapes", "scope_name"):
        with pytest.raises(ValueError, match="layer 'x' is not built yet"):
            getattr(layer, name)
    layer.build([None, None, 4])
    assert layer.input_size == 4
    # Where the sizes agree, there is no input side in the first layer.
    assert layer.canonical_weight_shapes[0] == (4, 4)
    assert len(layer.canonical_weight_shapes) == reference.NUM_GATES[rnn_mode] * 6


def test_custom_getter_that_hands_out_another_type(tmp_path):
    """The variable in float32, the computation in float16; the variable is what is saved."""

    def getter(getter, name, shape=None, dtype=None, **kwargs):
        return tf.cast(getter(name, shape, dtype=tf.float32, **kwargs), dtype)

    def program(session):
        with v1.variable_scope("net", custom_getter=getter):
            layer = cudnn_rnn.CudnnGRU(1, 3, dtype=tf.float16)
            outputs, _ = layer(INPUTS)
        assert outputs.dtype == layer.kernel.dtype == tf.float16
        (variable,) = layer.trainable_variables
        assert variable.dtype.base_dtype == tf.float32
        assert v1.gradients(outputs, variable)[0].dtype == tf.float32
        saver = v1.train.Saver(cudnn_rnn.canonical_var_list())
        session.run(v1.global_variables_initializer())
        before = session.run(outputs)
        checkpoint = saver.save(session, str(tmp_path / "model"))
        session.run(v1.global_variables_initializer())
        saver.restore(session, checkpoint)
        np.testing.assert_array_equal(session.run(outputs), before)
        return contents(checkpoint)

    stored = in_graph(program)
    assert all(tensor.dtype == np.float32 for tensor in stored.values())


# Checkpoints.


def contents(checkpoint):
    return saveables.contents(checkpoint)


def save_layers(path, build):
    """A checkpoint of two layers by a default Saver; the kernels in it and what they compute."""

    def program(session):
        layers = [make("lstm", direction="bidirectional"), make("gru", name="second")]
        if build:
            for layer in layers:
                layer.build([None, None, 4])
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
    """The names begin with the layer's scope where a call has built it, else with the outer one."""
    checkpoint, (lstm, gru), outputs = save_layers(tmp_path, build)
    scopes = ("", "") if build else ("cudnn_lstm", "second")
    expected = canonical("lstm", lstm, scopes[0], direction="bidirectional")
    expected |= canonical("gru", gru, scopes[1])
    expected |= {"cudnn_lstm/opaque_kernel": lstm, "second/opaque_kernel": gru}
    saved = contents(checkpoint)
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(saved[name], tensor, rtol=0, atol=1e-15)

    def restore(session):
        layers = [make("lstm", direction="bidirectional"), make("gru", name="second")]
        if build:
            for layer in layers:
                layer.build([None, None, 4])
        results = [layer(INPUTS, training=False)[0] for layer in layers]
        v1.train.Saver().restore(session, checkpoint)
        return session.run(results)

    assert_close(in_graph(restore), outputs)


def test_several_layers_of_one_kind_that_were_built(tmp_path):
    """Contrib gave their tensors the same names. The first one has them still."""

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
        return contents(checkpoint).keys()

    names = {
        f"rnn/multi_rnn_cell/cell_{n}/basic_rnn_cell/{part}"
        for n in (0, 1)
        for part in ("kernel", "bias")
    }
    scopes = ("", "cudnn_rnn_relu_1/", "cudnn_rnn_relu_2/")
    assert in_graph(program) == {scope + name for scope in scopes for name in names}


@pytest.mark.parametrize("use_resource", [False, True])
def test_canonical_tensors_win_over_a_stored_buffer(use_resource, tmp_path):
    """A file of contrib's has both, the buffer in a layout of its own."""
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
        for _ in range(5):  # Were they a race, one of them would lose sometimes.
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
    """Contrib's way to run without its op: TensorFlow's loops over cells."""
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


@DIRECTIONS
@ALL_MODES
def test_training_moves_between_implementations(rnn_mode, direction, tmp_path):
    """Cells train, the layer goes on, and the cells again; Adam's moments move with the weights.

    The layer has two biases for one of the cells', so their next values differ, not the kernels'.
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
    saved, expected = contents(second_of_layer), contents(second_of_cells)
    assert saved.keys() == expected.keys()
    compared = [name for name in expected if "bias" not in name.rpartition("cell")[2]]
    assert sum(name.endswith("kernel/Adam_1") for name in compared) >= 2
    for name in compared:
        np.testing.assert_allclose(saved[name], expected[name], rtol=0, atol=1e-12, err_msg=name)
    moments = [name for name in expected if name.endswith(("bias/Adam", "bias/Adam_1"))]
    assert moments
    for name in moments:
        np.testing.assert_allclose(saved[name], expected[name], rtol=0, atol=1e-12, err_msg=name)
    # And back.
    again, _ = run(run_cells, second_of_layer, 0, "back")
    by_layer, _ = run(run_layer, second_of_layer, 0, "stayed")
    assert_close(again, by_layer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_of_every_optimizer(name, tmp_path):
    """Saved gate by gate, under the names that cells' slots have, and restored."""

    def program(session):
        outputs, _ = make("gru", name="net")(INPUTS)
        optimizer = OPTIMIZERS[name]()
        step = optimizer.minimize(tf.reduce_mean(outputs**2))
        variables = v1.global_variables()
        saver = v1.train.Saver(cudnn_rnn.canonical_var_list([optimizer]))
        session.run(v1.global_variables_initializer())
        session.run(step)
        # Equal on both sides where the format has one bias for two.
        values = [session.run(v) for v in variables if "/opaque_kernel/" in v.name]
        checkpoint = saver.save(session, str(tmp_path / "model"))
        session.run(v1.global_variables_initializer())
        saver.restore(session, checkpoint)
        again = [session.run(v) for v in variables if "/opaque_kernel/" in v.name]
        assert_close(again, values)
        return len(values), contents(checkpoint).keys()

    count, names = in_graph(program)
    assert count == {"sgd": 0, "adam": 2, "rmsprop": 2}.get(name, 1)
    assert not any("opaque_kernel" in stored for stored in names)
    cell = "net/rnn/multi_rnn_cell/cell_1/cudnn_compatible_gru_cell"
    slots = [n for n in names if n.startswith(f"{cell}/gates/kernel/")]
    assert len(slots) == count


def test_object_based_checkpoint(tmp_path):
    """Of a bidirectional layer: one tensor per gate, no buffer."""
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


def test_saved_model(tmp_path):
    layer = make("gru")
    module = tf.Module()
    module.layer = layer
    module.run = tf.function(
        lambda inputs: layer(inputs, training=False)[0],
        input_signature=[tf.TensorSpec([None, None, 4], tf.float64)],
    )
    expected = module.run(INPUTS)
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert_close(loaded.run(INPUTS), expected)


def test_keras_optimizers_slots(tmp_path):
    """Adam's moments beside the weights in an object-based checkpoint."""

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


def test_monitored_session(tmp_path):
    def train():
        with tf.Graph().as_default():
            outputs, _ = make("lstm")(INPUTS)
            step = v1.train.get_or_create_global_step()
            train_op = v1.train.AdamOptimizer().minimize(tf.reduce_sum(outputs**2), step)
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                save_checkpoint_steps=2,
                save_summaries_steps=None,
                save_summaries_secs=None,
                log_step_count_steps=None,
            ) as session:
                for _ in range(2):
                    session.run(train_op)
                return session.run(step)

    assert [train(), train()] == [2, 4]
    assert "cudnn_lstm/rnn/multi_rnn_cell/cell_1/cudnn_compatible_lstm_cell/bias" in contents(
        tf.train.latest_checkpoint(tmp_path)
    )


# Into the Keras layers.

KERAS_LAYERS = {
    "lstm": crnn.CudnnLSTM,
    "gru": crnn.CudnnGRU,
    "rnn_tanh": crnn.CudnnRNNTanh,
    "rnn_relu": crnn.CudnnRNNRelu,
}


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
    with pytest.raises(ValueError, match=r"found 2, in the scopes \['first', 'second'\]"):
        cudnn_rnn.restore_keras_layer(layer, checkpoint)
    cudnn_rnn.restore_keras_layer(layer, checkpoint, scope="first")
    np.testing.assert_allclose(layer(INPUTS.astype("float32")), expected, rtol=0, atol=1e-5)


def test_restoring_keras_layers_that_do_not_fit(tmp_path):
    checkpoint, _ = write_cells(RnnConfig("lstm", 2, 3, 4), tmp_path)
    restore = cudnn_rnn.restore_keras_layer
    with pytest.raises(ValueError, match="found 0"):
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


# Names.


@pytest.mark.parametrize(
    "path, names",
    [
        ("python.layers.cudnn_rnn", ["CudnnLSTM", "CudnnGRU", "CudnnRNNTanh", "CudnnRNNRelu"]),
        (
            "python.ops.cudnn_rnn_ops",
            ["CudnnLSTM", "CudnnCompatibleGRUCell", "cudnn_lstm", "CudnnLSTMSaveable"],
        ),
    ],
)
def test_modules(path, names):
    module = importlib.import_module(f"cudnn_rnn_tf.contrib.{path}")
    assert all(hasattr(module, name) for name in names)
    assert (module.CUDNN_LSTM, module.CUDNN_RNN_BIDIRECTION) == ("lstm", "bidirectional")
    is_layer = path.startswith("python.layers")
    assert (module.CudnnLSTM is cudnn_rnn.CudnnLSTM) == is_layer
    assert (module.CudnnLSTM is cudnn_rnn_ops.CudnnLSTM) != is_layer
    assert cudnn_rnn.CUDNN_INPUT_LINEAR_MODE == "linear_input"


# Errors.


def test_wrong_arguments():
    layer = make("lstm", name="x")
    with pytest.raises(ValueError, match="expected the input shape of layer 'x' to have 3"):
        layer(INPUTS[0])
    with pytest.raises(ValueError, match="the last one known"):
        layer.build([None, None, None])
    with pytest.raises(TypeError, match="initial_state of layer 'x' to be a tuple"):
        layer(INPUTS, [np.zeros((2, 2, 3))] * 2)
    with pytest.raises(ValueError, match="to be a tuple of 2, but received 1"):
        layer(INPUTS, (np.zeros((2, 2, 3)),))
    with pytest.raises(TypeError, match="is_training"):
        layer(INPUTS, training=1)
    with pytest.raises(ValueError, match="size 4 in the last dimension"):
        layer(INPUTS[..., :3])
    with pytest.raises(ValueError, match="direction"):
        make("lstm", direction="both")
    with pytest.raises(
        ValueError, match="expected dtype to be floating-point, but received 'int32'"
    ):
        cudnn_rnn.CudnnGRU(1, 3, dtype="int32")
    with pytest.raises(ValueError, match="input_mode"):
        make("lstm", input_mode="some")
    with pytest.raises(ValueError, match="input_size"):
        make("gru", input_mode="skip_input").build([None, None, 4])
