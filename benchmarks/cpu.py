"""Times the CPU backend beside torch.nn, keras.layers and ONNX Runtime, and measures its memory.

    python -m benchmarks.cpu [--threads=2] [--quick] [--networks=REGEX] [--rounds=15]
    python -m benchmarks.cpu --render

For every network it builds the model in each library, checks that all give the same numbers, and
times them in turn, round by round, in random order. What is in results/ was left by

* one number of threads, which also measures the memory of a training step: cpu.json, cpu.md and its
  plots;
* several numbers of threads, as in `--threads=1,2,4`, all of which run a network before the next
  one begins: cpu_threads/NAME.json, whose name says the processor, its cores, this package's
  instruction set and the numbers of threads. The page cpu_threads.md is made of all files there.

A peer that is not installed is left out and named. `--render` writes all pages from the files.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
from typing import Any

from benchmarks import cpu_report, cpu_threads_page, cpu_timing, json_rows, pages
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
        worker.ask("load", network, False)
        added = worker.ask("training_memory", steps)
        return {
            "bytes": [network.held_bytes + peak for peak in added],
            "versions": worker.ask("versions"),
        }


def _file_for(directory: pathlib.Path, environment: dict[str, str], counts: list[int]) -> Any:
    if len(counts) == 1:
        return directory / "cpu.json"
    words = re.findall(r"[a-z0-9]+", environment["processor"].lower().replace("(r)", ""))
    words += [environment["cores"], "cores", environment["instruction set"]]
    return directory / "cpu_threads" / f"{'_'.join([*words, *map(str, counts), 'threads'])}.json"


def run(
    directory: pathlib.Path, networks: list[Network], counts: list[int], rounds: int, seconds: float
) -> None:
    """Runs networks with numbers of threads; the file has all finished networks at any time."""
    peers, missing = cpu_timing.find_peers()
    environment = cpu_timing.environment()
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
        workers[counts[0], FUSED].ask("check_is_current")
        # If the library is built again while this runs, the numbers come from more than one build.
        builds = set()
        for worker in workers.values():
            versions = worker.ask("versions")
            builds |= {versions.get(COMPILED_CODE)} - {None}
            environment.update(versions)
        file = _file_for(directory, environment, counts)
        file.parent.mkdir(parents=True, exist_ok=True)
        for network, threads in itertools.product(networks, counts):
            of_count = {
                library: one for (count, library), one in workers.items() if count == threads
            }
            result = cpu_timing.time_network(network, of_count, rounds, seconds)
            if len(counts) == 1:
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
    parser.add_argument("--rounds", type=int, default=15, help="Rounds per network.")
    parser.add_argument("--quick", action="store_true", help="3 short rounds: to see that it runs.")
    parser.add_argument("--render", action="store_true", help="Only write the pages.")
    options = parser.parse_args()
    counts = sorted({int(count) for count in options.threads.split(",")})
    if not options.render:
        known = (*NETWORKS, *(NETWORKS_OF_DIFFERENT_LENGTHS if len(counts) > 1 else ()))
        networks = [network for network in known if re.search(options.networks, str(network))]
        if not networks:
            parser.error(f"no network has {options.networks!r}: {'; '.join(map(str, known))}")
        rounds = 3 if options.quick else options.rounds
        run(options.output, networks, counts, rounds, 0.05 if options.quick else 0.1)
    cpu_report.write(options.output)
    cpu_threads_page.write(options.output)


if __name__ == "__main__":
    main()
