"""Layers from Keras's own recurrent layers and back."""

import keras
import numpy as np
import pytest
from layer_reference import LAYERS, make, normal, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import convert

MODES = (*LAYERS, "gru_reset_before")
# Sums of a few dozen products keep 13 digits in float64; steps and layers cost one more.
TOLERANCE = 1e-11


def stock(rnn_mode: str, units: int = 3, **options) -> keras.layers.Layer:
    options = {"dtype": "float64", "bias_initializer": "random_normal", **options}
    if rnn_mode == "lstm":
        return keras.layers.LSTM(units, **options)
    if rnn_mode.startswith("gru"):
        return keras.layers.GRU(units, reset_after=rnn_mode == "gru", **options)
    return keras.layers.SimpleRNN(units, activation=rnn_mode.removeprefix("rnn_"), **options)


def stock_stack(
    rnn_mode: str, num_layers: int, bidirectional: bool, go_backwards: bool = False, **options
) -> list[keras.layers.Layer]:
    """Returns a stack with an input size of 4."""
    layers = []
    for index in range(num_layers):
        if index < num_layers - 1:
            directions = {**options, "return_sequences": True}
        else:
            directions = {"return_sequences": True, **options}
        backwards = go_backwards and index == 0
        layer = stock(rnn_mode, go_backwards=backwards, **directions)
        if bidirectional:
            other = stock(rnn_mode, go_backwards=not backwards, **directions)
            layer = keras.layers.Bidirectional(layer, backward_layer=other, dtype="float64")
        layer.build((None, None, 3 * (1 + bidirectional) if index else 4))
        layers.append(layer)
    return layers


def run_stack(layers, inputs, mask=None):
    for layer in layers:
        inputs = layer(inputs, mask=mask)
    return inputs


def assert_same_weights(layers, others):
    assert len(layers) == len(others)
    for layer, other in zip(layers, others, strict=True):
        assert type(layer) is type(other)
        for weight, expected in zip(layer.get_weights(), other.get_weights(), strict=True):
            assert weight.dtype == expected.dtype
            np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize(
    ("num_layers", "bidirectional", "go_backwards", "return_sequences", "use_bias"),
    [
        (1, False, False, True, True),
        (1, False, True, False, True),
        (3, False, True, True, False),
        (1, True, True, True, True),
        (2, True, False, False, True),
    ],
)
@pytest.mark.parametrize("rnn_mode", MODES)
def test_stack_there_and_back(
    rnn_mode, num_layers, bidirectional, go_backwards, return_sequences, use_bias
):
    options = {"return_sequences": return_sequences, "use_bias": use_bias}
    layers = stock_stack(rnn_mode, num_layers, bidirectional, go_backwards, **options)
    layer = convert.from_keras(layers)
    expected_bias = "double" if rnn_mode == "gru" else "single_input"
    assert layer.bias_mode == (expected_bias if use_bias else "none")
    assert (layer.num_layers, layer.num_dirs) == (num_layers, 1 + bidirectional)
    inputs = normal(2, 5, 4, dtype="float64")
    expected = run_stack(layers, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=0, atol=TOLERANCE)
    again = convert.to_keras(layer)
    assert_same_weights(again, layers)
    np.testing.assert_array_equal(run_stack(again, inputs), expected)
    # The layers can be made again from their configurations alone.
    model = keras.models.model_from_json(keras.Sequential(again).to_json())
    model.build((None, None, 4))
    model.set_weights(keras.Sequential(again).get_weights())
    np.testing.assert_array_equal(model(inputs), expected)


