"""ONNX models as they are found: branches, 8 bits, ONNX's own cases, and nodes that are refused."""

import importlib

import fresh_process
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import normal

from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
ort = pytest.importorskip("onnxruntime")
node_cases = pytest.importorskip("onnx.backend.test.case.node")

helper, from_array = onnx.helper, onnx.numpy_helper.from_array
TOLERANCE = 1e-5


def value(name: str, shape=None, kind: int = onnx.TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def recurrent(op_type: str, name: str, arrays: dict[str, np.ndarray], x: str = "X", **attributes):
    """Returns a node of 3 units, and adds its weights for 4 inputs to the arrays."""
    gates = {"LSTM": 4, "GRU": 3}[op_type]
    seed = len(arrays)
    arrays[f"W_{name}"] = normal(1, gates * 3, 4, seed=seed)
    arrays[f"R_{name}"] = normal(1, gates * 3, 3, seed=seed + 1)
    inputs = [x, f"W_{name}", f"R_{name}"]
    return helper.make_node(op_type, inputs, [f"Y_{name}"], name, hidden_size=3, **attributes)


def model_of(nodes, inputs, outputs, arrays, **options):
    initializers = [from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **options)


def run(model, **inputs: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def of_branches(outer: dict[str, np.ndarray]):
    """Returns a model with a network in each branch of a node, the second in a branch again."""

    def branch(name: str, node, inner: dict[str, np.ndarray]):
        tensors = [from_array(array, key) for key, array in inner.items()]
        return helper.make_graph([node], name, [], [value(node.output[0])], tensors)

    inner: dict[str, np.ndarray] = {}
    good = recurrent("LSTM", "good", inner)
    # The weights of this one are those of the outermost graph.
    other = recurrent("LSTM", "other", outer)
    bad = recurrent("GRU", "bad", outer, clip=1.0)
    choice = helper.make_node(
        "If",
        ["second"],
        ["Y_choice"],
        "choice",
        then_branch=branch("b", other, {}),
        else_branch=branch("c", bad, {}),
    )
    outermost = helper.make_node(
        "If",
        ["first"],
        ["Y"],
        "outermost",
        then_branch=branch("a", good, inner),
        else_branch=branch("d", choice, {}),
    )
    flags = [value(name, [], onnx.TensorProto.BOOL) for name in ("first", "second")]
    x = value("X", (None, None, 4))
    return model_of([outermost], [x, *flags], [value("Y")], outer)


def test_branches(tmp_path):
    model = of_branches({})
    onnx.save(model, str(tmp_path / "m.onnx"))
    found = {network.name: network for network in file_inspection.inspect_file(tmp_path / "m.onnx")}
    assert len(found) == 3
    good = found["outermost/then_branch/good"]
    other = found["outermost/else_branch/choice/then_branch/other"]
    bad = found["outermost/else_branch/choice/else_branch/bad"]
    assert good[1:] == ("ONNX", "lstm", 1, "unidirectional", 4, 3, "float32", "yes")
    assert bad.rnn_mode == "gru" and bad.convert.startswith("no: clip=1.0 of ONNX")
    inputs = normal(5, 2, 4)
    for network, first in ((good, True), (other, False)):
        layer = convert.from_onnx(model, name=network.name, time_major=True)
        flags = {"first": np.array(first), "second": np.array(True)}
        (expected,) = run(model, X=inputs, **flags)
        np.testing.assert_allclose(layer(inputs), expected[:, 0], rtol=0, atol=TOLERANCE)


def test_a_good_network_beside_one_that_is_refused(tmp_path, capsys):
    arrays: dict[str, np.ndarray] = {}
    nodes = [
        recurrent("GRU", "bad", arrays, clip=1.0),
        recurrent("LSTM", "good", arrays),
        recurrent("LSTM", "sideways", arrays, direction="sideways"),
    ]
    nodes[2].attribute[0].CopyFrom(helper.make_attribute("direction", 3))
    outputs = [value("Y_bad"), value("Y_good")]
    model = model_of(nodes, [value("X", (None, None, 4))], outputs, arrays)
    path = tmp_path / "m.onnx"
    onnx.save(model, str(path))
    assert __main__.main(["inspect", str(path)]) == 0
    _, bad, good, sideways = capsys.readouterr().out.splitlines()
    assert bad.split()[:4] == ["bad", "ONNX", "gru", "1"]
    assert "no: clip=1.0 of ONNX node 'bad', which clips what goes into" in bad
    assert good.split()[:2] == ["good", "ONNX"] and good.endswith(" yes")
    assert "no: expected attribute 'direction'" in sideways
    target = str(tmp_path / "good.onnx")
    assert __main__.main(["convert", str(path), target, "--name", "good"]) == 0
    (only,) = file_inspection.inspect_file(target)
    assert (only.rnn_mode, only.convert) == ("lstm", "yes")


def test_networks_in_functions_are_listed(tmp_path):
    arrays: dict[str, np.ndarray] = {}
    body = recurrent("LSTM", "rnn", arrays)
    imports = [helper.make_opsetid("", 14)]
    inputs = list(body.input)
    function = helper.make_function("mine", "encode", inputs, list(body.output), [body], imports)
    call = helper.make_node("encode", inputs, ["Y"], domain="mine")
    x = [value("X", (None, None, 4))]
    model = model_of([call], x, [value("Y")], arrays, functions=[function])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    onnx.save(model, str(tmp_path / "m.onnx"))
    (found,) = file_inspection.inspect_file(tmp_path / "m.onnx")
    assert (found.name, found.rnn_mode) == ("encode/rnn", "lstm")
    assert "no: it is in a function of the model: onnx.inliner" in found.convert
    inliner = pytest.importorskip("onnx.inliner")
    (found,) = file_inspection.inspect_file(saved(inliner.inline_local_functions(model), tmp_path))
    assert (found.num_units, found.convert) == (3, "yes")


def saved(model, folder):
    onnx.save(model, str(folder / "saved.onnx"))
    return folder / "saved.onnx"


def quantized(num_dirs: int, per_row: bool, dtype: type):
    """Returns ONNX Runtime's quantized LSTM, and the same in float32 of its numbers."""
    rng = np.random.default_rng(num_dirs)
    arrays, floats = {}, {}
    for name, fan_in in (("W", 4), ("R", 3)):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if dtype is np.int8:  # On processors without VNNI, ONNX Runtime's sums of more saturate.
            low, high = low // 2, high // 2
        rows = (num_dirs, 12) if per_row else (num_dirs,)
        arrays[name] = rng.integers(low, high + 1, (num_dirs, fan_in, 12)).astype(dtype)
        arrays[f"{name}_scale"] = rng.uniform(0.005, 0.01, rows).astype(np.float32)
        # ONNX Runtime has zero points for each row only where they are zero.
        middle = (low + high + 1) // 2
        arrays[f"{name}_zero"] = np.full(rows, middle if per_row else middle + 3, dtype)
        zero = arrays[f"{name}_zero"].reshape(num_dirs, 1, -1)
        scale = arrays[f"{name}_scale"].reshape(num_dirs, 1, -1)
        exact = (arrays[name].astype(np.float32) - zero) * scale
        floats[name] = np.ascontiguousarray(exact.transpose(0, 2, 1))
    floats["B"] = arrays["B"] = normal(num_dirs, 24)
    attributes = {"hidden_size": 3, "direction": "bidirectional" if num_dirs == 2 else "forward"}
    names = ["X", "W", "R", "B", "", "", "", "", "W_scale", "W_zero", "R_scale", "R_zero"]
    options = {"domain": "com.microsoft", **attributes}
    node = helper.make_node("DynamicQuantizeLSTM", names, ["Y"], "rnn", **options)
    x = [value("X", (None, None, 4))]
    model = model_of([node], x, [value("Y")], arrays)
    node = helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y"], "rnn", **attributes)
    return model, model_of([node], x, [value("Y")], floats)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("num_dirs", [1, 2])
def test_quantized(num_dirs, per_row, dtype, tmp_path):
    model, of_floats = quantized(num_dirs, per_row, dtype)
    path = tmp_path / "m.onnx"
    onnx.save(model, str(path))
    (found,) = file_inspection.inspect_file(path)
    assert (found.kind, found.input_size, found.num_units) == ("ONNX, quantized", 4, 3)
    assert (found.dtype, found.convert) == ("float32", "yes")
    with pytest.warns(UserWarning, match="weights are quantized"):
        layer = convert.from_onnx(path, time_major=True)
    inputs = normal(5, 2, 4)

    def joined(model):
        (outputs,) = run(model, X=inputs)
        return outputs.transpose(0, 2, 1, 3).reshape(5, 2, -1)

    np.testing.assert_allclose(layer(inputs), joined(of_floats), rtol=0, atol=TOLERANCE)
    # ONNX Runtime rounds the inputs and states to 8 bits as well.
    np.testing.assert_allclose(layer(inputs), joined(model), rtol=0, atol=0.03)


def test_quantized_with_wrong_scales():
    model, _ = quantized(1, False, np.int8)
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == "R_scale")
    scale.CopyFrom(from_array(np.ones((1, 2), np.float32), "R_scale"))
    with pytest.raises(ValueError, match=r"scale and zero point of R .* received \(1, 2\) and"):
        convert.from_onnx(model)


def as_function_of_constants(case) -> tuple:
    """Returns the model of one of ONNX's cases with its weights as constants, and its values."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    inputs, outputs = case.data_sets[0]
    named = dict(zip((each.name for each in model.graph.input), inputs, strict=True))
    for name, array in named.items():
        if name in ("W", "R", "B", "P") or (name.startswith("initial") and not np.any(array)):
            model.graph.initializer.append(from_array(array, name))
    return model, named, outputs


# ONNX's loader would make the cases of all operators, which takes seconds.
for name in ("lstm", "gru", "rnn"):
    importlib.import_module(f"{node_cases.__name__}.{name}")
NODE_CASES = {case.name.removeprefix("test_"): case for case in node_cases._NodeTestCases}


def test_there_are_all_of_onnxs_cases():
    assert len(NODE_CASES) == 18


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NODE_CASES)
def test_onnxs_own_cases(name):
    """The numbers are those of ONNX's standard."""
    model, values, expected = as_function_of_constants(NODE_CASES[name])
    (node,) = model.graph.node
    batch_major = any(each.name == "layout" and each.i for each in node.attribute)
    options = {"time_major": not batch_major, "return_state": True}
    check_node(model, values, expected, convert.from_onnx(model, **options), batch_major)


def check_node(model, values, expected, layer, batch_major: bool = False) -> None:
    """Checks that a layer computes the outputs that are expected of the one node in a model."""
    (node,) = model.graph.node
    states = [values[key] for key in ("initial_h", "initial_c") if key in values]
    lengths = values.get("sequence_lens")
    outputs, *finals = layer(values["X"], initial_state=states or None, sequence_lengths=lengths)
    time_axis, batch_axis = (1, 0) if batch_major else (0, 1)
    if layer.go_backwards:
        steps = outputs.shape[time_axis]
        ends = np.full(outputs.shape[batch_axis], steps) if lengths is None else lengths
        outputs = tf.reverse_sequence(outputs, ends, seq_axis=time_axis, batch_axis=batch_axis)
    received = dict(zip(("Y_h", "Y_c"), finals, strict=False))
    # ONNX has the directions on an axis of their own.
    split = np.stack(np.split(np.asarray(outputs), layer.num_dirs, axis=-1), axis=-2)
    received["Y"] = split if batch_major else split.transpose(0, 2, 1, 3)
    names = [each for each in node.output if each]
    assert names
    for each, reference in zip(names, expected, strict=True):
        np.testing.assert_allclose(received[each], reference, rtol=0, atol=TOLERANCE)


def computed(nodes, **arrays: np.ndarray):
    """Returns a model of one node whose W is computed by nodes."""
    found: dict[str, np.ndarray] = {}
    rnn = recurrent("LSTM", "rnn", found)
    rnn.input[1] = "W"
    x = [value("X", (None, None, 4))]
    return model_of([*nodes, rnn], x, [value("Y_rnn")], found | arrays)


def test_a_process_that_imports_nothing_of_onnx(tmp_path):
    weight = normal(1, 12, 4)
    model = computed([helper.make_node("Neg", ["W_0"], ["W"])], W_0=weight)
    path = saved(model, tmp_path)
    assert "onnx.reference" in fresh_process.run_program(
        "import sys\n"
        "from cudnn_rnn_tf import convert\n"
        "assert 'onnx.reference' not in sys.modules\n"
        f"convert.from_onnx({str(path)!r})\n"
        "print('onnx.reference' in sys.modules and 'onnx.reference')\n"
    )


def test_circles_and_long_chains_of_constants():
    circle = [
        helper.make_node("Neg", ["b"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Identity", ["a"], ["W"]),
    ]
    with pytest.raises(ValueError, match="has a cycle at"):
        convert.from_onnx(computed(circle))
    weight = normal(1, 12, 4)
    names = ["W_0", *(f"n{i}" for i in range(2000)), "W"]
    chain = [helper.make_node("Neg", [a], [b]) for a, b in zip(names[:-1], names[1:], strict=True)]
    with pytest.raises(ValueError, match="computed by more than 1000 nodes"):
        convert.from_onnx(computed(chain, W_0=weight))
    nine_and_one = [*chain[:9], helper.make_node("Neg", ["n8"], ["W"])]
    layer = convert.from_onnx(computed(nine_and_one, W_0=weight))
    expected = convert.from_onnx(computed([], W=weight))
    np.testing.assert_array_equal(layer.kernel, expected.kernel)
