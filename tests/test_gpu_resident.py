"""The kernel that keeps weights resident, against the reference and cuDNN."""

import ctypes
import dataclasses

import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_replay
from fresh_process import logged_lines, run_program

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = test_gpu.pytestmark

# The largest errors in float32, as parts of the largest magnitude, and the root mean squares of the
# errors in the other types.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
MAX_BATCH = {"float32": 4, "float16": 8, "bfloat16": 8}


def random_case(rng: np.random.Generator, index: int, dtype: str) -> random_configs.Case:
    unit = 16 if dtype == "float32" else 32
    return random_configs.Case(
        index=index,
        config=RnnConfig(
            rnn_mode=str(rng.choice(["lstm", "gru", "rnn_tanh", "rnn_relu"])),
            num_layers=int(rng.integers(1, 4)),
            num_units=unit * int(rng.integers(1, 12)),
            input_size=int(rng.integers(1, 70)),
            direction=str(rng.choice(["unidirectional", "bidirectional"])),
            bias_mode=str(rng.choice(["none", "single_input", "single_recurrent", "double"])),
        ),
        max_time=int(rng.integers(1, 13)),
        batch_size=int(rng.integers(1, MAX_BATCH[dtype] + 1)),
        time_major=bool(rng.random() < 0.5),
        is_training=False,
        sequence_lengths=None,
    )


def run(
    case: random_configs.Case, data: random_configs.Data, algorithm: str = "resident"
) -> list[np.ndarray]:
    outputs, states = ops.forward(
        case.config,
        tf.constant(data.inputs),
        [tf.constant(state) for state in data.states],
        tf.constant(data.params),
        time_major=case.time_major,
        is_training=False,
        algorithm=algorithm,
    )
    return [outputs.numpy(), *(state.numpy() for state in states)]


def errors(results: list[np.ndarray], expected: list[np.ndarray], dtype: str) -> list[float]:
    def error(value: np.ndarray, reference: np.ndarray) -> float:
        difference = value.astype(np.float64) - reference
        if dtype == "float32":
            return float(np.max(np.abs(difference)) / np.max(np.abs(reference)))
        return float(np.linalg.norm(difference) / np.linalg.norm(reference.astype(np.float64)))

    return [error(*pair) for pair in zip(results, expected, strict=True)]


@pytest.mark.parametrize("index", range(30))
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_agrees_with_reference(dtype, index):
    """Results agree at the first uses, with other addresses, and when replayed."""
    rng = np.random.default_rng([7, index])
    case = random_case(rng, index, dtype)
    for attempt in range(5):
        data = random_configs.draw_data(case, dtype, attempt)
        _, expected = random_configs.run_reference(case, data)
        held = test_gpu_replay.scatter_addresses(rng) if attempt < 1 else None
        results = run(case, data)
        del held
        worst = errors(results, [expected.outputs, *expected.states], dtype)
        assert max(worst) <= TOLERANCE[dtype], (str(case), attempt, worst)


# The weights that have no room on the chip are none, a few, or more than the L2 cache holds.
LARGE = [
    ("gru", 1, 1024, 1500, 4, "float32"),  # This runs in three parts of time.
    ("gru", 1, 1536, 40, 4, "float32"),
    ("gru", 1, 2048, 20, 3, "float32"),
    ("gru", 1, 2560, 20, 1, "float32"),
    ("gru", 1, 2816, 20, 4, "float32"),
    ("lstm", 1, 2048, 20, 2, "float32"),
    ("lstm", 3, 512, 30, 4, "float32"),
    ("gru", 1, 1536, 1500, 8, "float16"),
    ("gru", 1, 2816, 40, 1, "float16"),
    ("gru", 1, 2816, 40, 8, "bfloat16"),
    ("lstm", 2, 1024, 60, 8, "bfloat16"),
    ("lstm", 1, 2048, 40, 5, "float16"),
    ("rnn_tanh", 2, 4096, 20, 8, "float16"),
]


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize(
    ("rnn_mode", "num_layers", "num_units", "max_time", "batch_size", "dtype"), LARGE
)
def test_large_networks_agree_with_cudnn(
    rnn_mode, num_layers, num_units, max_time, batch_size, dtype, direction
):
    case = random_configs.Case(
        index=num_units,
        config=RnnConfig(rnn_mode, num_layers, num_units, 64, direction=direction),
        max_time=max_time,
        batch_size=batch_size,
        time_major=True,
        is_training=False,
        sequence_lengths=None,
    )
    data = random_configs.draw_data(case, dtype)
    expected = [x.astype(np.float64) for x in run(case, data, "standard")]
    for _ in range(3):
        worst = errors(run(case, data), expected, dtype)
        assert max(worst) <= 2 * TOLERANCE[dtype], worst


def small_case(**changes) -> random_configs.Case:
    case = random_configs.Case(
        index=1,
        config=RnnConfig("lstm", 1, 64, 8),
        max_time=6,
        batch_size=2,
        time_major=True,
        is_training=False,
        sequence_lengths=None,
    )
    return dataclasses.replace(case, **changes)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_relu"])
