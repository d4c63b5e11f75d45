"""Tests passes of cuDNN that are replayed as CUDA graphs."""

import dataclasses
import json
import os
import resource

import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
from fresh_process import logged_lines, run_program

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = test_gpu.pytestmark

REPLAY_IS_ON = os.environ.get("CUDNN_RNN_TF_CUDA_GRAPH") != "0"


def replays() -> int:
    return crnn.info()["gpu"]["replays"]


def check_replays(before: int, at_least: int) -> None:
    """Checks that about as many passes were replayed as could be.

    A pass of this package's kernels is replayed from the second time on, one of cuDNN's at once.
    """
    replayed = replays() - before
    assert replayed >= at_least if REPLAY_IS_ON else replayed == 0, replayed


def scatter_addresses(rng: np.random.Generator) -> list[tf.Tensor]:
    """Returns tensors that, as long as they live, make TensorFlow allocate other addresses."""
    return [tf.zeros([int(rng.integers(1, 200_000))]) for _ in range(8)]


# The tolerance for persistent kernels in float32. Because of it, only users of TF32 get them by
# default.
PERSISTENT_TOLERANCE = 3e-5


def errors_in(results, expected, case, dtype, algorithm="auto") -> dict[str, float]:
    """Returns the errors that exceed what the type, and in float32 the algorithm, allows."""
    rounds_factors = dtype in test_gpu.RMS_TOLERANCE
    found = random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)
    if dtype == "float32" and algorithm.startswith("persist"):
        found = {name: error for name, error in found.items() if not error <= PERSISTENT_TOLERANCE}
    return found


@pytest.mark.parametrize("dtype", [*test_gpu.TOLERANCE, *test_gpu.RMS_TOLERANCE])
def test_repeated_runs_agree_with_reference(dtype):
    """The first runs have other addresses each; the others replay graphs."""
    rng = np.random.default_rng(4)
    before = replays()
    for case in test_gpu.CASES[:: 8 if dtype == "float32" else 16]:
        for attempt in range(6):
            data, expected = random_configs.draw_smooth_data(
                dataclasses.replace(case, index=1000 * attempt + case.index), dtype
            )
            held = scatter_addresses(rng) if attempt < 2 else None
            results = test_gpu.run_on("GPU:0", case, data)
            del held
            assert not errors_in(results, expected, case, dtype), f"{case}, run {attempt}"
    check_replays(before, at_least=1)


def run_algorithm(case, data, algorithm: str, run: int) -> random_configs.Results:
    """Runs an algorithm; skips the test if cuDNN does not have it for the network."""
    try:
        return random_configs.run_forward(ops.forward, case, data, algorithm=algorithm)
    except tf.errors.UnimplementedError:
        assert run == 0 and algorithm.startswith("persist")
        pytest.skip("cuDNN has no such algorithm for this network")


@pytest.mark.parametrize(
    "algorithm", ["auto", "standard", "persist_static", "persist_static_small_h"]
)
@pytest.mark.parametrize("dtype", [*test_gpu.TOLERANCE, *test_gpu.RMS_TOLERANCE])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_tanh"])
def test_algorithms_agree_with_reference(rnn_mode, dtype, algorithm):
    """Only an algorithm that is asked for may be less exact than the type. cuDNN may lack it."""
    case = random_configs.Case(
        index=5,
        config=RnnConfig(rnn_mode, 1, 64, 32),
        max_time=12,
        batch_size=8,
        time_major=True,
        is_training=True,
        sequence_lengths=None,
    )
    data, expected = random_configs.draw_smooth_data(case, dtype)
    for run in range(3):
        results = run_algorithm(case, data, algorithm, run)
        assert not errors_in(results, expected, case, dtype, algorithm), run


SMALL = RnnConfig("lstm", 2, 40, 24, direction="bidirectional")
# On an H200, this network with 64 sequences in float32 fills memory in each step, forward and
# backward.
WITH_FILLS = RnnConfig("gru", 1, 1024, 24)
SMALL_CASES = [
    (SMALL, 6, dtype, time_major)
    for dtype in ("float32", "float16")
    for time_major in (True, False)
]
BITS_CASES = [*SMALL_CASES, (WITH_FILLS, 64, "float32", True)]


def draw_for_bits(
    config: RnnConfig, batch_size: int, dtype: str, time_major: bool
) -> list[tf.Tensor]:
    rng = np.random.default_rng(5)
    lead = (9, batch_size) if time_major else (batch_size, 9)
    shapes = [(*lead, 24), *config.state_shapes(batch_size, time_major)]
    params = 1.2 / config.num_units**0.5 * rng.standard_normal(config.layout.size)
    return [tf.cast(array, dtype) for array in (params, *map(rng.standard_normal, shapes))]


