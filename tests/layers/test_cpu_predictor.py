"""`CpuPredictor` beside the op, the layer and the float64 reference."""

import dataclasses
import os
import pickle
import subprocess
import sys

import keras
import layer_reference
import ml_dtypes
import numpy as np
import pytest
import random_configs
import reference
import tensorflow as tf
from predictor_runs import assert_is_ops, assert_same_bits, large_cases, make, run, run_op
from test_cpu_kernels import instruction_sets

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import native
from cudnn_rnn_tf.available_cpus import available_cpus
from cudnn_rnn_tf.config import RnnConfig

pytestmark = [
    pytest.mark.usefixtures("on_cpu"),
    # Results are compared to the bit, and the compiler decides which products and sums are rounded
    # together.
    pytest.mark.skipif(
        native._native.compiler_version not in native.build_info.COMPILER,
        reason="the op library was built by another compiler than the Python module",
    ),
]

DTYPES = ("float64", "float32", "float16", "bfloat16")
BFLOAT16_TOLERANCE = random_configs.RMS_TOLERANCE["bfloat16"][0]
CASES = random_configs.with_resets(random_configs.random_cases(40, seed=41))


def assert_near_reference(case, data, results, dtype, rounds_factors):
    """Compares with the reference, less the type's rounding; with rounded factors, by a mean."""
    forward = reference.forward(
        case.config,
        data.inputs,
        data.states,
        *reference.split_params(case.config, data.params),
        sequence_lengths=case.sequence_lengths,
        resets=case.resets,
        time_major=case.time_major,
    )
    expected = [forward.outputs, *forward.states]
    for result, other in zip(results, expected, strict=True):
        if rounds_factors:
            error, tolerance = random_configs.rms_error(result, other), BFLOAT16_TOLERANCE
        else:
            error = random_configs._error(result, other, dtype)
            tolerance = random_configs.TOLERANCE[dtype]
        assert error <= tolerance, str(case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_networks(dtype):
    """Results are the op's, and agree with the reference, which shares no code."""
    for case in CASES:
        data = random_configs.draw_data(case, dtype)
        results = run(make(case, data), case, data)
        assert_is_ops(case, results, run_op(case, data))
        rounds_factors = random_configs.cpu_rounds_factors(dtype)
        assert_near_reference(case, data, results, dtype, rounds_factors)


@pytest.mark.parametrize("case", large_cases(), ids=str)
def test_any_number_of_threads(case):
    for dtype in DTYPES:
        data = random_configs.draw_data(case, dtype)
        expected = run_op(case, data)
        for num_threads in (1, 2, 3, 8):
            predictor = make(case, data, num_threads)
            for _ in range(3):
                assert_is_ops(case, run(predictor, case, data), expected)


def layers():
    make_layer = layer_reference.make
    yield make_layer("lstm", 2, 9, direction="bidirectional", num_proj=4, cell_clip=0.2)
    yield make_layer("gru", 1, 12, go_backwards=True)
    yield make_layer("gru", 2, 12, go_backwards=True, time_major=True, direction="bidirectional")
    yield make_layer("rnn_tanh", 2, 6, "skip_input", bias_mode="single_recurrent", time_major=True)
    yield make_layer("rnn_relu", 1, 70, bias_mode="none", dtype="mixed_bfloat16")
    yield make_layer("lstm", 1, 20, dtype="float64", stateful=True, dropout=0.5)
    yield make_layer("lstm", 1, 20, dtype="mixed_float16", return_sequences=True)


@pytest.mark.parametrize("layer", list(layers()), ids=lambda layer: layer.name)
def test_layer(layer):
    """A layer's predictor works with and without states and lengths, in chunks and at once."""
    batch, time = 5, 7
    layer.return_state = True
    layer.stateful = False
    lead = (time, batch) if layer.time_major else (batch, time)
    layer_reference.randomize(layer, (*lead, 6))
    predictor = crnn.CpuPredictor(layer, num_threads=2)
    dtype = random_configs.numpy_dtype(layer.compute_dtype)
    inputs = layer_reference.normal(*lead, 6).astype(dtype)
    states = [layer_reference.normal(*s).astype(dtype) for s in layer.state_shape(batch)]
    for initial_state in (None, states):
        for lengths in (None, np.array([7, 0, 3, 7, 1]), np.full(5, 7, np.uint8)):
            arguments = {"initial_state": initial_state, "sequence_lengths": lengths}
            outputs, final = predictor(inputs, **arguments)
            expected = layer(inputs, **arguments)
            assert_same_bits([outputs, *final], [tensor.numpy() for tensor in expected])
    # The half types round states between parts, which the network carries in float32.
    if layer.num_dirs == 2 or layer.go_backwards or layer.compute_dtype.endswith("float16"):
        return
    axis = 0 if layer.time_major else 1
    parts, state = [], states
    for part in np.split(inputs, [2, 2, 3], axis=axis):
        output, state = predictor(part, initial_state=state)
        parts.append(output)
    whole, final = predictor(inputs, initial_state=states)
    assert_same_bits([np.concatenate(parts, axis), *state], [whole, *final])


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_nothing_to_compute(rnn_mode):
    layer = layer_reference.make(rnn_mode, 2, 5)
    layer_reference.randomize(layer, (None, None, 3))
    predictor = crnn.CpuPredictor(layer)
    states = [layer_reference.normal(*shape) for shape in layer.state_shape(4)]
    outputs, final = predictor(np.zeros((4, 0, 3), np.float32), states)
    assert outputs.shape == (4, 0, 5)
    assert_same_bits(final, states)
    outputs, final = predictor(np.zeros((0, 6, 3), np.float32), sequence_lengths=np.zeros(0, int))
    assert outputs.shape == (0, 6, 5)
    assert [state.shape for state in final] == list(layer.state_shape(0))
    outputs, final = predictor(np.ones((2, 6, 3), np.float32), sequence_lengths=[0, 0])
    assert not outputs.any()
    assert not any(state.any() for state in final)


def test_weights_are_copied():
    layer = layer_reference.make("gru", 1, 8)
    layer_reference.randomize(layer, (None, None, 3))
    inputs = layer_reference.normal(4, 5, 3)
    predictor = crnn.CpuPredictor(layer)
    before = layer(inputs).numpy()
    layer.kernel.assign(layer.kernel * 2.0)
    assert np.array_equal(predictor(inputs)[0], before)
    assert not np.array_equal(layer(inputs), before)


def test_what_numpy_makes_an_array_of():
    layer = layer_reference.make("lstm", 1, 4)
    layer_reference.randomize(layer, (None, None, 3))
    predictor = crnn.CpuPredictor(layer)
    inputs = np.arange(24, dtype=np.float32).reshape(2, 4, 3) % 5 - 2
    expected = predictor(inputs)[0]
    for same in (
        inputs.tolist(),
        inputs.astype(np.int8),
        inputs.astype(np.float64),
        inputs.astype(">f4"),
        inputs.astype(ml_dtypes.bfloat16),
        np.asfortranarray(inputs),
        np.repeat(inputs, 2, axis=1)[:, ::2],
        unaligned(inputs),
        tf.constant(inputs),
    ):
        assert np.array_equal(predictor(same)[0], expected)


def test_denormals_are_zeros_as_in_tensorflow():
    layer = layer_reference.make("rnn_relu", 1, 4, bias_mode="none")
    layer_reference.randomize(layer, (None, None, 4))
    inputs = np.full((1, 3, 4), 1e-39, np.float32)
    outputs, _ = crnn.CpuPredictor(layer)(inputs)
    assert np.array_equal(outputs, layer(inputs))
    assert not outputs.any()
    assert inputs[0, 0, 0] * np.float32(2) > 0  # The calling thread keeps denormals.


def test_errors():
    layer = layer_reference.make("lstm", 1, 4)
    with pytest.raises(ValueError, match="not built yet"):
        crnn.CpuPredictor(layer)
    with pytest.raises(TypeError, match="expected layer to be a CudnnLSTM.*received <Dense"):
        crnn.CpuPredictor(keras.layers.Dense(1))
    layer.build((None, None, 3))
    for wrong in (0, -1, 2**40):
        with pytest.raises(ValueError, match=rf"num_threads.*received {wrong}"):
            crnn.CpuPredictor(layer, wrong)
    predictor = crnn.CpuPredictor(layer)
    x, h = np.zeros((2, 5, 3)), np.zeros((2, 1, 4))
    for arguments, kind, message in (
        ({"inputs": x[0]}, ValueError, r"inputs of shape \(B, T, 3\), but received \(5, 3\)"),
        ({"inputs": x[..., :2]}, ValueError, r"inputs of shape .*received \(2, 5, 2\)"),
        ({"inputs": None}, TypeError, "inputs of a dtype that can become float32.*object"),
        ({"inputs": "abc"}, TypeError, "inputs of a dtype.*<U3"),
        ({"inputs": x + 1j}, TypeError, "inputs of a dtype.*complex128"),
        ({"inputs": [[1], [1, 2]]}, TypeError, "inputs to be an array of numbers"),
        ({"initial_state": h}, ValueError, "initial_state to be h and c, but received 1 array"),
        ({"initial_state": [h] * 3}, ValueError, "received 3 arrays"),
        ({"initial_state": [h, h[:1]]}, ValueError, r"initial c of shape \(2, 1, 4\)"),
        ({"initial_state": [h[0], h]}, ValueError, r"initial h of shape \(2, 1, 4\)"),
        ({"initial_state": [h, "c"]}, TypeError, "initial c of a dtype"),
        ({"sequence_lengths": [1]}, ValueError, r"sequence_lengths of shape \(2,\).*\(1,\)"),
        ({"sequence_lengths": 3}, ValueError, r"sequence_lengths of shape \(2,\).*\(\)"),
        ({"sequence_lengths": [1, 6]}, ValueError, r"lengths\[1\] must lie in \[0, 5\].*6"),
        ({"sequence_lengths": [-1, 5]}, ValueError, r"sequence_lengths\[0\].*received -1"),
        ({"sequence_lengths": [2**32, 5]}, ValueError, r"sequence_lengths\[0\]"),
        ({"sequence_lengths": [1.0, 5.0]}, TypeError, "sequence_lengths to be integers"),
    ):
        with pytest.raises(kind, match=message):
            predictor(**{"inputs": x, **arguments})


# These tests run every instruction set, in processes that have no TensorFlow.

_PROGRAM = """
import pickle, sys
sys.modules["tensorflow"] = None
from cudnn_rnn_tf import native
from cudnn_rnn_tf.config import RnnConfig
import ml_dtypes
task = pickle.load(sys.stdin.buffer)
results = []
for config, params, time_major, arguments in task["runs"]:
    layout = RnnConfig(*config).layout
    for threads in (1, 2):
        predictor = native._native.PredictorBinding(layout, params, time_major, False, threads)
        outputs, states = predictor(*arguments)
        results.append([outputs, *states])
converted = {name: getattr(native._native, name)(x) for name, x in task["conversions"].items()}
isa = native.info()["cpu_isa"]
pickle.dump((isa, results, converted), sys.stdout.buffer)
"""


def interesting_floats():
    """Returns ties, neighbours and limits of both half types, and random bits, of both signs."""
    rng = np.random.default_rng(6)
    halves = np.arange(1 << 16, dtype=np.uint16)
    parts = [rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)]
    with np.errstate(all="ignore"):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            values = halves.view(dtype).astype(np.float64)
            exact = np.sort(values[np.isfinite(values)])
            ties = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
            for x in (exact.astype(np.float32), ties):
                parts += [x, np.nextafter(x, np.float32(9e38)), np.nextafter(x, np.float32(-9e38))]
    parts.append(np.array([np.inf, -np.inf, np.nan, -np.nan, 65519.996, 65520, 3.4e38], np.float32))
    return np.concatenate(parts)


