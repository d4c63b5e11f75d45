"""Files of Keras 1 and 2: what `load_keras_model` makes of them computes what their layers did."""

import io
import json
import re
import zipfile
from typing import Any

import h5py
import keras
import keras_reference as reference
import numpy as np
import pytest
from keras_reference import gru, hard_sigmoid, lstm, write

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection, keras_configs

tf_keras = pytest.importorskip("tf_keras")
layers = tf_keras.layers


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return 0.5 * np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def randomized(model: Any) -> Any:
    for index, weight in enumerate(model.weights):
        value = normal(*weight.shape, seed=index)
        weight.assign(abs(value) + 0.5 if "variance" in weight.name else value)
    for layer in model.layers:
        getattr(layer, "finalize_state", lambda: None)()
    return model


# Models that TensorFlow's Keras 2 writes, and computes the expected outputs of.


def stack(cell: str, **options: Any) -> Any:
    def make(**more: Any) -> Any:
        return getattr(layers, cell)(3, **options, **more)

    return tf_keras.Sequential(
        [
            layers.Input((None, 4)),
            make(return_sequences=True),
            layers.TimeDistributed(layers.Dense(5, activation="hard_sigmoid")),
            layers.BatchNormalization(),
            layers.Bidirectional(make(return_sequences=True), merge_mode="sum"),
            make(),
        ]
    )


def encoder_and_decoder() -> Any:
    source, target = layers.Input((None, 4)), layers.Input((None, 4))
    encoded, *states = layers.LSTM(3, return_state=True)(source)
    decoded = layers.LSTM(3, return_sequences=True)(target, initial_state=states)
    shared = tf_keras.Sequential(
        [layers.Input((None, 3)), layers.BatchNormalization(), layers.GRU(4)]
    )
    both = [shared(decoded), shared(layers.RepeatVector(3)(encoded))]
    return tf_keras.Model([source, target], [layers.Concatenate()(both), decoded])


def masked_decoder() -> Any:
    """Returns a model whose masks reach layers with initial states, of an inner model too."""
    source, target, state = layers.Input((6, 4)), layers.Input((5, 4)), layers.Input((3,))
    _, *states = layers.LSTM(3, return_state=True)(layers.Masking()(source))
    masked = layers.Masking()(target)
    both = [*states, *states]
    decoded = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(
        masked, initial_state=both
    )
    again = layers.GRU(3, return_sequences=True)(decoded, initial_state=states[0])
    inner = tf_keras.Model(
        [target, state], layers.SimpleRNN(3)(layers.Masking()(target), initial_state=state)
    )
    return tf_keras.Model([source, target], [again, inner([target, states[0]])])


def two_branches() -> Any:
    """Returns two layers of the same shape, whose order masks change in a copy."""
    first, second, state = layers.Input((5, 4)), layers.Input((5, 4)), layers.Input((4,))
    masked = layers.Masking()(layers.Dense(4)(first))
    decoded = layers.LSTM(4)(masked, initial_state=[state, state])
    flat = layers.Flatten()(layers.Activation("tanh")(layers.Dense(4)(second)))
    return tf_keras.Model([first, second, state], [flat, decoded])


def inner_branches() -> Any:
    inputs = [layers.Input((5, 4)), layers.Input((5, 4)), layers.Input((4,))]
    return tf_keras.Model(inputs, two_branches()(inputs))


def nested() -> Any:
    inner = tf_keras.Sequential([layers.Input((5, 4)), layers.LSTM(3)])
    inputs = layers.Input((6, 5, 4))
    outputs = layers.LSTM(2)(layers.TimeDistributed(inner)(inputs))
    return tf_keras.Model(inputs, layers.LeakyReLU(alpha=0.3)(outputs))


