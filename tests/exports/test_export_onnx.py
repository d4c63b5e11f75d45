"""`export_onnx`, and Keras's own export to ONNX, with numbers from ONNX Runtime."""

import collections
import itertools
import pathlib

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
from layer_reference import make, normal, randomize
from test_to_stock import random_model, values_with_masks

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

layers = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # Keras's exporter has one.


def operators(path: pathlib.Path) -> collections.Counter:
    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


def run(path: pathlib.Path, *inputs: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options)
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def check(model: keras.Model, path: pathlib.Path, *inputs: np.ndarray, atol: float = 1e-5) -> None:
    expected = tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else list(inputs)))
    for received, wanted in zip(run(path, *inputs), expected, strict=True):
        assert received.dtype == wanted.dtype
        np.testing.assert_allclose(received, wanted, rtol=0, atol=atol)


DRAWS = itertools.product(range(200, 216), (layers, drop_ins))


@pytest.mark.parametrize("draw", random_configs.mostly_slow(DRAWS, 11, one_of=7))
def test_random_models(draw, tmp_path):
    seed, module = draw
    random = np.random.default_rng(seed)
    model, values = random_model(random, module), values_with_masks(random)
    before = [variable.numpy() for variable in model.variables]
    crnn.export_onnx(model, tmp_path / "m.onnx")
    check(model, tmp_path / "m.onnx", values)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def of_layer(layer, *more: keras.KerasTensor, size: int = 4, **call) -> keras.Model:
    inputs = keras.Input((None, size))
    return keras.Model([inputs, *more] if more else inputs, layer(inputs, **call))


OPERATORS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
OPERATORS["lstm_peephole"] = "LSTM"


@pytest.mark.parametrize("lengths", [None, [0, 6, 3]])
@pytest.mark.parametrize(
    ("num_layers", "options"),
    [
        (1, {"bias_mode": "none"}),
        (2, {"direction": "bidirectional", "return_state": True}),
        (2, {"bias_mode": "single_recurrent", "go_backwards": True}),
        (3, {"bias_mode": "single_input", "return_sequences": False, "dropout": 0.5}),
    ],
)
@pytest.mark.parametrize("rnn_mode", OPERATORS)
def test_own_layers(rnn_mode, num_layers, options, lengths, tmp_path):
    """The nodes have lengths, of any number of steps and sequences, and read no padding."""
    layer = randomize(make(rnn_mode, num_layers, 3, **options), (None, None, 4))
    given = keras.Input((), dtype="int32")
    model = of_layer(layer) if lengths is None else of_layer(layer, given, sequence_lengths=given)
    crnn.export_onnx(model, tmp_path / "m.onnx")
    found = operators(tmp_path / "m.onnx")
    assert found[OPERATORS[rnn_mode]] == num_layers and not {"Loop", "If", "Scan"} & found.keys()
    values = normal(3, 6, 4)
    if lengths is None:
        check(model, tmp_path / "m.onnx", values)
        check(model, tmp_path / "m.onnx", normal(1, 9, 4))
    else:
        values[0, 4:] = np.nan
        check(model, tmp_path / "m.onnx", values, np.array(lengths, np.int32))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "options", [{"direction": "bidirectional"}, {"go_backwards": True}, {"num_proj": 2}]
)
def test_lengths_out_of_range(options, dtype, tmp_path):
    """ONNX Runtime refuses them, and what a loop returns of such a sequence is NaN."""
    layer = randomize(make("lstm", 2, 3, **options), (None, None, 4))
    given = keras.Input((), dtype=dtype)
    model = of_layer(layer, given, sequence_lengths=given)
    crnn.export_onnx(model, tmp_path / "m.onnx")
    values = normal(2, 6, 4)
    check(model, tmp_path / "m.onnx", values, np.array([6, 2], dtype))
    for wrong in (-1, 7, *([2**32 + 5, -(2**32) + 5, 2**31] if dtype == "int64" else [])):
        lengths = np.array([wrong, 2], dtype)
        if "num_proj" in options:
            (received,) = run(tmp_path / "m.onnx", values, lengths)
            assert np.all(np.isnan(received[0])) and np.all(np.isfinite(received[1]))
        else:
            with pytest.raises(Exception, match="(?i)invalid.*(sequence|length)"):
                run(tmp_path / "m.onnx", values, lengths)


