"""The parameter layout on NumPy arrays, without TensorFlow."""

import dataclasses
import inspect
import pathlib
import re
import subprocess

import ml_dtypes
import numpy as np
import pytest
import random_configs
import reference
from cxx import ROOT

from cudnn_rnn_tf import native
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

CONFIGS = [case.config for case in random_configs.random_cases(60, seed=5)] + [
    RnnConfig("rnn_tanh", 1, 1, 1, bias_mode="none"),
    RnnConfig("lstm", 3, 5, 5, "skip_input", "bidirectional", "double", num_proj=5),
]
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

ALL_CONFIGS = pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)


def test_layout_by_hand():
    """The order of a bidirectional LSTM with projection is written out here."""
    layout = native.ParamLayout(
        "lstm", 1, 3, 2, direction="bidirectional", bias_mode="double", num_proj=1
    )
    gates = ["input_gate", "forget_gate", "cell_candidate", "output_gate"]
    weights, biases = [], []
    for direction in ("forward", "backward"):
        prefix = f"layer_0_{direction}_"
        weights += [f"{prefix}{gate}_kernel" for gate in gates]
        weights += [f"{prefix}{gate}_recurrent_kernel" for gate in gates]
        weights += [f"{prefix}projection_kernel"]
        biases += [f"{prefix}{gate}_bias" for gate in gates]
        biases += [f"{prefix}{gate}_recurrent_bias" for gate in gates]
    assert layout.weight_names == weights
    assert layout.bias_names == biases
    assert layout.weight_shapes == ([(3, 2)] * 4 + [(3, 1)] * 4 + [(1, 3)]) * 2
    assert layout.weight_offsets[:9] == [0, 6, 12, 18, 24, 27, 30, 33, 36]
    assert layout.weight_offsets[9] == 39
    assert layout.bias_offsets == list(range(78, 78 + 16 * 3, 3))
    kernels = {"kernel": (12, 2), "recurrent_kernel": (12, 1), "projection": (1, 3)}
    of_biases = {"bias": (12,), "recurrent_bias": (12,)}
    assert layout.pseudo_layer_tensors == [
        (index, name, shape)
        for tensors in (kernels, of_biases)
        for index in (0, 1)
        for name, shape in tensors.items()
    ]
    assert layout.size == 126


@ALL_DTYPES
@ALL_CONFIGS
def test_round_trip(config, dtype):
    layout = config.layout
    params = np.random.default_rng(0).standard_normal(layout.size).astype(dtype)
    weights, biases = layout.params_to_canonical(params)
    expected_weights, expected_biases = reference.split_params(config, params)
    assert [w.shape for w in weights] == layout.weight_shapes
    for tensor, expected in zip(weights + biases, expected_weights + expected_biases, strict=True):
        assert tensor.dtype == dtype
        assert tensor.tobytes() == expected.tobytes()
    again = layout.canonical_to_params(weights, biases)
    assert again.dtype == dtype
    assert again.tobytes() == params.tobytes()


@ALL_DTYPES
def test_arrays_need_not_be_contiguous(dtype):
    config = RnnConfig("gru", 1, 3, 2)
    layout = config.layout
    params = np.arange(2 * layout.size).astype(dtype)[::2]
    dense = params.copy()
    weights, biases = layout.params_to_canonical(params)
    for tensor, expected in zip(weights, layout.params_to_canonical(dense)[0], strict=True):
        assert tensor.tobytes() == expected.tobytes()
    # The arrays are column-major, every second column of an array, or reversed.
    strided = [np.asfortranarray(weights[0]), np.repeat(weights[1], 2, axis=1)[:, ::2]]
    strided += [np.ascontiguousarray(w[::-1])[::-1] for w in weights[2:]]
    packed = layout.canonical_to_params(strided, [b[::-1].copy()[::-1] for b in biases])
    assert packed.tobytes() == dense.tobytes()


# Errors, on an rnn_tanh of 3 units over 2 inputs: W [3, 2], R [3, 3], b_W [3], b_R [3].

SMALL = native.ParamLayout("rnn_tanh", 1, 3, 2)


def arrays() -> tuple[list[np.ndarray], list[np.ndarray]]:
    return SMALL.params_to_canonical(np.zeros(21, np.float32))


@pytest.mark.parametrize("shape, received", [((20,), r"\(20,\)"), ((3, 7), r"\(3, 7\)")])
def test_params_of_wrong_shape(shape, received):
    with pytest.raises(ValueError, match=rf"params of shape \(21,\), but received {received}"):
        SMALL.params_to_canonical(np.zeros(shape))


@pytest.mark.parametrize("index, name", list(enumerate(SMALL.weight_names + SMALL.bias_names)))
def test_canonical_array_of_wrong_shape(index, name):
    weights, biases = arrays()
    shape = (weights + biases)[index].shape
    wrong = np.zeros((*shape, 1), np.float32)
    (weights if index < 2 else biases)[index % 2] = wrong
    with pytest.raises(ValueError) as error:
        SMALL.canonical_to_params(weights, biases)
    assert f"expected shape {shape} for {name}, but received {wrong.shape}" in str(error.value)


def test_canonical_arrays_of_wrong_number():
    weights, biases = arrays()
    with pytest.raises(ValueError, match=r"expected 2 weights for .*, but received 1"):
        SMALL.canonical_to_params(weights[:1], biases)
    with pytest.raises(ValueError, match=r"expected 2 biases for .*, but received 0"):
        SMALL.canonical_to_params(weights, [])


