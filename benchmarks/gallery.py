"""Trains the programs of the gallery with Keras's layers and with this package's, in turn.

    python -m benchmarks.gallery --output=FILE    runs them, and adds a line for each run to FILE
    python -m benchmarks.gallery --report=FILE    prints the table of the page docs/gallery.md

Each run is a process of its own. `pip install -r examples/requirements.txt` installs the data.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from benchmarks import pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gallery.jsonl"
# These patterns find what each program prints of its model's quality.
QUALITY = {
    "tag_source": (r"held out: (\S+%) are right", "of the characters tagged right"),
    "forecast_co2": (r"off by (\S+ ppm);", "off"),
    "classify_speakers": (r"recordings: (\S+%) are right", "of the recordings told right"),
    "remember_sign": (r"last ten rollouts: (\S+%) are right", "of the turns right"),
}
# Keras has no layer for these, so that it runs a cell of the program's own.
IN_A_LOOP = {"remember_sign"}
SECONDS = r"seconds of training after the first \w+: (\S+)"


def run(program: str, stock: bool) -> dict[str, str | float]:
    """Returns what a program said of one training."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / f"{program}.py")]
        command += [f"--output={folder}/picture.png", *(["--stock"] if stock else [])]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return {
        "program": program,
        "layers": "keras" if stock else "cudnn_rnn_tf",
        "quality": re.search(QUALITY[program][0], done.stdout)[1],
        "seconds": float(re.search(SECONDS, done.stdout)[1]),
    }


def device() -> str:
    """Returns the first GPU's name, or what is known of the processor."""
    import tensorflow as tf

    if gpus := tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_device_details(gpus[0])["device_name"]
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return f"{model[1] if model else 'a CPU'}, {len(os.sched_getaffinity(0))} cores"


def table(lines: list[dict[str, str | float]]) -> str:
    """Returns a table of medians, with a row for each program and device.

    Where models of the two libraries differ in quality, the last cell says first that of Keras's.
    """
    titles = ("program", "on", "Keras", "this package", "ratio", "models of both are")
    rows = []
    for program, (_, quality) in QUALITY.items():
        of_program = [line for line in lines if line["program"] == program]
        for where in sorted({str(line["device"]) for line in of_program}):
            both = [
                [x for x in of_program if x["device"] == where and x["layers"] == layers]
                for layers in ("keras", "cudnn_rnn_tf")
            ]
            keras, ours = (statistics.median(float(x["seconds"]) for x in part) for part in both)
            ranges = [sorted({str(x["quality"]) for x in part}) for part in both]
            seen = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in ranges]
            cells = [f"[{program}.py](../examples/{program}.py)", where]
            loop = ", a loop over one's own cell" if program in IN_A_LOOP else ""
            cells += [f"{keras:.1f} s{loop}", f"{ours:.1f} s", f"{keras / ours:.1f}"]
            cells.append(f"{' (Keras) and '.join(dict.fromkeys(seen))} {quality}")
            rows.append(cells)
    return pages.table(titles, rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    if flags.report:
        print(table([json.loads(line) for line in flags.report.read_text().splitlines()]))
        return
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}
    where = {"device": device(), **versions}
    for number in range(flags.rounds):
        for program in QUALITY:
            for stock in (number % 2 == 0, number % 2 == 1):
                line = run(program, stock) | where
                print(line["program"], line["layers"], line["seconds"], flush=True)
                with open(flags.output, "a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