def test_gru_with_reset_before(tmp_path):
    """A whole model, with a mask and with lengths, of layers of all kinds."""
    inputs, lengths = keras.Input((None, 4)), keras.Input((), dtype="int32")
    masked = layers.Masking(7.0)(inputs)
    options = {"reset_after": False, "return_sequences": True}
    x = drop_ins.Bidirectional(drop_ins.GRU(3, **options))(masked)
    y = crnn.CudnnGRU(2, 3, **options, direction="bidirectional")(inputs, sequence_lengths=lengths)
    outputs = [layers.GRU(3, reset_after=False)(x), drop_ins.GRU(2, **options)(x), y]
    model = keras.Model([inputs, lengths], outputs)
    crnn.export_onnx(model, tmp_path / "m.onnx")
    nodes = [node for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type == "GRU"]
    resets = [
        onnx.helper.get_attribute_value(attribute)
        for node in nodes
        for attribute in node.attribute
        if attribute.name == "linear_before_reset"
    ]
    assert resets == [0] * 5
    values = values_with_masks(np.random.default_rng(0))
    check(model, tmp_path / "m.onnx", values, np.array([0, 2, 1, values.shape[1]], np.int32))


@pytest.mark.parametrize("time_major", [False, True])
def test_initial_states(time_major, tmp_path):
    layer = make("lstm", 2, 3, direction="bidirectional", time_major=time_major)
    randomize(layer, (5, 2, 4) if time_major else (2, 5, 4))
    inputs = keras.Input(batch_shape=(None, None, 4))
    shapes = layer.state_shape(None)
    states = [keras.Input(batch_shape=shape) for shape in shapes]
    model = keras.Model([inputs, *states], layer(inputs, initial_state=states))
    crnn.export_onnx(model, tmp_path / "m.onnx")
    values = [normal(*shape, seed=5) for shape in layer.state_shape(2)]
    check(model, tmp_path / "m.onnx", normal(*((5, 2) if time_major else (2, 5)), 4), *values)


@pytest.mark.parametrize("says", ["sequence_lengths", "mask"])
@pytest.mark.parametrize("rnn_mode", OPERATORS)
def test_sequences_without_steps_keep_their_states(rnn_mode, says, tmp_path):
    layer = make(rnn_mode, 2, 3, direction="bidirectional", return_state=True)
    randomize(layer, (None, None, 4))
    inputs = keras.Input((None, 4))
    states = [keras.Input(shape[1:]) for shape in layer.state_shape(None)]
    of_lengths = says == "sequence_lengths"
    given = keras.Input(() if of_lengths else (None,), dtype="int32" if of_lengths else "bool")
    outputs = layer(inputs, initial_state=states, **{says: given})
    model = keras.Model([inputs, given, *states], outputs)
    crnn.export_onnx(model, tmp_path / "m.onnx")
    lengths = np.array([0, 5, 2], np.int32)
    values = [normal(*shape, seed=5) for shape in layer.state_shape(3)]
    if not of_lengths:
        lengths = np.arange(5) >= 5 - lengths[:, np.newaxis]
    check(model, tmp_path / "m.onnx", normal(3, 5, 4), lengths, *values)


