"""Runs the CPU kernels in a process whose instruction set and number of threads are fixed.

    cpu_kernel_runs.py digest THREADS
    cpu_kernel_runs.py accuracy INSTRUCTION_SET …

`test_cpu_kernels` starts this program. It prints JSON.
"""

import hashlib
import json
import os
import sys
from typing import Any

import numpy as np
import predictor_runs
import random_configs
import tensorflow as tf

from cudnn_rnn_tf import native
from cudnn_rnn_tf.config import RnnConfig

NUM_CASES = 40


def print_digest(threads: int) -> dict[str, Any]:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    both = {"direction": "bidirectional"}
    # With 140 sequences there are four blocks, with 70 there are two. With a few sequences, threads
    # share the steps.
    runs = [
        (70, 30, RnnConfig("lstm", 2, 70, 50, dropout=0.3, **both)),
        (70, 30, RnnConfig("lstm", 2, 70, 50, num_proj=33, cell_clip=0.5)),
        (70, 30, RnnConfig("gru", 2, 70, 70, input_mode="skip_input", dropout=0.3)),
        (70, 30, RnnConfig("rnn_tanh", 2, 130, 50, **both)),
        (70, 30, RnnConfig("rnn_relu", 1, 130, 50, bias_mode="single_recurrent")),
        (3, 30, RnnConfig("lstm", 2, 300, 50, dropout=0.3)),
        (5, 30, RnnConfig("lstm", 1, 300, 50, num_proj=150, **both)),
        (3, 30, RnnConfig("gru", 2, 290, 290, input_mode="skip_input")),
        (40, 30, RnnConfig("rnn_tanh", 1, 200, 50)),
        (70, 30, RnnConfig("gru", 2, 70, 50, dropout=0.3, recurrent_dropout=0.3, **both)),
        (3, 30, RnnConfig("lstm", 1, 300, 50, num_proj=150, recurrent_dropout=0.3)),
        # So few rows are multiplied by weights that are not packed.
        (3, 4, RnnConfig("lstm", 2, 300, 530, num_proj=150, **both)),
        # With so few steps, packing the weights takes longer than they do.
        (24, 1, RnnConfig("lstm", 2, 330, 530, num_proj=150, **both)),
        (4, 2, RnnConfig("lstm", 1, 33, 3000)),
        (140, 5, RnnConfig("gru", 1, 70, 130)),
        (140, 1, RnnConfig("lstm", 1, 270, 130)),
        (9, 2, RnnConfig("lstm", 1, 33, 3000)),
        (8, 2, RnnConfig("gru", 2, 300, 530, **both)),
    ]
    digests = []
    for index, (batch_size, max_time, config) in enumerate(runs):
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            lengths = None
            if index % 2:
                lengths = tuple(n * 7 % (max_time + 1) for n in range(batch_size))
            case = random_configs.Case(
                index=index,
                config=config,
                max_time=max_time,
                batch_size=batch_size,
                time_major=index % 3 > 0,
                is_training=index % 5 < 4,
                sequence_lengths=lengths,
            )
            data = random_configs.draw_data(case, dtype)
            found = set()
            for _ in range(min(threads, 2)):
                results = random_configs.run_ops(case, data)
                found.add(hashlib.sha256(b"".join(random_configs.bits(results))).hexdigest())
            assert len(found) == 1, "two runs of one process differ"
            digests += found
    return {
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "digests": digests,
    }


def large_cases() -> list[Any]:
    """Returns cases with several panels of units, blocks of depth, chunks or parts of steps."""
    both = {"direction": "bidirectional"}
    runs = [
        (3, 80, RnnConfig("lstm", 1, 300, 280, num_proj=270, **both), (80, 35, 1)),
        (2, 80, RnnConfig("gru", 2, 290, 70), None),
        (70, 30, RnnConfig("lstm", 2, 70, 20, dropout=0.3), tuple(n % 30 for n in range(70))),
        (5, 80, RnnConfig("gru", 1, 290, 70, recurrent_dropout=0.2, **both), (80, 35, 1, 0, 80)),
        # So few rows are multiplied by weights that are not packed; in a half type, only in one or
        # two steps.
        (3, 4, RnnConfig("lstm", 2, 300, 530, num_proj=150, **both), (4, 0, 1)),
        (12, 1, RnnConfig("gru", 1, 1030, 7), None),
        (8, 2, RnnConfig("lstm", 2, 150, 530, num_proj=70, **both), (2, 1, 0, 2) * 2),
        (5, 2, RnnConfig("gru", 1, 270, 130, recurrent_dropout=0.2), None),
        # Here, packing the weights takes longer than the steps do.
        (20, 2, RnnConfig("lstm", 2, 150, 530, num_proj=70, **both), (2, 1, 0, 2) * 5),
        (9, 2, RnnConfig("gru", 1, 270, 130), None),
        (17, 1, RnnConfig("rnn_tanh", 1, 270, 530), None),
        # Sums over so many steps have two parts and more, in float32 until they are complete.
        (32, 16, RnnConfig("gru", 1, 70, 20, **both), None),
        (19, 27, RnnConfig("gru", 1, 70, 20, recurrent_dropout=0.2), None),
        (20, 40, RnnConfig("lstm", 1, 90, 530, num_proj=70), None),
    ]
    return [
        random_configs.Case(
            index=1000 + index,
            config=config,
            max_time=max_time,
            batch_size=batch_size,
            time_major=index == 0,
            is_training=index != 1,
            sequence_lengths=lengths,
        )
        for index, (batch_size, max_time, config, lengths) in enumerate(runs)
    ]


