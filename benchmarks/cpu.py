"""Times the CPU backend beside torch.nn, keras.layers and ONNX Runtime, and measures its memory.

    python -m benchmarks.cpu [--quick] [--shapes=REGEX] [--peers=torch,keras,onnxruntime]

For every network it builds the model in each library, checks that all give the same numbers, times
them in turn, round by round, in random order, and measures the memory of a training step. It leaves
cpu.json (every round's median), cpu.md and cpu.svg in --output. A peer that is not installed is
left out and named. `--render` writes the last two from the first again.
"""

import contextlib
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import random
import re
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import cpu_report
from benchmarks.cpu_models import NETWORKS, Network
from benchmarks.cpu_worker import (
    BFLOAT16,
    COMPILED_CODE,
    EXACT_MALLOC,
    FUSED,
    KERAS,
    ONNX,
    PEERS,
    PREDICTOR,
    PREDICTOR_BFLOAT16,
    TIME_MAJOR,
    TORCH,
    Worker,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent

_OUTPUT = flags.DEFINE_string("output", str(ROOT / "benchmarks" / "results"), "Where to write.")
_SHAPES = flags.DEFINE_string(
    "shapes", "", 'A regular expression: the networks to run, named like "LSTM 1, 64, 100".'
)
_PEERS = flags.DEFINE_list("peers", ["torch", "keras", "onnxruntime"], "Whom to compare with.")
_THREADS = flags.DEFINE_integer(
    "threads", len(os.sched_getaffinity(0)), "Threads of each library.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds per network.", lower_bound=1)
_QUICK = flags.DEFINE_bool("quick", False, "3 rounds of a few calls: to see that all works.")
_RENDER = flags.DEFINE_bool("render", False, "Write the report of the cpu.json that is there.")

# Parts of the largest magnitude in a tensor. Float32 rounds at 6e-8; a weight's gradient adds up
# T * B products, and steps and layers amplify what differs before them.
TOLERANCE = {"outputs": 1e-5, "gradient": 1e-4}
BFLOAT16_TOLERANCE = 0.05  # Ten roundings of 2^-8: inputs and weights lose theirs at the start.

# One library's share of a round: this long, within these numbers of calls.
BLOCK_SECONDS, QUICK_BLOCK_SECONDS = 0.3, 0.05
CALLS = (3, 300)
# So long the last library's threads take to fall asleep.
PAUSE_SECONDS = 0.03

_AT_BATCH_1 = (BFLOAT16, PREDICTOR_BFLOAT16)
_INFERENCE_ONLY = (ONNX, PREDICTOR, *_AT_BATCH_1)
_SHORT_NAMES = {"torch": TORCH, "keras": KERAS, "onnxruntime": ONNX}


def check_results(
    network: Network, results: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, float]:
    """Compares what the libraries computed with what `cudnn_rnn_tf` did.

    Returns:
        The largest difference per library, as a part of the tensor's largest magnitude.

    Raises:
        ValueError: if a tensor's shape differs or its difference exceeds the tolerance.
    """
    differences = {}
    for library, tensors in results.items():
        if library == FUSED:
            continue
        largest = 0.0
        for name, tensor in tensors.items():
            if library in _AT_BATCH_1 and name != "outputs":
                continue
            expected = results[FUSED][name]
            if tensor.shape != expected.shape:
                raise ValueError(
                    f"{network}: {name} of {library} has shape {tensor.shape}, but of {FUSED} "
                    f"{expected.shape}"
                )
            difference = float(np.abs(tensor - expected).max() / np.abs(expected).max())
            tolerance = TOLERANCE["gradient" if name.startswith("gradient") else "outputs"]
            tolerance = BFLOAT16_TOLERANCE if library in _AT_BATCH_1 else tolerance
            if not difference <= tolerance:  # NaN is a difference, too.
                raise ValueError(
                    f"{network}: {name} of {library} and of {FUSED} differ by {difference:.2g} of "
                    f"the largest magnitude, which is more than {tolerance:.2g}; nothing was timed"
                )
            largest = max(largest, difference)
        differences[library] = largest
    return differences


def time_network(
    network: Network, workers: Mapping[str, Worker], rounds: int, block_seconds: float
) -> dict[str, Any]:
    """Checks and times one network.

    Returns:
        `differences`, as of `check_results`, and `seconds`, by what was timed and by library the
        median call of each round.
    """
    used = {
        library: worker
        for library, worker in workers.items()
        if library not in _AT_BATCH_1 or network.batch_size == 1
    }
    for worker in used.values():
        worker.send("load", network, True)
    results = {library: worker.receive() for library, worker in used.items()}
    differences = check_results(network, results)
    used[FUSED].ask("load_yardsticks")
    jobs = [("inference", library) for library in used]
    jobs += [("training", library) for library in used if library not in _INFERENCE_ONLY]
    jobs += [("matmul", FUSED), ("tf.function", FUSED)]

    calls = {}
    for what, library in jobs:
        seconds = used[library].ask("time", what, CALLS[0])
        calls[what, library] = min(max(round(block_seconds / seconds), CALLS[0]), CALLS[1])
    samples: dict[str, dict[str, list[float]]] = {what: {} for what, _ in jobs}
    for _ in range(rounds):
        for what, library in random.sample(jobs, len(jobs)):
            time.sleep(PAUSE_SECONDS)
            seconds = used[library].ask("time", what, calls[what, library])
            samples[what].setdefault(library, []).append(seconds)
    return {"differences": differences, "seconds": samples}


def measure_memory(network: Network, library: str, threads: int, steps: int) -> dict[str, Any]:
    """What a training step of one library has in use at its peak, in a process of its own.

    Returns:
        `bytes`: for each of some steps, what it added to the resident set at its peak, plus what
        was there before (inputs, weights and the outputs' gradient); and `versions`.
    """
    with Worker(library, threads, EXACT_MALLOC) as worker:
        worker.ask("load", network, False)
        added = worker.ask("training_memory", steps)
        return {
            "bytes": [network.held_bytes + peak for peak in added],
            "versions": worker.ask("versions"),
        }


def _environment() -> dict[str, str]:
    def git(*command: str) -> str:
        process = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return process.stdout.strip() if process.returncode == 0 else "unknown"

    changes = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": git("rev-parse", "--short=12", "HEAD") + (" with local changes" * bool(changes)),
        "processor": model.group(1) if model else platform.machine(),
        "cores": str(os.cpu_count()),
        "threads of each library": str(_THREADS.value),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
    }


