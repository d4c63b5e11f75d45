"""`export_litert`, and TensorFlow's and Keras's own ways to LiteRT, with numbers from LiteRT."""

import itertools
import pathlib
import re

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
from layer_reference import make, normal, randomize
from test_to_stock import random_model, values_with_masks

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:  # The same, as TensorFlow's wheels still have it.
    from tensorflow.lite.python.interpreter import Interpreter

layers = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
BATCH = 4


def run(content: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    """Runs a model in the plain interpreter, without TensorFlow's operators."""
    runner = Interpreter(model_content=content, num_threads=1).get_signature_runner()

    def place(name: str) -> list[str | int]:
        # Keras's names end in numbers, which may pass from 9 to 10 in a model.
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    names = sorted(runner.get_input_details(), key=place)
    outputs = runner(**dict(zip(names, inputs, strict=True)))
    return [outputs[name] for name in sorted(outputs, key=place)]


def check(model: keras.Model, content: bytes, *inputs: np.ndarray) -> None:
    expected = tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else list(inputs)))
    for received, wanted in zip(run(content, *inputs), expected, strict=True):
        np.testing.assert_allclose(received, wanted, rtol=0, atol=1e-5)


def exported(model: keras.Model, folder: pathlib.Path, **options) -> bytes:
    crnn.export_litert(model, folder / "m.tflite", **options)
    content = (folder / "m.tflite").read_bytes()
    assert b"Flex" not in content
    return content


DRAWS = itertools.product(range(300, 310), (layers, drop_ins))


@pytest.mark.parametrize("draw", random_configs.mostly_slow(DRAWS, 7, one_of=6))
def test_random_models(draw, tmp_path):
    seed, module = draw
    random = np.random.default_rng(seed)
    model, values = random_model(random, module), values_with_masks(random)
    check(model, exported(model, tmp_path, batch_size=BATCH), values)


@pytest.mark.parametrize(
    ("rnn_mode", "options"),
    [
        ("lstm", {"direction": "bidirectional", "return_state": True}),
        ("lstm", {"num_proj": 2, "cell_clip": 0.5}),
        ("gru", {"go_backwards": True, "bias_mode": "none", "zoneout": 0.3}),
        ("gru", {"reset_after": False, "direction": "bidirectional", "return_state": True}),
        ("rnn_relu", {"return_sequences": False, "dropout": 0.5}),
    ],
)
def test_own_layers_with_lengths(rnn_mode, options, tmp_path):
    """The number of steps stays open; padding is not read."""
    layer = randomize(make(rnn_mode, 2, 3, **options), (None, None, 4))
    inputs, lengths = keras.Input((None, 4)), keras.Input((), dtype="int32")
    model = keras.Model([inputs, lengths], layer(inputs, sequence_lengths=lengths))
    content = exported(model, tmp_path, batch_size=3)
    for steps in (6, 9):
        values = normal(3, steps, 4)
        values[0, 4:] = np.nan
        check(model, content, values, np.array([4, 6, 0], np.int32))


# The converter has activations between 0 and 1, -1 and 1, and 0 and 6.
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_fixed_numbers_of_steps(steps, tmp_path):
    inputs, lengths = keras.Input((steps, 4)), keras.Input((), dtype="int32")
    layer = crnn.CudnnLSTM(1, 3, direction="bidirectional", cell_clip=float(steps))
    model = keras.Model([inputs, lengths], layer(inputs, sequence_lengths=lengths))
    content = exported(model, tmp_path, batch_size=3)
    check(model, content, normal(3, steps, 4), np.array([steps, steps - 1, 0], np.int32))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("options", [{"direction": "bidirectional"}, {"go_backwards": True}])
