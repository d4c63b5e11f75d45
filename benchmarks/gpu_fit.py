"""Measures what a user of `model.fit` notices on a GPU: time, memory and the first step.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_fit --output=FILE.jsonl --commit=HASH [--rows=REGEX]

adds a line for each measurement to the file; `--rows` names dtype policies or networks. Anywhere,

    python -m benchmarks.gpu_fit --report --output=FILE.jsonl

writes the page benchmarks/results/gpu_fit.md; of equal measurements, the last one counts. Every
measurement has a process of its own; those of first steps run three at a time.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from typing import Any

from absl import app, flags

from benchmarks import fit_model, gpu_environment, pages
from benchmarks.fit_model import (
    BATCH,
    BATCHES,
    CHECK_ROWS,
    COMPILED,
    EPOCHS,
    STEPS,
    SYSTEMS,
    VOCABULARY,
)
from benchmarks.gpu_lengths_rows import Row

_OUTPUT = flags.DEFINE_string("output", None, "The file of results.")
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page instead of measuring.")
_ROWS = flags.DEFINE_string("rows", "", "A regular expression: the rows to measure.")
_CHILD = flags.DEFINE_string("child", None, "A measurement and its arguments, as JSON, for itself.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
POLICIES = (
    *("float32", f"float32, {COMPILED}"),
    *("mixed_float16", CHECK_ROWS, f"mixed_float16, {COMPILED}"),
    *("mixed_bfloat16", f"mixed_bfloat16, {COMPILED}"),
)
# Networks whose first step and memory are measured.
NETWORKS = [
    Row("lstm", 1, 256, 1, 64, 200, "float16", True),
    Row("lstm", 1, 256, 1, 64, 200, "tf32", True),
    Row("lstm", 1, 512, 1, 64, 200, "tf32", True),
    Row("gru", 2, 128, 1, 64, 50, "tf32", True),
    Row("lstm", 3, 320, 2, 32, 400, "float16", True),
    Row("lstm", 1, 1024, 1, 64, 100, "float16", True),
]


def _step(system: str, index: int) -> dict[str, Any]:
    """Runs training steps of a network with a mask: the first one's time, and the peak memory."""
    import keras
    import numpy as np
    import tensorflow as tf

    row = NETWORKS[index]
    dtype, cell = row.dtype, row.mode.upper()
    keras.config.set_dtype_policy(dtype)
    lengths = np.random.default_rng(0).integers(row.time // 4, row.time + 1, row.batch)

    def step_of(layers, inputs, mask):
        for layer in layers:
            layer.build(inputs.shape)
            inputs = tf.zeros((*inputs.shape[:2], row.outputs), inputs.dtype)
        variables = [v for layer in layers for v in layer.trainable_variables]

        @tf.function
        def step(inputs, mask):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = inputs
                for layer in layers:
                    outputs = layer(outputs, mask=mask, training=True)
            return tape.gradient(outputs, [inputs, *variables])

        return step

    # Another network loads the libraries.
    others = tf.zeros((3, 5, 24), dtype), tf.sequence_mask([5, 2, 3], 5)
    step_of(fit_model.recurrent(system, cell, 1, 24, 1), *others)(*others)
    data = tf.zeros((row.batch, row.time, row.units), dtype), tf.sequence_mask(lengths, row.time)
    made = fit_model.recurrent(system, cell, row.layers, row.units, row.directions)
    step = step_of(made, *data)
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    step(*data)
    tf.test.experimental.sync_devices()
    seconds = time.perf_counter() - start
    tf.config.experimental.reset_memory_stats("GPU:0")
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    for _ in range(3):
        step(*data)
    tf.test.experimental.sync_devices()
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return {"seconds": seconds, "megabytes": (peak - before) / 1e6}


def _versions() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    return {"TensorFlow": tf.__version__, "Keras": keras.__version__}


MEASUREMENTS = {"fit": fit_model.fit, "step": _step, "versions": _versions}


def _run(*child: object, **environment: str) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_fit", "--child=" + json.dumps(child)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    if process.returncode != 0:
        raise RuntimeError(f"{child} failed: {process.stderr[-2000:]}")
    result = json.loads(process.stdout.splitlines()[-1])
    print(*child, result, flush=True)
    return result


def _first_steps(index: int) -> dict[str, Any]:
    """Measures the first step of a network, beside those of other networks on the same GPU."""
    growth = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    with tempfile.TemporaryDirectory() as cache:
        kernels = {"CUDNN_RNN_TF_KERNEL_CACHE": cache}
        cold = _run("step", "this package", index, **growth, **kernels)
        warm = _run("step", "this package", index, **growth, **kernels)
    keras = _run("step", "Keras", index, **growth)
    return {"row": str(NETWORKS[index]), "cold": cold, "warm": warm, "keras": keras}


def _measure(path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:

        def write(result: dict[str, Any]) -> None:
            print(json.dumps(result), file=file, flush=True)

        write({"environment": {**gpu_environment.environment(_COMMIT.value), **_run("versions")}})
        for policy in POLICIES:
            for system in SYSTEMS if re.search(_ROWS.value, policy) else ():
                if system == "Keras" and re.search(f"bfloat16|{COMPILED}", policy):
                    continue  # Its cuDNN op has no kernel for bfloat16, and XLA cannot compile it.
                write({"system": system, "policy": policy, **_run("fit", system, policy)})
        indices = [i for i, row in enumerate(NETWORKS) if re.search(_ROWS.value, str(row))]
        with concurrent.futures.ThreadPoolExecutor(3) as executor:
            for result in executor.map(_first_steps, indices):
                write(result)


# The page.


def page(path: pathlib.Path) -> str:
    """Returns the page of a file of results."""
    times: dict[tuple[str, str], list[float]] = {}
    first: dict[str, dict[str, Any]] = {}
    runs: dict[str, str] = {}  # By row, the environment.
    for line in map(json.loads, path.read_text().splitlines()):
        if "environment" in line:
            gpu = gpu_environment.describe_gpus(line["environment"]["GPU"])
            environment = pages.listed({**line["environment"], "GPU": gpu})
        elif "policy" in line:
            times[line["system"], line["policy"]] = line["ms"]
            runs[line["policy"]] = environment
        else:
            first[line["row"]] = line
            runs[line["row"]] = environment

    def cell(system: str, policy: str) -> str:
        ms = times.get((system, policy))
        return f"{statistics.median(ms):.1f} ({min(ms):.1f}–{max(ms):.1f})" if ms else "–"

    measured = [policy for policy in POLICIES if any((each, policy) in times for each in SYSTEMS)]
    fit = [[policy, *(cell(system, policy) for system in SYSTEMS)] for policy in measured]
    steps = []
    for row in filter(first.__contains__, map(str, NETWORKS)):
        own, keras = first[row]["warm"], first[row]["keras"]
        steps.append(
            [
                row.rsplit(", ", 1)[0],
                *(f"{first[row][which]['seconds']:.2f}" for which in ("cold", "warm", "keras")),
                *(f"{one['megabytes']:.0f}" for one in (own, keras)),
                f"{own['megabytes'] / keras['megabytes']:.2f}",
            ]
        )
    parts = [
        "# `model.fit`, the first step, and memory on a GPU",
        "## `model.fit`",
        f"The model is an embedding of {VOCABULARY:,} words with a mask, two bidirectional LSTM "
        "layers of 256 units in each direction, and a dense layer. "
        f"Batches have {BATCH} sequences of {STEPS // 4} to "
        f"{STEPS} words. The numbers are milliseconds of a training step of `model.fit`. The mean "
        f"time of a step was taken for each of {EPOCHS} epochs of {BATCHES} steps. A cell has the "
        "median of these means and, in parentheses, the smallest and the largest. “This package” "
        "is one `CudnnLSTM`, “drop-in” the layers of `cudnn_rnn_tf.keras`, and “accelerated” "
        "`accelerate`'s copy of the model with Keras's layers. The last column "
        "is the same model without the LSTM layers, which Keras lets XLA compile by default. "
        "TensorFloat-32 was on. Keras's layers cannot "
        "use cuDNN in bfloat16, or when compiled by XLA. “–” marks what was not measured.",
        pages.table(["dtype policy", *SYSTEMS], fit),
        "In float16, Keras's `LossScaleOptimizer` checks in every step whether a gradient has "
        "overflowed. For the gradient of an embedding, TensorFlow does a part of this check on "
        "the CPU, and the program enqueues no more work for the GPU until the result is there. In "
        "the row “check of used rows”, a subclass of this optimizer checks only the rows of the "
        "gradient that belong to words of the batch, since all others are zero "
        "([how to write it](../../docs/guides/speed.md#what-gains-little-on-a-gpu)).",
        "## The first step, and memory",
        "A training step is a forward and a backward pass of the layers alone, with a mask, in a "
        "`tf.function`. The seconds are those of a network's first step, with the tracing of the "
        "function, in a process that has already run another network. “Cold” and “warm” "
        "are this package's times: “cold” without compiled kernels from earlier processes, “warm” "
        "with them. Megabytes are the peak of GPU memory in a later "
        "step, without the weights and the data. The last column is this package's peak, divided "
        "by Keras's. “LSTM 256, B64 T200” is a layer of 256 units, with 64 sequences of 200 steps; "
        "`L×` before the units means L layers, and tf32 is float32 with TensorFloat-32 allowed.",
        pages.table(
            [
                *("network", "cold (s)", "warm (s)", "Keras (s)"),
                *("this package (MB)", "Keras (MB)", "ratio"),
            ],
            steps,
        ),
        f"Written by `python -m benchmarks.gpu_fit` from a run with {pages.runs(runs)}.",
    ]
    wrapped = (
        part if part.startswith("|") else textwrap.fill(part, 100, break_on_hyphens=False)
        for part in parts
    )
    return "\n\n".join(wrapped) + "\n"


def main(_: list[str]) -> None:
    if _CHILD.value:
        name, *arguments = json.loads(_CHILD.value)
        print(json.dumps(MEASUREMENTS[name](*arguments)))
        return
    path = pathlib.Path(_OUTPUT.value)
    if _REPORT.value:
        (pages.RESULTS / "gpu_fit.md").write_text(page(path))
    else:
        _measure(path)


if __name__ == "__main__":
    app.run(main)
