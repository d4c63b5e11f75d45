"""Kills programs and fills disks by the hundreds, and writes down what came of it.

    make reliability ARGS="kills --count=100"
    make reliability ARGS="disks --count=20"
    make reliability ARGS="page"                only writes the page

Each run adds a line to `benchmarks/results/reliability.jsonl` and writes the page
`docs/internals/reliability.md` anew from all of them. Its exit status says whether anything failed.
"""

import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

# Results are computed on the CPU, since they are compared to the last bit. TensorFlow would log
# each time that it sees no GPU.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reliability.jsonl"
PAGE = ROOT / "docs" / "internals" / "reliability.md"
PACKAGES = ("tensorflow", "keras", "numpy", "torch", "onnx", "h5py")

# Each kind of run has a word for what its numbers count, and a text on what was done.
KINDS = {
    "kills": (
        "kills",
        "`examples/char_lm.py` is killed (SIGKILL), resumed and killed again, at random moments "
        "and while it writes. After each kill, the newest checkpoint must not be older than the "
        "newest one that was seen before, and its tensors must equal, bit for bit, those that an "
        "undisturbed run saved at the same step; at the end, so must the training history. "
        "`convert` is told to overwrite a file and is killed; afterwards, the file must be the "
        "whole old file or the whole new one. Programs that keep compiled kernels (`kernel code`) "
        "are killed as well.",
    ),
    "disks": (
        "programs",
        "The disks are file systems in memory. Some are read-only; the others are small, with "
        "random sizes, and some of these turned out to be large enough. `convert` and the training "
        "program must say in one line that they cannot write, and every program must leave the "
        "files that are there as they are. When there is room again, training must go on and end "
        "with the same bits as an undisturbed run.",
    ),
    "calls": (
        "calls",
        "The fuzzer calls ops and the native module as nobody would, and loads graphs and "
        "SavedModels whose nodes were edited. “ok” means that a call was accepted and returned.",
    ),
    "files": (
        "files",
        "The fuzzer damages files. The command `convert` must convert them, or say in one line "
        "what is wrong and write nothing (`files`). A layer whose file could not be loaded must "
        "stay as it was (`saved`); files without checksums may load with changed numbers.",
    ),
    "models": (
        "models",
        "The fuzzer draws layers, which must give the values and gradients of Keras's layers or of "
        "a reference in float64, models, whose accelerated copies must predict what they do, and "
        "ONNX graphs, which must be refused or converted to what ONNX Runtime computes.",
    ),
    "soak": (
        "steps or kills",
        "Threads of one process, and of two at once, ran inference and gradients, which must agree "
        "with a CPU's, and training steps, while memory was watched; steps ran out of memory; "
        "programs under `BackupAndRestore`, and one of two workers under "
        "`MultiWorkerMirroredStrategy`, were killed and resumed. Today the fuzzer's target "
        "`threads` does the first, and tests do the others.",
    ),
}


def append(row: dict[str, Any], path: pathlib.Path) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def read(path: pathlib.Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def environment() -> dict[str, Any]:
    """The commit, the versions and the machine; "+" says that the commit is not all that ran."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", ROOT, *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "cudnn_rnn_tf", "kernels", "ops", "tests")
    models = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed),
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in PACKAGES},
        },
        "machine": f"{len(models)} cores of {models[0]}" if models else platform.machine(),
    }


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def text(rows: list[dict[str, Any]]) -> str:
    """The page of these rows."""
    totals: dict[str, collections.Counter] = {kind: collections.Counter() for kind in KINDS}
    notes: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for number, row in enumerate(rows, 1):
        for what, ends in row["counts"].items():
            for end, count in ends.items():
                totals[row["run"]][what, end] += count
        notes[row["run"]] += [f"* {what}: {count:,}" for what, count in row.get("seen", {}).items()]
        notes[row["run"]] += [
            f"* Failed in [run](#the-runs) {number}: {each}" for each in row["failures"]
        ]
    summary = []
    for kind, (unit, _) in KINDS.items():
        of_kind = [row for row in rows if row["run"] == kind]
        failures = sum(len(row["failures"]) for row in of_kind)
        hours = sum(row["seconds"] for row in of_kind) / 3600
        how_many = f"{totals[kind].total():,} {unit}"
        summary.append([f"[{kind}](#{kind})", how_many, failures, f"{hours:.1f}"])
    parts = [
        "# Reliability: what was tried, and what failed",
        '`make reliability ARGS="kills --count=100"` kills programs that use the package, and '
        '`ARGS="disks --count=20"` fills their disks; each run adds a line to '
        "[reliability.jsonl](../../benchmarks/results/reliability.jsonl), from which this page is "
        "written. Wrong arguments, damaged files, random models and many threads are the work of "
        "the fuzzer, `make fuzz`, which prints what it found; some of its runs are here. A failure "
        "is a crash, a hang, an exception of a wrong type, a wrong result, memory that grows, a "
        "layer that is half restored, or a step that was saved and is lost.",
        _table(["run", "how many", "failures", "hours"], summary),
    ]
    for kind, (unit, about) in KINDS.items():
        of_what: dict[str, list[str]] = {}
        for (what, end), count in sorted(totals[kind].items()):
            of_what.setdefault(what, []).append(f"{end}: {count:,}")
        ends = [[what, "; ".join(found)] for what, found in of_what.items()]
        parts += [f"## {kind}", about, _table(["what", f"how many {unit} ended how"], ends)]
        parts += ["\n".join(notes[kind])] if notes[kind] else []
    runs = [
        [number, *(row[key] for key in ("run", "date", "commit", "machine"))]
        + [f"{row['seconds'] / 60:.0f}", ", ".join(map(" ".join, row["versions"].items()))]
        for number, row in enumerate(rows, 1)
    ]
    titles = ["", "run", "date", "commit", "machine", "minutes", "versions"]
    about_runs = "A + after a commit means that files had been changed since that commit."
    parts += ["## The runs", about_runs, _table(titles, runs)]
    plain = re.compile(r"[|#*]")
    return (
        "\n\n".join(
            part if plain.match(part) else textwrap.fill(part, 100, break_on_hyphens=False)
            for part in parts
        )
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=["kills", "disks", "page"])
    parser.add_argument("--count", type=int, default=10, help="kills, or sizes of disks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    row: dict[str, Any] = {"failures": []}
    if options.run != "page":
        import disks
        import kills

        program = kills.run if options.run == "kills" else disks.run
        start = time.monotonic()
        row = {"run": options.run, **environment(), "seed": options.seed}
        row |= program(options.count, options.seed)
        row["seconds"] = round(time.monotonic() - start)
        append(row, options.results)
        print(json.dumps(row))
    if options.results == RESULTS:
        PAGE.write_text(text(read()))
    return 1 if row["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
