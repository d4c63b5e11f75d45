"""Networks in frozen graphs of TensorFlow 1, read against what the graphs compute."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import normal

from cudnn_rnn_tf import convert, cudnn_rnn_ops
from cudnn_rnn_tf.contrib import rnn
from cudnn_rnn_tf.convert import file_inspection, frozen_graphs


@pytest.fixture
def in_old_loops():
    """Has TensorFlow write loops as TensorFlow 1 did, without functions."""
    v1 = tf.compat.v1
    is_new = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if is_new:
        v1.enable_control_flow_v2()


CHANGES = ("zones", "zones_h", "bounds")


class ChangedCell(rnn.BasicLSTMCell):
    """A cell that changes its states after the cell's own arithmetic."""

    def __init__(self, change: str):
        super().__init__(3, name="basic_lstm_cell")
        self._change = change

    def call(self, inputs, state):
        h, (c, _) = super().call(inputs, state)
        if self._change == "zones":
            c, h = 0.9 * c + 0.1 * state[0], 0.9 * h + 0.1 * state[1]
        elif self._change == "zones_h":
            h = 0.9 * h + 0.1 * state[1]
        else:
            c = tf.raw_ops.ClipByValue(t=c, clip_value_min=-0.1, clip_value_max=0.1)
        return h, rnn.LSTMStateTuple(c, h)


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")
@pytest.mark.usefixtures("in_old_loops")
def test_frozen_graphs(tmp_path):
    v1, inputs = tf.compat.v1, normal(2, 5, 4).astype("float32")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2, 5, 4], "x")
        stack = rnn.MultiRNNCell([rnn.BasicLSTMCell(3, forget_bias=0.5) for _ in range(2)])
        sides = [rnn.LSTMCell(3, forget_bias=0.0) for _ in range(2)]
        relu = rnn.BasicLSTMCell(3, activation=tf.nn.relu)
        clipped = rnn.LSTMCell(3, cell_clip=0.2, use_peepholes=True, forget_bias=0.5)
        bound = rnn.LSTMCell(3, num_proj=2, cell_clip=0.5, proj_clip=0.2)

        def run(scope: str, cell: Any, inputs: tf.Tensor = x) -> tf.Tensor:
            return v1.nn.dynamic_rnn(cell, inputs, dtype="float32", scope=scope)[0]

        lengths, turned = [5, 5], tf.reverse(x, [1])
        start = run("start", rnn.LSTMCell(3, num_proj=2, cell_clip=0.2))
        back = tf.reverse_sequence(x, lengths, seq_axis=1, batch_axis=0)
        end = run("end", rnn.LSTMCell(3, num_proj=2, cell_clip=0.2), back)
        end = tf.reverse_sequence(end, lengths, seq_axis=1, batch_axis=0)
        results = {
            "rnn/multi_rnn_cell": v1.nn.dynamic_rnn(stack, x, dtype="float32")[0],
            "bidirectional_rnn": tf.concat(
                v1.nn.bidirectional_dynamic_rnn(*sides, x, dtype="float32")[0], -1
            ),
            "by_step": tf.stack(
                v1.nn.static_rnn(
                    rnn.BasicLSTMCell(3), tf.unstack(x, axis=1), dtype="float32", scope="by_step"
                )[0],
                axis=1,
            ),
            "odd": run("odd", relu),
            **{change: run(change, ChangedCell(change)) for change in CHANGES},
            "clipped": run("clipped", clipped),
            "bound": run("bound", bound),
            "start+end": tf.concat([start, end], -1),
            "plain": run("plain", rnn.GRUCell(3)),
            "turned": run("turned", rnn.GRUCell(3), turned),
            "same": run("same/fw", rnn.GRUCell(2)) + run("same/bw", rnn.GRUCell(2)),
        }
        results = {name: tf.identity(each) for name, each in results.items()}
        session.run(v1.global_variables_initializer())
        expected = session.run(results, {x: inputs})
        frozen = v1.graph_util.convert_variables_to_constants(
            session, session.graph_def, [each.op.name for each in results.values()]
        )
    path = tmp_path / "model.pb"
    path.write_bytes(frozen.SerializeToString())
    found = {each.name: each for each in file_inspection.inspect_file(path)}
    assert found.keys() == expected.keys() and found["rnn/multi_rnn_cell"].num_layers == 2
    refusals = {
        **dict.fromkeys(("odd", *CHANGES), "do not say the activations"),
        "bound": "cells clip",
        "same": "its loops read in other directions than its names say",
    }
    assert found["bidirectional_rnn"].direction == "bidirectional"
    for name, network in found.items():
        target = tmp_path / "m.keras"
        if name in refusals:
            assert refusals[name] in network.convert
            continue
        mode = "gru_reset_before" if name in ("plain", "turned") else None
        assert mode or network.convert == "yes", name
        convert.convert_file(path, target, name=name, rnn_mode=mode, force=True)
        received = keras.saving.load_model(target)(inputs)
        np.testing.assert_allclose(received, expected[name], atol=1e-6)
    # A node that reads itself does not keep a search from ending.
    for node in frozen.node:
        if node.op in ("AddV2", "Identity"):
            node.input.append(node.name)
        elif node.op == "Sigmoid":
            node.input[0] = "x"
    path.write_bytes(frozen.SerializeToString())
    file_inspection.inspect_file(path)
    path.write_bytes(b"no graph")
    with pytest.raises(ValueError, match="it is no frozen graph"):
        file_inspection.inspect_file(path)
    write_graph(path, constant("lstm_cell/kernel", 1.0, (1 << 20, 1 << 20)))
    with pytest.raises(ValueError, match="constant 'lstm_cell/kernel' of .* bytes, but no more"):
        file_inspection.inspect_file(path)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_relu"])