def convolved() -> Any:
    inputs = layers.Input((20, 4), batch_size=2)
    x = layers.Conv1D(5, 3, padding="causal", activation="relu")(inputs)
    x = layers.Masking()(layers.MaxPooling1D()(x))
    x = layers.Bidirectional(layers.GRU(3), backward_layer=layers.LSTM(2, go_backwards=True))(x)
    y = layers.LSTM(3, stateful=True, unroll=True)(inputs)
    return tf_keras.Model(
        inputs,
        [x, y, layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)])(layers.RepeatVector(3)(y))],
    )


def embedded() -> Any:
    return tf_keras.Sequential(
        [
            layers.Embedding(9, 4, mask_zero=True, input_length=6),
            layers.Bidirectional(layers.LSTM(3, kernel_regularizer="l2")),
            layers.Dense(2, activation="softmax"),
        ]
    )


def called_twice() -> Any:
    """Returns a model of which all calls of an inner model, of each kind, are outputs."""
    inputs = layers.Input((5, 4))
    outputs = []
    for inner in (
        tf_keras.Sequential([layers.Input((5, 4)), layers.GRU(4, return_sequences=True)]),
        tf_keras.Model(inputs, layers.Dense(4)(layers.LSTM(3, return_sequences=True)(inputs))),
        layers.Dense(4),
    ):
        outputs += [inner(inputs), inner(inner(inputs))]
    return tf_keras.Model(inputs, outputs)


def dropped() -> Any:
    return tf_keras.Sequential(
        [
            layers.Input((6, 4)),
            layers.SpatialDropout1D(0.2),
            layers.SeparableConv1D(3, 2, padding="same"),
            layers.LSTM(3, dropout=0.2, return_sequences=True),
            layers.GaussianNoise(0.1),
        ]
    )


def normalized() -> Any:
    return tf_keras.Sequential(
        [layers.Input((6, 4)), layers.Normalization(), layers.LSTM(3), layers.Normalization()]
    )


MODELS = {
    **{
        f"{cell}-{options}": (
            lambda cell=cell, options=options: stack(cell, **options),
            [(2, 6, 4)],
        )
        for cell, options in (
            ("LSTM", {}),
            ("LSTM", {"activation": "relu", "dropout": 0.2, "recurrent_dropout": 0.1}),
            ("GRU", {"use_bias": False, "go_backwards": True}),
            ("GRU", {}),
            ("SimpleRNN", {"activation": "relu", "use_bias": False}),
        )
    },
    "hard": (lambda: stack("LSTM", recurrent_activation="hard_sigmoid"), [(2, 6, 4)]),
    "before": (
        lambda: stack("GRU", recurrent_activation="hard_sigmoid", reset_after=False),
        [(2, 6, 4)],
    ),
    "two": (encoder_and_decoder, [(2, 6, 4), (2, 5, 4)]),
    "masked": (masked_decoder, [(2, 6, 4), (2, 5, 4)]),
    "branches": (two_branches, [(2, 5, 4), (2, 5, 4), (2, 4)]),
    "inner branches": (inner_branches, [(2, 5, 4), (2, 5, 4), (2, 4)]),
    "nested": (nested, [(2, 6, 5, 4)]),
    "twice": (called_twice, [(2, 5, 4)]),
    "dropped": (dropped, [(2, 6, 4)]),
    "embedded": (embedded, [(3, 6)]),
    "convolved": (convolved, [(2, 20, 4)]),
    "normalized": (normalized, [(2, 6, 4)]),
}