def measure_accuracy_of(sets: list[str]) -> dict[str, dict[str, Any]]:
    """Measures each instruction set in a process of its own, all on the same data.

    Most of the time goes by in computing what is to be expected, which is done once, before the
    processes are forked. None of it uses an instruction set, which the first use fixes.
    """
    drawn = [
        (case, dtype, *random_configs.draw_smooth_data(case, dtype))
        for case in [*random_configs.random_cases(NUM_CASES, seed=777), *large_cases()]
        for dtype in random_configs.TOLERANCE
    ]
    reports = {}
    for isa in sets:
        os.environ["CUDNN_RNN_TF_CPU_ISA"] = isa
        reader, writer = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writer, "w") as report:
                json.dump(measure_accuracy(drawn), report)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as report:
            reports[isa] = json.load(report)
        os.wait()
    return reports


def measure_accuracy(drawn: list[tuple[Any, ...]]) -> dict[str, Any]:
    failures, num_comparisons = [], 0
    for case, dtype, data, expected in drawn:
        results = random_configs.run_ops(case, data)
        num_comparisons += 1
        rounds_factors = random_configs.cpu_rounds_factors(dtype)
        beyond = random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)
        if beyond:
            failures.append([str(case), dtype, str(beyond)])
    for dtype in random_configs.TOLERANCE:
        for index in range(12):
            failures += random_configs.inexact_whole_numbers(index, dtype)
    failures += predictor_differences() + errors_of_few_sequences()
    measured = {"isa": native.info()["cpu_isa"], "failures": failures}
    for function in ("sigmoid", "tanh"):
        measured[function] = measure_function(function)
    return measured | {"num_comparisons": num_comparisons}


def predictor_differences() -> list[str]:
    """Names bfloat16 networks whose predictor, which always packs for one sequence, differs."""
    different = []
    for num_units, batch_size in ((650, 8), (514, 6), (75, 70), (300, 3)):
        config = RnnConfig("lstm", 1, num_units, 40)
        case = random_configs.Case(num_units, config, 5, batch_size, False, False, None)
        data = random_configs.draw_data(case, "bfloat16")
        predicted = predictor_runs.run(predictor_runs.make(case, data), case, data)
        computed = predictor_runs.run_op(case, data)
        if any(a.tobytes() != b.tobytes() for a, b in zip(predicted, computed, strict=True)):
            different.append(f"predictor of {case}")
    return different


def errors_of_few_sequences() -> list[str]:
    """Names bfloat16 networks of few sequences that are not as exact as bfloat16 allows.

    But for those with AVX-512 BF16, their steps do not round the states that they multiply.
    """
    if native.info()["cpu_isa"] == "avx512bf16":
        return []
    inexact = []
    for batch_size in (1, 3, 4):
        for config in (
            RnnConfig("lstm", 1, 130, 40, num_proj=70),
            RnnConfig("gru", 2, 130, 41, direction="bidirectional"),
        ):
            case = random_configs.Case(batch_size, config, 20, batch_size, False, False, None)
            data, expected = random_configs.draw_smooth_data(case, "bfloat16")
            results = random_configs.run_ops(case, data)
            beyond = random_configs.beyond_tolerance(case, results, expected, "bfloat16", False)
            # Over many steps, gradients of weights and inputs come from products that do round.
            inexact += [f"{case}: {name}" for name in beyond if not name.startswith("d_")]
    return inexact


def measure_function(name: str) -> dict[str, Any]:
    """Compares with float64 for every 997th float32 of both signs, denormals included."""
    function = getattr(native._native, name)
    magnitudes = np.arange(0, 0x7F800000, 997, dtype=np.uint32).view(np.float32)
    x = np.concatenate([magnitudes, -magnitudes])
    with np.errstate(over="ignore"):
        exact = np.tanh(x.astype(np.float64))
        if name == "sigmoid":
            exact = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    computed = function(x)
    units = np.abs(computed - exact) / np.spacing(np.abs(exact).astype(np.float32))
    if name == "sigmoid":
        # The computed exp ends at float's normal numbers. Below -88, sigmoid is smaller than these,
        # and the result only has to be smaller, too.
        tiny = np.finfo(np.float32).tiny
        units[(exact < tiny) & (computed >= 0) & (computed < tiny)] = 0

    def describe(value: float) -> float | str:
        if np.isnan(value):
            return "nan"
        return "tiny" if abs(value) < np.finfo(np.float32).tiny else float(value)

    specials = np.array([np.nan, np.inf, -np.inf, 0.0, 3e38], np.float32)
    return {
        "num_arguments": x.size,
        "ulps": float(units.max()),
        "specials": {
            str(argument): describe(value)
            for argument, value in zip(specials, function(specials), strict=True)
        },
    }


if __name__ == "__main__":
    what, *values = sys.argv[1:]
    report = print_digest(int(values[0])) if what == "digest" else measure_accuracy_of(values)
    print(json.dumps(report))