@pytest.mark.parametrize("bias_mode", ["none", "single_input", "single_recurrent", "double"])
@pytest.mark.parametrize("rnn_mode", MODES)
def test_bias_modes(rnn_mode, bias_mode):
    """An LSTM's or simple RNN's two biases are summed; a GRU's stay apart."""
    layer = randomize(
        make(rnn_mode, 2, 3, bias_mode=bias_mode, direction="bidirectional", dtype="float64"),
        (None, None, 4),
    )
    layers = convert.to_keras(layer)
    inputs = normal(2, 5, 4, dtype="float64")
    np.testing.assert_allclose(run_stack(layers, inputs), layer(inputs), rtol=0, atol=TOLERANCE)
    if rnn_mode == "gru":
        again = convert.from_keras(layers, bias_mode=bias_mode)
        np.testing.assert_array_equal(again.kernel, layer.kernel)
    elif bias_mode != "double":
        again = convert.from_keras(layers)
        assert again.bias_mode == ("none" if bias_mode == "none" else "single_input")
        np.testing.assert_array_equal(again.kernel, layer.kernel)
    if bias_mode == "single_input":
        double = convert.from_keras(layers, bias_mode="double")
        np.testing.assert_allclose(double(inputs), layer(inputs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_states(bidirectional):
    (stock_layer,) = stock_stack("lstm", 1, bidirectional, return_state=True)
    layer = convert.from_keras(stock_layer)
    inputs = normal(2, 5, 4, dtype="float64")
    outputs, h, c = layer(inputs)
    expected, *states = stock_layer(inputs)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(h, np.stack(states[0::2], axis=1), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(c, np.stack(states[1::2], axis=1), rtol=0, atol=TOLERANCE)
    (again,) = convert.to_keras(layer)
    for value, expected in zip(again(inputs), stock_layer(inputs), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_stateful():
    stock_layer = stock("gru", stateful=True, return_sequences=True)
    stock_layer.build((2, None, 4))
    layer = convert.from_keras(stock_layer)
    (again,) = convert.to_keras(layer)
    inputs = normal(2, 5, 4, dtype="float64")
    for _ in range(2):
        expected = stock_layer(inputs)
        np.testing.assert_allclose(layer(inputs), expected, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(again(inputs), expected, rtol=0, atol=TOLERANCE)


def test_dropout_layers_do_not_share_a_seed():
    layer = randomize(make("gru", 3, 3, dropout=0.3, seed=5), (None, None, 4))
    layers = convert.to_keras(layer)
    kinds = [type(each).__name__ for each in layers]
    assert kinds == ["GRU", "Dropout", "GRU", "Dropout", "GRU"]
    assert [each.seed for each in layers[1::2]] == [5, 6]
    assert convert.from_keras(layers).dropout == 0.3


def test_configuration():
    """All options that Keras's layers and ours both have are converted there and back."""
    options = {
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3),
        "kernel_regularizer": keras.regularizers.L2(0.1),
        "recurrent_regularizer": keras.regularizers.L1(0.2),
        "bias_constraint": keras.constraints.MaxNorm(2.0),
    }
    layers = stock_stack("lstm", 2, True, dtype="mixed_bfloat16", **options)
    for layer in layers:
        layer.trainable = False
    layers.insert(1, keras.layers.Dropout(0.3))
    layer = convert.from_keras(layers, seed=5)
    assert layer.dropout == 0.3
    assert layer.dtype_policy.name == "mixed_bfloat16"
    assert not layer.trainable
    bottom, dropout, top = convert.to_keras(layer)
    assert isinstance(dropout, keras.layers.Dropout)
    assert (dropout.rate, dropout.seed) == (0.3, 5)
    for again in (bottom, top):
        assert again.compute_dtype == "bfloat16"
        assert not again.trainable_variables
        for part in (again.forward_layer, again.backward_layer):
            config, expected = part.get_config(), layers[0].forward_layer.get_config()
            for name in ("name", "go_backwards", "zero_output_for_mask"):
                del config[name], expected[name]
            assert config == expected
    # A new layer of this configuration begins with the same kind of weights as Keras's.
    fresh = type(layer).from_config(layer.get_config())
    fresh.build((None, None, 4))
    weights = fresh.named_weights()
    for name, bias in weights.items():
        if name.endswith("bias"):
            assert np.all(bias == 1.0) == ("forget_gate" in name)
    recurrent = np.concatenate(
        [
            each
            for name, each in weights.items()
            if name.startswith("layer_0_forward") and "recurr" in name
        ]
    ).astype("float64")
    np.testing.assert_allclose(recurrent.T @ recurrent, np.eye(3), atol=1e-5)
    inputs = normal(2, 5, 4)
    # Keras's layers round each step to bfloat16, which has 8 bits.
    np.testing.assert_allclose(layer(inputs), run_stack([bottom, top], inputs), atol=0.03)


def test_within_a_model():
    """Stacks have their first layer's name; layers that are connected otherwise are no stack."""
    inputs = keras.Input((None, 4), name="x")
    x = keras.layers.LSTM(3, return_sequences=True, name="first")(inputs)
    x = keras.layers.Dropout(0.1)(x)
    x = keras.layers.LSTM(3, return_sequences=True, name="second")(x)
    x = keras.layers.Dropout(0.1)(x)
    aside = keras.layers.LSTM(3, return_sequences=True, name="aside")(inputs)
    aside = keras.layers.LSTM(3, name="aside_above")(aside)
    x = keras.layers.LSTM(5, return_sequences=True, name="wider")(x)
    x = keras.layers.Dense(4)(x)
    inner = keras.Sequential([keras.Input((None, 4)), keras.layers.GRU(2)], name="inner")
    model = keras.Model(inputs, [inner(x), aside])
    gru = inner.layers[0].name
    with pytest.raises(ValueError, match="say which by name") as error:
        convert.from_keras(model)
    for name in ("first", "aside", "wider", f"inner/{gru}"):
        assert repr(name) in str(error.value)
    assert "second" not in str(error.value)
    layer = convert.from_keras(model, name="first")
    assert (layer.num_layers, layer.dropout) == (2, 0.1)
    assert convert.from_keras(model, name="aside").num_layers == 2
    assert convert.from_keras(model, name=f"inner/{gru}").rnn_mode == "gru"
    data = normal(2, 5, 4)
    middle = keras.Model(inputs, model.get_layer("second").output)
    np.testing.assert_allclose(layer(data), middle(data), rtol=0, atol=1e-5)


def accelerated_model() -> tuple[keras.Model, keras.Model]:
    """Returns a model of Keras's own layers, and the same one with a `Stack` in it."""
    inputs = keras.Input((None, 4))
    x = keras.layers.LSTM(3, return_sequences=True, name="first")(inputs)
    x = keras.layers.Dropout(0.1)(x)
    x = keras.layers.LSTM(3, return_sequences=True, name="second")(x)
    wrapped = keras.layers.Bidirectional(keras.layers.SimpleRNN(2, name="simple"), name="both")
    inner = keras.Sequential([keras.Input((None, 3)), wrapped], name="inner")
    stock = keras.Model(inputs, [keras.layers.GRU(2, name="gru")(x), inner(x)])
    fast = crnn.accelerate(stock)
    assert isinstance(fast.get_layer("second"), crnn.keras.Stack)
    return stock, fast


def test_accelerated_models():
    stock, fast = accelerated_model()
    with pytest.raises(ValueError, match="there are: 'inner/both', 'first', 'gru'") as error:
        convert.from_keras(fast)
    with pytest.raises(ValueError) as of_stock:
        convert.from_keras(stock)
    assert str(error.value) == str(of_stock.value)
    for name in ("first", "gru", "inner/both"):
        layer, expected = (convert.from_keras(model, name=name) for model in (fast, stock))
        assert layer.get_config() == expected.get_config() | {"name": layer.name}
        np.testing.assert_array_equal(layer.kernel, expected.kernel)
    assert convert.from_keras(fast, name="first").num_layers == 2
    for source in (fast.get_layer("second"), [fast.get_layer("second")]):
        layer = convert.from_keras(source)
        assert (layer.num_layers, layer.dropout) == (2, 0.1)


def test_a_stack_and_what_follows_it():
    parts = [crnn.keras.GRU(3, return_sequences=True) for _ in range(3)]
    model = keras.Sequential([keras.Input((None, 4)), crnn.keras.Stack(parts[:2]), parts[2]])
    layer = convert.from_keras(model)
    assert layer.num_layers == 3
    inputs = normal(2, 5, 4)
    np.testing.assert_allclose(layer(inputs), model(inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        keras.layers.RNN(keras.layers.LSTMCell(3), return_sequences=True, name="other"),
        keras.layers.Bidirectional(
            keras.layers.RNN(keras.layers.GRUCell(3), return_sequences=True), name="other"
        ),
    ],
)
def test_what_cannot_be_converted_is_not_overlooked(other):
    layers = [other, keras.layers.GRU(2, name="gru")]
    model = keras.Sequential([keras.Input((None, 4)), *layers])
    with pytest.raises(ValueError, match="say which by name; there are: 'other', 'gru'"):
        convert.from_keras(model)
    with pytest.raises(TypeError, match="expected keras.layers.LSTM, .* received"):
        convert.from_keras(model, name="other")
    assert convert.from_keras(model, name="gru").num_units == 2


def test_layers_within_other_layers_are_not_overlooked():
    inner = keras.layers.TimeDistributed(keras.layers.LSTM(3, name="lstm"), name="each")
    model = keras.Sequential([keras.Input((5, 6, 4)), inner, keras.layers.GRU(2, name="gru")])
    with pytest.raises(ValueError, match="there are: 'each/lstm', 'gru'"):
        convert.from_keras(model)
    inputs = normal(2, 6, 4)
    layer = convert.from_keras(model, name="each/lstm")
    np.testing.assert_allclose(layer(inputs), inner.layer(inputs), rtol=0, atol=1e-5)


def tanh(x):
    """A function of its own, despite its name."""
    return 2 * keras.ops.tanh(x)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (keras.layers.LSTM(2, activation="relu"), "activation='relu'.* expected 'tanh'"),
        (keras.layers.SimpleRNN(2, activation="gelu"), "expected 'tanh' or 'relu'"),
        (keras.layers.LSTM(2, activation=tanh), "activation='tanh'.* expected 'tanh'"),
        (keras.layers.LSTM(2, recurrent_activation="hard_sigmoid"), "recurrent_activation='hard_"),
        (keras.layers.GRU(2, recurrent_dropout=0.1), "recurrent_dropout=0.1"),
        (keras.layers.LSTM(2, dropout=0.1), "dropout=0.1"),
        (keras.layers.LSTM(2, activity_regularizer="l2"), "activity_regularizer"),
        (keras.layers.Bidirectional(keras.layers.GRU(2), merge_mode="sum"), "merge_mode=concat"),
        (
            keras.layers.Bidirectional(keras.layers.GRU(2), activity_regularizer="l2", name="both"),
            "activity_regularizer=None of layer 'both'",
        ),
    ],
)
def test_what_has_no_equivalent(layer, message):
    layer.build((None, None, 3))
    with pytest.raises(ValueError, match=message):
        convert.from_keras(layer)


@pytest.mark.parametrize("option", ["dropout", "recurrent_dropout"])
def test_leaves_out_dropout_for_inference(option):
    stock_layer = keras.layers.LSTM(3, return_sequences=True, **{option: 0.5})
    data = np.random.default_rng(0).standard_normal((2, 5, 4)).astype("float32")
    expected = stock_layer(data)
    with pytest.raises(ValueError, match=rf"{option}=0.5 .*for_inference=True"):
        convert.from_keras(stock_layer)
    layer = convert.from_keras(stock_layer, for_inference=True)
    np.testing.assert_allclose(layer(data), expected, atol=1e-6)


def test_directions_must_agree():
    layer = keras.layers.Bidirectional(
        keras.layers.LSTM(3), backward_layer=keras.layers.LSTM(2, go_backwards=True)
    )
    layer.build((None, None, 3))
    with pytest.raises(ValueError, match="one units, but .* has 3 and .* has 2"):
        convert.from_keras(layer)


def test_stacks_that_do_not_fit():
    def lstm(**options):
        layer = keras.layers.LSTM(3, **{"return_sequences": True, **options})
        layer.build((None, None, 3))
        return layer

    wrapped = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True))
    wrapped.build((None, None, 3))
    for layers, message in (
        ([lstm(return_sequences=False), lstm()], "return_sequences=True"),
        ([lstm(), lstm(go_backwards=True)], "go_backwards=False"),
        ([lstm(), lstm(return_state=True)], "return_state=False"),
        ([lstm(), lstm(use_bias=False)], "one use_bias"),
        ([lstm(kernel_regularizer="l2"), lstm()], "one kernel_regularizer"),
        ([lstm(), lstm(dtype="float64")], "one dtype_policy"),
        ([lstm(), stock_stack("gru", 1, False)[0]], "one class, but .* 'lstm' .* 'gru'"),
        ([wrapped, lstm()], "all layers of a stack, or none, to be Bidirectional"),
        ([lstm(), keras.layers.Dropout(0.1), lstm(), lstm()], r"rates \[0.1, 0.0\]"),
        ([lstm(), keras.layers.Dropout(0.1)], "begin and end with a recurrent layer"),
        ([lstm(), keras.layers.Dropout(0.1, noise_shape=(1, 1)), lstm()], "noise_shape"),
        ([], "begin and end with a recurrent layer"),
    ):
        with pytest.raises(ValueError, match=message):
            convert.from_keras(layers)
    for layers in (3, [keras.layers.Dense(3)], [keras.layers.Dropout(0.1), lstm()], [lstm(), 3]):
        with pytest.raises(TypeError, match="expected keras.layers.LSTM, GRU, .* received"):
            convert.from_keras(layers)
    with pytest.raises(ValueError, match="not built yet"):
        convert.from_keras(keras.layers.LSTM(3))
    with pytest.raises(TypeError, match="a name is for a model, but received list"):
        convert.from_keras([lstm()], name="lstm")


@pytest.mark.parametrize(
    ("rnn_mode", "options", "message"),
    [
        ("lstm", {"num_proj": 2}, "num_proj=2 .* no equivalent in keras.layers: expected None"),
        ("lstm", {"cell_clip": 1.0}, "cell_clip=1.0"),
        ("lstm", {"recurrent_weight_dropout": 0.1}, "recurrent_weight_dropout=0.1"),
        ("gru", {"input_mode": "skip_input"}, "input_mode"),
        ("gru", {"time_major": True}, "time_major=True"),
        ("rnn_relu", {"return_state": True}, "return_state=True"),
    ],
)
def test_what_keras_has_not(rnn_mode, options, message):
    layer = randomize(make(rnn_mode, 2, 3, **options), (None, None, 3))
    with pytest.raises(ValueError, match=message):
        convert.to_keras(layer)