def numbers(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    if shapes == [(3, 6)]:
        return [np.random.default_rng(0).integers(0, 9, (3, 6)).astype("float32")]
    found = [normal(*shape, seed=7) for shape in shapes]
    for each in found:
        # What masks of zeros say differs from sequence to sequence.
        each[0, 2:4] = each[1, 4:] = 0.0
    return found


@pytest.mark.parametrize("name", MODELS)
def test_models_of_tensorflows_keras_2(name, tmp_path):
    """What comes of both kinds of files computes the same; one is accelerated, and one saved."""
    make, shapes = MODELS[name]
    model, inputs = make(), numbers(shapes)
    model(inputs if len(inputs) > 1 else inputs[0])
    model.reset_states()
    expected = randomized(model)(inputs if len(inputs) > 1 else inputs[0])
    loaded = []
    for suffix in (".h5", ".keras"):
        model.save(tmp_path / f"old{suffix}")
        loaded.append(crnn.load_keras_model(tmp_path / f"old{suffix}"))
    fast = crnn.accelerate(loaded[0])
    loaded[1].save(tmp_path / "m.keras")
    for each in (*loaded, fast, keras.saving.load_model(tmp_path / "m.keras")):
        outputs = each(inputs if len(inputs) > 1 else inputs[0])
        for received, value in zip(as_list(outputs), as_list(expected), strict=True):
            np.testing.assert_allclose(received, value, atol=2e-6)


def test_vocabularies_of_tensorflows_keras_2(tmp_path):
    texts = np.array([["b a"], ["a c a"], ["d"]])
    text = layers.TextVectorization(output_sequence_length=4)
    lookup = layers.StringLookup()
    text.adapt(texts)
    lookup.adapt(texts)
    inputs = layers.Input((1,), dtype="string")
    x = layers.LSTM(3)(layers.Embedding(9, 2)(text(inputs)))
    model = tf_keras.Model(inputs, [x, lookup(inputs)])
    model.save(tmp_path / "old.keras")
    values = tf_keras.backend.constant(texts, dtype="string")
    loaded = crnn.load_keras_model(tmp_path / "old.keras")
    for copy in (loaded, crnn.accelerate(loaded)):
        for received, expected in zip(copy(values), model(values), strict=True):
            np.testing.assert_allclose(received, expected, atol=2e-6)


def as_list(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


# Files of older versions, in their public layout.


def keras_1_config() -> dict[str, Any]:
    def recurrent(kind: str, name: str, **more: Any) -> dict[str, Any]:
        config = {"output_dim": 3, "inner_activation": "hard_sigmoid", "activation": "tanh"}
        config |= {"init": "glorot_uniform", "inner_init": "orthogonal", "consume_less": "cpu"}
        config |= {"dropout_W": 0.1, "dropout_U": 0.0, "W_regularizer": None, "input_dim": 4}
        return {"class_name": kind, "config": {"name": name, **config, **more}}

    first = {"batch_input_shape": [None, None, 4], "input_dtype": "float32"}
    dense = {"name": "dense_1", "output_dim": 2, "bias": True, "activation": "hard_sigmoid"}
    return {
        "class_name": "Sequential",
        "config": [
            recurrent("LSTM", "lstm_1", forget_bias_init="one", return_sequences=True, **first),
            recurrent("GRU", "gru_1", return_sequences=True),
            {"class_name": "Dropout", "config": {"name": "dropout_1", "p": 0.5}},
            {"class_name": "Dense", "config": dense},
        ],
    }


def keras_1_weights() -> dict[str, list[tuple[str, np.ndarray]]]:
    def gates(layer: str, names: str, fan_in: int) -> list[tuple[str, np.ndarray]]:
        shapes = {"W": (fan_in, 3), "U": (3, 3), "b": (3,)}
        return [
            (f"{layer}_{kind}_{gate}", normal(*shape, seed=100 * i + j))
            for i, gate in enumerate(names)
            for j, (kind, shape) in enumerate(shapes.items())
        ]

    return {
        "lstm_1": gates("lstm_1", "icfo", 4),
        "gru_1": gates("gru_1", "zrh", 3),
        "dropout_1": [],
        "dense_1": [("dense_1_W", normal(3, 2)), ("dense_1_b", normal(2))],
    }


def functional(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of a model whose layers call each other, as Keras 1 has it."""
    config["config"][0]["config"].pop("batch_input_shape")
    start = {"name": "input_1", "batch_input_shape": [None, None, 4], "input_dtype": "float32"}
    layers = [{"class_name": "InputLayer", "config": start, "name": "input_1", "inbound_nodes": []}]
    for each in config["config"]:
        places = {"name": each["config"]["name"], "inbound_nodes": [[[layers[-1]["name"], 0, 0]]]}
        layers.append({**each, **places})
    ends = {"input_layers": [["input_1", 0, 0]], "output_layers": [[layers[-1]["name"], 0, 0]]}
    return {"class_name": "Model", "config": {"name": "model_1", "layers": layers, **ends}}


@pytest.mark.parametrize("is_functional", [False, True])
def test_keras_1(is_functional, tmp_path):
    weights, config = keras_1_weights(), keras_1_config()
    if is_functional:
        weights, config = {"input_1": [], **weights}, functional(config)
    path = write(tmp_path / "m.h5", weights, config, "1.2.2")
    arrays = {name: array for of_layer in weights.values() for name, array in of_layer}

    def joined(layer: str, gates: str) -> list[np.ndarray]:
        return [
            np.concatenate([arrays[f"{layer}_{kind}_{gate}"] for gate in gates], -1)
            for kind in "WUb"
        ]

    inputs = normal(2, 5, 4)
    expected = lstm(inputs, *joined("lstm_1", "ifco"), act=hard_sigmoid)
    expected = gru(expected, *joined("gru_1", "zrh"), act=hard_sigmoid)
    expected = hard_sigmoid(expected @ arrays["dense_1_W"] + arrays["dense_1_b"])
    model = crnn.load_keras_model(path)
    np.testing.assert_allclose(model(inputs), expected, atol=1e-6)
    assert [layer.name for layer in model.layers] == list(weights)
    assert model.get_layer("lstm_1").dropout == 0.1
    assert not model.get_layer("gru_1").reset_after
    report = str(crnn.acceleration_report(crnn.accelerate(model)))
    assert "as Keras" not in report
    refusals = [each.convert for each in file_inspection.inspect_file(path)]
    assert all("keras_2_hard_sigmoid" in refusal for refusal in refusals) and len(refusals) == 2


def cudnn_weights(num_gates: int, fan_in: int, scope: str) -> list[tuple[str, np.ndarray]]:
    shapes = {"kernel": (fan_in, 3 * num_gates), "recurrent_kernel": (3, 3 * num_gates)}
    shapes["bias"] = (6 * num_gates,)
    return [
        (f"{scope}/{name}:0", normal(*shape, seed=len(scope) + index))
        for index, (name, shape) in enumerate(shapes.items())
    ]


def cudnn_file(path: Any, with_model: bool = True) -> tuple[Any, dict[str, list[np.ndarray]]]:
    def recurrent(kind: str, name: str) -> dict[str, Any]:
        config = {"name": name, "units": 3, "return_sequences": True, "stateful": False}
        initializer = {"class_name": "VarianceScaling", "config": {"distribution": "normal"}}
        return {"class_name": kind, "config": {**config, "kernel_initializer": initializer}}

    first = recurrent("CuDNNLSTM", "cu_dnnlstm_1")
    both = {"name": "bidirectional_1", "layer": first, "merge_mode": "concat"}
    both["batch_input_shape"] = [None, None, 4]
    config = {
        "class_name": "Sequential",
        "config": {
            "name": "sequential_1",
            "layers": [
                {"class_name": "Bidirectional", "config": both},
                recurrent("CuDNNGRU", "cu_dnngru_1"),
            ],
        },
    }
    sides = [f"bidirectional_1/{side}_cu_dnnlstm_1" for side in ("forward", "backward")]
    weights = {
        "bidirectional_1": [each for side in sides for each in cudnn_weights(4, 4, side)],
        "cu_dnngru_1": cudnn_weights(3, 6, "cu_dnngru_1"),
    }
    write(path, weights, config if with_model else None, "2.1.5")
    arrays = {layer: [array for _, array in named] for layer, named in weights.items()}
    return path, arrays


def cudnn_outputs(arrays: dict[str, list[np.ndarray]], inputs: np.ndarray) -> list[np.ndarray]:
    sides = [arrays["bidirectional_1"][:3], arrays["bidirectional_1"][3:]]
    both = [
        lstm(inputs, *reference.as_cudnn_reads(side, 4), backwards=backwards)
        for side, backwards in zip(sides, (False, True), strict=True)
    ]
    joined = np.concatenate(both, -1)
    return [joined, gru(joined, *reference.as_cudnn_reads(arrays["cu_dnngru_1"], 3))]


def test_layers_of_cudnn(tmp_path):
    path, arrays = cudnn_file(tmp_path / "m.h5")
    inputs = normal(2, 5, 4)
    model = crnn.load_keras_model(path)
    np.testing.assert_allclose(model(inputs), cudnn_outputs(arrays, inputs)[1], atol=1e-6)
    assert all(layer.runs_fused for layer in model.layers)
    assert [type(layer) for layer in model.layers] == [crnn.keras.Bidirectional, crnn.keras.GRU]
    # TensorFlow's Keras 2 turns such weights into those of its LSTM when it loads them.
    other = tf_keras.Sequential(
        [
            layers.Input((None, 4)),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.GRU(3, return_sequences=True, reset_after=True),
        ]
    )
    other.load_weights(path)
    np.testing.assert_allclose(model(inputs), other(inputs), atol=1e-6)


@pytest.mark.parametrize("with_model", [True, False])
def test_convert_takes_layers_of_cudnn(with_model, tmp_path):
    path, arrays = cudnn_file(tmp_path / "m.h5", with_model)
    inputs = normal(2, 5, 4)
    expected = cudnn_outputs(arrays, inputs)
    found = file_inspection.inspect_file(path)
    assert [(each.name, each.input_size, each.convert) for each in found] == [
        ("bidirectional_1", 4, "yes"),
        ("cu_dnngru_1", 6, "yes"),
    ]
    for network, x, outputs in zip(found, (inputs, expected[0]), expected, strict=True):
        target = tmp_path / f"{network.name}.keras"
        convert.convert_file(path, target, name=network.name)
        received = keras.saving.load_model(target)(np.asarray(x, "float32"))
        np.testing.assert_allclose(received, outputs, atol=1e-6)


# What Keras 3 cannot express.


class Squeeze(keras.layers.Layer):
    def __init__(self, axis: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, x: Any) -> Any:
        return keras.ops.squeeze(x, self.axis)


def strange_file(path: Any) -> Any:
    model = tf_keras.Sequential(
        [
            layers.Input((None, 4)),
            layers.LSTM(3, return_sequences=True, name="good"),
            layers.Lambda(lambda x: x * 2, name="lambda"),
            layers.GRU(2, return_sequences=True, activation="relu", name="before"),
            layers.LSTM(3, time_major=True, name="major"),
        ]
    )
    randomized(model).save(path, save_format="h5")
    with h5py.File(path, "a") as file:
        config = json.loads(file.attrs["model_config"])
        config["config"]["layers"].insert(
            1, {"class_name": "Squeeze", "config": {"axis": 1, "name": "own"}}
        )
        file.attrs["model_config"] = json.dumps(config)
    return path, model


def test_what_cannot_be_expressed_is_named(tmp_path, capsys):
    path, model = strange_file(tmp_path / "m.h5")
    with pytest.raises(ValueError, match="cannot express 3 of the layers") as error:
        crnn.load_keras_model(path)
    for expected in (
        r"'own': Squeeze: Keras 3 has no such layer; pass the class in custom_objects",
        r"'lambda': Lambda: it holds the bytecode of a Python function, which is never executed",
        r"'major': LSTM: Keras 3 has no time_major=True",
    ):
        assert re.search(expected, str(error.value))
    assert __main__.main(["inspect", str(path)]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["good", "before", "major"]
    assert rows[0].endswith("yes")
    assert "activation='relu' of layer 'before' has no equivalent" in rows[1]
    assert rows[2].endswith("no: LSTM: Keras 3 has no time_major=True")
    # The other network can be had.
    convert.convert_file(path, tmp_path / "good.keras", name="good")
    inputs = normal(2, 5, 4)
    received = keras.saving.load_model(tmp_path / "good.keras")(inputs)
    np.testing.assert_allclose(received, model.layers[0](inputs), atol=1e-6)
    assert __main__.main(["accelerate", str(path), str(tmp_path / "fast.keras")]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "cannot express 3 of the layers" in line


@pytest.mark.parametrize(
    ("version", "kind", "options", "message"),
    [
        ("2.3.1", "BatchNormalization", {"renorm": True}, "Keras 3 has no renorm=True"),
        ("1.2.2", "Embedding", {"dropout": 0.2}, "Keras 3 has no dropout in an Embedding"),
    ],
)
def test_options_that_are_gone(version, kind, options, message, monkeypatch):
    # Some versions of Keras 3 have renorm.
    known = keras_configs._parameters
    monkeypatch.setattr(keras_configs, "_parameters", lambda owner: known(owner) - {"renorm"})
    config = {"input_dim": 5, "output_dim": 3} if kind == "Embedding" else {}
    for given in (options, dict.fromkeys(options, 0.0), {}):
        layer = {"class_name": kind, "config": {**config, **given, "name": "a"}}
        problems = keras_configs.Translation(version)
        problems.layer(layer)
        assert (message in problems.problems.get("a", "")) == (given is options)


def test_custom_objects(tmp_path):
    lstm = layers.LSTM(2, return_sequences=True, name="a")
    model = tf_keras.Sequential([layers.Input((1, 4)), lstm])
    path = tmp_path / "m.h5"
    randomized(model).save(path, save_format="h5")
    with h5py.File(path, "a") as file:
        config = json.loads(file.attrs["model_config"])
        config["config"]["layers"].append(
            {"class_name": "Own", "config": {"axis": 1, "name": "own"}}
        )
        config["config"]["layers"].append(
            {
                "class_name": "Lambda",
                "config": {"function": "twice", "name": "l", "function_type": "function"},
            }
        )
        file.attrs["model_config"] = json.dumps(config)
    custom = {"Own": Squeeze, "twice": lambda x: 2 * x}
    loaded = crnn.load_keras_model(path, custom_objects=custom)
    inputs = normal(2, 1, 4)
    np.testing.assert_allclose(loaded(inputs), 2 * model(inputs)[:, 0], atol=1e-6)


@tf_keras.saving.register_keras_serializable("mine")
class Scaled(layers.Layer):
    """A layer of Keras 2 of a user's package."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],))

    def call(self, inputs):
        return inputs * self.scale


# Both versions of Keras find the weights by the class's name.
keras.saving.register_keras_serializable("mine")(
    type("Scaled", (keras.layers.Layer,), {"build": Scaled.build, "call": Scaled.call})
)


def test_archives_of_keras_2_with_a_registered_class(tmp_path):
    path = tmp_path / "m.keras"
    gru = layers.GRU(3, return_sequences=True, name="first")
    model = randomized(tf_keras.Sequential([layers.Input((5, 4)), gru, Scaled()]))
    model.save(path)
    inputs = normal(2, 5, 4)
    np.testing.assert_allclose(crnn.load_keras_model(path)(inputs), model(inputs), atol=1e-6)
    convert.convert_file(path, tmp_path / "first.keras")
    received = keras.saving.load_model(tmp_path / "first.keras")(inputs)
    np.testing.assert_allclose(received, gru(inputs), atol=1e-6)


def test_archives_of_keras_2_without_all_weights(tmp_path):
    whole, partial = tmp_path / "whole.keras", tmp_path / "partial.keras"
    stack("LSTM").save(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(partial, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith(".h5"):
                buffer = io.BytesIO(content)
                with h5py.File(buffer, "a") as weights:
                    del weights["layers/lstm_1/cell/vars/1"]
                content = buffer.getvalue()
            target.writestr(name, content)
    with pytest.raises(ValueError, match="could not be loaded"):
        crnn.load_keras_model(partial)
