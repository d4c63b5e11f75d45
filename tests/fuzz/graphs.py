"""Loads GraphDefs and SavedModels in which nodes of this package's ops were edited."""

import functools
import pathlib
import random
import shutil
import tempfile
from typing import Any

import draws
import keras
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf.mask_packing import Packing

EXPECTED = (
    tf.errors.InvalidArgumentError,
    tf.errors.ResourceExhaustedError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    tf.errors.UnimplementedError,
    ValueError,
    TypeError,
    # TensorFlow's own loader raises this for missing attributes.
    KeyError,
)
_PREFIX = "CudnnRnnTf>"


def draw(rng: random.Random) -> dict[str, Any]:
    rnn_mode = rng.choice(("lstm", "gru", "rnn_tanh"))
    what = rng.choice(("graph", "graph", "saved_model"))
    good = _saved_model(rnn_mode) if what == "saved_model" else _graph(rnn_mode)
    nodes = _nodes(good)
    changes = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        index = rng.randrange(len(nodes))
        node = nodes[index]
        edit = rng.choice(("attribute", "attribute", "attribute", "remove", "input"))
        if edit == "input":
            places = [rng.randrange(len(node.input)) for _ in range(2)]
            changes.append([index, edit, places])
            continue
        name = rng.choice(sorted(key for key in node.attr if not key.startswith("_")))
        value: Any = None
        if edit == "attribute":
            kind = node.attr[name].WhichOneof("value")
            value = {
                "i": lambda name=name: (
                    draws.count if name in ("num_weights", "num_biases") else draws.integer
                )(rng),
                "f": lambda: draws.floating(rng),
                "b": lambda: rng.random() < 0.5,
                "s": lambda name=name: rng.choice(draws.STRINGS[name]),
                "type": lambda: rng.choice((1, 2, 3, 7, 14, 19, 23, 101, 999)),
                "list": lambda: [rng.choice((3, 9, 999)) for _ in range(rng.randrange(4))],
            }.get(kind, lambda: 1)()
        changes.append([index, edit, [name, value]])
    return {"what": what, "rnn_mode": rnn_mode, "changes": changes}


def run(case: dict[str, Any]) -> None:
    is_saved_model = case["what"] == "saved_model"
    good = (_saved_model if is_saved_model else _graph)(case["rnn_mode"])
    edited = type(good).FromString(good.SerializeToString())
    nodes = _nodes(edited)
    for index, edit, value in case["changes"]:
        node = nodes[index % len(nodes)]
        if edit == "input":
            first, second = (place % len(node.input) for place in value)
            node.input[first], node.input[second] = node.input[second], node.input[first]
            continue
        name, content = value
        if edit == "remove":
            node.attr.pop(name, None)
            continue
        attribute = node.attr[name]
        field = attribute.WhichOneof("value") or "i"
        if field == "s":
            content = content.encode()
        if field == "list" and isinstance(content, list):
            attribute.list.type[:] = content
            continue
        if field not in ("i", "f", "b", "s", "type"):
            field, content = "i", 1
        setattr(attribute, field, content)
    if is_saved_model:
        _run_saved_model(case["rnn_mode"], edited)
    else:
        _run_graph(edited)


def _nodes(message: Any) -> list[Any]:
    """Returns the nodes of this package's ops in a GraphDef or a SavedModel.

    Those of masks come last, so that the numbers of the others are what they have always been.
    """
    graphs = (
        [message] if hasattr(message, "library") else [m.graph_def for m in message.meta_graphs]
    )
    found = [
        node
        for graph in graphs
        for nodes in (graph.node, *(function.node_def for function in graph.library.function))
        for node in nodes
        if node.op.startswith(_PREFIX)
    ]
    return sorted(found, key=lambda node: node.op.endswith(("Mask", "Steps")))


def _layer(rnn_mode: str) -> keras.layers.Layer:
    layers = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU, "rnn_tanh": crnn.CudnnRNNTanh}
    layer = layers[rnn_mode](2, 3, direction="bidirectional", return_state=True)
    layer.build((None, None, 4))
    return layer


@functools.cache
def _graph(rnn_mode: str) -> Any:
    """Makes a graph with a forward and a backward pass, and the conversions, over constants.

    The steps that a mask leaves are moved to the front before, and back after the pass.
    """
    layer = _layer(rnn_mode)
    with tf.Graph().as_default() as graph:
        inputs = tf.ones([2, 3, 4])
        params = tf.zeros([layer.params_size()])
        mask = tf.constant([[True, False, True], [False, False, True]])
        with tf.GradientTape() as tape:
            tape.watch([inputs, params])
            packing = Packing(mask, inputs, "graph")
            outputs, (h, *_) = crnn.cudnn_rnn_ops.ops.forward(
                layer._config,
                packing.pack(inputs),
                layer._initial_states(inputs, None),
                params,
                sequence_lengths=packing.lengths,
                time_major=False,
            )
            loss = tf.reduce_sum(h)
            for repeat_masked in (False, True):
                loss += tf.reduce_sum(packing.unpack(outputs, repeat_masked))
        gradients = tape.gradient(loss, [inputs, params])
        weights, biases = layer.params_to_canonical(params)
        packed = layer.canonical_to_params(weights, biases)
        for index, tensor in enumerate([loss, *gradients, packed]):
            tf.identity(tensor, name=f"result_{index}")
    return graph.as_graph_def()


def _run_graph(graph_def: Any) -> None:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            session.run([f"result_{index}:0" for index in range(4)])


@functools.cache
def _directory(rnn_mode: str) -> pathlib.Path:
    directory = pathlib.Path(tempfile.mkdtemp(), "model")
    model = keras.Sequential([keras.Input((None, 4)), _layer(rnn_mode)])
    model.export(directory, verbose=False)
    return directory


@functools.cache
def _saved_model(rnn_mode: str) -> Any:
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString(
        (_directory(rnn_mode) / "saved_model.pb").read_bytes()
    )


def _run_saved_model(rnn_mode: str, edited: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "model")
        shutil.copytree(_directory(rnn_mode), path)
        (path / "saved_model.pb").write_bytes(edited.SerializeToString())
        loaded = tf.saved_model.load(str(path))
        loaded.signatures["serving_default"](tf.ones([2, 3, 4]))
