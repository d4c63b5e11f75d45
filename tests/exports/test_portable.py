"""SavedModels without fused ops, in a process that knows nothing of this package."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from fresh_process import run_program
from layer_reference import LAYERS, make, normal, randomize

import cudnn_rnn_tf as crnn

# One worker of pytest-xdist runs all of them, so that the shared fixtures are made once.
pytestmark = pytest.mark.xdist_group("portable")

MODES = tuple(LAYERS)

# Sums of some ten products have 14, 6, 3 and 2 correct digits; steps and layers cost one more.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}

# This program runs each SavedModel of a folder on its inputs, as it is or converted. It reports
# failures and stores the other results.
SERVE = """
import json, pathlib, sys
sys.modules["cudnn_rnn_tf"] = None
import numpy as np
import tensorflow as tf
errors = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        if folder.name.startswith("lite"):
            converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "model"))
            interpreter = tf.lite.Interpreter(model_content=converter.convert())
            signature = interpreter.get_signature_runner("serving_default")
        else:
            loaded = tf.saved_model.load(str(folder / "model"))
            signature = loaded.signatures["serving_default"]
        for number in range(len(list(folder.glob("inputs_*.npz")))):
            arrays = dict(np.load(folder / f"inputs_{number}.npz"))
            if not folder.name.startswith("lite"):
                arrays = {name: tf.constant(array) for name, array in arrays.items()}
            outputs = signature(**arrays)
            outputs = {name: tf.cast(outputs[name], tf.float64) for name in outputs}
            np.savez(folder / f"results_{number}.npz", **outputs)
    except Exception as error:
        errors[folder.name] = str(error)
print(json.dumps(errors))
"""


def functional(layer) -> keras.Model:
    inputs = keras.Input((None, 3), name="x", dtype=layer.variable_dtype)
    return keras.Model(inputs, layer(inputs))


class FunctionModel(keras.Model):
    """A model that calls its layer in a function of its own."""

    def __init__(self):
        super().__init__()
        self.layer = layer_of("gru")
        self(X)

    @tf.function
    def call(self, x):
        return self.layer(x)


def with_lengths(layer) -> keras.Model:
    inputs = keras.Input((None, 3), name="x")
    lengths = keras.Input((), dtype="int32", name="lengths")
    return keras.Model([inputs, lengths], layer(inputs, sequence_lengths=lengths))


def with_mask(layer) -> keras.Model:
    tokens = keras.Input((None,), dtype="int32", name="x")
    embedded = keras.layers.Embedding(5, 3, mask_zero=True)(tokens)
    return keras.Model(tokens, keras.layers.Dense(2)(layer(embedded)))


class OpLevelModel(keras.Model):
    """A model within a model, and a fused op that no layer calls."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input((None, 3)), make("rnn_relu", 2, 4)])
        self.params = self.add_weight(
            shape=(crnn.cudnn_rnn_ops.CudnnGRU(1, 3, 4).params_size().numpy(),),
            initializer="random_normal",
        )

    def call(self, x):
        state = tf.zeros([tf.shape(x)[0], 1, 3])
        return crnn.cudnn_rnn_ops.cudnn_gru(
            self.inner(x), state, self.params.value, is_training=False, time_major=False
        )[0]


def op_level_model() -> keras.Model:
    model = OpLevelModel()
    model(tf.zeros([1, 1, 3]))
    return model


def layer_of(rnn_mode: str, *shape, **options):
    return randomize(make(rnn_mode, *shape, **options), (2, None, 3))


def spec(*shape, dtype="float32", name="x"):
    return tf.TensorSpec(shape, dtype, name)


X, LENGTHS = normal(2, 5, 3), np.array([3, 5], np.int32)
TOKENS = np.array([[1, 2, 0, 0], [1, 2, 3, 4]], np.int32)
BOTH = {"direction": "bidirectional"}