def test_lengths_out_of_range(options, dtype, tmp_path):
    """The interpreter raises no errors, so what is returned of such a sequence is NaN."""
    layer = randomize(make("lstm", 2, 3, return_state=True, **options), (None, None, 4))
    inputs, lengths = keras.Input((None, 4)), keras.Input((), dtype=dtype)
    model = keras.Model([inputs, lengths], layer(inputs, sequence_lengths=lengths))
    content = exported(model, tmp_path, batch_size=3)
    values = normal(3, 6, 4)
    for wrong in (-1, 7, *([2**32 + 5, -(2**32) + 5, 2**31] if dtype == "int64" else [])):
        received = run(content, values, np.array([6, wrong, 2], dtype))
        expected = model([values, np.array([6, 3, 2])])
        for each, wanted in zip(received, expected, strict=True):
            assert np.all(np.isnan(each[1]))
            np.testing.assert_allclose(each[::2], wanted[::2], rtol=0, atol=1e-5)


def test_masks_of_one_sequence_of_any_length(tmp_path):
    """With the batch size that is the default, no size of the packed steps is known."""
    inputs, lengths = keras.Input((None, 4)), keras.Input((), dtype="int32")
    masked = layers.Masking(7.0)(inputs)
    outputs = [
        drop_ins.LSTM(3)(masked),
        drop_ins.GRU(3, go_backwards=True, return_sequences=True)(masked),
        drop_ins.Bidirectional(drop_ins.LSTM(2, return_sequences=True))(masked),
        crnn.CudnnGRU(1, 3, go_backwards=True)(masked),
        crnn.CudnnGRU(2, 3, reset_after=False, direction="bidirectional")(masked),
        drop_ins.GRU(3, reset_after=False, return_sequences=True)(masked),
        drop_ins.LSTM(3, return_sequences=True)(inputs, sequence_lengths=lengths),
    ]
    model = keras.Model([inputs, lengths], outputs)
    content = exported(model, tmp_path)
    for steps in (3, 6):
        values = normal(1, steps, 4)
        values[0, [0, 2]] = 7.0
        check(model, content, values, np.array([2], np.int32))


def test_stock_masks_and_optimizations(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(50, 32, mask_zero=True),
            layers.Bidirectional(layers.LSTM(64, return_sequences=True)),
            layers.GRU(32, reset_after=False),
            layers.Dense(2, "softmax"),
        ]
    )
    tokens = np.array([[1, 2, 3, 0, 0, 0, 0]], "int32")
    content = exported(model, tmp_path)
    check(model, content, tokens)
    (tmp_path / "m.tflite").unlink()
    small = exported(model, tmp_path, optimizations=[tf.lite.Optimize.DEFAULT])
    assert len(small) < 0.6 * len(content)
    np.testing.assert_allclose(run(small, tokens)[0], model(tokens), rtol=0, atol=0.02)


@pytest.fixture
def own_layers() -> keras.Model:
    inputs = keras.Input((None, 4), batch_size=BATCH)
    x = drop_ins.LSTM(3, return_sequences=True)(layers.Masking(7.0)(inputs))
    return keras.Model(inputs, crnn.CudnnGRU(2, 3, direction="bidirectional")(x))


def test_keras_export(own_layers, tmp_path):
    """Keras's own way would need TensorFlow's operators in the interpreter."""
    with pytest.raises(ValueError, match=r"call cudnn_rnn_tf.export_litert\(model, path\)"):
        own_layers.export(tmp_path / "m.tflite", format="litert", verbose=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size to be positive, but received 0"),
        ({"optimizations": ["DEFAULT"]}, TypeError, "sequence of tf.lite.Optimize, .*'DEFAULT'"),
    ],
)
def test_wrong_options(own_layers, tmp_path, wrong, error, message):
    with pytest.raises(error, match=message):
        crnn.export_litert(own_layers, tmp_path / "m.tflite", **wrong)
    assert not list(tmp_path.iterdir())


def test_tensorflows_converter(own_layers):
    content = tf.lite.TFLiteConverter.from_keras_model(own_layers).convert()
    check(own_layers, content, values_with_masks(np.random.default_rng(0)))
