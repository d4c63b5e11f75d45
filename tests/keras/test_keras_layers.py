"""`cudnn_rnn_tf.keras`'s layers against those of `keras.layers` whose names they have.

The fuzzer's target `layers` compares random ones; `test_fuzz.py` runs some.
"""

import logging
from typing import Any

import fresh_process
import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
from random_layers import check_equal, draw_mask, draw_options, run
from reference_cell import ACTIVATIONS

from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf._private_names import keras_mask
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import keras_2_hard_sigmoid
from cudnn_rnn_tf.ops import second_order

CLASSES = ("LSTM", "GRU", "SimpleRNN")
HAS_GPU = bool(tf.config.get_visible_devices("GPU"))
FUSES_RECURRENT_DROPOUT = pytest.mark.skipif(
    HAS_GPU, reason="test_gpu_recurrent_dropout.py tests GPUs"
)


def normal(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def share_weights(stock: Any, layer: Any, shape: tuple[int, ...]) -> None:
    for each in (stock, layer):
        each.build(shape)
    layer.set_weights(stock.get_weights())


def draw_inputs(
    random: np.random.Generator, options: dict[str, Any], num_states: int
) -> tuple[tf.Tensor, list[tf.Tensor] | None]:
    batch_size, max_time, input_size = (int(size) for size in random.integers(1, 8, 3))

    def normal(*shape: int) -> tf.Tensor:
        return tf.constant(random.standard_normal(shape).astype(options["dtype"]))

    states = [normal(batch_size, options["units"]) for _ in range(num_states)]
    return normal(batch_size, max_time, input_size), states if random.integers(2) else None


@pytest.mark.parametrize(
    ("class_name", "options", "reason"),
    [
        ("LSTM", {"activation": "selu"}, "activation='selu'"),
        ("LSTM", {"recurrent_activation": "gelu"}, "recurrent_activation='gelu'"),
        ("LSTM", {"use_cudnn": False}, "use_cudnn=False"),
        ("GRU", {"activation": "softplus"}, "activation='softplus'"),
        ("SimpleRNN", {"activation": "swish"}, "activation='silu'"),
    ],
)
def test_what_the_ops_cannot_run_runs_as_keras_runs_it(class_name, options, reason, fused_calls):
    inputs = normal(3, 5, 4)
    stock = getattr(keras.layers, class_name)(6, **options)
    layer = getattr(drop_ins, class_name)(6, **options)
    share_weights(stock, layer, inputs.shape)
    check_equal(run(layer, inputs, False), run(stock, inputs, False))
    assert not fused_calls
    assert not layer.runs_fused
    assert str(layer.runs_fused) == repr(layer.runs_fused) == f"runs as Keras runs it: {reason}"
    assert layer.supports_jit == stock.supports_jit


@pytest.mark.parametrize("class_name", CLASSES)
def test_activations(class_name, fused_calls):
    """With each activation, results and gradients are those of Keras's layer."""
    inputs = tf.constant(np.random.default_rng(0).standard_normal((3, 5, 4)))
    names = [*ACTIVATIONS, None]
    for index, name in enumerate(names):
        both = [
            keras_2_hard_sigmoid if each == "keras_2_hard_sigmoid" else each
            for each in (name, names[(index + 3) % len(names)])
        ]
        options = {"activation": both[0], "dtype": "float64"}
        if class_name != "SimpleRNN":
            options["recurrent_activation"] = both[1]
        stock = getattr(keras.layers, class_name)(6, **options)
        layer = getattr(drop_ins, class_name)(6, **options)
        share_weights(stock, layer, inputs.shape)
        fused_calls.clear()
        check_equal(run(layer, inputs, False), run(stock, inputs, False))
        assert fused_calls and layer.runs_fused, both


def give_masks(stock_cells: list[Any], layer_cells: list[Any], batch_size: int) -> None:
    """Makes Keras's cells use the recurrent dropout masks of the last call of our layers."""
    cell = layer_cells[0]
    masks = second_order.recurrent_dropout_masks(
        RnnConfig(
            cell_mode(cell),
            1,
            cell.units,
            1,
            direction="unidirectional" if len(layer_cells) == 1 else "bidirectional",
            recurrent_dropout=cell.recurrent_dropout,
        ),
        batch_size,
        # The generator has advanced by one since that call.
        tf.cast(cell.seed_generator.state, tf.int64) - [0, 1],
    )
    for stock, of_gates in zip(stock_cells, tf.unstack(masks), strict=True):
        parts = tf.unstack(tf.cast(of_gates, stock.compute_dtype))
        if isinstance(stock, keras.layers.GRUCell):
            parts[:2] = parts[1::-1]
        stock._recurrent_dropout_mask = parts if len(parts) > 1 else parts[0]


def cell_mode(cell: Any) -> str:
    if not getattr(cell, "reset_after", True):
        return "gru_reset_before"
    names = {keras.layers.LSTMCell: "lstm", keras.layers.GRUCell: "gru"}
    return names.get(type(cell), "rnn_tanh")


@FUSES_RECURRENT_DROPOUT
@pytest.mark.parametrize("seed", random_configs.mostly_slow(range(36), 5, one_of=2))
def test_recurrent_dropout_is_keras_with_the_same_masks(seed, fused_calls):
    random = np.random.default_rng(200 + seed)
    class_name = CLASSES[seed % 3]
    options = draw_options(random, class_name)
    options["recurrent_dropout"] = float(random.choice([0.1, 0.3]))
    is_bidirectional = seed % 4 == 0
    if is_bidirectional:
        options |= {"go_backwards": False, "unroll": False, "dropout": 0.0}
    num_states = (2 if class_name == "LSTM" else 1) * (2 if is_bidirectional else 1)
    inputs, states = draw_inputs(random, options, num_states)
    stock, layer = (getattr(module, class_name)(**options) for module in (keras.layers, drop_ins))
    if is_bidirectional:
        stock = keras.layers.Bidirectional(stock, dtype=options["dtype"])
        layer = drop_ins.Bidirectional(layer, dtype=options["dtype"])
    share_weights(stock, layer, inputs.shape)
    mask = draw_mask(random, *inputs.shape[:2]) if random.integers(4) else None
    arguments = {"mask": mask, "training": True}
    if states:
        arguments["initial_state"] = states
    received = run(layer, inputs, bool(random.integers(2)), **arguments)
    (config,) = fused_calls
    assert config.recurrent_dropout == options["recurrent_dropout"]
    assert layer.runs_fused
    cells = [
        [each.forward_layer.cell, each.backward_layer.cell] if is_bidirectional else [each.cell]
        for each in (stock, layer)
    ]
    give_masks(*cells, inputs.shape[0])
    check_equal(received, run(stock, inputs, False, **arguments))


@FUSES_RECURRENT_DROPOUT
@pytest.mark.parametrize("class_name", CLASSES)
def test_recurrent_dropout_is_drawn_anew_and_repeats_with_the_seed(class_name):
    inputs = tf.ones((3, 5, 4))

    def outputs() -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        layer = getattr(drop_ins, class_name)(6, seed=3, recurrent_dropout=0.5)
        step = tf.function(lambda: layer(inputs, training=True))
        return [layer(inputs, training=True).numpy(), step().numpy(), step().numpy()]

    first, again = outputs(), outputs()
    np.testing.assert_array_equal(first, again)
    assert len({result.tobytes() for result in first}) == 3


@pytest.mark.parametrize("class_name", ["LSTM", "GRU"])
def test_a_rate_of_one_is_none_of_gated_cells(class_name, fused_calls):
    inputs = normal(3, 5, 4)
    stock = getattr(keras.layers, class_name)(6, recurrent_dropout=1.0, dropout=1.0)
    layer = getattr(drop_ins, class_name)(6, recurrent_dropout=1.0, dropout=1.0)
    share_weights(stock, layer, inputs.shape)
    expected = run(stock, inputs, False, training=True)
    check_equal(run(layer, inputs, False, training=True), expected)


def test_a_simple_rnn_that_drops_all_states_runs_as_keras_runs_it():
    fusion = drop_ins.SimpleRNN(3, recurrent_dropout=1.0).runs_fused
    assert fusion.reason(training=True) == "recurrent_dropout=1.0"
    assert fusion.reason(training=False) == ""


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize("capability", [(7, 0), None])
def test_recurrent_dropout_is_keras_own_where_a_gpu_cannot_run_it(
    class_name, capability, fused_calls, monkeypatch
):
    see_gpus(monkeypatch, capability)
    inputs = normal(3, 5, 4)
    options = {"seed": 3, "recurrent_dropout": 0.3}
    stock = getattr(keras.layers, class_name)(6, **options)
    layer = getattr(drop_ins, class_name)(6, **options)
    both = drop_ins.Bidirectional(getattr(drop_ins, class_name)(6, **options))
    share_weights(stock, layer, inputs.shape)
    for training in (True, False, True):
        fused_calls.clear()
        expected = run(stock, inputs, False, training=training)
        check_equal(run(layer, inputs, False, training=training), expected)
        both(inputs, training=training)
        assert bool(fused_calls) != training
    obstacle = "in float32 where a GPU has a compute capability below 7.5"
    reason = f"in training as Keras runs it: recurrent_dropout=0.3 {obstacle}"
    assert str(layer.runs_fused).endswith(reason)
    assert str(both.runs_fused).endswith(reason)


def see_gpus(monkeypatch, *capabilities: tuple[int, int] | None) -> None:
    """Makes TensorFlow say that it sees GPUs of these compute capabilities; None is unknown."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: list(capabilities))
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda gpu: {"compute_capability": gpu} if gpu else {},
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed_bfloat16"])
def test_recurrent_dropout_runs_fused_on_newer_gpus(dtype, monkeypatch):
    layer = drop_ins.GRU(6, recurrent_dropout=0.3, dtype=dtype)
    see_gpus(monkeypatch, (8, 0), (12, 0))
    assert layer.runs_fused
    see_gpus(monkeypatch, (7, 5), (9, 0))  # The older one has no bfloat16.
    assert bool(layer.runs_fused) == (dtype != "mixed_bfloat16")
    see_gpus(monkeypatch, (9, 0), (7, 0))
    assert layer.runs_fused.reason(training=True) and not layer.runs_fused.reason(training=False)


def test_recurrent_dropout_goes_by_the_imitated_gpu():
    """Decisions in Python, too, are those of the GPU that the variable names."""
    program = """
import tensorflow as tf
import cudnn_rnn_tf.keras as drop_ins
tf.config.get_visible_devices = lambda _: ["GPU"]
tf.config.experimental.get_device_details = lambda _: {"compute_capability": (9, 0)}
layers = [drop_ins.GRU(6, recurrent_dropout=0.3, dtype=d) for d in ("float16", "bfloat16")]
print([bool(layer.runs_fused) for layer in layers])
"""
    for name, expected in (("A100", "[True, True]"), ("T4", "[True, False]"), ("", "[True, True]")):
        output = fresh_process.run_program(program, CUDNN_RNN_TF_IMITATE_GPU=name)
        assert output.splitlines()[-1] == expected


@pytest.mark.parametrize("class_name", ["LSTM", "GRU"])
def test_one_dropout_mask_of_the_inputs_per_gate(class_name, fused_calls):
    inputs = normal(3, 5, 4)
    # Keras itself cannot run this layer unless use_cudnn is False.
    options = {"dropout": 0.5, "implementation": 1, "seed": 3}
    stock = getattr(keras.layers, class_name)(6, use_cudnn=False, **options)
    layer = getattr(drop_ins, class_name)(6, **options)
    share_weights(stock, layer, inputs.shape)
    for in_graph in (False, True):
        expected = run(stock, inputs, in_graph, training=True)
        check_equal(run(layer, inputs, in_graph, training=True), expected)
    assert len(fused_calls) == 2


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16"])
def test_half_types(class_name, policy, fused_calls):
    random = np.random.default_rng(0)
    inputs = random.standard_normal((3, 5, 4)).astype("float32")
    layer = getattr(drop_ins, class_name)(6, dtype=policy, return_sequences=True)
    exact = getattr(keras.layers, class_name)(6, return_sequences=True)
    share_weights(layer, exact, inputs.shape)
    outputs = layer(inputs)
    assert outputs.dtype == layer.compute_dtype
    assert len(fused_calls) == 1
    # Inputs, weights and outputs are each rounded once, to the 8 bits of bfloat16 or the 11 of
    # float16.
    tolerance = 0.05 if "bfloat16" in policy else 0.005
    np.testing.assert_allclose(tf.cast(outputs, "float32"), exact(inputs), atol=tolerance)


@pytest.mark.skipif(HAS_GPU, reason="on a GPU, Keras calls cuDNN, which refuses integers")
def test_inputs_of_another_type_than_the_layer_run_as_keras_runs_them(fused_calls):
    integers = tf.constant([[[1, 2], [3, 4], [5, 6]]])
    stock, layer = keras.layers.GRU(3), drop_ins.GRU(3)
    np.testing.assert_array_equal(stock(integers).shape, layer(integers).shape)
    layer.set_weights(stock.get_weights())
    np.testing.assert_allclose(layer(integers), stock(integers), atol=1e-6)
    assert not fused_calls


@pytest.mark.parametrize("class_name", [*CLASSES, "Bidirectional", "Stack"])
def test_masks_are_passed_on_whatever_keras_says_of_its_classes(class_name, monkeypatch):
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(keras.layers.Layer, "supports_masking", never)
    if class_name in CLASSES:
        layer = getattr(drop_ins, class_name)(3, return_sequences=True)
    else:
        wrap = drop_ins.Bidirectional if class_name == "Bidirectional" else drop_ins.Stack
        inner = drop_ins.LSTM(3, return_sequences=True)
        layer = wrap(inner if class_name == "Bidirectional" else [inner])
    mask = tf.constant([[True, True, False], [False, True, True]])
    outputs = layer(tf.ones((2, 3, 4)), mask=mask)
    np.testing.assert_array_equal(keras_mask(outputs), mask)


@pytest.mark.parametrize("class_name", ["LSTM", "GRU", "SimpleRNN"])
def test_one_state_for_all_sequences(class_name):
    def results(module: Any, weights: Any = None) -> Any:
        layer = getattr(module, class_name)(3, return_state=True)
        layer.build((4, 5, 2))
        layer.set_weights(weights or layer.get_weights())
        state = tf.constant([[0.5, -0.2, 0.9]])
        states = [state, 2 * state] if class_name == "LSTM" else state
        inputs = np.random.default_rng(0).normal(size=(4, 5, 2)).astype("float32")
        with tf.GradientTape() as tape:
            tape.watch(state)
            outputs = layer(inputs, initial_state=states)
        return [*outputs, tape.gradient(outputs, state)], layer.get_weights()

    received, weights = results(drop_ins)
    expected, _ = results(keras.layers, weights)
    for each, wanted in zip(received, expected, strict=True):
        np.testing.assert_allclose(each, wanted, atol=1e-5)


def test_wrong_states_are_told_in_keras_terms():
    x, state = np.zeros((2, 5, 4)), np.zeros((2, 8))
    with pytest.raises(ValueError, match=r"initial c of shape \(2, 8\) \(\[batch, units\]\)"):
        drop_ins.LSTM(8)(x, initial_state=[state, state[:, :7]])
    with pytest.raises(ValueError, match=r"initial h of shape \(2, 8\).* received \(2, 1, 8\)"):
        drop_ins.GRU(8)(x, initial_state=[state[:, np.newaxis]])
    with pytest.raises(ValueError, match="h and c, each of shape .* received 1"):
        drop_ins.LSTM(8)(x, initial_state=[state])
    both = drop_ins.Bidirectional(drop_ins.LSTM(8))
    with pytest.raises(ValueError, match="expected 4 initial states.* received 2"):
        both(x, initial_state=[state, state])


def test_errors_are_keras_own():
    for module in (keras.layers, drop_ins):
        with pytest.raises(ValueError, match="expected a positive integer, got -1"):
            module.LSTM(-1)
        with pytest.raises(ValueError, match="expected ndim=3"):
            module.GRU(2)(np.zeros((2, 3)))
        with pytest.raises(ValueError, match="different `go_backwards` value"):
            module.Bidirectional(module.GRU(2), backward_layer=module.GRU(2))
        with pytest.raises(ValueError, match="use_cudnn=True was specified"):
            layer = module.LSTM(2, use_cudnn=True, recurrent_dropout=0.1)
            layer(np.zeros((2, 3, 4)), training=True)


def test_a_bidirectional_layer_says_why_it_takes_two_ops():
    lstm, rnn = drop_ins.LSTM, drop_ins.SimpleRNN
    for forward, backward, reason in (
        (lstm(3), drop_ins.GRU(3, go_backwards=True), "different or derived classes"),
        (lstm(3), lstm(4, go_backwards=True), "differ in units"),
        (lstm(3), lstm(3, go_backwards=True, use_bias=False), "differ in use_bias"),
        (lstm(3), lstm(3, go_backwards=True, dtype="float64"), "differ in dtype_policy"),
        (lstm(3), lstm(3, go_backwards=True, recurrent_dropout=0.1), "differ in recurrent_dropout"),
        (drop_ins.GRU(3), drop_ins.GRU(3, go_backwards=True, reset_after=False), "reset_after"),
        (rnn(3), rnn(3, go_backwards=True, activation="relu"), "differ in activation"),
        (lstm(3, activity_regularizer="l2"), None, "activity_regularizer of"),
        (lstm(3, go_backwards=True), lstm(3), "go_backwards of"),
        (lstm(3, stateful=True), None, "stateful of"),
        (lstm(3, dropout=0.1), None, "dropout of"),
        (lstm(3, activation="selu"), None, "activation='selu'"),
        (keras.layers.LSTM(3), None, "none of cudnn_rnn_tf.keras's layers"),
    ):
        layer = drop_ins.Bidirectional(forward, backward_layer=backward)
        assert reason in layer.needs_two_ops
        assert layer(np.zeros((2, 5, 3), "float32")).shape[0] == 2


def test_the_log_says_what_runs_fused(caplog):
    with caplog.at_level(logging.INFO, logger="cudnn_rnn_tf"):
        drop_ins.LSTM(2, name="a").build((None, None, 3))
        drop_ins.GRU(2, activation="selu", name="b").build((None, None, 3))
        drop_ins.Bidirectional(drop_ins.GRU(2), name="c").build((None, None, 3))
    assert "layer 'a' runs fused" in caplog.messages
    assert "layer 'b' runs as Keras runs it: activation='selu'" in caplog.messages
    assert "layer 'c' runs fused, in one op" in caplog.messages


def test_names_of_keras_2():
    lstm = drop_ins.CuDNNLSTM(3, "ones", "zeros", "zeros", False, None, "l2", return_state=True)
    assert type(lstm) is drop_ins.LSTM and lstm.return_state and not lstm.unit_forget_bias
    assert isinstance(lstm.recurrent_regularizer, keras.regularizers.L2)
    gru = drop_ins.CuDNNGRU(3, "ones", "zeros", "zeros", "l2", name="old")
    assert type(gru) is drop_ins.GRU and gru.reset_after and gru.name == "old"
    assert isinstance(gru.kernel_regularizer, keras.regularizers.L2)
    for make, message in (
        (lambda: drop_ins.CuDNNLSTM(), "units"),
        (lambda: drop_ins.CuDNNGRU(3, units=3), "multiple values for argument 'units'"),
    ):
        with pytest.raises(TypeError, match=message):
            make()