# By name: a model, an input signature or None, and the inputs of each call.
CASES = {
    **{
        f"{kind}_{mode}": (
            lambda mode=mode: functional(layer_of(mode, 2, 4, **BOTH, dropout=0.5)),
            signature,
            [{"x": X}, {"x": normal(2, 1, 3)}],
        )
        for kind, signature, modes in (
            ("stock", None, MODES),
            ("lite", [spec(2, None, 3)], ("lstm", "gru")),
        )
        for mode in modes
    },
    **{
        f"{kind}_lengths": (
            lambda: with_lengths(layer_of("lstm", 2, 4, **BOTH, return_state=True)),
            signature,
            [{"x": X, "lengths": LENGTHS}, {"x": X, "lengths": LENGTHS[::-1] - 3}],
        )
        for kind, signature in (
            ("stock", None),
            ("lite", [[spec(2, None, 3), spec(2, dtype="int32", name="lengths")]]),
        )
    },
    **{
        f"{kind}_mask": (
            lambda: with_mask(layer_of("gru", go_backwards=True, return_sequences=False)),
            signature,
            [{"x": TOKENS}, {"x": TOKENS[:, :2]}],
        )
        for kind, signature in (("stock", None), ("lite", [spec(2, None, dtype="int32")]))
    },
    **{
        f"stock_{mode}": (
            lambda mode=mode: layer_of("gru", bias_mode=mode, input_mode="skip_input"),
            None,
            [{"inputs": X}],
        )
        for mode in ("none", "single_input", "single_recurrent")
    },
    **{
        f"stock_{dtype}": (
            lambda dtype=dtype: functional(layer_of("lstm", dtype=dtype)),
            None,
            [{"x": X.astype("float64" if dtype == "float64" else "float32")}],
        )
        for dtype in ("float64", "mixed_float16", "mixed_bfloat16")
    },
    **{
        f"{kind}_layer": (
            lambda: layer_of(
                "lstm", 2, 4, num_proj=2, cell_clip=0.3, return_state=True, time_major=True
            ),
            signature,
            [{"inputs": X}],
        )
        for kind, signature in (("stock", None), ("lite", [spec(None, 5, 3, name="inputs")]))
    },
    **{
        f"{kind}_stateful": (
            lambda: layer_of("lstm", 1, 4, stateful=True),
            None,
            [{"inputs": X}, {"inputs": normal(2, 3, 3)}],
        )
        for kind in ("stock", "lite")
    },
    "stock_op_level": (op_level_model, [spec(None, None, 3)], [{"x": X}]),
}


# These are one case of each kind. The others differ from one of them in a mode, a type or the way
# they run.
QUICK = ("stock_lstm", "lite_gru", "stock_lengths", "lite_mask", "stock_layer", "lite_stateful")


def call(model, arrays) -> list[np.ndarray]:
    inputs = list(arrays.values())
    outputs = model(inputs if len(inputs) > 1 else inputs[0])
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [tf.cast(output, tf.float64).numpy() for output in outputs]


@pytest.fixture(scope="module")
def served(tmp_path_factory, request):
    """Makes a folder per SavedModel and runs them elsewhere; returns what to expect of each."""
    root = tmp_path_factory.mktemp("portable") / "cases"
    # These are one case that other tests read, and the cases of the selected tests.
    names = {"stock_lengths"}
    for item in request.session.items:
        if item.originalname == test_computes_the_same_elsewhere.__name__:
            names.add(item.callspec.params["name"])
    expected = {}
    with tf.device("CPU:0"):
        for name in sorted(names):
            make_model, signature, calls = CASES[name]
            model = make_model()
            (root / name).mkdir(parents=True)
            crnn.export_portable(model, root / name / "model", input_signature=signature)
            for number, arrays in enumerate(calls):
                np.savez(root / name / f"inputs_{number}.npz", **arrays)
            expected[name] = [call(model, arrays) for arrays in calls]
    output = run_program(SERVE, root, CUDA_VISIBLE_DEVICES="-1")
    return root, expected, json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES],
)
def test_computes_the_same_elsewhere(served, name):
    root, expected, errors = served
    assert name not in errors, errors[name]
    dtype = name.removeprefix("stock_").removeprefix("mixed_")
    for number, values in enumerate(expected[name]):
        results = np.load(root / name / f"results_{number}.npz")
        assert sorted(results) == [f"output_{index}" for index in range(len(values))]
        for index, value in enumerate(values):
            np.testing.assert_allclose(
                results[f"output_{index}"], value, rtol=0, atol=TOLERANCE.get(dtype, 1e-5)
            )


