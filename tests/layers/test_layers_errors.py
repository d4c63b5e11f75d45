"""Tests the layers' errors, which say what was expected, what came and in which argument."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import LAYERS, make, normal

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cudnn_rnn_ops, ops
from cudnn_rnn_tf import keras as fused
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

MODES = tuple(LAYERS)
INPUTS = normal(2, 4, 5)


# The constructor.


@pytest.mark.parametrize("rnn_mode", MODES)
@pytest.mark.parametrize(
    "argument, value, error, words",
    [
        ("direction", "up", ValueError, ["'unidirectional', 'bidirectional'", "'up'"]),
        ("algorithm", "fastest", ValueError, ["'auto'", "'fastest'"]),
        ("dtype", "int32", ValueError, ["float16 or bfloat16", "received int32"]),
        ("no_such_argument", 1, ValueError, ["Unrecognized keyword arguments"]),
    ],
)
def test_bad_argument(rnn_mode, argument, value, error, words):
    arguments = {"num_layers": 1, "num_units": 3} | {argument: value}
    with pytest.raises(error) as raised:
        LAYERS[rnn_mode](**arguments)
    for word in (argument, *words):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"units": 3}, ["'units'", "num_layers=1, num_units="]),
        ({"hidden_size": 3, "num_layers": 1}, ["'hidden_size'", "num_units="]),
        ({"num_layers": 1, "num_units": 3, "use_bias": False}, ["'use_bias'", 'bias_mode="none"']),
        ({"num_layers": 1, "num_units": 3, "unroll": True}, ["'unroll'", "leave it out"]),
        ({"num_layers": 1, "num_units": 3, "unit_forget_bias": True}, ["PerGate(forget_gate="]),
        ({"num_layers": 1, "num_units": 3, "bidirectional": True}, ['direction="bidirectional"']),
        ({"num_layers": 1, "num_units": 3, "batch_first": True}, ["time_major=False"]),
        ({"num_layers": 1, "num_units": 3, "device": "cpu"}, ["tf.device"]),
        ({"num_layers": 1, "num_unit": 3}, ["did you mean 'num_units'?"]),
        ({"num_layers": 1, "num_units": 3, "return_sequence": 0}, ["'return_sequences'"]),
    ],
)
@pytest.mark.parametrize("rnn_mode", MODES)
def test_arguments_of_other_packages(rnn_mode, arguments, words):
    with pytest.raises(TypeError) as raised:
        LAYERS[rnn_mode](**arguments)
    for word in [f"{LAYERS[rnn_mode].__name__} has no argument", *words]:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: make("gru")(INPUTS, sequence_length=[4, 3]), "'sequence_lengths'"),
        (lambda: make("lstm")(keras.Input((4, 5)), inital_state=[]), "'initial_state'"),
        (lambda: fused.LSTM(3)(INPUTS, sequence_length=[4, 3]), "'sequence_lengths'"),
        (lambda: fused.GRU(3)(INPUTS, sequence_lengths=[4, 3], reset=[]), "'resets'"),
        (lambda: fused.SimpleRNN(3, return_sequence=True), "'return_sequences'"),
        (lambda: fused.Bidirectional(fused.GRU(3), mergemode="sum"), "'merge_mode'"),
        (lambda: fused.CuDNNLSTM(3, return_sequence=True), "'return_sequences'"),
        (lambda: crnn.contrib.CudnnGRU(num_layer=1, num_units=3), "'num_layers'"),
        (lambda: crnn.contrib.CudnnGRU(1, 3)(INPUTS, initial_states=()), "'initial_state'"),
        (lambda: crnn.convert.from_keras(None, for_infrence=True), "'for_inference'"),
        (lambda: crnn.convert.from_torch({}, rnn_mod="gru"), "'rnn_mode'"),
        (lambda: crnn.convert.from_onnx(None, return_sequence=True), "'return_sequences'"),
    ],
)
def test_misspelt_arguments(use, words):
    """The drop-ins, TensorFlow 1's layers and calls tell the name that was meant, too."""
    with pytest.raises(TypeError, match=rf"has no argument '\w+': did you mean {words}\?$"):
        use()


def test_the_base_class_is_no_layer():
    with pytest.raises(TypeError, match="CudnnRNN is only a base class"):
        crnn.CudnnRNN(1, 3)