def bits(config: RnnConfig, batch_size: int, dtype: str, time_major: bool) -> list[np.ndarray]:
    """Returns the results and gradients of one step."""
    params, inputs, *states = draw_for_bits(config, batch_size, dtype, time_major)
    with tf.GradientTape() as tape:
        tape.watch([inputs, params, *states])
        outputs, finals = ops.forward(
            config, inputs, states, params, time_major=time_major, algorithm="standard"
        )
        value = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in (outputs, *finals)])
    gradients = tape.gradient(value, [inputs, params, *states])
    return [tensor.numpy() for tensor in (outputs, *finals, *gradients)]


@pytest.fixture(scope="module")
def call_by_call(tmp_path_factory):
    """Returns the results of each case in a process without graphs."""
    folder = tmp_path_factory.mktemp("call_by_call")
    program = """
import sys
import numpy as np, tensorflow as tf, test_gpu_replay
tf.config.experimental.enable_tensor_float_32_execution(False)
for index, case in enumerate(test_gpu_replay.BITS_CASES):
    np.savez(f"{sys.argv[1]}/{index}.npz", *test_gpu_replay.bits(*case))
"""
    run_program(program, folder, CUDNN_RNN_TF_CUDA_GRAPH="0")
    return [list(np.load(folder / f"{index}.npz").values()) for index in range(len(BITS_CASES))]


@pytest.mark.parametrize("index", range(len(BITS_CASES)))
def test_replay_repeats_the_bits_of_calls_at_any_address(call_by_call, index):
    config, batch_size, dtype, time_major = BITS_CASES[index]
    rng = np.random.default_rng(6)
    before = replays()
    # Addresses change in the first runs and repeat in later ones.
    for run in range(24):
        held = scatter_addresses(rng) if run < 12 else None
        results = bits(config, batch_size, dtype, time_major)
        for result, expected in zip(results, call_by_call[index], strict=True):
            np.testing.assert_array_equal(result, expected)
        del held
    check_replays(before, at_least=16)


@pytest.mark.parametrize("index", range(len(SMALL_CASES)))
def test_what_starts_elsewhere_than_the_allocator_aligns(call_by_call, index):
    """Other kernels may run for such addresses."""
    config, batch_size, dtype, time_major = SMALL_CASES[index]
    params, inputs, *states = draw_for_bits(config, batch_size, dtype, time_major)
    joined = tf.concat([tf.zeros([8], dtype), tf.reshape(inputs, [-1])], 0)
    inputs = tf.reshape(joined[8:], inputs.shape)
    outputs, _ = ops.forward(
        config, inputs, states, params, time_major=time_major, algorithm="standard"
    )
    expected = call_by_call[index][0]
    np.testing.assert_allclose(outputs, expected, atol=1e-6 if dtype == "float32" else 2e-3)


def test_dropout_follows_the_seed_under_replay():
    run = test_gpu.identity_network(0.25)
    ones = tf.ones([40, 50, 64])
    before = replays()
    masks = {}
    for index in [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]:
        with tf.GradientTape() as tape:
            tape.watch(ones)
            outputs = run(ones, [7, index])
            value = tf.reduce_sum(outputs)
        mask = outputs.numpy()
        np.testing.assert_array_equal(tape.gradient(value, ones), mask)
        np.testing.assert_array_equal(masks.setdefault(index, mask), mask)
        np.testing.assert_allclose(np.mean(mask == 0), 0.25, atol=0.004)
    assert np.mean(masks[0] != masks[1]) > 0.3
    check_replays(before, at_least=1)


# What the package's own kernels run, and the largest errors of float32 that they may have.
OWN = [
    ("float16", {}, 0.0),
    ("float16", {"recurrent_dropout": 0.25}, 0.0),
    ("float32", {"recurrent_dropout": 0.25}, 5e-5),
    ("float32", {"num_proj": 20, "cell_clip": 0.7}, 1e-5),
    ("float64", {"num_proj": 20, "cell_clip": 0.7}, 0.0),
]


@pytest.mark.parametrize(("dtype", "options", "of_float32"), OWN)
def test_replays_take_lengths_and_seeds_anew(dtype, options, of_float32):
    """A graph depends on addresses only; everything else may change from call to call."""
    config = RnnConfig(*("lstm", 2, 48, 7), direction="bidirectional", dropout=0.4, **options)
    rng = np.random.default_rng(3)
    before = replays()
    for index in range(8):
        lengths = tuple(int(n) for n in rng.integers(0, 10, size=11))
        case = random_configs.Case(5000 + index, config, 9, 11, False, True, lengths)
        if dtype == "float16":
            data = random_configs.draw_data(case, dtype)
            expected = random_configs.run_reference(case, data)[1]
        else:
            data, expected = random_configs.draw_smooth_data(case, dtype)
        held = scatter_addresses(rng) if index < 2 else None
        with tf.device("GPU:0"):
            results = random_configs.run_forward(
                ops.forward, case, data, seed=tf.constant(data.seed), algorithm="persistent"
            )
        del held
        found = errors_in(results, expected, case, dtype)
        assert all(dtype == "float32" and error <= of_float32 for error in found.values()), found
    check_replays(before, at_least=4)


