"""Tests the Keras layers' results against the NumPy reference and Keras's own layers.

The fuzzer's target `layers` compares random ones; `test_fuzz.py` runs some.
"""

import re

import keras
import layer_reference
import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_reference import LAYERS, make, normal, randomize
from random_layers import swapped

from cudnn_rnn_tf import keras as drop_ins

MODES = tuple(LAYERS)
all_modes = pytest.mark.parametrize("rnn_mode", MODES)

# Sums of some ten products over a few steps have six correct digits in float32.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

# Options by name. Names that start with "lstm" are for LSTMs only.
OPTIONS = {
    "plain": {},
    "deep": {"num_layers": 3},
    "bidirectional": {"num_layers": 2, "direction": "bidirectional"},
    "time_major": {"num_layers": 2, "direction": "bidirectional", "time_major": True},
    "dropout": {"num_layers": 2, "dropout": 0.5, "seed": 7},
    "no_bias": {"bias_mode": "none"},
    "input_bias": {"bias_mode": "single_input"},
    "recurrent_bias": {"bias_mode": "single_recurrent"},
    "skip": {"num_units": 4, "input_mode": "skip_input"},
    "auto_skip": {"num_units": 4, "input_mode": "auto_select"},
    "auto_linear": {"num_units": 3, "input_mode": "auto_select"},
    "lstm_projection": {"num_layers": 2, "direction": "bidirectional", "num_proj": 2},
    "lstm_clip": {"cell_clip": 0.2},
    "lstm_projection_clip": {"num_proj": 2, "cell_clip": 0.2, "time_major": True},
}
CASES = [
    pytest.param(mode, options, id=f"{mode}-{name}")
    for mode in MODES
    for name, options in OPTIONS.items()
    if mode == "lstm" or not name.startswith("lstm")
]

# Those that a shape depends on.
OF_SHAPES = [case for case in CASES if re.search("deep|bidir|time_major|proj", case.id)]


def make_with(rnn_mode: str, options: dict, **kwargs):
    return LAYERS[rnn_mode](**({"num_layers": 1, "num_units": 3} | options | kwargs))


def state_values(layer, batch_size: int) -> list[np.ndarray]:
    return [normal(*shape, seed=9) for shape in layer.state_shape(batch_size)]


# Against the reference.