def test_fused_ops_in_frozen_graphs(mode, tmp_path):
    """TensorFlow's own ops, with their buffers; the layers are those of this package's ops."""
    v1, path, target = tf.compat.v1, tmp_path / "model.pb", tmp_path / "m.keras"
    direction, inputs = "bidirectional", normal(5, 2, 4).astype("float32")
    sizes = {"rnn_mode": mode, "direction": direction}
    count = cudnn_rnn_ops.cudnn_rnn_opaque_params_size(mode, 2, 3, 4, direction=direction).numpy()
    params = normal(count).astype("float32")

    def write(zero: float, size: int) -> None:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, None, 4])
            h = tf.fill([4, tf.shape(x)[1], 3], zero)
            if size > count:
                h, size = tf.constant(zero, shape=[4, 2, 3]), count
            c = h if mode == "lstm" else tf.zeros([0])
            buffer = tf.identity(tf.constant(params[:size]))
            for name in ("net/CudnnRNNV3", "net_1/CudnnRNNV3"):
                tf.raw_ops.CudnnRNNV3(
                    input=x,
                    input_h=h,
                    input_c=c,
                    params=buffer,
                    sequence_lengths=tf.fill([tf.shape(x)[1]], 5),
                    is_training=False,
                    name=name,
                    **sizes,
                )
        path.write_bytes(graph.as_graph_def().SerializeToString())

    write(0.0, count)
    (found,) = file_inspection.inspect_file(path)
    assert found[:-1] == (
        "net", "Bidirectional of CudnnRNNV3", mode, 2, direction, 4, 3, "float32",
    )  # fmt: skip
    convert.convert_file(path, target, force=True)
    states = [tf.zeros([4, 2, 3])] * (2 if mode == "lstm" else 1)
    model = {
        "lstm": cudnn_rnn_ops.cudnn_lstm,
        "gru": cudnn_rnn_ops.cudnn_gru,
        "rnn_relu": cudnn_rnn_ops.cudnn_rnn_relu,
    }[mode]
    expected, *_ = model(inputs, *states, params, is_training=False, direction=direction)
    received = keras.saving.load_model(target)(np.swapaxes(inputs, 0, 1))
    np.testing.assert_allclose(np.swapaxes(received, 0, 1), expected, atol=1e-6)
    for zero, size in ((0.5, count), (0.5, count + 1), (0.0, count - 1)):
        write(zero, size)
        (found,) = file_inspection.inspect_file(path)
        assert found.convert.startswith("no: it")
        reason = "it starts from states" if zero else "it is an op"
        with pytest.raises(ValueError, match=reason):
            convert.convert_file(path, target, force=True)


def write_graph(path: Any, *nodes: Any) -> None:
    path.write_bytes(tf.compat.v1.GraphDef(node=nodes).SerializeToString())


