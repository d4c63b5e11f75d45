"""How the CPU benchmark times libraries."""

import importlib.util
import itertools
import random
import time
from collections.abc import Mapping
from typing import Any

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


def time_network(
    network: Network, workers: Mapping[str, Worker], rounds: int, block_seconds: float
) -> dict[str, Any]:
    """Times one network.

    Returns:
        `seconds`: by what was timed and by library, the median call of each round.
    """
    for worker in workers.values():
        worker.send("load", network)
    for worker in workers.values():
        worker.receive()
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
    return {"seconds": samples}
