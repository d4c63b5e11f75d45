"""Files that hold weights alone, files without a suffix, and files of which a part can be had."""

import re
import shutil
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_reference import gru, lstm, sigmoid
from layer_reference import make, normal, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection, named_arrays

tf_keras = pytest.importorskip("tf_keras")
torch = pytest.importorskip("torch")


def model_of(library: Any, recurrent: Any) -> Any:
    # TensorFlow's Keras 2 wants the size of inputs, and layers of its own.
    return library.Sequential(
        [
            library.layers.Input((None, 4)),
            recurrent.LSTM(3, return_sequences=True, name="a"),
            library.layers.Dense(4, name="b"),
            recurrent.Bidirectional(recurrent.GRU(2, return_sequences=True), name="c"),
            recurrent.SimpleRNN(2, return_sequences=True, name="d"),
        ]
    )


def outputs_of(layer: Any, x: np.ndarray) -> np.ndarray:
    """Returns what a layer of the model computes, in NumPy."""
    weights = [np.asarray(weight, np.float64) for weight in layer.weights]
    if layer.name == "a":
        return lstm(x, *weights)
    if layer.name == "c":
        return np.concatenate([gru(x, *weights[:3]), gru(x, *weights[3:], backwards=True)], axis=-1)
    kernel, recurrent, bias = weights
    h, outputs = 0, []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ kernel + (h @ recurrent if t else 0) + bias)
        outputs.append(h)
    return np.stack(outputs, 1)


def save(model: Any, how: str, folder: Any) -> Any:
    if how == "checkpoint":
        return tf.train.Checkpoint(model=model).save(folder / "c")
    if how == "latest":
        tf.train.Checkpoint(model=model).save(folder / "c")
        return folder
    if how == "weights":
        model.save_weights(folder / "w.weights.h5")
        return folder / "w.weights.h5"
    if how == "portable":
        crnn.export_portable(model, folder / "s")
    elif how == "export":
        model.export(
            folder / "s", **({"verbose": False} if model.__module__.startswith("keras") else {})
        )
    else:
        tf.saved_model.save(model, folder / "s")
    return folder / "s"


LIBRARIES = {
    "keras": (keras, keras.layers),
    "drop-ins": (keras, crnn.keras),
    "tf_keras": (tf_keras, tf_keras.layers),
}


@pytest.mark.parametrize(
    ("library", "how"),
    [
        *((library, how) for library in LIBRARIES for how in ("checkpoint", "weights", "export")),
        ("keras", "latest"),
        ("drop-ins", "portable"),
        ("drop-ins", "saved_model"),
        ("tf_keras", "saved_model"),
    ],
)
def test_layers_of_keras(library, how, tmp_path):
    model = model_of(*LIBRARIES[library])
    for index, weight in enumerate(model.weights):
        weight.assign(0.5 * normal(*weight.shape, seed=index))
    path = save(model, how, tmp_path)
    found = [each for each in file_inspection.inspect_file(path) if each.input_size]
    assert sorted(each[1:7] for each in found) == [
        ("Bidirectional of GRU", "gru", 1, "bidirectional", 4, 2),
        ("LSTM", "lstm", 1, "unidirectional", 4, 3),
        ("SimpleRNN", "rnn", 1, "unidirectional", 4, 2),
    ]
    inputs = normal(2, 5, 4)
    layers = {layer.name: layer for layer in model.layers}
    for network in found:
        mode = {"rnn": "rnn_tanh"}.get(network.rnn_mode, network.rnn_mode)
        assert "pass rnn_mode" in network.convert
        target = tmp_path / f"{mode}.keras"
        convert.convert_file(path, target, name=network.name, rnn_mode=mode)
        layer = layers[{"lstm": "a", "gru": "c", "rnn_tanh": "d"}[mode]]
        received = keras.saving.load_model(target)(inputs)
        np.testing.assert_allclose(received, outputs_of(layer, inputs), atol=1e-6)


# TensorFlow 1's cells.


