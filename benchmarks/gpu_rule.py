"""Times the algorithms that a GPU has for random networks, beside the one that the rule takes.

benchmarks/command.py says how to run it, on each visible GPU. With `--compile`, each network runs
once, in many processes at a time, so that its kernels are compiled and kept in the folder that
CUDNN_RNN_TF_KERNEL_CACHE names.

The networks are random, and follow from `--seed` and `--count` alone: LSTM, GRU, tanh and ReLU
networks of one to three layers and one or both directions, of 16 to 2560 units and 1 to 2048
sequences (logarithms are uniform) of 20 to 60 steps, in all types, training and inference, with and
without lengths. Those that need much memory or time are drawn again. DeepBench's networks follow. A
network's algorithms take turns, a sample each; the median of its samples counts. Of a small
network, a call runs several steps, since the host would otherwise decide how long a step takes.
"""

import argparse
import dataclasses
import gc
import itertools
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import command, machine, pages, systems, timing
from benchmarks.model_list import flops_of
from benchmarks.rows import DRAWS, Row, draw_lengths

AUTO = "auto"
TYPES = ("float16", "bfloat16", "tf32", "float32")
MODES = {"lstm": 3, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # And how often each is drawn.
# DeepBench's networks of up to 2560 units, by mode, units, numbers of sequences and of steps.
DEEP_BENCH = [
    Row(mode, 1, units, 1, batch, time, type_, training=True)
    for mode, units, batches, time in (
        *(("lstm", units, (16, 32, 64, 128), 25) for units in (512, 1024, 2048)),
        *(("lstm", 1536, (8, 16, 32), 50), ("lstm", 256, (16, 32, 64), 150)),
        *(("gru", units, (32,), 100) for units in (512, 1024, 1536, 2048, 2560)),
    )
    for batch in batches
    for type_ in ("float16", "tf32")
]
# Bounds of a network: operations of a step, and bytes of its weights, data and reserve.
MOST_FLOPS, MOST_BYTES = 1.2e12, 2.5e9
# What a network may take, by which samples are divided among its algorithms.
NETWORK_SECONDS, SAMPLES = 1.6, 9
# The steps that a call runs of networks with so few operations.
STEPS_OF_CALL, SMALL_FLOPS = 4, 3e10


def networks(seed: int, count: int) -> list[tuple[Row, bool]]:
    """Returns random networks, and whether each has lengths."""
    rng = random.Random(seed)

    def log_uniform(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    def draw() -> tuple[Row, bool]:
        units = log_uniform(16, 2560)
        if rng.random() < 0.75:  # As most people choose.
            units = max(16, 8 * round(units / 8))
        shape = rng.randint(1, 3), units, rng.randint(1, 2), log_uniform(1, 2048)
        times = rng.randint(20, 60), rng.choice(TYPES), rng.random() < 0.5
        mode = rng.choices(list(MODES), list(MODES.values()))[0]
        return Row(mode, *shape, *times), rng.random() < 0.5

    def is_small(row: Row) -> bool:
        numbers = row.batch * row.time * row.layers * row.directions * row.units * 8
        numbers += 6 * flops_of(row) / (row.batch * row.time)  # Weights and their gradients.
        size = 4 if row.dtype == "float32" else 2
        return flops_of(row) <= MOST_FLOPS and size * numbers <= MOST_BYTES

    drawn = (draw() for _ in itertools.count())
    return list(itertools.islice((item for item in drawn if is_small(item[0])), count))


def fixed_algorithms() -> list[str]:
    """Those that a layer's `algorithm` can name, without those that are a rule's name."""
    from cudnn_rnn_tf import ops

    return [name for name in ops.ALGORITHMS if name not in (AUTO, "cudnn")]


def _steps(
    row: Row, has_lengths: bool, count: int
) -> Callable[[str], tuple[timing.StepFunction, str]]:
    """Returns what makes a call of `count` steps of an algorithm, and what its first run logs.

    Weights and data are the same for all.
    """
    import tensorflow as tf

    from cudnn_rnn_tf import config, ops

    systems.allow_tf32(row)
    direction = "bidirectional" if row.directions == 2 else "unidirectional"
    network = config.RnnConfig(row.mode, row.layers, row.units, row.input_size, direction=direction)
    dtype = tf.as_dtype(row.dtype)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return tf.cast(scale * tf.random.normal(shape), dtype)

    params = tf.Variable(normal(network.layout.size, scale=0.5 / math.sqrt(row.units)))
    inputs = normal(row.batch, row.time, row.units)
    d_outputs = normal(row.batch, row.time, row.outputs, scale=0.1)
    shapes = network.state_shapes(row.batch, False)
    # Steps with the same tensors would be one step to TensorFlow.
    states = [[tf.zeros(shape, dtype) for shape in shapes] for _ in range(count)]
    draws = systems.host_lengths(row) if has_lengths else [None] * DRAWS

    def make(algorithm: str) -> tuple[timing.StepFunction, str]:
        def step(states: Any, lengths: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([inputs, params])
                outputs, _ = ops.forward(
                    network,
                    inputs,
                    states,
                    params.value(),
                    sequence_lengths=lengths,
                    time_major=False,
                    is_training=row.training,
                    algorithm=algorithm,
                )
            if not row.training:
                return outputs
            return tape.gradient(outputs, [inputs, params], output_gradients=d_outputs)

        call = tf.function(lambda *draws: list(map(step, states, draws)), autograph=False)

        def run(index: int) -> None:
            call(*(draws[(index * count + number) % DRAWS] for number in range(count)))

        return run, _logged(lambda: run(0))

    return make


def _logged(call: Callable[[], None]) -> str:
    """Returns what a call writes to the standard error, where TensorFlow's log goes."""
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            call()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read()


def measure(row: Row, has_lengths: bool, only_compile: bool = False) -> dict[str, Any]:
    """Returns a network's fields, its times by algorithm, and why others cannot run it.

    What the rule has chosen is the last thing that the library's log says of `auto`.
    """
    import tensorflow as tf

    count = STEPS_OF_CALL if flops_of(row) < SMALL_FLOPS else 1
    make, steps, refused, log = _steps(row, has_lengths, count), {}, {}, {}
    for algorithm in (AUTO, *fixed_algorithms()):
        if only_compile and algorithm.startswith(("standard", "persist_static")):
            continue  # cuDNN has its kernels.
        try:
            steps[algorithm], log[algorithm] = make(algorithm)
            tf.test.experimental.sync_devices()
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
            refused[algorithm] = str(error).partition("\n")[0][:100]
        except tf.errors.OpError as error:
            refused[algorithm] = f"{type(error).__name__}: {error}"[:300]
    line: dict[str, Any] = {
        field: getattr(row, field)
        for field in ("mode", "layers", "units", "directions", "batch", "time", "type", "training")
    }
    chosen = re.findall(r"cudnn_rnn_tf: .*: (\w+)$", log.get(AUTO, ""), re.MULTILINE)
    line |= {"lengths": has_lengths, "refused": refused, "chosen": chosen[-1] if chosen else None}
    if not only_compile:
        share = NETWORK_SECONDS / (len(steps) * (SAMPLES + 2))
        timing.WARM_UP_SECONDS = timing.SAMPLE_SECONDS = share
        wait = tf.test.experimental.sync_devices
        samples = timing.sample_in_turns(steps, wait, DRAWS // count, SAMPLES)
        line["ms"] = {
            name: [round(one / count, 6) for one in times] for name, times in samples.items()
        }
    if has_lengths:
        line["read"] = [int(lengths.sum()) for lengths in draw_lengths(row)]
    return line


def _measure_part(options: argparse.Namespace) -> None:
    """Times a part of the networks, or only compiles their kernels."""
    all_networks = networks(options.seed, options.count) + [(row, False) for row in DEEP_BENCH]
    named = [item for item in all_networks if re.search(options.only, str(item[0]))]
    chosen = named[options.part :: options.parts]
    if options.compile:
        for row, has_lengths in chosen:
            line = measure(row, has_lengths, only_compile=True)
            print(f"{row}: compiled; {line['refused']}", flush=True)
            gc.collect()
        return
    environment = machine.environment(options.commit, "TensorFlow") | {"seed": str(options.seed)}
    with options.output.open("a") as file:
        print(json.dumps({"environment": environment}), file=file, flush=True)
        for row, has_lengths in chosen:
            print(json.dumps(measure(row, has_lengths)), file=file, flush=True)
            gc.collect()


def _start_parts(options: argparse.Namespace) -> None:
    """Starts a process for each GPU, or many that share the GPUs to compile."""
    gpus = machine.visible_gpus()
    count = min(len(os.sched_getaffinity(0)), 12 * len(gpus)) if options.compile else len(gpus)
    print(f"seed {options.seed}, {options.count} networks, {count} processes", flush=True)
    processes = []
    for part in range(count):
        command = [*(sys.executable, "-m", "benchmarks.gpu_rule"), *sys.argv[1:]]
        command += [f"--part={part}", f"--parts={count}"]
        environment = machine.variables_of(gpus[part % len(gpus)])
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "op_backend_gpu=1"}
        processes.append(subprocess.Popen(command, env=environment))
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"processes ended with {codes}")


def read(path: pathlib.Path) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Returns the networks of a file, with the median of each algorithm, and the environments.

    Of a network that was measured again, the last measurement counts. A row has its run's seed.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    environments, last = [], {}
    for line in lines:
        if "environment" in line:
            environments.append(line["environment"])
        else:
            line["seed"] = environments[-1]["seed"]
            last[_network(line), line["lengths"]] = line
    rows = list(last.values())
    for row in rows:
        row["ms"] = {name: statistics.median(times) for name, times in row["ms"].items()}
    return rows, environments


def best(row: dict[str, Any]) -> tuple[float, str]:
    """Returns the time of the fastest fixed algorithm, and its name."""
    return min((time, name) for name, time in row["ms"].items() if name != AUTO)


def _lost(row: dict[str, Any]) -> float:
    """How many times the fastest fixed algorithm's time the rule's choice takes.

    It counts what the chosen algorithm takes when it is named, since `auto` runs the same kernels.
    """
    return row["ms"][row["chosen"] or AUTO] / best(row)[0]


def _network(row: dict[str, Any]) -> Row:
    return Row(*(row[field.name] for field in dataclasses.fields(Row)[:8]))


def _cells(row: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield str(_network(row)) + (", lengths" if row["lengths"] else "")
    yield f"{_lost(row):.2f}"
    yield row["chosen"] or AUTO
    for name in names:
        yield f"{row['ms'][name]:.3f}" if name in row["ms"] else "–"


def page(path: pathlib.Path) -> str:
    """Returns the page for a file of results."""
    rows, environments = read(path)
    rows = [row for row in rows if len(row["ms"]) > 1 and AUTO in row["ms"]]
    rows.sort(key=_lost, reverse=True)
    of_deep_bench = [row for row in rows if not row["lengths"] and _network(row) in DEEP_BENCH]
    rows = [row for row in rows if row not in of_deep_bench]
    gains = [row["ms"]["standard"] / row["ms"][AUTO] for row in of_deep_bench]
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    described = "; ".join(dict.fromkeys(map(pages.listed, environments)))
    of_auto = [row["ms"][AUTO] / row["ms"][row["chosen"] or AUTO] for row in rows]
    low, *_, high = statistics.quantiles(of_auto, n=20)

    def within(limit: float, chosen: list[dict[str, Any]]) -> str:
        close = sum(_lost(row) <= limit for row in chosen)
        return f"{close} of {len(chosen)} ({close / max(len(chosen), 1):.1%})"

    shares = [
        [name, within(1.05, chosen), within(1.2, chosen)]
        for name, chosen in (
            ("all", rows),
            ("training", [row for row in rows if row["training"]]),
            ("inference", [row for row in rows if not row["training"]]),
            ("lengths", [row for row in rows if row["lengths"]]),
            ("full length", [row for row in rows if not row["lengths"]]),
            *(
                (f"seed {seed}", [row for row in rows if row["seed"] == seed])
                for seed in sorted({row["seed"] for row in rows})
            ),
        )
    ]
    text = [
        "# The rule and the fixed algorithms",
        f"Measured with: {described}.",
        "How long a step of random networks takes by the algorithm that the rule chooses, as a"
        " multiple of the fastest that a layer's `algorithm` can name:",
        pages.table(["networks", "within 5 % of the fastest", "within 20 %"], shares),
        "`auto` runs the kernels of the algorithm that it chooses, and was timed beside it. It took"
        f" {statistics.median(of_auto):.3f} times as long in the median, and {low:.2f} to"
        f" {high:.2f} times in nine of ten networks, as host and GPU vary. What was chosen, the"
        " library's log tells or, of runs before it did, the same commit's rule on a CPU.",
        "The networks that take more than 5 % longer, in milliseconds. “–” means that an algorithm"
        " cannot run the network.",
        pages.table(
            ["network", "chosen / fastest", "chosen", *names],
            [list(_cells(row, names)) for row in rows if _lost(row) > 1.05],
        ),
    ]
    if gains:
        mean = statistics.geometric_mean(gains)
        text.append(
            f"DeepBench's {len(gains)} LSTMs and GRUs of up to 2560 units train {mean:.2f} times as"
            f" fast by `auto` as by `standard`, cuDNN's, in the geometric mean, and at least"
            f" {min(gains):.2f} times."
        )
    text.append("Written by `python -m benchmarks.gpu_rule --report`.")
    return "\n\n".join(text) + "\n"


def _run(options: argparse.Namespace) -> None:
    (_start_parts if options.part is None else _measure_part)(options)


if __name__ == "__main__":
    command.run(
        __doc__,
        _run,
        page,
        compile={"action": "store_true", "help": "Only run each network once."},
        seed={"type": int, "default": 2026, "help": "Of the networks."},
        count={"type": int, "default": 200, "help": "Of the networks."},
        part={"type": int, "help": "Which part to run, in this process."},
        parts={"type": int, "default": 1, "help": "Of how many."},
    )