def constant(name: str, value: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Returns a constant, of which a file holds what is given, and the shape tells the rest."""
    node = tf.compat.v1.NodeDef(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, shape=shape))
    return node


def fused_op(name: str, *inputs: str, mode: bytes = b"gru") -> Any:
    node = tf.compat.v1.NodeDef(name=name, op="CudnnRNNV3", input=inputs)
    node.attr["rnn_mode"].s = mode
    return node


def gru_constants(number: int, size: int, units: int) -> list[Any]:
    """Returns the inputs of a GRU, its state, and its buffer, of which a file holds one number."""
    shapes = {"x": (1, 1, size), "h": (1, 1, units), "p": (3 * units * (size + units + 2),)}
    values = {"x": 0.0, "h": 0.0, "p": 0.5}
    return [constant(f"{name}{number}", values[name], shapes[name]) for name in shapes]


def test_names_of_fused_ops(tmp_path):
    """As TensorFlow 1 names layers: the number may be a copy's, or another network's."""
    path, target = tmp_path / "model.pb", tmp_path / "m.keras"
    nodes = [*gru_constants(0, 4, 3), *gru_constants(1, 3, 5)]
    ops = [
        fused_op(name, f"x{index}", f"h{index}", "", f"p{index}")
        for name, index in (
            ("rnn/cudnn_1/CudnnRNNV3", 1), ("rnn/cudnn/CudnnRNNV3", 0),
            ("rnn/cudnn_2/CudnnRNNV3", 0), ("rnn/cudnn/CudnnRNNV3_1", 1), ("two/a", 1),
            ("two/b", 0), ("gru_1/CudnnRNNV3", 0),
        )
    ]  # fmt: skip
    write_graph(path, *nodes, *ops)
    found = {each.name: each.num_units for each in file_inspection.inspect_file(path)}
    assert found == {"rnn/cudnn_1": 5, "rnn/cudnn": 3, "two": 5, "two/b": 3, "gru": 3}
    convert.convert_file(path, target, name="rnn/cudnn_1")
    assert keras.saving.load_model(target).layers[-1].num_units == 5
    # Nothing in one network keeps the others from being found.
    passed = tf.compat.v1.NodeDef(name="passed", op="Identity")
    nodes += [passed, fused_op("few", "x0", "h0", ""), fused_op("", "x0", "h0", "", "passed")]
    nodes.append(fused_op("text", "x0", "h0", "", "p0", mode=b"\xff"))
    nodes.append(constant("l/lstm_cell/kernel", 0.5, (5, 8)))
    for op, *inputs in (
        ("Enter", "l/lstm_cell/kernel"), ("Enter", "array"), ("Enter",), ("ReverseV2",),
    ):  # fmt: skip
        node = tf.compat.v1.NodeDef(name=f"{op}{inputs}", op=op, input=inputs)
        node.attr["frame_name"].s = b"f"
        nodes.append(node)
    nodes.append(tf.compat.v1.NodeDef(name="array", op="TensorArrayScatterV3"))
    for sizes in ([5.5, 2, 3], [-7, 2, 3], [float("inf")] * 3, ["a", "b", "c"]):
        fill = tf.compat.v1.NodeDef(name=f"h{sizes}", op="Fill", input=[f"{sizes}"])
        nodes += [constant(f"{sizes}", sizes), fill]
        nodes.append(fused_op(f"of {sizes}", "x0", fill.name, "", "p0"))
    write_graph(path, *nodes, ops[-1])
    inspected = file_inspection.inspect_file(path)
    assert [each.name for each in inspected if each.convert == "yes"] == ["gru"]
    assert len(inspected) == 9


def test_fused_ops_of_a_small_file_stay_small(tmp_path, monkeypatch):
    path, cut, cuts = tmp_path / "model.pb", frozen_graphs.cut_array, []
    counting = lambda *args: cuts.append(args) or cut(*args)  # noqa: E731
    monkeypatch.setattr(frozen_graphs, "cut_array", counting)
    for count in (1, 5):
        nodes = [node for number in range(count) for node in gru_constants(number, 1000, 1000)]
        numbers = [number % count for number in range(30)]
        nodes += [fused_op(f"{i}/op", f"x{n}", f"h{n}", "", f"p{n}") for i, n in enumerate(numbers)]
        write_graph(path, *nodes)
        if count == 1:  # They share one buffer.
            assert len(file_inspection.inspect_file(path)) == 30 and len(cuts) == 1
            continue
        with pytest.raises(ValueError, match="fused ops' buffers have .* no more than 67,108,864"):
            file_inspection.inspect_file(path)
        assert len(cuts) == 1 + 3
