"""Has `accelerate` copy random models, and compares what they compute and learn."""

import contextlib
import io
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf as crnn

# `run` checks the errors that may come.
EXPECTED = ()
_CLASSES = ("LSTM", "GRU", "SimpleRNN")
_TIME, _FEATURES = 5, 3


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws a model of layers, any of which may be left out."""
    changes: list[list[Any]] = [["Masking", None]] if rng.random() < 0.4 else []
    changes += _draw_layers(rng, depth=0)
    for _ in range(rng.choice((0, 0, 1, 2))):
        changes.append(["freeze", [rng.choice(("layer", "weight")), rng.randrange(20)]])
    return {"stacks": rng.random() < 0.5, "numbers": rng.randrange(1000), "changes": changes}


def _draw_layers(rng: random.Random, depth: int) -> list[list[Any]]:
    units, layers = rng.randrange(1, 5), []
    name = rng.choice(_CLASSES)
    for _ in range(rng.randrange(1, 4 if depth else 6)):
        kind = rng.choice(("layer", "layer", "layer", "layer", "Dropout", "Dense", "inner"))
        if kind == "Dropout":
            layers.append([kind, rng.choice((0.0, 0.3, 0.3, 0.5))])
        elif kind == "Dense":
            layers.append([kind, units])
        elif kind == "inner" and depth < 2:
            # A model, a layer that is called twice, or a branch that is joined again.
            layers.append(
                [rng.choice(("nested", "shared", "branch")), _draw_layers(rng, depth + 1)]
            )
        else:
            # Layers that are alike may be a stack.
            if rng.random() < 0.3:
                units, name = rng.randrange(1, 5), rng.choice(_CLASSES)
            layers.append([name, _draw_options(rng, name, units)])
    return layers


def _draw_options(rng: random.Random, name: str, units: int) -> dict[str, Any]:
    options: dict[str, Any] = {"units": units}
    for option, value, share in (
        ("wrap", rng.choice(("concat", "sum")), 0.25),
        ("dropout", 0.3, 0.1),
        ("recurrent_dropout", 0.3, 0.05),
        ("go_backwards", True, 0.1),
        ("unroll", True, 0.1),
        ("use_bias", False, 0.1),
        ("return_sequences", False, 0.1),
        ("activation", rng.choice(("relu", "sigmoid")), 0.1),
        ("trainable", False, 0.1),
        ("kernel_regularizer", "l2", 0.1),
        ("zero_output_for_mask", True, 0.1),
    ):
        if rng.random() < share:
            options[option] = value
    if name == "GRU" and rng.random() < 0.2:
        options["reset_after"] = False
    return options


def run(case: dict[str, Any]) -> str:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    numbers = np.random.default_rng(case["numbers"])
    keras.utils.set_random_seed(case["numbers"])
    model = _model(case["changes"])
    inputs = numbers.standard_normal((4, _TIME, _FEATURES)).astype("float32")
    inputs[numbers.random((4, _TIME)) < 0.3] = 0.0
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False, run_eagerly=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            fast = crnn.accelerate(model, stacks=case["stacks"])
    except ValueError as error:
        return f"refused: {str(error)[:40]}"
    _check_same(fast, model)
    flags = [[variable.trainable for variable in each.weights] for each in (fast, model)]
    assert flags[0] == flags[1], "other weights can be trained"
    counts = [len(each.trainable_weights) for each in (fast, model)]
    assert counts[0] == counts[1], "other layers can be trained"
    expected = model(inputs)
    _check_close(fast(inputs), expected, "predictions differ")
    if any(
        (kind == "Dropout" and case["stacks"])
        or (kind in _CLASSES and "recurrent_dropout" in value)
        for kind, value in _all(case["changes"])
    ):
        # The op's dropout draws other masks.
        return "predicts the same"
    targets = numbers.standard_normal(expected.shape).astype("float32")
    for each in (fast, model):
        each.train_on_batch(inputs, targets)
    _check_same(fast, model)
    return "accelerated"


def _check_same(fast: keras.Model, model: keras.Model) -> None:
    assert len(fast.weights) == len(model.weights), "there are other weights"
    for received, expected in zip(fast.weights, model.weights, strict=True):
        assert received.shape == expected.shape, "weights have other shapes"
        _check_close(received, expected, "weights differ")


def _check_close(received: Any, expected: Any, message: str) -> None:
    received, expected = np.asarray(received), np.asarray(expected)
    assert np.allclose(received, expected, rtol=1e-3, atol=1e-4), message


def _all(changes: list[list[Any]]) -> Iterator[list[Any]]:
    for kind, value in changes:
        yield [kind, value]
        if kind in ("nested", "shared", "branch"):
            yield from _all(value)


def _model(changes: list[list[Any]]) -> keras.Model:
    inputs = outputs = keras.Input((_TIME, _FEATURES))
    for kind, value in changes:
        if kind != "freeze":
            outputs = _applied(kind, value, outputs)
    model = keras.Model(inputs, outputs)
    for what, index in (value for kind, value in changes if kind == "freeze"):
        places = model.layers if what == "layer" else model.weights
        if places:
            places[index % len(places)].trainable = False
    return model


def _applied(kind: str, value: Any, inputs: Any) -> Any:
    if len(inputs.shape) == 2:
        inputs = keras.layers.RepeatVector(_TIME)(inputs)
    if kind == "Masking":
        return keras.layers.Masking(0.0)(inputs)
    if kind == "Dropout":
        return keras.layers.Dropout(value, seed=1)(inputs)
    if kind == "Dense":
        return keras.layers.Dense(value)(inputs)
    if kind in _CLASSES:
        return _recurrent(kind, value)(inputs)
    inner = keras.Input(inputs.shape[1:])
    outputs = inner
    for part in value:
        outputs = _applied(*part, outputs)
    if len(outputs.shape) == 2:
        outputs = keras.layers.RepeatVector(_TIME)(outputs)
    if kind == "branch":
        # The branch's layers are the outer model's own.
        outputs = inputs
        for part in value:
            outputs = _applied(*part, outputs)
        if len(outputs.shape) == 2:
            outputs = keras.layers.RepeatVector(_TIME)(outputs)
        return keras.layers.Concatenate()([inputs, outputs])
    if kind == "shared":
        outputs = keras.layers.Dense(inner.shape[-1])(outputs)
    model = keras.Model(inner, outputs)
    return model(model(inputs)) if kind == "shared" else model(inputs)


def _recurrent(name: str, options: dict[str, Any]) -> keras.layers.Layer:
    options = {"return_sequences": True, "seed": 1, **options}
    wrap = options.pop("wrap", None)
    if wrap is not None:
        options.pop("go_backwards", None)
    layer = getattr(keras.layers, name)(**options)
    return layer if wrap is None else keras.layers.Bidirectional(layer, merge_mode=wrap)
