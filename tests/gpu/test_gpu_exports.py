"""Exports of models that are built and run on a GPU, with numbers from the runtimes on the CPU.

ONNX Runtime and LiteRT have none of TensorFlow's kernels, so they must get what no GPU asks for:
Keras's own layers run by cuDNN here, and this package's by its kernels for GPUs.
"""

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
from layer_reference import make, normal, randomize
from test_to_stock import random_model, values_with_masks

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # Keras's exporter to ONNX has one.
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated"),
]
layers = keras.layers


@pytest.fixture(autouse=True)
def full_float32():
    """The runtimes have no TensorFloat-32."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.fixture(params=["onnx", "litert"])
def check(request, tmp_path):
    """Returns a function that exports a model and compares what the file gives with the model."""
    if request.param == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
        from test_export_onnx import run
    else:
        from test_export_litert import run

    def exported_and_run(model: keras.Model, *inputs: np.ndarray) -> None:
        expected = tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else list(inputs)))
        if request.param == "onnx":
            crnn.export_onnx(model, tmp_path / "m.onnx")
            received = run(tmp_path / "m.onnx", *inputs)
        else:
            crnn.export_litert(model, tmp_path / "m.tflite", batch_size=len(inputs[0]))
            received = run((tmp_path / "m.tflite").read_bytes(), *inputs)
        for each, wanted in zip(received, expected, strict=True):
            assert "GPU" in wanted.device
            np.testing.assert_allclose(each, wanted, rtol=0, atol=2e-5)

    return exported_and_run


@pytest.mark.parametrize("module", [layers, drop_ins])
@pytest.mark.parametrize("seed", random_configs.mostly_slow(range(400, 416), 6))
def test_random_models(seed, module, check):
    """Layers that cuDNN runs, and others, with masks of any kind."""
    random = np.random.default_rng(seed)
    check(random_model(random, module), values_with_masks(random))


@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize(
    ("rnn_mode", "options"),
    [
        ("lstm", {"direction": "bidirectional", "return_state": True}),
        ("lstm", {"num_proj": 2, "cell_clip": 0.5}),
        ("gru", {"go_backwards": True, "bias_mode": "none"}),
        ("gru", {"reset_after": False, "direction": "bidirectional"}),
        ("rnn_tanh", {"return_sequences": False, "dropout": 0.5}),
    ],
)
def test_own_layers(rnn_mode, options, has_lengths, check):
    layer = randomize(make(rnn_mode, 2, 3, **options), (None, None, 4))
    inputs, lengths = keras.Input((None, 4)), keras.Input((), dtype="int32")
    if not has_lengths:
        check(keras.Model(inputs, layer(inputs)), normal(3, 6, 4))
        return
    model = keras.Model([inputs, lengths], layer(inputs, sequence_lengths=lengths))
    values = normal(3, 6, 4)
    # In the loops that projections become, tf2onnx multiplies padding by zero, so NaN would stay.
    values[0, 4:] = 1e3 if "num_proj" in options else np.nan
    check(model, values, np.array([4, 6, 0], np.int32))


@pytest.mark.parametrize("module", [layers, drop_ins])
def test_masks(module, check):
    """What users train on a GPU and deploy on a CPU, which Keras's own exporters refuse there."""
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            module.Bidirectional(module.LSTM(3, return_sequences=True)),
            module.GRU(3, return_sequences=True),
            module.GRU(3, reset_after=False),
            layers.Dense(2, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    tokens = np.array([[1, 2, 3, 0, 0, 0, 0], [3, 1, 5, 2, 2, 4, 1]], "int32")
    model.fit(tokens, np.array([0, 1]), epochs=2, verbose=0)
    check(model, tokens)
