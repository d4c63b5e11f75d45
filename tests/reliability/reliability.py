"""Hostile calls and damaged files by the ten thousands, and what came of them.

    make reliability ARGS="calls --seconds=600"

Each run adds a line to `benchmarks/results/reliability.jsonl` and writes `docs/reliability.md` anew
from all of them. Its exit status says whether anything failed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import page
import record

FUZZ = record.ROOT / "tests" / "fuzz" / "fuzz.py"
TARGETS = {"calls": "raw_ops,graphs,native_module", "files": "files,saved"}


def fuzz(targets: str, seconds: float, seed: int) -> dict[str, Any]:
    """Runs the fuzzer; counts the cases by target and end."""
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory, "report.json")
        command = [sys.executable, FUZZ, f"--targets={targets}", f"--report={report}"]
        subprocess.run([*command, f"--seconds={seconds}", f"--seed={seed}"], check=False)
        found = json.loads(report.read_text())
    return {"counts": found["ends"], "seed": seed, "failures": found["failures"]}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what the options say; returns what is to be written down."""
    return fuzz(TARGETS[options.run], options.seconds, options.seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="run", required=True)
    for name in TARGETS:
        command = commands.add_parser(name, help=f"fuzzes {TARGETS[name]}")
        command.add_argument("--seconds", type=float, default=60)
        command.add_argument("--seed", type=int, default=0)
    for command in commands.choices.values():
        command.add_argument("--results", type=pathlib.Path, default=record.RESULTS)
    options = parser.parse_args(arguments)
    row = {"run": options.run, **record.environment()}
    start = time.monotonic()
    row |= run(options)
    row["seconds"] = round(time.monotonic() - start)
    record.append(row, options.results)
    if options.results == record.RESULTS:
        page.write()
    return 1 if row["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
