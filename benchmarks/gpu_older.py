"""Times the persistent kernels of older GPUs, as a newer GPU runs them, beside cuDNN.

On a Hopper GPU, in the root of the repository:

    python -m benchmarks.gpu_older --output=DIR --commit=HASH

leaves DIR/SYSTEM.jsonl for each system of SYSTEMS, in some minutes. Anywhere, from these files:

    python -m benchmarks.gpu_older --output=DIR --report

writes benchmarks/results/gpu_older.md and its plot. The files that the committed page was made from
are in benchmarks/results/gpu_older.

A system has a process of its own, which imitates a GPU by `CUDNN_RNN_TF_IMITATE_GPU`; "Hopper" is
the GPU itself. A step is one training step of a layer in a `tf.function`: a forward and a backward
pass, with all gradients. The data are the same in all systems. For "lengths", each step has another
draw of lengths, uniform in [T/4, T], in host memory; for "full", all sequences have T steps. In a
sample, steps run back to back for about 50 ms, then the device is waited for; variants take turns,
and the median of the samples counts. Each process times cuDNN too, on the whole GPU, since the host
takes most of a small network's step, and not the same time in all processes; with different
lengths, cuDNN takes so long that only "Hopper" times it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

from absl import app, flags

from benchmarks import gpu_environment, pages, systems
from benchmarks.gpu_older_page import ROWS, SYSTEMS, VARIANTS, page, plot, read
from benchmarks.rows import Row
from benchmarks.timing import StepFunction, sample_in_turns

_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page, measure nothing.")
_SYSTEM = flags.DEFINE_string("system", "", "The one system to measure; empty for all.")
_ROWS = flags.DEFINE_string("rows", "", "A regular expression: the rows to time.")
_VARIANTS = flags.DEFINE_list("variants", list(VARIANTS), "What to time: lengths, full.")


def _step(row: Row, variant: str, algorithm: str) -> StepFunction:
    draws = systems.host_lengths(row) if variant == "lengths" else [None]
    return systems.ours(row, draws, algorithm)


def _measure(system: str, path: pathlib.Path) -> None:
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    environment = {
        **gpu_environment.environment(_COMMIT.value),
        "TensorFlow": tf.__version__,
        "imitated": os.environ.get("CUDNN_RNN_TF_IMITATE_GPU", ""),
    }
    with path.open("w") as file:
        print(json.dumps({"environment": environment}), file=file)
        for row in ROWS:
            if row.type not in SYSTEMS[system] or not re.search(_ROWS.value, str(row)):
                continue
            steps: dict[str, StepFunction] = {}
            kernels = {}
            # cuDNN may run a row at full length only. So this is first, and its kernels are told
            # from those for different lengths.
            for variant in sorted(_VARIANTS.value):
                before = set(crnn.info()["gpu"]["kernels"].items())
                steps[variant] = _step(row, variant, "auto")
                steps[variant](0)
                kernels[variant] = sorted(set(crnn.info()["gpu"]["kernels"].items()) - before)
                if variant == "full" or system == "Hopper":
                    steps[f"cudnn_{variant}"] = _step(row, variant, "cudnn")
            samples = sample_in_turns(steps, tf.test.experimental.sync_devices)
            for variant, milliseconds in samples.items():
                result = {"row": str(row), "variant": variant, "ms": milliseconds}
                result["kernels"] = kernels.get(variant, [])  # Those that it was the first to use.
                print(json.dumps(result), file=file, flush=True)


def main(_: list[str]) -> None:
    directory = pathlib.Path(_OUTPUT.value)
    if _REPORT.value:
        times, environments = read(directory)
        (pages.RESULTS / "gpu_older.md").write_text(page(times, environments))
        plot(times, pages.RESULTS / "gpu_older.svg")
        return
    directory.mkdir(parents=True, exist_ok=True)
    if _SYSTEM.value:
        path = directory / f"{_SYSTEM.value.replace(' ', '_')}.jsonl"
        _measure(_SYSTEM.value, path)
        return
    for system in SYSTEMS:
        subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.gpu_older", f"--system={system}"),
                *(f"--output={directory}", f"--commit={_COMMIT.value}", f"--rows={_ROWS.value}"),
                f"--variants={','.join(_VARIANTS.value)}",
            ],
            env={
                **os.environ,
                "CUDNN_RNN_TF_IMITATE_GPU": "" if system == "Hopper" else system,
            },
            check=True,
        )


if __name__ == "__main__":
    app.run(main)
