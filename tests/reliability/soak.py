"""Hours of mixed work, as those who serve and train do it, on the GPU where there is one.

    python tests/reliability/soak.py --seconds=1200 --out=soak.jsonl

Eight threads train and infer with changing shapes and lengths and compare with a CPU, in one
process for three quarters of the time and in two at once for the rest, while the memory is watched.
Then steps run out of memory, each failure being followed by a small step; and a program that trains
under `keras.callbacks.BackupAndRestore` is killed in the middle of epochs and resumed. The last two
take some minutes more, whatever the time. What came of it is added to the file as one line, for
`reliability.py add` to take over. The exit status says whether anything failed.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import record

WORK = pathlib.Path(__file__).with_name("soak_work.py")
PARTS = ("threads", "processes", "memory", "backup")
# How the time is shared out between those that take as long as they are told to.
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
        # Later and later, so that each is reached.
        for epoch in sorted(rng.choices(range(4), k=kills)):
            process = start("backup", disturbed, epoch, rng.randrange(11))
            try:
                process.communicate(timeout=600)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise EndError(f"it hung before it was killed in epoch {epoch}") from error
            if process.returncode != -signal.SIGKILL:
                raise EndError(f"it was not killed in epoch {epoch}: {process.returncode}")
        finish([start("backup", disturbed, -1, -1)])
        weights = [_weights(folder / "weights.npz") for folder in (disturbed, undisturbed)]
        same = [a.tobytes() == b.tobytes() for a, b in zip(*weights, strict=True)]
    failures = [] if all(same) else [f"{same.count(False)} of {len(same)} weights differ"]
    ends = {"resumed, in the end equal to the bit": kills * all(same)}
    return {"counts": {"kills under BackupAndRestore": ends}, "failures": failures}


def _weights(path: pathlib.Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[name] for name in file.files]


def start(*arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [*record.PYTHON, WORK, *map(str, arguments)],
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
    parser.add_argument("--kills", type=int, default=2, help="under BackupAndRestore")
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