def write_checkpoint(variables: dict[str, np.ndarray], folder: Any) -> str:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in variables.items():
            tf.compat.v1.get_variable(name, initializer=value)
            tf.compat.v1.get_variable(f"{name}/Adam", initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        return tf.compat.v1.train.Saver().save(session, str(folder / "model.ckpt"))


def basic_lstm(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, **options: Any) -> np.ndarray:
    """Returns what a BasicLSTMCell computes, whose gates are in the order i c f o."""
    i, c, f, o = np.split(kernel, 4, axis=1)
    b_i, b_c, b_f, b_o = np.split(bias, 4)
    joined = np.concatenate([i, f, c, o], axis=1)
    size = x.shape[-1]
    biases = np.concatenate([b_i, b_f + 1, b_c, b_o])
    return lstm(x, joined[:size], joined[size:], biases, act=sigmoid, **options)


def gru_cell(x: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """Returns what TensorFlow 1's GRUCell and GRUBlockCell compute."""
    of_gates, bias_of_gates, of_candidate, bias_of_candidate = arrays
    h, outputs = np.zeros((len(x), 3)), []
    for t in range(x.shape[1]):
        gates = sigmoid(np.concatenate([x[:, t], h], 1) @ of_gates + bias_of_gates)
        r, z = np.split(gates, 2, axis=1)
        read = np.concatenate([x[:, t], r * h], 1)
        h = z * h + (1 - z) * np.tanh(read @ of_candidate + bias_of_candidate)
        outputs.append(h)
    return np.stack(outputs, axis=1)


GRU_CELL = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")
GRU_BLOCK_CELL = ("w_ru", "b_ru", "w_c", "b_c")


@pytest.mark.parametrize(
    ("cell", "names", "of_gru"),
    [
        ("lstm_cell", ("kernel", "bias"), GRU_CELL),
        (
            "lstm_fused_cell",
            ("weights", "biases"),
            [part.replace("kernel", "weights") for part in GRU_CELL],
        ),
        ("lstm_block_fused_cell", ("kernel", "bias"), GRU_BLOCK_CELL),
    ],
)
def test_cells_of_tensorflow_1(cell, names, of_gru, tmp_path):
    stack, both = "rnn/multi_rnn_cell/cell_{}/basic_lstm_cell", f"bidirectional_rnn/{{}}/{cell}"
    scopes = [stack.format(0), stack.format(1), both.format("fw"), both.format("bw")]
    variables = {}
    for index, scope in enumerate(scopes):
        fan_in = 3 if index == 1 else 4
        variables[f"net/{scope}/{names[0]}"] = 0.5 * normal(fan_in + 3, 12, seed=index)
        variables[f"net/{scope}/{names[1]}"] = 0.5 * normal(12, seed=index)
    arrays = (normal(7, 6), normal(6), normal(7, 3), normal(3))
    for part, array in zip(of_gru, arrays, strict=True):
        variables[f"net/gru_cell/{part}"] = array
    path = write_checkpoint(variables, tmp_path)
    stacked, sides, before = "net/rnn/multi_rnn_cell", "net/bidirectional_rnn", "net"
    found = {each.name: each for each in file_inspection.inspect_file(path)}
    assert {name: each[2:7] for name, each in found.items()} == {
        stacked: ("lstm", 2, "unidirectional", 4, 3),
        sides: ("lstm", 1, "bidirectional", 4, 3),
        before: ("gru_reset_before", 1, "unidirectional", 4, 3),
    }
    assert "tanh and sigmoid, and of 1 that is added" in found[stacked].convert
    assert found[before].convert.endswith("rnn_mode 'gru_reset_before' for tanh and sigmoid")
    inputs, pairs = normal(2, 5, 4), list(variables.values())
    expected = {stacked: basic_lstm(basic_lstm(inputs, *pairs[:2]), *pairs[2:4])}
    directions = (basic_lstm(inputs, *pairs[4:6]), basic_lstm(inputs, *pairs[6:8], backwards=True))
    expected[sides] = np.concatenate(directions, axis=-1)
    expected[before] = gru_cell(inputs, *arrays)
    for name, outputs in expected.items():
        target = tmp_path / "m.keras"
        mode = "gru_reset_before" if name == before else "lstm"
        convert.convert_file(path, target, name=name, rnn_mode=mode, force=True)
        np.testing.assert_allclose(keras.saving.load_model(target)(inputs), outputs, atol=1e-6)
    with pytest.raises(ValueError, match="those of gru_reset_before, but rnn_mode is 'gru'"):
        convert.convert_file(path, target, name=before, rnn_mode="gru", force=True)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("reset_after", [False, True])
def test_the_two_kinds_of_grus(reset_after, use_bias):
    """Without a bias, the arrays do not say which of them a GRU is."""
    stock = keras.layers.GRU(3, reset_after=reset_after, use_bias=use_bias, return_sequences=True)
    stock.build((None, None, 4))
    stock.set_weights([normal(*weight.shape, seed=5) for weight in stock.weights])
    parts = ("kernel", "recurrent_kernel", "bias")
    arrays = {f"gru/{part}": each for part, each in zip(parts, stock.get_weights(), strict=False)}
    (found,) = named_arrays.networks_in(arrays).values()
    mode, other = ("gru", "gru_reset_before")[:: 1 if reset_after else -1]
    assert f"'{mode}'" in found.unsaid
    inputs = normal(2, 5, 4)
    np.testing.assert_allclose(found.layer(mode)(inputs), stock(inputs), rtol=0, atol=1e-6)
    if use_bias:
        with pytest.raises(ValueError, match=f"those of {mode}, but rnn_mode is {other!r}"):
            found.layer(other)


def test_a_projection():
    arrays = {
        "a/lstm_cell/kernel": normal(4 + 2, 12),
        "a/lstm_cell/bias": normal(12),
        "a/lstm_cell/projection/kernel": normal(3, 2),
    }
    (found,) = named_arrays.networks_in(arrays).values()
    layer = found.layer("lstm")
    assert (layer.input_size, layer.num_units, layer.num_proj) == (4, 3, 2)
    kernel, bias, projection = list(arrays.values())[:3]
    x, h, c = normal(2, 5, 4), np.zeros((2, 2)), np.zeros((2, 3))
    for t in range(5):
        i, g, f, o = np.split(np.concatenate([x[:, t], h], 1) @ kernel + bias, 4, axis=1)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = (sigmoid(o) * np.tanh(c)) @ projection
    np.testing.assert_allclose(layer(x)[:, -1], h, atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm_cell", "lstm_block_fused_cell"])
def test_peepholes(cell):
    """The numbers are those of TensorFlow 1's own kernel."""
    arrays = {
        "kernel": normal(4 + 3, 12, seed=1),
        "bias": normal(12, seed=2),
        **{f"w_{gate}_diag": normal(3, seed=seed) for seed, gate in enumerate("ifo", start=3)},
    }
    (found,) = named_arrays.networks_in({f"a/{cell}/{k}": v for k, v in arrays.items()}).values()
    assert "'lstm_peephole'" in found.unsaid
    layer = found.layer("lstm_peephole", return_state=True)
    x = normal(2, 5, 4)
    zeros = np.zeros((2, 3), np.float32)
    result = tf.raw_ops.BlockLSTM(
        **dict(zip(("w", "b", "wci", "wcf", "wco"), arrays.values(), strict=True)),
        seq_len_max=5,
        x=x.swapaxes(0, 1),
        cs_prev=zeros,
        h_prev=zeros,
        forget_bias=1.0,
        cell_clip=-1.0,
        use_peephole=True,
    )
    h, c = result.h.numpy(), result.cs.numpy()
    expected = h.swapaxes(0, 1), h[-1][:, None], c[-1][:, None]
    for value, each in zip(layer(x), expected, strict=True):
        np.testing.assert_allclose(value, each, atol=1e-6)
    del arrays["w_f_diag"]
    assert not named_arrays.networks_in({f"a/{cell}/{k}": v for k, v in arrays.items()})


def layer_normalized(x: np.ndarray, kernel: np.ndarray, norms: dict[str, np.ndarray]) -> np.ndarray:
    """Returns what a LayerNormBasicLSTMCell computes, in float64."""
    h = c = np.zeros((len(x), 3))

    def norm(v: np.ndarray, name: str) -> np.ndarray:
        v = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-12)
        return v * norms[f"{name}/gamma"] + norms[f"{name}/beta"]

    outputs = []
    for t in range(x.shape[1]):
        sums = np.split(np.concatenate([x[:, t], h], 1) @ kernel.astype(np.float64), 4, axis=1)
        i, g, f, o = map(norm, sums, ("input", "transform", "forget", "output"))
        c = norm(c * sigmoid(f + 1) + sigmoid(i) * np.tanh(g), "state")
        h = np.tanh(c) * sigmoid(o)
        outputs.append(h)
    return np.stack(outputs, axis=1)


def test_layer_normalization(tmp_path):
    names = [
        f"{g}/{p}" for g in "input transform forget output state".split() for p in ("gamma", "beta")
    ]
    cell = "net/multi_rnn_cell/cell_{}/layer_norm_basic_lstm_cell/"
    kernels = [normal(size + 3, 12, seed=size) for size in (4, 3)]
    norms = [{name: normal(3, seed=s + i) for s, name in enumerate(names)} for i in (1, 20)]
    variables = {
        cell.format(layer) + name: array
        for layer in range(2)
        for name, array in {"kernel": kernels[layer], **norms[layer]}.items()
    }
    path = write_checkpoint(variables, tmp_path)
    (found,) = file_inspection.inspect_file(path)
    assert found[2:7] == ("lstm_layer_norm", 2, "unidirectional", 4, 3)
    convert.convert_file(path, tmp_path / "m.keras", rnn_mode="lstm_layer_norm")
    x = normal(2, 5, 4)
    expected = layer_normalized(layer_normalized(x, kernels[0], norms[0]), kernels[1], norms[1])
    received = keras.saving.load_model(tmp_path / "m.keras")(x)
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="those of lstm_layer_norm, but rnn_mode is 'lstm'"):
        convert.convert_file(path, tmp_path / "m.keras", rnn_mode="lstm", force=True)
    lacking = {name: array for name, array in variables.items() if "forget/beta" not in name}
    assert not named_arrays.networks_in(lacking)


def test_a_cell_that_may_normalize_but_does_not():
    kernel, bias, x = normal(7, 12), normal(12), normal(2, 5, 4)
    cell = "layer_norm_basic_lstm_cell"
    (found,) = named_arrays.networks_in({f"{cell}/kernel": kernel, f"{cell}/bias": bias}).values()
    np.testing.assert_allclose(found.layer("lstm")(x), basic_lstm(x, kernel, bias), atol=1e-6)


# PyTorch.


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_cells_of_pytorch(kind, tmp_path):
    cell = getattr(torch.nn, f"{kind}Cell")(4, 3)
    torch.save(torch.nn.ModuleDict({"decoder": cell}).state_dict(), tmp_path / "m.pt")
    mode = {"RNN": "rnn_tanh"}.get(kind)
    layer = convert.from_torch(tmp_path / "m.pt", name="decoder", rnn_mode=mode)
    (found,) = file_inspection.inspect_file(tmp_path / "m.pt")
    assert found[2:7] == (kind.lower(), 1, "unidirectional", 4, 3)
    assert ("do not say its nonlinearity" in found.convert) == (kind == "RNN")
    x = normal(2, 5, 4)
    state, outputs = None, []
    for t in range(5):
        state = cell(torch.from_numpy(x[:, t]), state)
        outputs.append((state[0] if kind == "LSTM" else state).detach())
    np.testing.assert_allclose(layer(x), np.stack(outputs, 1), atol=1e-6)


@pytest.mark.parametrize("way", ["old", "parametrization"])
def test_weight_norm(way, tmp_path):
    norm = {
        "old": torch.nn.utils.weight_norm,
        "parametrization": torch.nn.utils.parametrizations.weight_norm,
    }[way]
    module = torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    zero = torch.nn.LSTM(4, 3, batch_first=True)
    torch.nn.init.zeros_(zero.weight_ih_l0[1])
    received = convert.from_torch(norm(zero, "weight_ih_l0").state_dict())(normal(2, 5, 4))
    np.testing.assert_array_equal(np.isnan(received), zero(torch.zeros(2, 5, 4))[0].isnan())
    for name in ("weight_ih_l0", "weight_hh_l0_reverse", "weight_hh_l1"):
        module = norm(module, name)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3)
    state_dict = {f"net.{key}": value for key, value in module.state_dict().items()}
    torch.save(state_dict, tmp_path / "m.pt")
    (found,) = file_inspection.inspect_file(tmp_path / "m.pt")
    assert (found.name, found.convert) == ("net", "yes")
    x = normal(2, 5, 4)
    expected = module(torch.from_numpy(x))[0].detach()
    np.testing.assert_allclose(convert.from_torch(tmp_path / "m.pt")(x), expected, atol=1e-6)