def test_full_sequence_lengths_run_as_none():
    config = RnnConfig("gru", 1, 16, 8)
    inputs = tf.random.stateless_normal([5, 4, 8], [0, 1])
    params = tf.random.stateless_normal([config.layout.size], [2, 3])
    states = [tf.zeros([1, 4, 16])]
    before = replays()
    for _ in range(8):
        outputs, _ = ops.forward(
            config,
            *(inputs, states, params),
            sequence_lengths=tf.constant([5, 5, 5, 5]),
            algorithm="standard",
        )
    check_replays(before, at_least=1)
    expected, _ = ops.forward(config, inputs, states, params, algorithm="standard")
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize(
    "config", [RnnConfig("lstm", 1, 32, 16), RnnConfig("gru", 2, 48, 16, dropout=0.1)]
)
def test_ten_thousand_alternating_shapes_leak_nothing(config):
    params = tf.Variable(tf.random.stateless_normal([config.layout.size], [0, 1]) * 0.2)

    @tf.function(reduce_retracing=True)
    def steps(inputs, count):
        batch = tf.shape(inputs)[1]
        states = [
            tf.zeros([shape[0], batch, shape[2]])
            for shape in config.state_shapes(1, time_major=True)
        ]
        for index in tf.range(count):
            seed = tf.stack([7, tf.cast(index, tf.int64)])
            with tf.GradientTape() as tape:
                outputs, _ = ops.forward(config, inputs, states, params.value(), seed=seed)
                value = tf.reduce_mean(outputs**2)
            params.assign_sub(0.01 * tape.gradient(value, params))

    def run(count: int) -> None:
        for index in range(count // 5):
            steps(tf.ones([3 + index % 7, 1 + index % 5, 16]), 5)

    def used() -> tuple[int, int]:
        tf.test.experimental.sync_devices()
        memory = tf.config.experimental.get_memory_info("GPU:0")["current"]
        return memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    run(3000)
    device, host = used()
    run(10_000)
    device_after, host_after = used()
    assert device_after == device
    assert host_after - host < 20_000  # In KiB; this is less than two kilobytes per step.
    assert np.all(np.isfinite(params.numpy()))


STREAMS = """
import concurrent.futures
import numpy as np, tensorflow as tf
gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.set_logical_device_configuration(
    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=1024)] * 2)
tf.config.experimental.enable_tensor_float_32_execution(False)
import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
config = RnnConfig("lstm", 2, 48, 16)

def work(index):
    rng = np.random.default_rng(index)
    with tf.device(f"GPU:{index % 2}"):
        params = tf.constant(0.2 * rng.standard_normal(config.layout.size), tf.float32)
        states = [tf.zeros(s) for s in config.state_shapes(6, True)]
        total = tf.zeros([])
        for _ in range(20):
            x = tf.constant(rng.standard_normal((9, 6, 16)), tf.float32)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, _ = ops.forward(config, x, states, params, algorithm="standard")
                value = tf.reduce_sum(y ** 2)
            total += tf.reduce_sum(tape.gradient(value, x) ** 2)
        return float(total)

expected = [work(index) for index in range(8)]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert list(pool.map(work, range(8))) == expected
print("replays", crnn.info()["gpu"]["replays"])
"""


def test_two_streams_of_one_gpu():
    output = run_program(STREAMS)
    assert (int(output.split()[-1]) > 100) == REPLAY_IS_ON


STEPS = """
import json
import tensorflow as tf
import cudnn_rnn_tf as crnn
layer = crnn.CudnnLSTM(1, 64, dtype="float16", algorithm="cudnn")
x = tf.random.stateless_normal([4, 20, 32], [0, 1], dtype=tf.float16)
for _ in range(8):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(layer(x, training=True) ** 2)
    tape.gradient(value, [x, *layer.trainable_variables])
print(json.dumps(crnn.info()["gpu"]))
"""


def test_replay_can_be_turned_off():
    info = json.loads(run_program(STEPS, CUDNN_RNN_TF_CUDA_GRAPH="0").splitlines()[-1])
    assert not info["replay"] and info["replays"] == 0


def test_algorithm_is_logged():
    # `info` runs cuDNN too, in inference.
    (line,) = [line for line in logged_lines(STEPS) if ", training: " in line]
    assert line.endswith(": persist_static_small_h")
