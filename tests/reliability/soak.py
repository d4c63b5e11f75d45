"""Hours of mixed work, as those who serve and train do it, on the GPU where there is one.

    python tests/reliability/soak.py --seconds=1200 --out=soak.jsonl

Eight threads train and infer with changing shapes and lengths and compare with a CPU, in one
process for three quarters of the time and in two at once for the rest, while the memory is watched.
Then steps run out of memory, each failure being followed by a small step. A program that trains
under `keras.callbacks.BackupAndRestore`, and one of two workers under
`tf.distribute.MultiWorkerMirroredStrategy`, are killed in the middle of epochs and resumed. These
last three take some minutes more, whatever the time. What came of it is added to the file as one
line, for `reliability.py add` to take over. The exit status says whether anything failed.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import record

WORK = pathlib.Path(__file__).with_name("soak_work.py")
WORKERS = pathlib.Path(__file__).with_name("two_workers.py")
# The programs that are killed train for this many epochs.
EPOCHS = 4
PARTS = ("threads", "processes", "memory", "backup", "workers")
# The shares of the time of those parts that take as long as they are told to.
SHARES = {"threads": 3, "processes": 1}


class EndError(Exception):
    """A process that did not end as it should."""


def run(seconds: float, seed: int, parts: Sequence[str], kills: int) -> dict[str, Any]:
    """What came of the parts, together."""
    found: dict[str, Any] = {"counts": {}, "failures": [], "memory": {}, "seed": seed}
    shares = {part: share for part, share in SHARES.items() if part in parts}
    times = {part: seconds * share / sum(shares.values()) for part, share in shares.items()}
    programs = {
        "threads": lambda: work_in_threads("one process", times["threads"], [seed]),
        "processes": lambda: work_in_threads(
            "two processes at once", times["processes"], [seed + 1, seed + 2]
        ),
        "memory": lambda: finish([start("memory")]),
        "backup": lambda: [kill_and_resume(kills, random.Random(seed))],
        "workers": lambda: [kill_a_worker(kills, random.Random(seed))],
    }
    for part in parts:
        try:
            results = programs[part]()
        except EndError as failure:
            found["failures"].append(f"{part}: {failure}")
            continue
        for result in results:
            found["failures"] += [f"{part}: {failure}" for failure in result["failures"]]
            for what, ends in result["counts"].items():
                of_what = found["counts"].setdefault(what, collections.Counter())
                of_what.update(ends)
            if "memory" in result:
                found["memory"].setdefault(part, []).append(result["memory"])
            if "device" in result:
                found["machine"] = result["device"]
    return found


def work_in_threads(where: str, seconds: float, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Runs the threads in a process for each of the seeds, at the same time."""
    results = finish([start("threads", seconds, seed) for seed in seeds], seconds)
    for result in results:
        result["counts"] = {f"{what}, {where}": n for what, n in result["counts"].items()}
    return results


def kill_and_resume(kills: int, rng: random.Random) -> dict[str, Any]:
    """Kills a program in the middle of epochs; in the end its weights are those of another."""
    with tempfile.TemporaryDirectory() as name:
        disturbed, undisturbed = (pathlib.Path(name, folder) for folder in ("a", "b"))
        disturbed.mkdir()
        undisturbed.mkdir()
        finish([start("backup", undisturbed, -1, -1)])
        # The epochs are sorted, so that the resumed runs reach each of them.
        for epoch in sorted(rng.choices(range(EPOCHS), k=kills)):
            process = start("backup", disturbed, epoch, rng.randrange(11))
            try:
                process.communicate(timeout=600)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise EndError(f"it hung before it was killed in epoch {epoch}") from error
            if process.returncode != -signal.SIGKILL:
                raise EndError(f"it was not killed in epoch {epoch}: {process.returncode}")
        (last,) = finish([start("backup", disturbed, -1, -1)])
        _check_epochs(last, [EPOCHS - epoch])
        return _compare("kills under BackupAndRestore", kills, [disturbed, undisturbed])


