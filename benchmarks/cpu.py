"""Times the CPU backend beside torch.nn, keras.layers and ONNX Runtime, and measures its memory.

    python -m benchmarks.cpu [--threads=2] [--memory] [--quick] [--networks=REGEX] [--rounds=15]
    python -m benchmarks.cpu --render

For every network it builds the model in each library, and times them in turn, round by round, in
random order, with all numbers of threads (`--threads=1,2,4`) before the next network begins. With
`--memory`, it also measures the memory of a training step. The run leaves results/cpu/NAME.json,
whose name says the processor, its cores, this package's instruction set and the numbers of threads,
and the page cpu.md, which is made of all files there. A peer that is not installed is left out and
named. `--render` only writes the page.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
from typing import Any

from benchmarks import cpu_environment, cpu_page, cpu_timing, json_rows, pages
from benchmarks.cpu_models import NETWORKS, NETWORKS_OF_DIFFERENT_LENGTHS, Network
from benchmarks.cpu_timing import IN_HALF_TYPES
from benchmarks.cpu_worker import COMPILED_CODE, EXACT_MALLOC, FUSED, ONNX, PREDICTOR, Worker


def measure_memory(network: Network, library: str, threads: int, steps: int) -> dict[str, Any]:
    """What a training step of one library has in use at its peak, in a process of its own.

    Returns:
        `bytes`: for each of some steps, what it added to the resident set at its peak, plus what
        was there before (inputs, weights and the outputs' gradient); and `versions`.
    """
    with Worker(library, threads, EXACT_MALLOC) as worker:
        worker.ask("load", network)
        added = worker.ask("training_memory", steps)
        return {
            "bytes": [network.held_bytes + peak for peak in added],
            "versions": worker.ask("versions"),
        }


def _name(environment: dict[str, str], counts: list[int], with_memory: bool) -> str:
    words = re.findall(r"[a-z0-9]+", environment["processor"].lower().replace("(r)", ""))
    words += [environment["cores"], "cores", environment["instruction set"], *map(str, counts)]
    return "_".join([*words, "threads", *(["memory"] if with_memory else [])]) + ".json"


def run(
    folder: pathlib.Path,
    networks: list[Network],
    counts: list[int],
    with_memory: bool,
    rounds: int,
    seconds: float,
) -> None:
    """Runs networks with numbers of threads; the file has all finished networks at any time."""
    peers, missing = cpu_timing.find_peers()
    environment = cpu_environment.environment()
    runs: list[dict[str, Any]] = []
    report = {
        "environment": environment,
        "rounds": rounds,
        "peers": peers,
        "not installed": missing,
        "runs": runs,
    }
    with contextlib.ExitStack() as stack:
        workers = {
            (threads, library): stack.enter_context(Worker(library, threads))
            for threads in counts
            for library in (FUSED, PREDICTOR, *IN_HALF_TYPES, *peers)
        }
        # If the library is built again while this runs, the numbers come from more than one build.
        builds = set()
        for worker in workers.values():
            versions = worker.ask("versions")
            builds |= {versions.get(COMPILED_CODE)} - {None}
            environment.update(versions)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _name(environment, counts, with_memory)
        for network, threads in itertools.product(networks, counts):
            of_count = {
                library: one for (count, library), one in workers.items() if count == threads
            }
            result = cpu_timing.time_network(network, of_count, rounds, seconds)
            if with_memory:
                result["memory"] = {}
                for library in [FUSED, *(peer for peer in peers if peer != ONNX)]:
                    memory = measure_memory(network, library, threads, rounds)
                    result["memory"][library] = memory["bytes"]
                    builds |= {memory["versions"].get(COMPILED_CODE)} - {None}
            environment[COMPILED_CODE] = ", ".join(sorted(builds))
            runs.append({"threads": threads, "network": dataclasses.asdict(network), **result})
            file.write_text(json_rows.dumps(report))
            print(threads, network, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=pages.RESULTS)
    parser.add_argument("--networks", default="", help='As a pattern: "LSTM 1, 64, 100", say.')
    parser.add_argument(
        "--threads", default=str(len(os.sched_getaffinity(0))), help="Of each library."
    )
    parser.add_argument("--memory", action="store_true", help="Measure memory, too.")
    parser.add_argument("--rounds", type=int, default=15, help="Rounds per network.")
    parser.add_argument("--quick", action="store_true", help="3 short rounds: to see that it runs.")
    parser.add_argument("--render", action="store_true", help="Only write the pages.")
    options = parser.parse_args()
    counts = sorted({int(count) for count in options.threads.split(",")})
    if not options.render:
        known = (*NETWORKS, *(() if options.memory else NETWORKS_OF_DIFFERENT_LENGTHS))
        networks = [network for network in known if re.search(options.networks, str(network))]
        if not networks:
            parser.error(f"no network has {options.networks!r}: {'; '.join(map(str, known))}")
        rounds = 3 if options.quick else options.rounds
        seconds = 0.05 if options.quick else 0.1
        run(options.output / "cpu", networks, counts, options.memory, rounds, seconds)
    cpu_page.write(options.output)


if __name__ == "__main__":
    main()
