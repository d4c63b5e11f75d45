"""What `accelerate` takes over into its copy, and of which models it makes one."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_accelerate import draw, outcomes, recurrent_types

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

layers = keras.layers


class Coded(keras.Model):
    """A model whose code makes its recurrent layer."""

    def __init__(self, units: int):
        super().__init__()
        self.units = units
        self.recurrent = layers.GRU(units, name="coded")

    def call(self, inputs):
        return self.recurrent(inputs)

    def get_config(self):
        return {"units": self.units}


class Recompiled(Coded):
    """A model that Keras cannot compile from its config."""

    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)


def test_a_class_with_its_own_compile_leaves_the_copy_uncompiled():
    model = Recompiled(4)
    model.compile("adam", "mse")
    model.fit(draw(2, 5, 3), draw(2, 4), verbose=0)
    with pytest.warns(UserWarning, match="`compile\\(\\)` method is custom"):
        fast = crnn.accelerate(model)
    assert not fast.compiled
    np.testing.assert_allclose(fast(draw(2, 5, 3)), model(draw(2, 5, 3)), atol=1e-6)


def test_a_model_compiled_for_xla_is_not_in_the_copy():
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(2)])
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile
    fast = crnn.accelerate(model)
    assert not fast.jit_compile
    fast.fit(draw(2, 5, 3), draw(2, 2), verbose=0)


# What is frozen.


def check_trainable(fast: keras.Model, model: keras.Model) -> None:
    assert [v.name for v in fast.trainable_variables] == [v.name for v in model.trainable_variables]
    assert [v.trainable for v in fast.variables] == [v.trainable for v in model.variables]
    assert 0 < len(fast.trainable_variables) < len(fast.weights)


def frozen_attention() -> keras.Model:
    inputs = keras.Input((6, 4))
    x = layers.LSTM(4, return_sequences=True)(inputs)
    attention = layers.MultiHeadAttention(2, 2)
    model = keras.Model(inputs, layers.GRU(3)(attention(x, x)))
    next(part for part in attention._flatten_layers() if "key" in part.name).trainable = False
    return model


def frozen_cell() -> keras.Model:
    model = keras.Sequential([keras.Input((6, 4)), layers.LSTM(4, return_sequences=True)])
    model.add(layers.LSTM(4, return_sequences=True))
    model.add(layers.Bidirectional(layers.GRU(3)))
    model.layers[0].cell.trainable = False
    model.layers[2].backward_layer.cell.trainable = False
    return model


def frozen_weight() -> keras.Model:
    model = keras.Sequential([keras.Input((6, 4)), layers.LSTM(4, return_sequences=True)])
    model.add(layers.LSTM(4))
    model.layers[0].cell.recurrent_kernel.trainable = False
    model.layers[1].cell.bias.trainable = False
    return model


def frozen_nested_model() -> keras.Model:
    nested = keras.Sequential([keras.Input((6, 4)), layers.GRU(4, return_sequences=True)])
    nested.add(layers.GRU(4, return_sequences=True))
    # In training, a frozen layer of this kind computes otherwise than one that is not.
    nested.add(layers.BatchNormalization())
    model = keras.Sequential([keras.Input((6, 4)), nested, layers.LSTM(3)])
    nested.trainable = False
    return model


@pytest.mark.parametrize(
    "make", [frozen_attention, frozen_cell, frozen_weight, frozen_nested_model]
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_is_frozen_stays_frozen(make, is_compiled):
    model = make()
    if is_compiled:
        model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
        model.fit(draw(5, 6, 4), draw(5, *model.output_shape[1:]), verbose=0)
    fast = crnn.accelerate(model)
    check_trainable(fast, model)
    stock = crnn.to_stock(fast)
    check_trainable(stock, model)
    if is_compiled:
        before = fast.get_weights()
        for each in (model, fast, stock):
            each.fit(draw(5, 6, 4), draw(5, *model.output_shape[1:]), verbose=0)
        for copy in (fast, stock):
            for received, expected in zip(copy.weights, model.weights, strict=True):
                np.testing.assert_allclose(received, expected, atol=1e-4)
        for variable, value in zip(fast.weights, before, strict=True):
            assert np.array_equal(variable, value) != variable.trainable


# Optimizers.


def half_model() -> keras.Model:
    model = keras.Sequential([keras.Input((6, 4), dtype="float32")])
    for _ in range(2):
        model.add(layers.LSTM(4, return_sequences=True, dtype="mixed_float16"))
    model.add(layers.Dense(2, dtype="float32"))
    return model


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
        lambda: keras.optimizers.Adam(0.01, use_ema=True, gradient_accumulation_steps=2),
        lambda: keras.optimizers.Adafactor(0.01),
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), momentum=0.9
        ),
    ],
)
def test_optimizers_keep_their_state(make_optimizer):
    model = half_model()
    model.compile(make_optimizer(), "mse", run_eagerly=True)
    for _ in range(4):
        model.fit(draw(5, 6, 4), draw(5, 6, 2), verbose=0)
    steps = int(model.optimizer.iterations)
    assert steps
    fast = crnn.accelerate(model)
    assert [layer.name for layer in fast.layers] != [layer.name for layer in model.layers]
    for copy in (fast, crnn.to_stock(fast)):
        assert copy.optimizer is not model.optimizer
        assert type(copy.optimizer) is type(model.optimizer)
        for received, expected in zip(
            copy.optimizer.variables, model.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(received, expected)
    for each in (model, fast):
        each.fit(draw(5, 6, 4), draw(5, 6, 2), epochs=2, verbose=0)
        assert each.optimizer.iterations > steps
    for received, expected in zip(fast.weights, model.weights, strict=True):
        # The layers compute in float16, of 11 bits.
        np.testing.assert_allclose(received, expected, atol=0.02)


def test_a_policy_that_scales_losses():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((6, 4)), layers.GRU(3)])
        model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        model.fit(draw(5, 6, 4), draw(5, 3), verbose=0)
        fast = crnn.accelerate(model)
        fast.fit(draw(5, 6, 4), draw(5, 3), verbose=0)
        assert fast.optimizer.iterations == 2
    finally:
        keras.config.set_dtype_policy("float32")


def test_an_optimizer_after_a_legacy_file_was_written(tmp_path):
    model = keras.Sequential([keras.Input((6, 4)), layers.GRU(3)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", run_eagerly=True)
    model.fit(draw(5, 6, 4), draw(5, 3), verbose=0)
    model.save(tmp_path / "m.h5")
    fast = crnn.accelerate(model)
    assert type(fast.optimizer) is keras.optimizers.SGD
    for received, expected in zip(fast.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(received, expected)


def test_an_optimizer_for_other_variables_begins_anew():
    model = keras.Sequential([keras.Input((6, 4)), layers.GRU(3), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    model.fit(draw(5, 6, 4), draw(5, 2), verbose=0)
    model.layers[1].trainable = False
    with pytest.warns(UserWarning, match="the optimizer of the copy of model .* begins anew"):
        fast = crnn.accelerate(model)
    assert fast.optimizer.iterations == 0
    np.testing.assert_allclose(fast(draw(5, 6, 4)), model(draw(5, 6, 4)), atol=1e-6)


def side_branch() -> keras.Model:
    """Returns a model whose variables a stack would bring into another order."""
    inputs, other = keras.Input((6, 4)), keras.Input((4,))
    y = layers.Dense(4)(other)
    x = layers.LSTM(4, return_sequences=True)(layers.Dense(4)(inputs))
    return keras.Model([inputs, other], [y, layers.LSTM(4)(x), layers.Dense(4)(y)])


def test_stacks_do_not_change_the_order_of_variables():
    model = side_branch()
    model.compile(keras.optimizers.Adam(0.01), ["mse"] * 3, run_eagerly=True)
    inputs, targets = [draw(5, 6, 4), draw(5, 4)], [draw(5, 4)] * 3
    model.fit(inputs, targets, verbose=0)
    fast = crnn.accelerate(model)
    assert [layer.name for layer in fast.layers] == [layer.name for layer in model.layers]
    assert recurrent_types(fast) == [drop_ins.LSTM] * 2
    for received, expected in zip(fast(inputs), model(inputs), strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-6)
    for each in (model, fast):
        each.fit(inputs, targets, verbose=0)
    for received, expected in zip(fast.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-4)


# Models of users' classes.


@keras.saving.register_keras_serializable("tests")
class WithUnnamedLayers(keras.Model):
    """A registered model with a config, whose code makes layers that it does not name."""

    def __init__(self, recurrent: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.before = layers.Dense(4)
        self.recurrent = recurrent
        self.between = layers.Dense(4)
        self.head = layers.Dense(4)

    def call(self, inputs):
        return self.head(self.between(self.recurrent(self.before(inputs))))

    def get_config(self):
        recurrent = keras.saving.serialize_keras_object(self.recurrent)
        return {**super().get_config(), "recurrent": recurrent}

    @classmethod
    def from_config(cls, config):
        recurrent = keras.saving.deserialize_keras_object(config.pop("recurrent"))
        return cls(recurrent, **config)


@pytest.mark.parametrize("stacks", [False, True])
def test_a_registered_class_with_unnamed_layers(stacks):
    inner = keras.Sequential([layers.LSTM(4, return_sequences=True) for _ in range(2)])
    model = WithUnnamedLayers(inner)
    expected = model(draw(2, 5, 3))
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    model.fit(draw(2, 5, 3), draw(2, 5, 4), verbose=0)
    expected = model(draw(2, 5, 3))
    fast = crnn.accelerate(model, stacks=stacks)
    assert isinstance(fast.recurrent.layers[0], drop_ins.Stack if stacks else drop_ins.LSTM)
    np.testing.assert_allclose(fast(draw(2, 5, 3)), expected, atol=1e-6)
    stock = crnn.to_stock(fast)
    assert [type(layer) for layer in stock.recurrent.layers] == [layers.LSTM] * 2
    np.testing.assert_allclose(stock(draw(2, 5, 3)), expected, atol=1e-6)
    assert stock.optimizer.iterations == 1


class Unregistered(layers.Layer):
    """A layer that Keras can clone, though nobody has registered its class."""

    def call(self, inputs):
        return inputs + 1


def test_a_class_that_nobody_has_registered():
    model = keras.Sequential([keras.Input((5, 3)), Unregistered(), layers.LSTM(2)])
    fast = crnn.accelerate(model)
    assert [type(layer) for layer in fast.layers] == [Unregistered, drop_ins.LSTM]
    np.testing.assert_allclose(fast(draw(2, 5, 3)), model(draw(2, 5, 3)), atol=1e-6)


class Plain(keras.Model):
    """A model without a config."""

    def __init__(self, recurrent: Any = None):
        super().__init__()
        self.recurrent = recurrent or layers.LSTM(2)

    def call(self, inputs):
        return self.recurrent(inputs)


def unregistered(x):
    return 2 * x


def unregistered_loss(targets, outputs):
    return keras.ops.mean(keras.ops.abs(targets - outputs) ** 3)


def with_loss(loss: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(2)])
    model.add(layers.Dense(2, activation=unregistered if loss == "mse" else None))
    model.compile("adam", loss, run_eagerly=True)
    return model


def test_functions_in_a_scope():
    functions = {"unregistered": unregistered, "unregistered_loss": unregistered_loss}
    with keras.saving.custom_object_scope(functions):
        for loss in ("mse", unregistered_loss):
            model = with_loss(loss)
            for fast in (crnn.accelerate(model), crnn.to_stock(model)):
                np.testing.assert_allclose(fast(draw(2, 5, 3)), model(draw(2, 5, 3)), atol=1e-6)
                results = [
                    each.evaluate(draw(2, 5, 3), draw(2, 2), verbose=0) for each in (fast, model)
                ]
                assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_a_class_of_which_keras_makes_no_copy():
    for model in (
        Plain(),
        Plain(layers.GRU(2)),
        keras.Sequential([keras.Input((5, 3)), Plain(layers.GRU(2))]),
        with_loss(unregistered_loss),
    ):
        model(draw(2, 5, 3))
        for function in (crnn.accelerate, crnn.to_stock):
            with pytest.raises(TypeError, match="write get_config and from_config for") as error:
                function(model)
            assert "\n" not in str(error.value) and len(str(error.value)) < 500
            assert repr(model.name) in str(error.value)
        assert len(crnn.acceleration_report(model).layers) == 1


class Unbuilt(Coded):
    """A model that Keras cannot build from its config, as it takes two arguments."""

    def call(self, inputs, others):
        return self.recurrent(inputs) + others


@pytest.mark.filterwarnings("ignore:Model 'unbuilt' had a build config")
def test_a_class_that_keras_cannot_build():
    model = Unbuilt(2)
    model(draw(2, 5, 3), draw(2, 2))
    with pytest.raises(ValueError, match="write build_from_config for its class"):
        crnn.accelerate(model)


def test_a_layer_in_two_models_is_refused():
    inputs = keras.Input((6, 4))
    shared = layers.LSTM(4, return_sequences=True, name="shared")
    inner = keras.Model(inputs, shared(inputs))
    model = keras.Model(inputs, shared(inner(inputs)))
    with pytest.raises(ValueError, match="'shared/lstm_cell.* is in several"):
        crnn.accelerate(model)


def test_two_classes_of_one_name():
    """Keras would make both of one of them, so that there is no copy."""

    def make(factor: int) -> keras.layers.Layer:
        class Times(layers.Layer):
            def call(self, inputs):
                return factor * inputs

        return Times()

    model = keras.Sequential([keras.Input((5, 3)), make(2), make(3), layers.LSTM(2)])
    with pytest.raises(TypeError, match="Could not locate class 'Times'"):
        crnn.accelerate(model)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_layers_called_for_training_and_others_are_no_stack(which):
    inputs = outputs = keras.Input((5, 3))
    parts = [layers.LSTM(4, return_sequences=True), layers.Dropout(0.5), layers.LSTM(4)]
    for index, layer in enumerate(parts):
        outputs = layer(outputs, training=True if index == which else None)
    fast = crnn.accelerate(keras.Model(inputs, outputs))
    assert recurrent_types(fast) == [drop_ins.LSTM] * 2
    assert not any(isinstance(layer, drop_ins.Stack) for layer in fast.layers)


@keras.saving.register_keras_serializable("tests")
class LSTM(layers.LSTM):
    """A registered class of a user's with the name of one of Keras's."""

    def call(self, sequences, initial_state=None, mask=None, training=False):
        outputs = super().call(sequences, initial_state, mask, training)
        self.add_loss(keras.ops.mean(outputs))
        return 2 * outputs


class Derived(layers.GRU):
    """A class that nobody has registered, and that keeps masks to itself."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.supports_masking = False