def test_numbers_that_are_none(rnn_mode, dtype):
    """Steps that wait for a NaN of any bits see it, and other sequences are not affected."""
    case = small_case(config=RnnConfig(rnn_mode, 2, 64, 8, direction="bidirectional"))
    data = random_configs.draw_data(case, dtype)
    expected, *_ = run(case, data)
    bits = np.uint32 if dtype == "float32" else np.uint16
    data.inputs[3, 1].view(bits)[:] = np.iinfo(bits).max
    for _ in range(3):
        outputs, *_ = run(case, data)
        assert np.isnan(outputs[:, 1].astype(np.float32)).all()
        np.testing.assert_array_equal(outputs[:, 0], expected[:, 0])


class DlTensor(ctypes.Structure):
    """DLPack's `DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def unaligned(values: np.ndarray) -> tf.Tensor:
    """Returns a vector that begins one item past an address of TensorFlow's allocator."""
    capsule = tf.experimental.dlpack.to_dlpack(tf.constant(np.append(values[:1], values)))
    address_of = ctypes.pythonapi.PyCapsule_GetPointer
    address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DlTensor.from_address(address_of(capsule, b"dltensor"))
    tensor.shape[0] -= 1
    tensor.data += values.itemsize
    return tf.experimental.dlpack.from_dlpack(capsule)


def test_what_begins_at_odd_addresses_runs_as_standard():
    case = small_case(config=RnnConfig("gru", 1, 1024, 8), max_time=40)
    data = random_configs.draw_data(case, "float32")
    inputs, states = tf.constant(data.inputs), [tf.constant(state) for state in data.states]
    params = unaligned(data.params)
    np.testing.assert_array_equal(params, data.params)

    def infer(params, algorithm):
        outputs, _ = ops.forward(
            case.config, inputs, states, params, is_training=False, algorithm=algorithm
        )
        return outputs.numpy()

    expected = infer(params, "standard")
    for used in (params, tf.constant(data.params)) * 3:
        np.testing.assert_allclose(infer(used, "auto"), expected, atol=1e-5)
    with pytest.raises(tf.errors.UnimplementedError, match="begin at multiples of 16 bytes"):
        infer(params, "resident")


RULE = """
import tensorflow as tf
import cudnn_rnn_tf as crnn
layer = crnn.CudnnGRU(1, 1024, algorithm="auto", dtype="float16")
for batch in (1, 64):
    layer(tf.zeros([batch, 60, 96], tf.float16), training=False)
"""


def test_rule_takes_it_for_few_sequences():
    lines = logged_lines(RULE)
    assert [line.rpartition(": ")[2] for line in lines if "batch 1," in line] == ["resident"]
    assert not [line for line in lines if "batch 64," in line and line.endswith("resident")]


def test_gradients_of_inference_are_those_of_standard():
    """Gradients run the forward pass again in training, which this algorithm cannot do."""
    case = small_case()
    data = random_configs.draw_data(case, "float32")
    results = [
        random_configs.run_forward(
            ops.forward, case, data, is_training=False, algorithm=algorithm
        ).named()
        for algorithm in ("resident", "standard")
    ]
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], rtol=1e-5, atol=1e-5, err_msg=name)


STREAMS = """
import concurrent.futures
import numpy as np, tensorflow as tf
gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.set_logical_device_configuration(
    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=4096)] * 2)
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
config = RnnConfig("gru", 1, 2048, 16)

def work(index):
    rng = np.random.default_rng(index)
    with tf.device(f"GPU:{index % 2}"):
        params = tf.constant(0.02 * rng.standard_normal(config.layout.size), tf.float16)
        x = tf.constant(rng.standard_normal((60, 2, 16)), tf.float16)
        states = [tf.zeros([1, 2, 2048], tf.float16)]
        runs = [
            ops.forward(config, x, states, params, is_training=False, algorithm="resident")[0]
            for _ in range(50)
        ]
        return [run.numpy().tobytes() for run in runs]

expected = [work(index) for index in range(4)]
assert all(len(set(runs)) == 1 for runs in expected)
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert list(pool.map(work, range(4))) == expected
"""


def test_two_streams_want_the_whole_gpu_at_once():
    """Blocks that wait for each other run together or not at all, and all runs agree to the bit."""
    run_program(STREAMS)


@pytest.mark.skipif(len(tf.config.list_physical_devices("GPU")) < 2, reason="there is one GPU")
@pytest.mark.parametrize("algorithm", ["resident", "standard"])
def test_two_gpus_compute_the_same(algorithm):
    case = small_case(config=RnnConfig("gru", 2, 512, 8), batch_size=4, max_time=20)
    data = random_configs.draw_data(case, "float16")
    results = []
    for index in range(6):
        with tf.device(f"GPU:{index % 2}"):
            results.append(run(case, data, algorithm)[0].tobytes())
    assert len(set(results)) == 1