def test_signature_is_that_of_a_native_export(served, tmp_path):
    root, _, _ = served
    model = with_lengths(layer_of("lstm", 2, 4, **BOTH, return_state=True))
    model.export(tmp_path / "native", verbose=False)
    native, portable = (
        tf.saved_model.load(str(path)).signatures["serving_default"]
        for path in (tmp_path / "native", root / "stock_lengths" / "model")
    )
    assert portable.structured_input_signature == native.structured_input_signature
    assert set(portable.structured_outputs) == set(native.structured_outputs)


class TracedModel(keras.Model):
    """A model that calls its layer in a function that was traced for good."""

    def __init__(self):
        super().__init__()
        self.layer = layer_of("gru", 2, 3, dropout=0.5)
        self.run = tf.function(self.layer).get_concrete_function(spec(None, None, 3))

    def call(self, x):
        return self.run(x)


class TrainingModel(TracedModel):
    def call(self, x):
        return self.layer(x, training=True)


@pytest.mark.parametrize(
    ("model_class", "message"),
    [(TracedModel, "traced before"), (TrainingModel, "is for inference")],
)
def test_what_cannot_be_exported(model_class, message, tmp_path):
    """A failed export leaves nothing behind, and the next export works."""
    model = model_class()
    model(tf.zeros([1, 1, 3]))
    with pytest.raises(ValueError, match=message):
        crnn.export_portable(model, tmp_path / "m", input_signature=[spec(None, None, 3)])
    assert not list(tmp_path.iterdir())
    crnn.export_portable(model.layer, tmp_path / "m")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_allclose(loaded.serve(X), model.layer(X), rtol=0, atol=1e-5)


def test_model_with_a_function(tmp_path):
    """An export of one kind traces the function, so an export of the other needs a new model."""
    model, signature = FunctionModel(), [spec(None, None, 3)]
    crnn.export_portable(model, tmp_path / "m", input_signature=signature)
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_allclose(loaded.serve(X), model(X), rtol=0, atol=1e-5)
    model = FunctionModel()
    model.export(tmp_path / "native", verbose=False, input_signature=signature)
    with pytest.raises(ValueError, match="traced before"):
        crnn.export_portable(model, tmp_path / "again", input_signature=signature)
    assert not (tmp_path / "again").exists()


def test_wrong_arguments(tmp_path):
    layer = layer_of("gru")
    with pytest.raises(
        TypeError, match="expected model to be a Keras model or layer, but received int"
    ):
        crnn.export_portable(3, tmp_path / "m")
    with pytest.raises(ValueError, match="to be built"):
        crnn.export_portable(make("gru"), tmp_path / "m")
    with pytest.raises(FileExistsError, match="exists already"):
        crnn.export_portable(layer, tmp_path)
    for name in ("m.keras", "m.h5", "m.onxx"):
        with pytest.raises(ValueError, match=f"expected path to name the folder .*{name}"):
            crnn.export_portable(layer, tmp_path / name)
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    with pytest.raises(ValueError, match="input_signature for layer"):
        crnn.export_portable(dense, tmp_path / "m")
    model = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(2)])
    for export, ending in ((crnn.export_portable, ""), (crnn.export_litert, ".tflite")):
        with pytest.raises(TypeError, match="expected input_signature to hold .* received 1"):
            export(model, tmp_path / f"m{ending}", input_signature=[1])
    assert not list(tmp_path.iterdir())
