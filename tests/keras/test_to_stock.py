"""`to_stock`, the inverse of `accelerate`, and both on random models."""

from typing import Any

import keras
import numpy as np
import pytest
import random_configs
from test_accelerate import draw, recurrent_types

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

layers = keras.layers
KINDS = ("LSTM", "GRU", "SimpleRNN")


# Options that an exported model need not have: a value, and how often a layer has it.
OPTIONS = {
    "dropout": (0.3, 0.1),
    "recurrent_dropout": (0.3, 0.05),
    "go_backwards": (True, 0.1),
    "use_bias": (False, 0.1),
    "return_sequences": (False, 0.1),
    "zero_output_for_mask": (True, 0.1),
    "trainable": (False, 0.1),
    "kernel_regularizer": ("l2", 0.1),
}


def random_recurrent(
    random: np.random.Generator, module: Any, has_options: bool = False, **options: Any
) -> Any:
    """Returns a layer that the ops run, mostly, of a kind and size that others have as well."""
    kind = KINDS[random.integers(len(KINDS))] if random.random() < 0.3 else "LSTM"
    options = {"return_sequences": True, "bias_initializer": "random_normal", **options}
    if random.random() < 0.1:
        options["activation"] = "relu"
    if random.random() < 0.1:
        options["unroll"] = True
    if has_options:
        drawn = {name: value for name, (value, share) in OPTIONS.items() if random.random() < share}
        options |= drawn | {"seed": 1}
        if kind == "GRU" and random.random() < 0.2:
            options["reset_after"] = False
    units, wraps = int(random.choice([3, 3, 4])), random.random() < 0.3
    if wraps:
        options.pop("go_backwards", None)
    layer = getattr(module, kind)(units, **options)
    if wraps:
        return module.Bidirectional(layer, merge_mode=str(random.choice(["concat", "sum"])))
    return layer


def random_model(
    random: np.random.Generator, module: Any, has_options: bool = False
) -> keras.Model:
    """Returns a functional model of layers that read each other, in rows and in branches."""
    inputs = keras.Input((5, 4))
    tensors = [layers.Masking(7.0)(inputs)]
    for _ in range(random.integers(3, 9)):
        x = tensors[-1] if random.random() < 0.7 else tensors[random.integers(len(tensors))]
        if len(x.shape) == 2:
            x = layers.RepeatVector(5)(x)
        draw_of = random.random()
        if draw_of < 0.7:
            layer = random_recurrent(random, module, has_options)
        elif draw_of < 0.8:
            layer = layers.Dropout(0.2)
        elif draw_of < 0.9:
            parts = [random_recurrent(random, module) for _ in range(2)]
            layer = keras.Sequential([keras.Input(x.shape[1:]), *parts])
        else:
            layer = layers.Dense(3)
        tensors.append(layer(x))
        if random.random() < 0.1 and tensors[-1].shape == x.shape:
            tensors.append(layer(tensors[-1]))
    random.shuffle(tensors)
    model = keras.Model(inputs, tensors)
    for variable in model.variables:
        if random.random() < 0.3:
            variable.trainable = False
    return model


def values_with_masks(random: np.random.Generator) -> np.ndarray:
    values = random.standard_normal((4, 5, 4)).astype("float32")
    values[random.random((4, 5)) < 0.3] = 7.0
    return values


def check_same(copy: keras.Model, model: keras.Model, values: np.ndarray) -> None:
    for received, expected in zip(copy(values), model(values), strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-5)
    for received, expected in zip(copy.weights, model.weights, strict=True):
        np.testing.assert_array_equal(received, expected)
        assert received.trainable == expected.trainable


@pytest.mark.parametrize("seed", random_configs.mostly_slow(range(40), 10, one_of=4))
def test_random_models_there_and_back(seed):
    there_and_back(seed)