def test_what_no_name_is_like_is_left_to_keras():
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        fused.LSTM(3, states=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'carry'"):
        fused.LSTM(3)(INPUTS, carry=True)


@pytest.mark.parametrize("layer", [make("gru"), fused.LSTM(3), crnn.contrib.CudnnGRU(1, 3)])
def test_arguments_of_calls_as_pytorch_names_them(layer):
    with pytest.raises(
        TypeError, match=f"a call of layer '{layer.name}' has no argument 'lengths'"
    ):
        layer(INPUTS, lengths=[4, 3])
    with pytest.raises(TypeError, match="has no argument 'hx': write initial_state="):
        layer(INPUTS, hx=None)


@pytest.mark.parametrize("layer", [make("gru"), fused.LSTM(3), fused.Bidirectional(fused.GRU(3))])
@pytest.mark.parametrize("dtype", ["complex64", "str"])
def test_inputs_that_are_no_real_numbers(layer, dtype):
    with pytest.raises(TypeError, match="expected inputs of layer '.*' to be real numbers, but"):
        layer(INPUTS.astype(dtype))


@pytest.mark.parametrize("length", [-2, 5])
def test_lengths_out_of_range_are_told_as_they_came(length):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"but received {length}"):
        make("gru")(INPUTS, sequence_lengths=np.array([4, length]))


@pytest.mark.parametrize(
    "use",
    [
        lambda: fused.LSTM(3, dtype="int32")(INPUTS),
        lambda: cudnn_rnn_ops.CudnnGRU(1, 3, 5, dtype=tf.int32),
        lambda: cudnn_rnn_ops.cudnn_gru(*(tf.zeros((1, 1, 9), tf.int32),) * 3, is_training=False),
    ],
)
def test_types_that_no_network_has(use):
    with pytest.raises(ValueError, match="to be float64, .* or bfloat16, but received int32"):
        use()


def test_a_derived_class_has_arguments_of_its_own():
    class Named(LAYERS["gru"]):
        def __init__(self, units: int):
            super().__init__(1, units)

    assert Named(units=3).num_units == 3


@pytest.mark.parametrize("argument", ["num_proj", "cell_clip"])
@pytest.mark.parametrize("rnn_mode", ["gru", "rnn_tanh", "rnn_relu"])
def test_lstm_only_argument(rnn_mode, argument):
    with pytest.raises((TypeError, ValueError), match=f"{LAYERS[rnn_mode].__name__}.*{argument}"):
        make(rnn_mode, **{argument: 2})


def test_numpy_numbers_are_numbers():
    layer = make("gru", np.int64(2), np.int32(3), dropout=np.float32(0.5), seed=np.int64(4))
    layer(INPUTS, training=True)
    assert layer.seed == 4
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


# Before it is built.


@pytest.mark.parametrize(
    "use",
    [
        lambda layer: layer.input_size,
        lambda layer: layer.canonical_weight_shapes,
        lambda layer: layer.canonical_bias_shapes,
        lambda layer: layer.params_size(),
        lambda layer: layer.params_to_canonical(),
        lambda layer: layer.canonical_to_params([], []),
    ],
)
def test_unbuilt(use):
    layer = make("lstm", name="net")
    with pytest.raises(ValueError, match="layer 'net' is not built yet"):
        use(layer)
    assert layer.kernel is None
    assert layer.states == ()


@pytest.mark.parametrize("shape", [(None, 5), (None, None, None), (2, 4, 5, 1)])
def test_bad_build_shape(shape):
    with pytest.raises(ValueError, match="input shape of layer 'net' to have 3 dimensions") as e:
        make("gru", name="net").build(shape)
    assert str(shape) in str(e.value)


# The conversions.


@pytest.mark.parametrize("rnn_mode, keras_class", [("lstm", "LSTM"), ("gru", "GRU")])
def test_weights_of_a_layer_of_keras(rnn_mode, keras_class):
    source = getattr(keras.layers, keras_class)(3)
    source.build((None, None, 5))
    layer = make(rnn_mode, name="net")
    layer.build((None, None, 5))
    before = layer.get_weights()
    with pytest.raises(ValueError, match="1 weights for layer 'net'.*received 3.*from_keras"):
        layer.set_weights(source.get_weights())
    np.testing.assert_array_equal(layer.get_weights(), before)
    layer.set_weights([2 * before[0]])
    np.testing.assert_array_equal(layer.get_weights()[0], 2 * before[0])


# Calls, eager and in a graph.


@pytest.fixture(params=["eager", "graph"])
def call(request):
    """Calls a layer on tensors and keyword arguments, all of static shape."""

    def run(layer, inputs, **kwargs):
        if request.param == "eager":
            return layer(inputs, **kwargs)
        return tf.function(lambda inputs, kwargs: layer(inputs, **kwargs))(
            tf.constant(inputs), tf.nest.map_structure(tf.constant, kwargs)
        )

    return run