@pytest.mark.parametrize("isa", instruction_sets())
def test_instruction_set(isa):
    cases = [*CASES[:12], *large_cases()]
    tests = [(case, dtype) for case in cases for dtype in ("float32", "float16", "bfloat16")]
    datas = [random_configs.draw_data(*test) for test in tests]
    halves, floats = np.arange(1 << 16, dtype=np.uint16), interesting_floats()
    task = {
        "runs": [
            (
                dataclasses.astuple(case.config),
                data.params,
                case.time_major,
                (data.inputs, data.states, case.sequence_lengths, case.resets),
            )
            for (case, _), data in zip(tests, datas, strict=True)
        ],
        "conversions": {
            "from_float16": halves,
            "from_bfloat16": halves,
            "to_float16": floats,
            "to_bfloat16": floats,
        },
    }
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=pickle.dumps(task),
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "CUDNN_RNN_TF_CPU_ISA": isa,
            # New memory is full of NaNs, so none of what pads rows may be left as it was.
            "MALLOC_PERTURB_": "256",
        },
        capture_output=True,
    )
    assert process.returncode == 0, process.stderr.decode()
    used, results, converted = pickle.loads(process.stdout)
    assert used == isa
    singles, pairs = results[::2], results[1::2]
    for (case, dtype), data, single, pair in zip(tests, datas, singles, pairs, strict=True):
        assert_same_bits(single, pair)
        if isa == native.info()["cpu_isa"]:
            assert_is_ops(case, single, run_op(case, data))
        rounds_factors = dtype == "bfloat16" and isa in ("avx512bf16", "amx")
        assert_near_reference(case, data, single, dtype, rounds_factors)
    check_conversions(converted, halves, floats)