@keras.saving.register_keras_serializable("tests")
class OwnLoop(layers.GRU):
    """A class with a loop of its own, which the ops do not run."""

    def inner_loop(self, sequences, initial_state, mask, training=False):
        return super().inner_loop(-sequences, initial_state, mask, training)


class InCode(keras.Model):
    """A model whose code makes all of its layers."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.embedding = layers.Embedding(7, 3, mask_zero=True)
        self.both = layers.Bidirectional(LSTM(3, return_sequences=True))
        self.parts = [layers.GRU(4, return_sequences=True) for _ in range(2)]
        self.parts.append(layers.Bidirectional(layers.LSTM(3, return_sequences=True)))
        self.cells = layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True)
        self.derived = Derived(4)

    def call(self, inputs):
        x = self.both(self.embedding(inputs))
        for layer in (*self.parts, self.cells, self.derived):
            x = layer(x)
        return x


def test_layers_that_code_of_a_users_makes(tmp_path):
    """They keep their classes; each step of a training is that of the model."""
    inputs, targets = np.random.default_rng(0).integers(0, 7, (5, 6)), draw(5, 4)
    model = InCode()
    model(inputs)
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    model.train_on_batch(inputs, targets)
    fast = crnn.accelerate(model)
    fast.run_eagerly = False
    report = crnn.acceleration_report(fast)
    assert len(report.layers) == 6 and all(layer.replaced for layer in report.layers)
    assert all("Keras runs it where a file of" in layer.outcome for layer in report.layers)
    assert fast.both.forward_layer.__class__ is LSTM
    assert isinstance(fast.derived, (Derived, drop_ins.RNN)) and not fast.derived.supports_masking
    assert type(fast.parts[0]) is drop_ins.GRU and type(fast.cells) is drop_ins.RNN
    assert "in one op" in outcomes(fast)[fast.parts[2].name]
    # Nobody knows whether a call of a user's ever calls Keras's.
    reaches = [", where LSTM.call reaches Keras's" in layer.outcome for layer in report.layers]
    assert reaches == [True] + [False] * 5
    whole, resets = tf.constant(draw(1, 6, 6)), np.array([[False] * 4 + [True, False]])
    parts = [fast.parts[0](part, training=False) for part in (whole[:, :4], whole[:, 4:])]
    received = fast.parts[0](whole, resets=tf.constant(resets))
    np.testing.assert_allclose(received, tf.concat(parts, 1), atol=1e-6)
    for _ in range(3):
        losses = [each.train_on_batch(inputs, targets) for each in (fast, model)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    fast.save(tmp_path / "model.keras")
    with keras.saving.custom_object_scope({"InCode": InCode}):
        for stock in (crnn.to_stock(fast), keras.saving.load_model(tmp_path / "model.keras")):
            assert [type(layer) for layer in stock.layers] == [type(each) for each in model.layers]
            np.testing.assert_allclose(stock(inputs), fast(inputs), atol=1e-6)
            assert not any(layer.replaced for layer in crnn.acceleration_report(stock).layers)


def test_nothing_replaced_is_a_warning():
    cell_name = f"its cell is a {LSTMCell.__module__}.LSTMCell"
    for layer, reason in (
        (OwnLoop(2), "OwnLoop has an inner_loop of its own"),
        (layers.Bidirectional(OwnLoop(2)), "OwnLoop has an inner_loop of its own"),
        (layers.RNN(LSTMCell(2)), cell_name),
        (layers.RNN([layers.LSTMCell(2), LSTMCell(2)]), cell_name),
        (layers.RNN(layers.LSTMCell(2, dtype="float64")), "computes in float32"),
        (layers.RNN(layers.LSTMCell(2, activity_regularizer="l2")), "activity_regularizer of its"),
        (layers.Dense(2), "none"),
    ):
        model = keras.Sequential([keras.Input((5, 3)), layer])
        with pytest.warns(UserWarning, match=f"(?s)with nothing replaced.* {reason}"):
            fast = crnn.accelerate(model)
        assert type(fast.layers[0]) is type(layer)
        np.testing.assert_array_equal(fast(draw(2, 5, 3)), model(draw(2, 5, 3)))


class LSTMCell(layers.LSTMCell):
    """A cell of a user's with the name of Keras's."""

    def call(self, inputs, states, training=False):
        return super().call(2 * inputs, states, training)


# Layers that compute something else than Keras does.


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_unrolled_layers_with_masks(kind, wraps, return_sequences):
    options = {"return_sequences": return_sequences, "unroll": True, "zero_output_for_mask": True}
    layer = getattr(layers, kind)(4, go_backwards=not wraps, **options)
    model = keras.Sequential([keras.Input((6,)), layers.Embedding(7, 3, mask_zero=True)])
    model.add(layers.Bidirectional(layer) if wraps else layer)
    inputs = np.random.default_rng(0).integers(0, 2, (5, 6))
    fast = crnn.accelerate(model)
    np.testing.assert_allclose(fast(inputs), model(inputs), atol=1e-6)
    (outcome,) = outcomes(fast).values()
    assert ("unroll=True" in outcome) == return_sequences
    assert isinstance(fast.layers[1], (layers.RNN, layers.Bidirectional))
    assert hasattr(fast.layers[1], "runs_fused") != return_sequences