def test_files_that_hold_code(tmp_path, capsys):
    torch.save(torch.nn.LSTM(2, 3), tmp_path / "module.pt")
    traced = torch.jit.trace(torch.nn.Linear(2, 3), torch.zeros(1, 2))
    traced.save(str(tmp_path / "script.pt"))
    for name, message in (
        ("module.pt", r"it holds an object of torch\S+LSTM, whose code would run; torch.load"),
        ("script.pt", "is a TorchScript archive, which holds code: torch.jit.load"),
    ):
        for command in (["inspect"], ["convert"]):
            target = [str(tmp_path / "out.onnx")] * (command == ["convert"])
            assert __main__.main([*command, str(tmp_path / name), *target]) == 1
            line = capsys.readouterr().err
            assert line.count("\n") == 1 and re.search(message, line), line
            assert not line.rstrip().endswith("…")


# What is in a file decides, not its name; and what can be had of it.


def test_content_decides(tmp_path):
    onnx = pytest.importorskip("onnx")
    safetensors = pytest.importorskip("safetensors.numpy")
    layer = randomize(make("lstm", 2, 3), (None, None, 4))
    state_dict = convert.to_torch(layer).state_dict()
    torch.save(state_dict, tmp_path / "new.pt")
    torch.save(state_dict, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    arrays = {key: value.numpy() for key, value in state_dict.items()}
    safetensors.save_file(arrays, tmp_path / "m.safetensors")
    onnx.save(convert.to_onnx(layer), str(tmp_path / "m.onnx"))
    model = keras.Sequential([keras.Input((None, 4)), layer])
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "m.h5")
    for index, path in enumerate(sorted(tmp_path.iterdir())):
        for name in (f"noname{index}", f"wrong{index}.onnx", f"wrong{index}.pt"):
            shutil.copy(path, tmp_path / name)
            (found,) = file_inspection.inspect_file(tmp_path / name)
            assert (found[2:4], found[6], found.convert) == (("lstm", 2), 3, "yes")
            target = tmp_path / "out.safetensors"
            convert.convert_file(tmp_path / name, target, force=True)
            received = safetensors.load_file(target)
            for key, value in arrays.items():
                np.testing.assert_array_equal(received[key], value)
        loads = path.suffix in (".keras", ".h5")
        if loads:
            loaded = crnn.load_keras_model(tmp_path / f"noname{index}")
            np.testing.assert_array_equal(loaded.layers[0].kernel, layer.kernel)
        else:
            with pytest.raises(ValueError, match="is no file of Keras's with a model"):
                crnn.load_keras_model(tmp_path / f"noname{index}")


def test_one_network_of_a_state_dict(tmp_path, capsys):
    state_dict = {f"good.{k}": v for k, v in torch.nn.GRU(4, 3).state_dict().items()}
    state_dict |= {"half.weight_hh_l0": torch.zeros(9, 3)}
    state_dict |= {f"odd.{k}": v for k, v in torch.nn.GRU(4, 3).state_dict().items()}
    state_dict["odd.weight_ih_l0"] = torch.zeros(8, 4)
    torch.save(state_dict, tmp_path / "m.pt")
    assert __main__.main(["inspect", str(tmp_path / "m.pt")]) == 0
    good, half, odd = capsys.readouterr().out.splitlines()[1:]
    assert good.endswith("yes")
    assert half.endswith("no: expected a matrix weight_ih_l0 in the state dict")
    assert odd.endswith("expected weight_ih_l0 of shape (9, 4), but received (8, 4)")
    convert.convert_file(tmp_path / "m.pt", tmp_path / "m.keras", name="good")


# Strange files of HDF5.