@pytest.mark.parametrize("with_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("lengths", [None, (5, 0, 3)], ids=["full", "lengths"])
@pytest.mark.parametrize("rnn_mode, options", CASES)
def test_agrees_with_reference(rnn_mode, options, lengths, with_states):
    layer = make_with(rnn_mode, options, return_state=True)
    inputs = normal(*((5, 3) if layer.time_major else (3, 5)), 4)
    randomize(layer, inputs.shape)
    states = state_values(layer, 3) if with_states else None
    expected = layer_reference.forward(layer, inputs, states, lengths)
    outputs, *final_states = layer(inputs, initial_state=states, sequence_lengths=lengths)
    np.testing.assert_allclose(outputs, expected.outputs, **TOLERANCE)
    assert len(final_states) == (2 if rnn_mode == "lstm" else 1)
    for state, expected_state in zip(final_states, expected.states, strict=True):
        np.testing.assert_allclose(state, expected_state, **TOLERANCE)
    # The last outputs are those of the step at which each direction stops.
    layer.return_sequences = False
    last, *_ = layer(inputs, initial_state=states, sequence_lengths=lengths)
    h = expected.states[0].swapaxes(0, 1) if layer.time_major else expected.states[0]
    np.testing.assert_allclose(last, h[:, -layer.num_dirs :].reshape(3, -1), **TOLERANCE)


@all_modes
def test_go_backwards_with_lengths_keeps_padding(rnn_mode):
    """Each sequence is read and written from its end to its beginning; padding does not move.

    With a mask, padding does move, as in Keras.
    """
    inputs, lengths = normal(2, 4, 3), (4, 2)
    layer = randomize(make(rnn_mode, go_backwards=True), inputs.shape)
    turned = inputs.copy()
    turned[0], turned[1, :2] = inputs[0, ::-1], inputs[1, 1::-1]
    expected = layer_reference.forward(layer, turned, None, lengths).outputs
    np.testing.assert_allclose(layer(inputs, sequence_lengths=lengths), expected, **TOLERANCE)
    time_major = randomize(make(rnn_mode, go_backwards=True, time_major=True), (4, 2, 3))
    outputs = time_major(inputs.swapaxes(0, 1), sequence_lengths=lengths)
    np.testing.assert_allclose(outputs, expected.swapaxes(0, 1), **TOLERANCE)


# States.


@pytest.mark.parametrize("time_major", [False, True])
@all_modes
def test_statefulness(rnn_mode, time_major):
    first, second = normal(2, 3, 4), normal(2, 5, 4, seed=2)
    layer = make(rnn_mode, stateful=True, return_sequences=False, time_major=time_major)
    randomize(layer, swapped(first, time_major).shape)
    stock = layer_reference.stock_layer(layer, stateful=True)
    states = state_values(layer, 2)
    of_stock = [swapped(state, time_major)[:, 0] for state in states]
    for inputs, given, expected in (
        *((first, None, None), (second, None, None)),
        # Given states take the place of those that it holds.
        *((second, states, of_stock), (first, None, None)),
    ):
        np.testing.assert_allclose(
            layer(swapped(inputs, time_major), initial_state=given),
            stock(inputs, initial_state=expected),
            **TOLERANCE,
        )
    for state, expected in zip(layer.states, stock.states, strict=True):
        assert tuple(state.shape) in layer.state_shape(2)
        np.testing.assert_allclose(
            swapped(state.numpy(), time_major)[:, 0], expected.value, **TOLERANCE
        )
    layer.reset_state()
    stock.reset_state()
    np.testing.assert_allclose(layer(swapped(second, time_major)), stock(second), **TOLERANCE)
    layer.reset_states()
    assert all(np.all(state.numpy() == 0.0) for state in layer.states)
    # States are not among the weights.
    assert layer.weights == layer.trainable_weights == [layer.kernel]


def test_stateful_with_symbolic_batch_size():
    layer = make("gru", stateful=True)
    inputs = tf.constant(normal(2, 3, 4))
    layer(inputs)
    call = tf.function(layer, input_signature=[tf.TensorSpec((None, 3, 4))])
    expected = layer_reference.forward(layer, inputs.numpy(), [layer.states[0].numpy()]).outputs
    np.testing.assert_allclose(call(inputs), expected, **TOLERANCE)


@pytest.mark.parametrize("as_sequence", [list, tuple])
def test_initial_state_in_any_form(as_sequence):
    inputs, state = normal(2, 3, 4), normal(2, 1, 3)
    gru, lstm = make("gru"), make("lstm")
    np.testing.assert_array_equal(
        gru(inputs, initial_state=state), gru(inputs, as_sequence([tf.constant(state)]))
    )
    np.testing.assert_array_equal(
        lstm(inputs, initial_state=as_sequence([state, state])),
        lstm(inputs, as_sequence([tf.constant(state), tf.constant(state)])),
    )


# Masks.


def test_mask_without_rows():
    assert make("gru")(normal(0, 4, 2), mask=np.zeros((0, 4), bool)).shape == (0, 4, 3)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_lengths_become_a_mask_downstream(time_major, go_backwards):
    """Layers and losses downstream get a mask for the lengths without asking for it."""
    inputs, lengths = normal(3, 5, 4), np.array([5, 0, 3])
    valid = np.arange(5) < lengths[:, np.newaxis]
    if time_major:
        inputs, valid = inputs.swapaxes(0, 1), valid.T
    options = {"time_major": time_major, "go_backwards": go_backwards}
    layer = make("lstm", **options, return_state=True)
    run = tf.function(lambda: layer(inputs, sequence_lengths=lengths)[0]._keras_mask)
    for mask in (layer(inputs, sequence_lengths=lengths)[0]._keras_mask, run()):
        np.testing.assert_array_equal(mask, valid)
    assert not hasattr(layer(inputs)[0], "_keras_mask")
    # A layer above may get the same lengths as well, but not others.
    outputs = make("gru", **options)(inputs, sequence_lengths=lengths)
    above = make("gru", time_major=time_major, name="net")
    np.testing.assert_array_equal(above(outputs), above(outputs, sequence_lengths=lengths))
    with pytest.raises(ValueError, match="'net' received both sequence_lengths and a mask"):
        above(outputs, sequence_lengths=lengths, mask=valid)


@pytest.mark.parametrize("return_sequences", [True, False])
@pytest.mark.parametrize("return_state", [True, False])
def test_mask_is_passed_on(return_sequences, return_state):
    class Probe(keras.layers.Layer):
        supports_masking = True

        def call(self, inputs, mask=None):
            received.append(mask)
            return inputs

    received = []
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    embedded = keras.layers.Embedding(4, 5, mask_zero=True)(tokens)
    layer = make("lstm", return_sequences=return_sequences, return_state=return_state)
    outputs = layer(embedded)
    Probe()(outputs[0] if return_state else outputs)
    if return_sequences:
        np.testing.assert_array_equal(received[0], tokens != 0)
    else:
        assert received == [None]
    masks = layer.compute_mask(embedded, tokens != 0)
    assert not return_state or masks[1:] == [None, None]


# Shapes, configurations, models.


@pytest.mark.parametrize("return_state", [False, True], ids=["outputs", "state"])
@pytest.mark.parametrize("return_sequences", [True, False], ids=["sequences", "last"])
@pytest.mark.parametrize("rnn_mode, options", OF_SHAPES)
def test_symbolic_shapes_are_real(rnn_mode, options, return_sequences, return_state):
    layer = make_with(
        rnn_mode, options, return_sequences=return_sequences, return_state=return_state
    )
    shape = (5, 2, 4) if layer.time_major else (2, 5, 4)
    real = keras.tree.flatten(layer(normal(*shape)))
    spec = keras.tree.flatten(layer.compute_output_spec(keras.KerasTensor(shape)))
    dynamic = keras.tree.flatten(layer(keras.Input(batch_shape=(None, None, 4))))
    shapes = layer.compute_output_shape(shape)
    assert [tuple(tensor.shape) for tensor in real] == (list(shapes) if return_state else [shapes])
    for tensor, static, symbolic in zip(real, spec, dynamic, strict=True):
        assert tuple(static.shape) == tuple(tensor.shape)
        assert tf.TensorShape(symbolic.shape).is_compatible_with(tensor.shape)
        assert symbolic.shape[-1] == tensor.shape[-1]


@pytest.mark.parametrize(
    "dtype, compute_dtype, variable_dtype",
    [
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("mixed_float16", "float16", "float32"),
        ("mixed_bfloat16", "bfloat16", "float32"),
    ],
)
@all_modes
def test_dtypes(rnn_mode, dtype, compute_dtype, variable_dtype):
    layer = make(rnn_mode, 2, 3, dtype=dtype, return_state=True, stateful=True)
    inputs = normal(2, 5, 4)
    randomize(layer, inputs.shape)
    expected = layer_reference.forward(layer, inputs)
    results = layer(inputs)
    for value, expected_value in zip(results, (expected.outputs, *expected.states), strict=True):
        assert value.dtype.name == compute_dtype
        # Float16 has three digits and bfloat16 two; the inputs are rounded as well.
        tolerance = {"float16": 5e-3, "bfloat16": 4e-2}.get(compute_dtype, 1e-5)
        np.testing.assert_allclose(
            tf.cast(value, tf.float64), expected_value, rtol=tolerance, atol=tolerance
        )
    spec = layer.compute_output_spec(keras.KerasTensor(inputs.shape))
    assert {tensor.dtype for tensor in spec} == {compute_dtype}
    assert {state.dtype for state in layer.states} == {compute_dtype}
    assert layer.kernel.dtype == variable_dtype


@pytest.mark.parametrize("rnn_mode, options", CASES)
def test_properties(rnn_mode, options):
    layer = make_with(rnn_mode, options)
    layer.build((None, None, 4))
    config = {"num_units": 3, "num_layers": 1, "direction": "unidirectional"} | options
    for name in ("num_layers", "num_units", "direction"):
        assert getattr(layer, name) == config[name]
    for name, default in (("dropout", 0.0), ("bias_mode", "double"), ("time_major", False)):
        assert getattr(layer, name) == options.get(name, default)
    if rnn_mode == "lstm":
        assert layer.num_proj == options.get("num_proj")
        assert layer.cell_clip == options.get("cell_clip")
    assert layer.rnn_mode == rnn_mode
    assert layer.num_dirs == (2 if layer.direction == "bidirectional" else 1)
    assert layer.input_size == 4
    skips = options.get("input_mode", "linear_input") != "linear_input" and layer.num_units == 4
    assert layer.input_mode == ("skip_input" if skips else "linear_input")
    weight_shapes, bias_shapes = layer.canonical_weight_shapes, layer.canonical_bias_shapes
    expected = layer_reference.reference.canonical_shapes(layer_reference.config_of(layer))
    assert (list(map(tuple, weight_shapes)), list(map(tuple, bias_shapes))) == expected
    assert layer.params_size() == sum(int(np.prod(shape)) for shape in (*expected[0], *expected[1]))
    assert tuple(layer.kernel.shape) == (layer.params_size(),)
    assert layer.trainable_weights == [layer.kernel]
    assert layer.non_trainable_weights == []
    count, size = layer.num_layers * layer.num_dirs, options.get("num_proj", layer.num_units)
    lead = (count, 7) if layer.time_major else (7, count)
    states = ((*lead, size), (*lead, layer.num_units))
    assert layer.state_shape(7) == (states if rnn_mode == "lstm" else states[:1])


def test_canonical_conversions():
    layer = randomize(make("lstm", 2, 3, direction="bidirectional", num_proj=2), (None, None, 4))
    weights, biases = layer.params_to_canonical()
    np.testing.assert_array_equal(layer.canonical_to_params(weights, biases), layer.kernel.numpy())
    doubled = layer.canonical_to_params([2 * np.asarray(w) for w in weights], biases)
    layer.kernel.assign(doubled)
    np.testing.assert_array_equal(layer.params_to_canonical()[0][0], 2 * weights[0])
    np.testing.assert_array_equal(layer.params_to_canonical(tf.zeros_like(doubled))[1][0], 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "make_layer",
    [
        *(lambda kind=kind: make(kind) for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
        lambda: drop_ins.LSTM(5),
        lambda: drop_ins.GRU(5, return_sequences=True, go_backwards=True),
        lambda: drop_ins.SimpleRNN(5),
        lambda: drop_ins.Bidirectional(drop_ins.GRU(5)),
        lambda: drop_ins.Stack([drop_ins.LSTM(5, return_sequences=True), drop_ins.LSTM(5)]),
    ],
)
def test_numpy_arrays_without_call_of_keras(make_layer, dtype):
    """Keras casts and converts inputs in `__call__`, but neither in `call` nor `stateless_call`."""
    layer = make_layer()
    layer.build((None, None, 4))
    inputs = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(dtype)
    mask = np.array([[True, True, False], [True, True, True]])
    variables = [
        [variable.value for variable in kind]
        for kind in (layer.trainable_variables, layer.non_trainable_variables)
    ]
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    expected = layer(tf.constant(inputs, tf.float32))
    np.testing.assert_allclose(layer.call(inputs), expected, **tolerance)
    np.testing.assert_allclose(layer.stateless_call(*variables, inputs)[0], expected, **tolerance)
    expected = layer(tf.constant(inputs, tf.float32), mask=tf.constant(mask))
    np.testing.assert_allclose(layer.call(inputs, mask=mask), expected, **tolerance)


@all_modes
def test_layer_in_a_graph_with_a_session(rnn_mode):
    inputs, d_outputs = normal(2, 5, 4), normal(2, 5, 3, seed=2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholder = tf.compat.v1.placeholder(tf.float32, (None, None, 4))
        # With zero biases, units of a layer without input would be on the ReLU's kink.
        bias_initializer = keras.initializers.RandomNormal(seed=1)
        layer = make(rnn_mode, 2, 3, bias_initializer=bias_initializer)
        outputs = layer(placeholder)
        variable = layer.kernel.value
        gradient = tf.gradients(outputs, variable, tf.constant(d_outputs))[0]
        step = tf.compat.v1.assign_sub(variable, gradient)
        session.run(tf.compat.v1.global_variables_initializer())
        params, values, gradients = session.run(
            [variable, outputs, gradient], {placeholder: inputs}
        )
        session.run(step, {placeholder: inputs})
        np.testing.assert_allclose(session.run(variable), params - gradients, **TOLERANCE)
    eager = make(rnn_mode, 2, 3)
    eager.build((None, None, 4))
    eager.kernel.assign(params)
    run = layer_reference.forward(eager, inputs)
    np.testing.assert_allclose(values, run.outputs, **TOLERANCE)
    expected = reference.backward(run, d_outputs, [np.zeros_like(state) for state in run.states])
    np.testing.assert_allclose(gradients, expected.params, **TOLERANCE)
