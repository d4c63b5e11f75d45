"""`cudnn_rnn_tf.contrib` as programs for TensorFlow 1 use it."""

import contextlib
import importlib
import logging

import numpy as np
import pytest
import reference
import tensorflow as tf
import test_saveable as saveables
from contrib_layers import (
    ALL_MODES,
    INPUTS,
    assert_close,
    in_graph,
    make,
)

from cudnn_rnn_tf import contrib as cudnn_rnn
from cudnn_rnn_tf import cudnn_rnn_ops
from cudnn_rnn_tf.config import RnnConfig

v1 = tf.compat.v1


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


# Running.


@pytest.mark.parametrize("time_major", [True, False])
@ALL_MODES
def test_runs_eagerly(rnn_mode, time_major):
    """The layer runs with initial states and sequence lengths."""
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
    """Both layers share one variable and one saveable."""
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


def test_scope_of_the_first_call():
    with tf.Graph().as_default():
        layer = make("lstm")
        layer(INPUTS, scope="given")
        layer(INPUTS)
        assert [v.op.name for v in v1.global_variables()] == ["given/opaque_kernel"]


def test_partitioner(caplog):
    """The variable is not partitioned, and a warning says so."""
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
    """A layer that is built in a branch can be used outside of it."""

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
    with pytest.raises(ValueError, match="layer 'x' is not built yet"):
        layer.input_size  # noqa: B018 - It raises.
    # This is the error that contrib raised.
    with pytest.raises(RuntimeError, match="layer 'x' is not built yet"):
        layer.canonical_weight_shapes  # noqa: B018 - It raises.
    layer.build([None, None, 4])
    with pytest.raises(RuntimeError, match="Cudnn saveable already created"):
        layer._create_saveable()
    assert layer.input_size == 4
    # If the sizes agree, the first layer has no input side.
    assert layer.canonical_weight_shapes[0] == (4, 4)
    assert len(layer.canonical_weight_shapes) == reference.NUM_GATES[rnn_mode] * 6


def test_custom_getter_without_a_variable():
    def getter(*_, **__):
        return tf.zeros(105)

    with (
        tf.Graph().as_default(),
        tf.compat.v1.variable_scope("s", custom_getter=getter),
        pytest.raises(ValueError, match="variable s/cudnn_gru.*/opaque_kernel behind what"),
    ):
        cudnn_rnn.CudnnGRU(1, 3).build([None, None, 4])


def test_custom_getter_that_hands_out_another_type(tmp_path):
    """The variable is float32, the computation float16, and the variable is what is saved."""

    def getter(getter, name, shape=None, dtype=None, **kwargs):
        return tf.cast(getter(name, shape, dtype=tf.float32, **kwargs), dtype)

    def program(session):
        # This runs on the CPU, since a GPU may later use another algorithm, which rounds
        # differently.
        with v1.device("CPU:0"), v1.variable_scope("net", custom_getter=getter):
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
        return saveables.contents(checkpoint)

    stored = in_graph(program)
    assert all(tensor.dtype == np.float32 for tensor in stored.values())


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
    with pytest.raises(ValueError, match="layer x is incompatible .* expected ndim=3"):
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
    with pytest.raises(ValueError, match="expected dtype to be .* or bfloat16, but received int32"):
        cudnn_rnn.CudnnGRU(1, 3, dtype="int32")
    with pytest.raises(ValueError, match="input_mode"):
        make("lstm", input_mode="some")
    with pytest.raises(ValueError, match="input_size"):
        make("gru", input_mode="skip_input").build([None, None, 4])


# The following tests are about attributes that `tf.layers.Layer` had.


@pytest.mark.parametrize("eagerly", [False, True])
def test_attributes_of_layers(eagerly):
    with contextlib.nullcontext() if eagerly else tf.Graph().as_default():
        layer = make("gru", 2, 3)
        assert layer.input_spec.ndim == 3 and not layer.built
        layer.build([None, None, 4])
        assert layer.input_spec.axes == {-1: 4}
        assert (layer._rnn_mode, layer._num_params_per_layer) == ("gru", 6)
        assert [state.shape for state in layer._zero_state(5)] == [(2, 5, 3)]
        assert layer.count_params() == 9 * (4 + 3 + 2) + 9 * (3 + 3 + 2)
        assert layer.weights == layer.trainable_variables == [layer.kernel]
        assert (layer.losses, layer.updates, layer.built) == ([], [], True)
        layer.trainable = False
        assert (layer.trainable_weights, layer.non_trainable_weights) == ([], layer.weights)


@pytest.mark.parametrize("eagerly", [False, True])
def test_attributes_of_cells(eagerly):
    def program(session):
        for make_cell, count in (
            (lambda: cudnn_rnn.CudnnCompatibleLSTMCell(3), 4 * 3 * 8),
            (lambda: cudnn_rnn.CudnnCompatibleGRUCell(3), 2 * 3 * 8 + 3 * 9),
            (lambda: cudnn_rnn.BasicRNNCell(3), 3 * 8),
        ):
            cell = make_cell()
            with pytest.raises(ValueError, match="to be known"):
                cell.build([None, None])
            cell.build([None, 4])
            inputs, state = tf.constant(INPUTS[0], tf.float32), cell.zero_state(2, tf.float32)
            outputs, other = cell(inputs, state)[0], cell.call(inputs, state)[0]
            biases = [variable for variable in cell.variables if "bias" in variable.name]
            if session:
                session.run(v1.global_variables_initializer())
                outputs, other, biases = session.run([outputs, other, biases])
            np.testing.assert_array_equal(outputs, other)
            # As TensorFlow 1's GRU cells, this one begins by keeping its state.
            ones = 6 if isinstance(cell, cudnn_rnn.CudnnCompatibleGRUCell) else 0
            assert [np.sum(bias) for bias in biases] == [ones] + [0] * (len(biases) - 1)
            assert cell.count_params() == count

    program(None) if eagerly else in_graph(program)