def run(file: pathlib.Path) -> None:
    """Runs the benchmark as the flags say; the file has all finished networks at any time."""
    unknown = set(_PEERS.value) - set(_SHORT_NAMES)
    if unknown:
        raise app.UsageError(
            f"expected --peers among {', '.join(_SHORT_NAMES)}, but received "
            f"{', '.join(sorted(unknown))}"
        )
    networks = [network for network in NETWORKS if re.search(_SHAPES.value, str(network))]
    if not networks:
        raise app.UsageError(
            f"expected --shapes to match one of {'; '.join(map(str, NETWORKS))}, but received "
            f"{_SHAPES.value!r}"
        )
    peers = [_SHORT_NAMES[name] for name in _PEERS.value]
    missing = [peer for peer in peers if not all(map(importlib.util.find_spec, PEERS[peer]))]
    peers = [peer for peer in peers if peer not in missing]
    rounds = 3 if _QUICK.value else _ROUNDS.value
    block_seconds = QUICK_BLOCK_SECONDS if _QUICK.value else BLOCK_SECONDS
    environment = _environment()
    report: dict[str, Any] = {
        "environment": environment,
        "rounds": rounds,
        "peers": peers,
        "not installed": missing,
        "networks": [],
    }
    with contextlib.ExitStack() as stack:
        workers = {
            library: stack.enter_context(Worker(library, _THREADS.value))
            for library in (
                *(FUSED, TIME_MAJOR, BFLOAT16, PREDICTOR, PREDICTOR_BFLOAT16),
                *peers,
            )
        }
        # The library may be built again while this runs; then the numbers are not of one build.
        builds = set()
        for worker in workers.values():
            versions = worker.ask("versions")
            builds |= {versions.pop(COMPILED_CODE)} if COMPILED_CODE in versions else set()
            environment.update(versions)
        for network in networks:
            result = time_network(network, workers, rounds, block_seconds)
            result["memory"] = {}
            for library in [FUSED, *(peer for peer in peers if peer != ONNX)]:
                memory = measure_memory(network, library, _THREADS.value, rounds)
                result["memory"][library] = memory["bytes"]
                builds |= {memory["versions"].get(COMPILED_CODE)} - {None}
            environment[COMPILED_CODE] = ", ".join(sorted(builds))
            report["networks"].append({"network": dataclasses.asdict(network), **result})
            file.write_text(json.dumps(report, indent=1) + "\n")
            print(network, flush=True)


def main(_: list[str]) -> None:
    directory = pathlib.Path(_OUTPUT.value)
    if not _RENDER.value:
        directory.mkdir(parents=True, exist_ok=True)
        run(directory / "cpu.json")
    for path in cpu_report.write(directory):
        print(path)


if __name__ == "__main__":
    app.run(main)
