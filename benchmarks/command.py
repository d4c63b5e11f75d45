"""What the benchmarks' commands share: their options, the page, and a process for each measurement.

On the machine that is to be measured, in the root of the repository,

    python -m benchmarks.NAME --output=FILE.jsonl --commit=HASH

adds a line for each measurement to the file. Anywhere,

    python -m benchmarks.NAME --report

writes the page beside the file, and its plot if it has one. Unless `--output` names another file,
it is that of the page in benchmarks/results.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import machine, pages


def run(
    about: str,
    measure: Callable[[argparse.Namespace], None],
    page: Callable[[pathlib.Path], str],
    plot: Callable[[pathlib.Path, pathlib.Path], None] | None = None,
    **more: dict[str, Any],
) -> None:
    """Runs a benchmark's command.

    Args:
        about: The benchmark's docstring.
        measure: Is given the options.
        page: Returns the page of a file.
        plot: Draws a file into a picture, an SVG beside it.
        more: Names of more options, each with the arguments that the parser takes for it.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    file = pages.RESULTS / f"{pathlib.Path(sys.argv[0]).stem}.jsonl"
    parser.add_argument("--output", type=pathlib.Path, default=file, help="The file of results.")
    parser.add_argument("--commit", default="unknown", help="The commit that is run.")
    parser.add_argument("--only", default="", help="A regular expression: what to measure.")
    parser.add_argument("--report", action="store_true", help="Write the page.")
    for name, arguments in more.items():
        parser.add_argument(f"--{name}", **arguments)
    options = parser.parse_args()
    if not options.report:
        measure(options)
        return
    options.output.with_suffix(".md").write_text(page(options.output))
    if plot:
        plot(options.output, options.output.with_suffix(".svg"))


def measure_each(
    module: str, calls: Iterable[tuple], options: argparse.Namespace, *libraries: str
) -> None:
    """Adds the lines that a benchmark's `measure` prints, in a process of its own for each call."""
    with options.output.open("a") as file:
        about = machine.environment(options.commit, *libraries)
        print(json.dumps({"environment": about}), file=file, flush=True)
        for call in calls:
            program = f"from benchmarks import {module}; {module}.measure(*{call!r})"
            process = subprocess.run(
                ["timeout", "200", sys.executable, "-c", program],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            for line in process.stdout.splitlines():
                if line.startswith("{"):
                    print(line, flush=True)
                    print(line, file=file, flush=True)
            if process.returncode:
                print(f"{call} ended with {process.returncode}", file=sys.stderr, flush=True)