def test_bad_symbolic_initial_state():
    """A functional model raises the error when it is made, not when it runs."""
    inputs = keras.Input((None, 5))
    h, c, wrong = keras.Input((1, 3)), keras.Input((1, 3)), keras.Input((2, 3))
    with pytest.raises(ValueError, match=r"initial h of shape \(None, 1, 3\).*\(None, 2, 3\)"):
        make("lstm")(inputs, initial_state=[wrong, c])
    with pytest.raises(ValueError, match=r"initial c of shape \(None, 1, 3\).*\(None, 2, 3\)"):
        make("lstm")(inputs, initial_state=[h, wrong])
    with pytest.raises(ValueError, match="expected 2 initial states .* received 1"):
        make("lstm")(inputs, initial_state=h)
    assert make("lstm")(inputs, initial_state=[h, c]).shape == (None, None, 3)


def test_bad_rank(call):
    with pytest.raises(ValueError, match="layer 'net'.*expected ndim=3, found ndim=2"):
        call(make("gru", name="net"), INPUTS[0])


def test_another_input_size(call):
    layer = make("gru", name="net")
    layer(INPUTS)
    with pytest.raises(ValueError, match=r"layer 'net'.*axis -1.*value 5.*\(2, 4, 2\)"):
        call(layer, INPUTS[:, :, :2])


def test_masked_outputs_are_zero():
    layer = make("gru", 1, 4, name="net")
    with pytest.raises(
        ValueError, match="zero_output_for_mask of layer 'net' to be True, .* False"
    ):
        layer.zero_output_for_mask = False
    layer.zero_output_for_mask = True


def test_mask_of_another_time():
    """The error can only be found when a graph runs."""
    layer = make("gru", name="net")
    layer.build((None, None, 5))
    signature = [tf.TensorSpec((None, None, 5)), tf.TensorSpec((None, None), tf.bool)]
    run = tf.function(lambda inputs, mask: layer(inputs, mask=mask), input_signature=signature)
    with pytest.raises(tf.errors.InvalidArgumentError, match="mask of layer.*net") as raised:
        run(INPUTS, np.ones((2, 3), bool))
    assert "[2,3]" in str(raised.value) and "batch is 2 and time 4" in str(raised.value)


@pytest.mark.parametrize("length", [2**32 + 2, 2**40, -(2**32) + 1, 2**63])
def test_lengths_of_64_bits_are_not_cut(length):
    """The lower half of each of these numbers is a length that fits."""
    layer, inputs = make("gru"), tf.constant(INPUTS)
    lengths = tf.constant(np.array([3, length], "uint64" if length == 2**63 else "int64"))
    of_known = tf.function(lambda x, sequence_lengths: layer(x, sequence_lengths=lengths))
    for call in (layer, tf.function(layer), of_known):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"lengths\[1\] must .* \[0, 4\]"):
            call(inputs, sequence_lengths=lengths)


def test_stateful_with_unknown_batch():
    with pytest.raises(ValueError, match="'net' is stateful, so its batch size must be static"):
        make("gru", stateful=True, name="net")(keras.Input((4, 5)))


def test_stateful_with_another_batch(call):
    layer = make("gru", stateful=True, name="net")
    layer(INPUTS)
    with pytest.raises(
        ValueError,
        match="stateful layer 'net' to have batch size 2.*received 1.*drop_remainder=True",
    ):
        call(layer, INPUTS[:1])


SHORT_BATCH = "expected inputs of batch size 2, .* received 1; .*drop_remainder=True"