@pytest.mark.parametrize(
    ("rnn_mode", "size", "options", "has_loop"),
    [
        ("lstm", 4, {"num_proj": 2}, True),
        ("lstm", 4, {"cell_clip": 0.1, "zoneout": 0.3, "cell_zoneout": 0.4}, True),
        ("gru", 3, {"input_mode": "skip_input", "direction": "bidirectional"}, False),
    ],
)
def test_what_onnx_has_no_node_for(rnn_mode, size, options, has_loop, tmp_path):
    layer = randomize(make(rnn_mode, 2, 3, **options), (None, None, size))
    model = of_layer(layer, size=size)
    crnn.export_onnx(model, tmp_path / "m.onnx")
    assert bool(operators(tmp_path / "m.onnx")["Loop"]) is has_loop
    check(model, tmp_path / "m.onnx", normal(2, 5, size))


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_half_types(dtype, tmp_path):
    """The nodes compute in float32, since ONNX Runtime has none for other types."""
    layer = make("gru", 2, 3, dtype=dtype)
    randomize(layer, (None, None, 4))
    inputs = keras.Input((None, 4), dtype="float16")
    model = keras.Model(inputs, layer(inputs))
    crnn.export_onnx(model, tmp_path / "m.onnx")
    check(model, tmp_path / "m.onnx", normal(2, 5, 4).astype("float16"), atol=2e-3)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_bfloat16_becomes_float32(policy, tmp_path):
    model = keras.Sequential([keras.Input((5, 4), dtype=policy.removeprefix("mixed_"))])
    for kind in (layers.Dense, drop_ins.LSTM):
        options = {"recurrent_initializer": "ones"} if kind is drop_ins.LSTM else {}
        model.add(kind(3, dtype=policy, **options))
    values = normal(2, 5, 4)
    crnn.export_onnx(model, tmp_path / "m.onnx")
    expected = tf.cast(model(values), "float32")
    np.testing.assert_allclose(run(tmp_path / "m.onnx", values)[0], expected, atol=0.02)
    assert model.layers[0].compute_dtype == "bfloat16"


