"""How the CPU benchmarks compare and time libraries, and what describes their runs."""

import datetime
import importlib.util
import itertools
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

from benchmarks.cpu_models import Network
from benchmarks.cpu_worker import (
    FUSED,
    HALF_TYPES,
    ONNX,
    PEERS,
    PREDICTOR,
    Worker,
    in_half_type,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The largest accepted differences, as parts of the largest magnitude in a tensor. Float32 rounds at
# 6e-8; a weight's gradient adds up T * B products, and steps and layers amplify earlier
# differences.
TOLERANCE = {"outputs": 1e-5, "gradient": 1e-4}
HALF_TYPES_TOLERANCE = 0.05  # This is ten times bfloat16's rounding error.

# In a round, a library is timed within these numbers of calls. Shared machines are slow for tenths
# of a second at a time, so many short rounds tell more than a few long ones.
CALLS = (1, 300)
# The threads of the library before take this long to fall asleep.
PAUSE_SECONDS = 0.03

IN_HALF_TYPES = [in_half_type(*both) for both in itertools.product((FUSED, PREDICTOR), HALF_TYPES)]
_INFERENCE_ONLY = (ONNX, PREDICTOR, *(in_half_type(PREDICTOR, dtype) for dtype in HALF_TYPES))


def find_peers() -> tuple[list[str], list[str]]:
    """The other libraries that are installed, and those that are not."""
    missing = [peer for peer in PEERS if not all(map(importlib.util.find_spec, PEERS[peer]))]
    return [peer for peer in PEERS if peer not in missing], missing


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
            if library in IN_HALF_TYPES and name != "outputs":
                continue
            expected = results[FUSED][name]
            if tensor.shape != expected.shape:
                raise ValueError(
                    f"{network}: {name} of {library} has shape {tensor.shape}, but of {FUSED} "
                    f"{expected.shape}"
                )
            # The recurrent weights of a single step from zero states have a gradient of zero.
            largest_magnitude = np.abs(expected).max() or 1.0
            difference = float(np.abs(tensor - expected).max() / largest_magnitude)
            tolerance = TOLERANCE["gradient" if name.startswith("gradient") else "outputs"]
            tolerance = HALF_TYPES_TOLERANCE if library in IN_HALF_TYPES else tolerance
            if not difference <= tolerance:  # This also rejects NaN.
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
    for worker in workers.values():
        worker.send("load", network, True)
    results = {library: worker.receive() for library, worker in workers.items()}
    differences = check_results(network, results)
    workers[FUSED].ask("load_yardsticks")
    jobs = [("inference", library) for library in workers]
    jobs += [("training", library) for library in workers if library not in _INFERENCE_ONLY]
    jobs += [("matmul", FUSED), ("tf.function", FUSED)]

    calls = {}
    for what, library in jobs:
        seconds = workers[library].ask("time", what, CALLS[0])
        calls[what, library] = min(max(round(block_seconds / seconds), CALLS[0]), CALLS[1])
    samples: dict[str, dict[str, list[float]]] = {what: {} for what, _ in jobs}
    for _ in range(rounds):
        for what, library in random.sample(jobs, len(jobs)):
            time.sleep(PAUSE_SECONDS)
            seconds = workers[library].ask("time", what, calls[what, library])
            samples[what].setdefault(library, []).append(seconds)
    return {"differences": differences, "seconds": samples}


def environment() -> dict[str, str]:
    """What describes a run, but for the libraries' versions."""

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
        "cores": str(len(os.sched_getaffinity(0))),
        "cores of the machine": str(os.cpu_count()),
        "load average before the run": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
    }
