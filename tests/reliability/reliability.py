"""Hostile calls, damaged files, kills and full disks by the hundreds, and what came of them.

    make reliability ARGS="calls --seconds=600"
    make reliability ARGS="files --seconds=600"
    make reliability ARGS="models --seconds=600"
    make reliability ARGS="kills --count=100"
    make reliability ARGS="disks --count=20"
    make reliability ARGS="add soak.jsonl"      takes over what `soak.py` has written

Each run adds a line to `benchmarks/results/reliability.jsonl` and writes the page in docs/internals
anew from all of them. Its exit status says whether anything failed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

# Results are computed on the CPU, since they are compared to the last bit. TensorFlow would log
# each time that it sees no GPU.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")

import native_programs
import page
import record

FUZZ = record.ROOT / "tests" / "fuzz" / "fuzz.py"
CACHE_FILES = 1000
TARGETS = {
    "calls": "raw_ops,graphs,native_module",
    "files": "files,saved,archives",
    "models": "layers,models,onnx_graphs",
}


def fuzz(targets: str, seconds: float, seed: int) -> dict[str, Any]:
    """Runs the fuzzer; counts the cases by target and end."""
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory, "report.json")
        command = [*record.PYTHON, FUZZ, f"--targets={targets}", f"--report={report}"]
        subprocess.run([*command, f"--seconds={seconds}", f"--seed={seed}"], check=False)
        found = json.loads(report.read_text())
    failures = [f"{each['kind']}: {json.dumps(each['case'])}" for each in found["failures"]]
    return {"counts": found["ends"], "seed": seed, "failures": failures}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what the options say; returns what is to be written down."""
    if options.run == "kills":
        import kills

        return kills.run(options.count, options.seed)
    if options.run == "disks":
        import disks

        disks.enter_namespace()
        return disks.run(options.count, options.seed)
    found = fuzz(TARGETS[options.run], options.seconds, options.seed)
    if options.run == "files":
        attacked, failures = native_programs.attack_caches("damage", CACHE_FILES, options.seed)
        found["counts"] |= attacked
        found["failures"] += failures
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="run", required=True)
    for name, size in (
        ("calls", "seconds"),
        ("files", "seconds"),
        ("models", "seconds"),
        ("kills", "count"),
    ):
        command = commands.add_parser(name)
        command.add_argument(f"--{size}", type=int, default=60)
    command = commands.add_parser("disks")
    command.add_argument("--count", type=int, default=10, help="sizes of disks, for each program")
    for command in commands.choices.values():
        command.add_argument("--seed", type=int, default=0)
    add = commands.add_parser("add")
    add.add_argument("file", type=pathlib.Path)
    for command in commands.choices.values():
        command.add_argument("--results", type=pathlib.Path, default=record.RESULTS)
    options = parser.parse_args(arguments)
    if options.run == "add":
        rows = record.read(options.file)
    else:
        row = {"run": options.run, **record.environment()}
        start = time.monotonic()
        row |= run(options)
        row["seconds"] = round(time.monotonic() - start)
        rows = [row]
    for row in rows:
        record.append(row, options.results)
    if options.results == record.RESULTS:
        page.write()
    return 1 if any(row["failures"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