TENSOR = tf.constant([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tf.cast(tf.cast(x, "bfloat16") * 2, "float32"), "computes in bfloat16 where"),
        (lambda x: x * TENSOR, "reads tensors that are neither inputs nor"),
    ],
)
def test_what_onnx_runtime_would_refuse(function, message, tmp_path):
    model = keras.Sequential([keras.Input((5, 4)), layers.Lambda(function), layers.LSTM(3)])
    with pytest.raises(ValueError, match=message):
        crnn.export_onnx(model, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_time_distributed_layers_with_unknown_steps(tmp_path):
    inner = keras.Sequential([keras.Input((3, 4)), layers.GRU(4)])
    model = keras.Sequential([keras.Input((None, 3, 4)), layers.TimeDistributed(inner)])
    model.add(layers.Masking())
    model.add(layers.TimeDistributed(layers.Dense(3)))
    model.add(layers.LSTM(2, return_sequences=True))
    crnn.export_onnx(model, tmp_path / "m.onnx")
    crnn.export_portable(model, tmp_path / "m")
    portable = tf.saved_model.load(str(tmp_path / "m"))
    for steps in (2, 5):
        values = normal(3, steps, 3, 4)
        check(model, tmp_path / "m.onnx", values)
        np.testing.assert_allclose(portable.serve(values), model(values), atol=1e-5)


def test_masks_of_stock_layers_become_lengths(tmp_path):
    """Keras's own exporter makes loops of them, and on GPUs none at all."""
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.GRU(3),
            layers.Dense(2, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    crnn.export_onnx(model, tmp_path / "m.onnx")
    found = operators(tmp_path / "m.onnx")
    assert (found["LSTM"], found["GRU"], found["Loop"]) == (1, 1, 0)
    check(model, tmp_path / "m.onnx", np.array([[1, 2, 0, 0], [3, 0, 5, 0], [0, 0, 0, 0]], "int32"))


def test_layers_that_do_not_run_fused(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((None, 4)),
            layers.Masking(7.0),
            drop_ins.GRU(3, activation="relu", return_sequences=True),
            layers.LSTM(3, activation="relu", return_sequences=True),
        ]
    )
    values = values_with_masks(np.random.default_rng(0))
    crnn.export_onnx(model, tmp_path / "m.onnx")
    check(model, tmp_path / "m.onnx", values)


class Own(keras.Model):
    """A model whose class Keras cannot copy, and which does not say its inputs' shapes."""

    def __init__(self, units):
        super().__init__()
        self.first = layers.LSTM(units, return_sequences=True)
        self.second = crnn.CudnnGRU(1, units)

    def call(self, inputs):
        return self.second(self.first(inputs))


def test_classes_of_users(tmp_path, monkeypatch):
    """While such a model is traced, Keras's layers in it do not ask whether there is a GPU."""
    choices = []
    inner_loop = layers.LSTM.inner_loop

    def noted(self, *arguments, **options):
        choices.append(self.use_cudnn)
        return inner_loop(self, *arguments, **options)

    model = Own(3)
    model(normal(2, 5, 4))
    with pytest.raises(ValueError, match="expected an input_signature for model .*, Own, does not"):
        crnn.export_onnx(model, tmp_path / "m.onnx")
    signature = [tf.TensorSpec([None, None, 4])]
    monkeypatch.setattr(layers.LSTM, "inner_loop", noted)
    crnn.export_onnx(model, tmp_path / "m.onnx", input_signature=signature)
    assert choices and not any(choices)
    assert operators(tmp_path / "m.onnx")["GRU"] == 1
    check(model, tmp_path / "m.onnx", normal(2, 7, 4))
    assert model.first.use_cudnn == "auto"


def test_large_weights_stay_constants(tmp_path):
    """TensorFlow folds no constants above a size, if they grow."""
    model = keras.Sequential([keras.Input((None, 600)), layers.LSTM(800)])
    crnn.export_onnx(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 1.1 * 4 * model.count_params()
    check(model, tmp_path / "m.onnx", normal(2, 3, 600))
    assert crnn.convert.from_onnx(tmp_path / "m.onnx").num_units == 800


def test_keras_export(tmp_path):
    """Keras's own exporter gives the same file where the layers are this package's."""
    inputs = keras.Input((None, 4))
    x = drop_ins.LSTM(3, return_sequences=True)(layers.Masking(7.0)(inputs))
    model = keras.Model(inputs, crnn.CudnnGRU(2, 3, direction="bidirectional")(x))
    values = values_with_masks(np.random.default_rng(0))
    model(values)
    model.export(tmp_path / "m.onnx", format="onnx", verbose=False)
    found = operators(tmp_path / "m.onnx")
    assert (found["LSTM"], found["GRU"], found["Loop"]) == (1, 2, 0)
    check(model, tmp_path / "m.onnx", values)
    model.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved").serve
    assert "CudnnRnnTf>Forward" in {
        node.op for node in served.concrete_functions[0].graph.as_graph_def().node
    }


EXPORTS = pytest.mark.parametrize(
    ("export", "suffix"), [(crnn.export_onnx, ".onnx"), (crnn.export_litert, ".tflite")]
)


@EXPORTS
def test_errors(export, suffix, tmp_path):
    model = keras.Sequential([keras.Input((None, 4)), drop_ins.GRU(2)])
    with pytest.raises(ValueError, match=f"to end in {suffix}, but received 'm.pb'"):
        export(model, "m.pb")
    path = tmp_path / f"m{suffix}"
    with pytest.raises(TypeError, match="expected model to be a Keras model, but received GRU"):
        export(drop_ins.GRU(2), path)
    with pytest.raises(ValueError, match="to be built"):
        export(keras.Sequential([drop_ins.GRU(2)]), path)
    inputs = keras.Input((None, 4))
    trained = crnn.CudnnGRU(2, 3, dropout=0.5)(inputs, training=True)
    with pytest.raises(ValueError, match="a layer with dropout or zoneout is called with"):
        export(keras.Model(inputs, trained), path)
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        export(model, path)
    assert path.read_text() == "mine"


@EXPORTS
def test_what_an_exporter_does_not_know(export, suffix, tmp_path):
    inputs = keras.Input((None, 4))
    x = drop_ins.GRU(2, return_sequences=True)(inputs)
    x = layers.Lambda(lambda x: tf.raw_ops.Igamma(a=tf.abs(x), x=tf.abs(x)))(x)
    with pytest.raises(ValueError, match="to (ONNX|LiteRT) does not know: .*"):
        export(keras.Model(inputs, x), tmp_path / f"m{suffix}")
    assert not list(tmp_path.iterdir())