@pytest.mark.parametrize(
    "method, return_sequences", [("fit", True), ("evaluate", False), ("predict", False)]
)
@pytest.mark.parametrize("name", ["lstm", "gru", "drop_in", "drop_ins"])
def test_stateful_with_a_short_last_batch_in_a_model(name, return_sequences, method):
    """Keras traces models for batches of any size; the layers take them of theirs."""
    options = {"stateful": True, "return_sequences": return_sequences}
    if name in MODES:
        layer = make(name, **options)
    else:
        layer = fused.GRU(3, **options)
        layer = fused.Bidirectional(layer) if name == "drop_ins" else layer
    model = keras.Sequential([keras.Input(batch_shape=(2, None, 5)), layer])
    model.compile("sgd", "mse")
    data = [normal(3, 4, 5)]
    if method != "predict":
        steps = (4,) * return_sequences
        data.append(normal(3, *steps, model.output_shape[-1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=SHORT_BATCH):
        getattr(model, method)(*data, batch_size=2, verbose=0)


def test_errors_of_ops_that_run_by_themselves_say_what_the_kernels_say():
    """TensorFlow adds the names of a function and of the op, which a caller does not know."""
    config = RnnConfig("gru", 1, 3, 5)
    attributes = {"input_size": 5, **config.spec_attrs()}
    mask = np.array([[False, True, True, True]] * 2)
    counts = {"num_weights": 6, "num_biases": 6}
    x, h, params = tf.zeros([4, 2, 5]), tf.zeros([1, 2, 3]), tf.zeros([config.layout.size])
    zeros = (x, h, [], params, tf.constant([], tf.int64), [])
    run_attributes = {"has_sequence_lengths": False, "dropout": 0.0, "cell_clip": 0.0}
    for call in (
        lambda: ops.forward(config, x, [h], params, sequence_lengths=tf.constant([4, 9])),
        lambda: make("gru")(INPUTS, sequence_lengths=[4, 9]),
        lambda: raw_ops.cudnn_rnn_tf_read_mask(mask=mask[:, :2], values=x),
        lambda: raw_ops.cudnn_rnn_tf_canonical_to_params(weights=[x], biases=[h], **attributes),
        lambda: raw_ops.cudnn_rnn_tf_params_to_canonical(params=x, **counts, **attributes),
        lambda: raw_ops.cudnn_rnn_tf_keras_to_params(weights=[x], biases=[h], **attributes),
        lambda: raw_ops.cudnn_rnn_tf_params_to_keras(params=x, **counts, **attributes),
        lambda: raw_ops.cudnn_rnn_tf_backward(
            *zeros,
            *[x] * 6,
            tf.zeros([0], tf.uint8),
            [],
            [],
            **run_attributes,
            **config.spec_attrs(),
        ),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            call()
        message = str(error.value)
        assert re.search("expected|must", message), message
        assert "__wrapped__" not in message and "[Op:" not in message, message


# The following errors are ones that new users have met.


@pytest.mark.parametrize("rnn_mode", MODES)
def test_units_alone(rnn_mode):
    name = LAYERS[rnn_mode].__name__
    with pytest.raises(TypeError, match="num_units"):
        LAYERS[rnn_mode](1, num_unit=32)  # The mistyped keyword would be hidden by one unit.
    with pytest.raises(TypeError, match=rf"received 32 alone: write {name}\(1, 32\)"):
        LAYERS[rnn_mode](32)
    assert LAYERS[rnn_mode](1, num_units=32).num_units == 32


@pytest.mark.parametrize("rnn_mode", MODES)
def test_many_layers_of_few_units(rnn_mode):
    """PyTorch's layers take the number of units before that of layers."""
    layer, name = LAYERS[rnn_mode], LAYERS[rnn_mode].__name__
    for arguments, options in (
        ((128, 2), {}),
        ((128,), {"num_units": 2}),
        ((np.int64(128), 2), {"direction": "bidirectional"}),
    ):
        with pytest.raises(ValueError) as error:
            layer(*arguments, **options)
        message = str(error.value)
        assert "received num_layers=128 and num_units=2" in message
        assert f"{name}(2, 128) for 2 layers of 128 units" in message
        assert f"{name}(num_layers=128, num_units=2)" in message
    with pytest.raises(ValueError, match="num_units=16"):
        layer(17, 16)
    for num_layers, num_units in ((16, 1), (17, 17), (17, 18)):
        assert layer(num_layers, num_units).num_layers == num_layers
    named = layer(num_layers=128, num_units=2)
    assert named.num_layers == 128
    assert layer.from_config(named.get_config()).num_layers == 128


@pytest.mark.parametrize("argument", ["activation", "recurrent_activation"])
def test_unknown_activations(argument):
    message = f"expected {argument} to be one of 'tanh', .*, but received 'gelu'"
    with pytest.raises(ValueError, match=message):
        crnn.CudnnGRU(1, 3, **{argument: "gelu"})


def test_dropout_of_one_layer_warns():
    for layer in (crnn.CudnnLSTM, crnn.CudnnGRU, crnn.CudnnRNNTanh, crnn.CudnnRNNRelu):
        message = f"dropout=0.5 of {layer.__name__} with num_layers=1 has no effect"
        with pytest.warns(UserWarning, match=message) as caught:
            layer(1, 3, dropout=0.5)
        assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LAYERS["gru"](2, 3, dropout=0.5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, bool])
def test_integers_are_cast(call, dtype):
    layer = make("lstm")
    numbers = (INPUTS > 0).astype(dtype)
    np.testing.assert_array_equal(call(layer, numbers), call(layer, numbers.astype(np.float32)))