def there_and_back(seed: int) -> str:
    """Checks that copies of a random model, and copies of these, are and learn what it does."""
    random = np.random.default_rng(seed)
    model, values = random_model(random, layers, has_options=True), values_with_masks(random)
    losses = ["mse"] * len(model.outputs)
    model.compile(keras.optimizers.SGD(0.1), losses, jit_compile=False, run_eagerly=True)
    fast = crnn.accelerate(model)
    check_same(fast, model, values)
    parts = model._flatten_layers()
    # In a stack, the op draws other masks.
    learns = not any(type(p) is layers.Dropout or getattr(p, "recurrent_dropout", 0) for p in parts)
    if learns:
        targets = [random.standard_normal(output.shape) for output in fast(values)]
        model(values)  # Calls advance the seeds of layers with dropout.
        for each in (fast, model):
            each.train_on_batch(values, targets)
        for received, expected in zip(fast.weights, model.weights, strict=True):
            np.testing.assert_allclose(received, expected, rtol=1e-3, atol=1e-4)
    stock = crnn.to_stock(fast)
    check_same(stock, fast, values)
    assert "cudnn_rnn_tf" not in stock.to_json()
    assert [layer.name for layer in stock.layers] == [layer.name for layer in model.layers]
    again = crnn.accelerate(fast)
    check_same(again, fast, values)
    assert crnn.acceleration_report(again) == crnn.acceleration_report(fast)
    return "learns the same" if learns else "is the same"


@pytest.mark.parametrize("seed", random_configs.mostly_slow(range(100, 120), 10, one_of=3))
def test_random_drop_ins_to_stock(seed):
    random = np.random.default_rng(seed)
    # Unrolled layers compute otherwise in Keras, which is why `accelerate` leaves them.
    model, values = random_model(random, drop_ins), values_with_masks(random)
    for layer in model._flatten_layers():
        if getattr(layer, "unroll", False):
            layer.unroll = False
    check_same(crnn.to_stock(model), model, values)


def stack(*names: str, **options: Any) -> drop_ins.Stack:
    parts = [drop_ins.GRU(4, return_sequences=True, name=name) for name in names]
    return drop_ins.Stack([parts[0], layers.Dropout(0.1), *parts[1:]], **options)


def test_stacks_that_users_made():
    """A stack may have any name, be called twice and with a mask, and be read by several layers."""
    inputs, mask = keras.Input((5, 4)), keras.Input((5,), dtype="bool")
    shared = stack("one", "two", name="shared")
    x = shared(shared(inputs, mask=mask), mask)
    y = layers.Dense(3)(x)
    z = stack("three", "four", name="top")(x, training=False)
    model = keras.Model([inputs, mask], [z, y, x])
    stock = crnn.to_stock(model)
    names = {layer.name for layer in stock.layers}
    assert {"one", "two", "three", "four"} <= names and not {"shared", "top"} & names
    assert recurrent_types(stock) == [layers.GRU] * 4
    values = [draw(3, 5, 4), np.random.default_rng(0).random((3, 5)) < 0.6]
    for received, expected in zip(stock(values), model(values), strict=True):
        assert received.shape == expected.shape
        np.testing.assert_allclose(received, expected, atol=1e-6)
    again = keras.models.clone_model(stock)
    assert again.output_shape == model.output_shape


def test_stacks_elsewhere_become_sequential_models():
    model = keras.Sequential([keras.Input((2, 5, 4)), layers.TimeDistributed(stack("one", "two"))])
    stock = crnn.to_stock(model)
    assert recurrent_types(stock.layers[0].layer) == [layers.GRU] * 2
    np.testing.assert_allclose(stock(draw(3, 2, 5, 4)), model(draw(3, 2, 5, 4)), atol=1e-6)


def test_an_optimizer_that_would_be_in_another_order_begins_anew():
    inputs, other = keras.Input((5, 4)), keras.Input((4,))
    x = layers.GlobalAveragePooling1D()(stack("one", "two")(inputs))
    y = layers.Dense(4)(layers.Dense(4)(other))
    model = keras.Model([inputs, other], layers.Add()([y, x]))
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    values = [draw(3, 5, 4), draw(3, 4)]
    model.fit(values, draw(3, 4), verbose=0)
    with pytest.warns(UserWarning, match="begins anew"):
        stock = crnn.to_stock(model)
    assert [v.name for v in stock.variables] != [v.name for v in model.variables]
    np.testing.assert_allclose(stock(values), model(values), atol=1e-6)


def test_errors():
    with pytest.raises(TypeError, match="expected model to be a Keras model, but received GRU"):
        crnn.to_stock(drop_ins.GRU(2))
    with pytest.raises(ValueError, match="to be built"):
        crnn.to_stock(keras.Sequential([drop_ins.GRU(2)]))