def check_conversions(converted, halves, floats):
    """Compares to the bit with NumPy and ml_dtypes; a NaN need only stay a NaN of the same sign."""
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            expected = halves.view(dtype).astype(np.float32)
            stored = floats.astype(dtype)
        widened, narrowed = converted[f"from_{name}"], converted[f"to_{name}"]
        nan = np.isnan(expected)
        assert np.array_equal(widened.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])
        assert np.isnan(widened[nan]).all()
        assert np.array_equal(np.signbit(widened), np.signbit(expected))
        nan = np.isnan(floats)
        assert np.array_equal(narrowed[~nan], stored.view(np.uint16)[~nan])
        assert np.isnan(narrowed.view(dtype)[nan].astype(np.float32)).all()
        assert np.array_equal(narrowed >> 15, floats.view(np.uint32) >> 31)


def test_parameters_of_another_byte_order_are_refused():
    layout = RnnConfig("gru", 1, 3, 2).layout
    for dtype in (">f4", ">f8", ">f2"):
        with pytest.raises(TypeError, match="weights in this machine's byte order.*>f"):
            native._native.PredictorBinding(layout, np.ones(layout.size, dtype), False, False, 1)


def unaligned(array):
    """Returns the same numbers at an address that is one byte past an aligned one."""
    return np.frombuffer(b" " + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


def swapped(array):
    return array.astype(array.dtype.newbyteorder())


def test_arrays_that_are_unaligned_or_of_another_byte_order():
    """Results must be the same; a sanitizer would report code that reads them in place."""
    layout = RnnConfig("gru", 1, 3, 2).layout
    params = np.linspace(-1, 1, layout.size, dtype=np.float32)
    inputs = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 6, 2)
    results = []
    for of_params, change in (
        (np.asarray, np.asarray),
        (unaligned, unaligned),
        (np.asarray, swapped),
    ):
        predictor = native._native.PredictorBinding(layout, of_params(params), False, False, 1)
        outputs, states = predictor(change(inputs), None, change(np.array([6, 2])), None)
        results.append([outputs, *states, native._native.to_float16(of_params(params))])
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])