def kill_a_worker(kills: int, rng: random.Random) -> dict[str, Any]:
    """Kills one of two workers in the middle of epochs; each time both begin anew."""
    never = (-1, -1)
    with tempfile.TemporaryDirectory() as name:
        disturbed, undisturbed = (pathlib.Path(name, folder) for folder in ("a", "b"))
        finish(_start_workers(undisturbed, [never, never]))
        for epoch in sorted(rng.choices(range(EPOCHS), k=kills)):
            killed = rng.randrange(2)
            kill_at = [never, never]
            kill_at[killed] = (epoch, rng.randrange(12))
            workers = _start_workers(disturbed, kill_at)
            try:
                workers[killed].communicate(timeout=600)
                status = workers[killed].returncode
                if status != -signal.SIGKILL:
                    raise EndError(f"a worker was not killed in epoch {epoch}: {status}")
            except subprocess.TimeoutExpired as error:
                raise EndError(f"it hung before it was killed in epoch {epoch}") from error
            finally:
                # The other worker waits for the killed one, so it is ended too, as a cluster would
                # do.
                for worker in workers:
                    worker.kill()
                    worker.communicate()
        # The first worker may already have saved the epoch in whose last step the other was killed.
        for last in finish(_start_workers(disturbed, [never, never])):
            _check_epochs(last, [EPOCHS - epoch, EPOCHS - epoch - 1])
        folders = [folder / index for folder in (disturbed, undisturbed) for index in "01"]
        return _compare("kills of one of two workers", kills, folders)


def _start_workers(
    folder: pathlib.Path, kill_at: Sequence[tuple[int, int]]
) -> list[subprocess.Popen]:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("localhost", 0))
        ports = [one.getsockname()[1] for one in (first, second)]
    return [start(folder, index, *ports, *kill_at[index], program=WORKERS) for index in range(2)]


def _check_epochs(result: dict[str, Any], expected: Sequence[int]) -> None:
    """A run that began anew would end with the same weights."""
    if result["epochs"] not in expected:
        raise EndError(f"the last run took {result['epochs']} epochs, not {expected}")


def _compare(what: str, kills: int, folders: Sequence[pathlib.Path]) -> dict[str, Any]:
    """All folders are to have the same weights."""
    weights = [_weights(folder / "weights.npz") for folder in folders]
    same = [
        len({array.tobytes() for array in arrays}) == 1 for arrays in zip(*weights, strict=True)
    ]
    failures = [] if all(same) else [f"{same.count(False)} of {len(same)} weights differ"]
    ends = {"resumed; the final weights are equal to the bit": kills * all(same)}
    return {"counts": {what: ends}, "failures": failures}


def _weights(path: pathlib.Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[name] for name in file.files]


def start(*arguments: object, program: pathlib.Path = WORK) -> subprocess.Popen:
    return subprocess.Popen(
        [*record.PYTHON, program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ},
    )


def finish(processes: list[subprocess.Popen], seconds: float = 0) -> list[dict[str, Any]]:
    """What each has printed last.

    Raises:
        EndError: if one did not end well, or in time.
    """
    results = []
    try:
        for process in processes:
            printed, errors = process.communicate(timeout=2 * seconds + 600)
            if process.returncode != 0:
                raise EndError(f"status {process.returncode}: {errors[-1500:]}")
            results.append(json.loads(printed.splitlines()[-1]))
    except subprocess.TimeoutExpired as error:
        raise EndError("it hung") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1200, help="of the first two parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--kills", type=int, default=2, help="in each of the last two parts")
    parser.add_argument("--commit", help="where this is no clone of the repository")
    parser.add_argument("--out", type=pathlib.Path, default=record.RESULTS)
    options = parser.parse_args(arguments)
    row = {"run": "soak", **record.environment()}
    row["commit"] = options.commit or row["commit"]
    begin = time.monotonic()
    row |= run(options.seconds, options.seed, options.parts.split(","), options.kills)
    row["seconds"] = round(time.monotonic() - begin)
    record.append(row, options.out)
    print(json.dumps({name: row[name] for name in ("counts", "seconds", "failures")}, indent=1))
    return 1 if row["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
