#!/usr/bin/env python3
"""Keeps what runs wrote of the versions they ran with, and writes the table of all of them in docs.

A run writes a file when all of it has passed: `pytest --record-versions=FILE`, and the build of a
wheel into dist/. Files that are given here are copied beside this script, over older ones of their
names.
"""

import argparse
import importlib.metadata
import json
import pathlib
import re
import shutil
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = ROOT / "pip_package" / "tested_versions"
PAGE = ROOT / "docs" / "supported.md"
COLUMNS = ("TensorFlow", "Keras", "Python", "device", "installed from", "passed")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"


def record(path: str | pathlib.Path, passed: str) -> None:
    """Writes what this process runs with, and what of it has passed."""
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    info = crnn.info()
    device = "CPU"
    if info["backends"]["cudnn"] == "available":
        build = tf.sysconfig.get_build_info()
        device = f"GPU, CUDA {build['cuda_version']}, cuDNN {build['cudnn_version']}"
    origin = importlib.metadata.distribution("cudnn_rnn_tf").read_text("direct_url.json") or "{}"
    source = "source" if "dir_info" in json.loads(origin) else "wheel"
    values = (*(info[name.lower()] for name in COLUMNS[:3]), device, source, passed)
    run = dict(zip(COLUMNS, values, strict=True))
    pathlib.Path(path).write_text(json.dumps(run, indent=2) + "\n")


def table() -> str:
    """The runs that are kept, the newest versions first."""

    def order(run: dict[str, Any]) -> list[Any]:
        versions = (run["TensorFlow"], run["Python"])
        return [[-int(number) for number in re.findall(r"\d+", version)] for version in versions]

    runs = [json.loads(path.read_text()) for path in sorted(RUNS.glob("*.json"))]
    rows = [" | ".join(run[name] for name in COLUMNS) for run in sorted(runs, key=order)]
    return HEAD + "".join(f"| {row} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="what runs wrote")
    for path in parser.parse_args().files:
        shutil.copy(path, RUNS)
    pattern = re.escape(HEAD) + r"(?:\|.*\n)*"
    PAGE.write_text(re.sub(pattern, lambda _: table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
