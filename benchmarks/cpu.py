"""Times the CPU backend beside torch.nn, keras.layers and ONNX Runtime, and measures its memory.

    python -m benchmarks.cpu [--quick] [--shapes=REGEX] [--peers=torch,keras,onnxruntime]

For every network it builds the model in each library, checks that all give the same numbers, times
them in turn, round by round, in random order, and measures the memory of a training step. It leaves
cpu.json (every round's median), cpu.md and cpu.svg in --output. A peer that is not installed is
left out and named. `--render` writes the last two from the first again.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
from typing import Any

from absl import app, flags

from benchmarks import cpu_report, cpu_timing, json_rows
from benchmarks.cpu_models import NETWORKS, Network
from benchmarks.cpu_timing import IN_HALF_TYPES
from benchmarks.cpu_worker import COMPILED_CODE, EXACT_MALLOC, FUSED, ONNX, PREDICTOR, Worker

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


def run(file: pathlib.Path) -> None:
    """Runs the benchmark as the flags say; the file has all finished networks at any time."""
    networks = [network for network in NETWORKS if re.search(_SHAPES.value, str(network))]
    if not networks:
        raise app.UsageError(
            f"expected --shapes to match one of {'; '.join(map(str, NETWORKS))}, but received "
            f"{_SHAPES.value!r}"
        )
    peers, missing = cpu_timing.find_peers(_PEERS.value)
    rounds = 3 if _QUICK.value else _ROUNDS.value
    block_seconds = cpu_timing.block_seconds(_QUICK.value)
    environment = cpu_timing.environment()
    environment["threads of each library"] = str(_THREADS.value)
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
            for library in (FUSED, PREDICTOR, *IN_HALF_TYPES, *peers)
        }
        workers[FUSED].ask("check_is_current")
        # If the library is built again while this runs, the numbers come from more than one build.
        builds = set()
        for worker in workers.values():
            versions = worker.ask("versions")
            builds |= {versions.pop(COMPILED_CODE)} if COMPILED_CODE in versions else set()
            environment.update(versions)
        for network in networks:
            result = cpu_timing.time_network(network, workers, rounds, block_seconds)
            result["memory"] = {}
            for library in [FUSED, *(peer for peer in peers if peer != ONNX)]:
                memory = measure_memory(network, library, _THREADS.value, rounds)
                result["memory"][library] = memory["bytes"]
                builds |= {memory["versions"].get(COMPILED_CODE)} - {None}
            environment[COMPILED_CODE] = ", ".join(sorted(builds))
            report["networks"].append({"network": dataclasses.asdict(network), **result})
            file.write_text(json_rows.dumps(report))
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