@pytest.mark.parametrize("processors, expected", [(6, 6), (1536, 1024)])
def test_has_a_thread_for_each_processor(monkeypatch, processors, expected):
    layer = layer_reference.make("gru", 1, 4)
    layer.build((None, None, 3))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    assert crnn.CpuPredictor(layer).num_threads == expected


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({}, 8),
        ({"": "max 100000"}, 8),
        ({"": "300000 100000"}, 3),
        ({"pod": "250000 100000", "pod/container": "max 100000"}, 2),
        ({"pod": "600000 100000", "pod/container": "50000 100000"}, 1),
        ({"pod/container": "1600000 100000", "other": "100000 100000"}, 8),
    ],
)
def test_a_container_may_have_less_time_than_processors(monkeypatch, tmp_path, limits, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    membership = tmp_path / "membership"
    membership.write_text("2:cpuset:/other\n0::/pod/container\n")
    for group, limit in limits.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cpu.max").write_text(limit + "\n")
    assert available_cpus(membership, tmp_path) == expected


def test_control_groups_may_be_missing(tmp_path):
    assert available_cpus(tmp_path / "none", tmp_path) == len(os.sched_getaffinity(0))


def test_names_the_layer_of_a_model():
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(4), crnn.CudnnGRU(1, 3)])
    with pytest.raises(TypeError, match="pass what cudnn_rnn_tf.convert.from_keras returns"):
        crnn.CpuPredictor(keras.layers.LSTM(3))
    with pytest.raises(TypeError, match=r"pass one of its layers, such as model\.layers\[1\]"):
        crnn.CpuPredictor(model)