def test_canonical_arrays_of_several_dtypes():
    weights, biases = arrays()
    biases[1] = biases[1].astype(np.float64)
    name = SMALL.bias_names[1]
    with pytest.raises(TypeError, match=f"dtype float32 for {name}, .* received float64"):
        SMALL.canonical_to_params(weights, biases)


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", [("a", "f4")], "V4"], ids=str)
def test_arrays_of_anything_but_numbers(dtype):
    """The bytes of an object array are pointers, which must not be copied as numbers."""
    weights, biases = arrays()
    with pytest.raises(TypeError, match="params to be an array of numbers, but received dtype"):
        SMALL.params_to_canonical(np.empty(21, dtype))
    weights[0] = weights[0].astype(object) if dtype is object else np.empty((3, 2), dtype)
    with pytest.raises(TypeError, match=f"{SMALL.weight_names[0]} to be an array of numbers"):
        SMALL.canonical_to_params(weights, biases)


class Liar(np.ndarray):
    """An array-like object that says that it has another shape."""

    shape = (3, 2)


def test_shapes_are_those_of_the_memory():
    weights, biases = arrays()
    weights[0] = np.zeros((1, 1), np.float32).view(Liar)
    with pytest.raises(ValueError, match=f"for {SMALL.weight_names[0]}"):
        SMALL.canonical_to_params(weights, biases)


# The module.


STUB = ROOT / "cudnn_rnn_tf" / "native" / "_native.pyi"


def _fields(folder: pathlib.Path, include: str) -> subprocess.CompletedProcess[str]:
    """Compiles and runs a program that prints the fields of the networks of a header."""
    sources = ["tests/programs/fields_of_network.cc", "kernels/rnn_spec.cc"]
    program = folder / "fields_of_network"
    command = ["g++", "-std=c++17", f"-I{include}", f"-I{ROOT}", *(ROOT / name for name in sources)]
    compiler = subprocess.run([*command, "-o", program], capture_output=True, text=True)
    if compiler.returncode != 0:
        return compiler
    return subprocess.run([program], capture_output=True, text=True, check=True)


def _without(name: str) -> set[str]:
    """Returns which of Python's lists of a network's fields lack this one."""
    pass_attrs = inspect.signature(raw_ops.cudnn_rnn_tf_forward).parameters
    params_attrs = inspect.signature(raw_ops.cudnn_rnn_tf_keras_to_params).parameters
    lists = {
        "RnnConfig": {field.name for field in dataclasses.fields(RnnConfig)},
        "ops": set(pass_attrs) | set(params_attrs),
        "native": {each for names in native.spec_fields() for each in names},
        "_native.pyi": set(re.findall(r"^ +(\w+): ", STUB.read_text(), re.MULTILINE)),
    }
    return {user for user, names in lists.items() if name not in names}


def test_a_new_field(tmp_path):
    """A field that is added compiles only once it is in the list, and then every user has it."""
    *lines, _ = _fields(tmp_path, str(ROOT)).stdout.splitlines()
    fields = [line.split() for line in lines]
    assert fields and all(is_told == "1" and not _without(name) for name, _, is_told in fields)
    for kind, names in enumerate(native.spec_fields()):
        assert names == [name for name, ops, _ in fields if int(ops) == kind]
    header = (ROOT / "kernels" / "rnn_spec.h").read_text()
    folder = tmp_path / "kernels"
    folder.mkdir()
    last = "  float cell_zoneout = 0.0f;  // Of c.\n"
    assert last in header
    header = header.replace(last, last + "  int64_t toy = 0;\n")
    (folder / "rnn_spec.h").write_text(header)
    forgotten = _fields(tmp_path, str(tmp_path))
    assert forgotten.returncode != 0 and "VisitFields" in forgotten.stderr
    visit = '  visit("rnn_mode", AttrOf::kAllOps, spec.rnn_mode);\n'
    assert visit in header
    header = header.replace(visit, visit + '  visit("toy", AttrOf::kAllOps, spec.toy);\n')
    (folder / "rnn_spec.h").write_text(header)
    assert "toy 0 1" in _fields(tmp_path, str(tmp_path)).stdout.splitlines()
    assert _without("toy") == {"RnnConfig", "ops", "native", "_native.pyi"}


def test_xla_tells_the_calls_of_another_version(tmp_path):
    """The orders of fields, of an enumeration's values and of buffers are parts of its format."""
    headers = {
        name: (ROOT / "kernels" / name).read_text() for name in ("rnn_spec.h", "op_tensors.h")
    }
    (tmp_path / "kernels").mkdir()
    visits = re.findall(r"  visit\(.num_(?:layers|units).*\n", headers["rnn_spec.h"])
    values = ['"linear_input"', '"skip_input"']
    buffers = ['output("output")', 'h("output_h")']
    formats = set()
    for joint, parts in (("", []), ("", visits), (", ", values), (", ", buffers)):
        assert any(joint.join(parts) in header for header in headers.values())
        for name, header in headers.items():
            changed = header.replace(joint.join(parts), joint.join(parts[::-1]), 1)
            (tmp_path / "kernels" / name).write_text(changed)
        formats.add(_fields(tmp_path, str(tmp_path)).stdout.splitlines()[-1])
    assert len(formats) == 4
