"""Sequence lengths on a GPU where no persistent kernel fits, so that steps are enqueued one by one.

`test_step_kernels.py` tests the same code without a GPU. `test_gpu.py` compares small networks.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu
import test_gpu_persistent
import test_gpu_replay

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

pytestmark = test_gpu.pytestmark

DTYPES = [*test_gpu.TOLERANCE, *test_gpu.RMS_TOLERANCE]


def with_lengths(case: random_configs.Case) -> random_configs.Case:
    """Returns the case with lengths, at least one of which is not that of all time steps."""
    lengths = np.random.default_rng(case.index).integers(0, case.max_time + 1, case.batch_size)
    lengths[0] = min(lengths[0], case.max_time - 1)
    return dataclasses.replace(case, sequence_lengths=tuple(int(n) for n in lengths))


def large_case(rng: np.random.Generator, index: int) -> random_configs.Case:
    """Draws more units than persistent kernels take, or projections to many units."""
    projects = bool(rng.random() < 0.5)
    config = RnnConfig(
        "lstm" if projects else str(rng.choice(["lstm", "gru", "rnn_tanh"])),
        num_layers=int(rng.integers(1, 3)),
        num_units=int(rng.choice([512, 1000] if projects else [1100, 1536, 2048])),
        input_size=int(rng.integers(1, 70)),
        direction=str(rng.choice(["unidirectional", "bidirectional"])),
        num_proj=int(rng.choice([100, 256])) if projects else 0,
        cell_clip=0.5 if projects and rng.random() < 0.5 else 0.0,
    )
    max_time, batch_size = int(rng.integers(2, 7)), int(rng.choice([1, 7, 40]))
    return random_configs.Case(
        index, config, max_time, batch_size, bool(rng.random() < 0.5), True, None
    )


_RNG = np.random.default_rng(5)
CASES = [
    *(case for case in random_configs.random_cases(60, seed=91) if case.config.num_units > 2),
    *(large_case(_RNG, 7100 + i) for i in range(10)),
]
CASES = random_configs.with_resets(with_lengths(case) for case in CASES)
CASES = random_configs.with_cell_sequences(CASES)
CASES += random_configs.layer_normalized(CASES)[::2] + random_configs.with_zoneout(CASES)[::3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_reference(case, dtype):
    """With dropout between layers, the masks are those of the CPU."""
    rounds_factors = dtype in test_gpu.RMS_TOLERANCE
    if rounds_factors:
        # Rounding carries numbers of large networks over a kink whatever the data.
        data = random_configs.draw_data(case, dtype)
        expected = random_configs.run_reference(case, data)[1]
    else:
        data, expected = random_configs.draw_smooth_data(case, dtype)
    results = test_gpu.run_on("GPU:0", case, data)
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)
    again = test_gpu.run_on("GPU:0", case, data)
    assert random_configs.bits(again) == random_configs.bits(results)


CONFIGS = [
    ("float64", RnnConfig("gru", 2, 40, 5, direction="bidirectional")),
    ("float64", RnnConfig("rnn_relu", 1, 7, 5)),
    ("float32", RnnConfig("gru_reset_before", 2, 40, 5, direction="bidirectional")),
    ("float64", RnnConfig("lstm_peephole", 2, 40, 5, direction="bidirectional", cell_clip=0.5)),
    ("float32", RnnConfig("lstm", 2, 40, 5, direction="bidirectional", num_proj=9)),
    ("float16", RnnConfig("lstm", 2, 40, 5, num_proj=12, cell_clip=0.5)),
    ("float32", RnnConfig("lstm", 1, 24, 5, direction="bidirectional", cell_clip=0.5)),
]


@pytest.mark.parametrize("wrong", [-1, 7])
@pytest.mark.parametrize(("dtype", "config"), CONFIGS)
def test_lengths_out_of_range_on_the_device(dtype, config, wrong):
    test_gpu_persistent.check_lengths_out_of_range(config, dtype, wrong)


@pytest.mark.parametrize("algorithm", ["cudnn", "standard", "persistent"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_lengths_run_whichever_algorithm_is_named(dtype, algorithm):
    config = RnnConfig("gru", 2, 30, 7, direction="bidirectional")
    case = with_lengths(random_configs.Case(7600, config, 9, 11, True, True, None))
    data, expected = random_configs.draw_smooth_data(case, dtype)
    with tf.device("GPU:0"):
        results = random_configs.run_forward(ops.forward, case, data, algorithm=algorithm)
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, False)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_resets_before_the_product(dtype, direction):
    """No library has this GRU, so steps run it whatever the lengths, and their graphs replay."""
    config = RnnConfig("gru_reset_before", 2, 50, 9, direction=direction, dropout=0.3)
    before = test_gpu_replay.replays()
    for index in range(6):
        case = random_configs.Case(7800 + index, config, 12, 10, True, True, None)
        data, expected = random_configs.draw_smooth_data(case, dtype)
        results = test_gpu.run_on("GPU:0", case, data)
        assert not random_configs.beyond_tolerance(case, results, expected, dtype, False)
    assert test_gpu_replay.replays() > before or not test_gpu_replay.REPLAY_IS_ON


@pytest.mark.parametrize("algorithm", ["cudnn", "standard", "persist_static"])
@pytest.mark.parametrize("rnn_mode", ["gru_reset_before", "lstm_peephole"])
def test_cells_that_no_algorithm_of_cudnns_has(rnn_mode, algorithm):
    config = RnnConfig(rnn_mode, 1, 8, 4)
    case = random_configs.Case(7900, config, 5, 3, True, True, None)
    data = random_configs.draw_data(case, "float32")
    with tf.device("GPU:0"):
        with pytest.raises(tf.errors.UnimplementedError, match=f"rnn_mode {rnn_mode}; auto"):
            random_configs.run_forward(ops.forward, case, data, algorithm=algorithm)


def test_persistent_runs_any_network_of_full_length():
    config = RnnConfig("lstm", 2, 30, 7, direction="bidirectional", num_proj=8, cell_clip=0.6)
    case = random_configs.Case(7700, config, 9, 11, False, True, None)
    data, expected = random_configs.draw_smooth_data(case, "float64")
    with tf.device("GPU:0"):
        results = random_configs.run_forward(ops.forward, case, data, algorithm="persistent")
    assert not random_configs.beyond_tolerance(case, results, expected, "float64", False)


def test_host_does_not_wait_for_lengths():
    config = RnnConfig("lstm", 1, 30, 7, num_proj=8)
    with tf.device("GPU:0"):
        states = [tf.zeros(shape) for shape in config.state_shapes(4, time_major=True)]
        inputs, params = tf.ones([3, 4, 7]), tf.zeros([config.layout.size])
        work = tf.random.normal([8192, 8192])
        lengths = tf.identity(tf.constant([3, 1, 0, 2], tf.int64))

    def seconds(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def step() -> None:
        ops.forward(config, inputs, states, params, sequence_lengths=lengths)

    for _ in range(3):
        step()
    tf.test.experimental.sync_devices()
    products = [tf.matmul(work, work) for _ in range(20)]
    of_step = seconds(step)
    assert of_step < seconds(tf.test.experimental.sync_devices)
    del products
