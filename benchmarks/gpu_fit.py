"""Measures what a user of `model.fit` notices on a GPU: time, memory and the first step.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_fit --output=DIR --commit=HASH

leaves DIR/gpu_fit.json. With `--policy=NAME`, once or several times, only these rows of the first
table are measured, and take the places of those in the DIR/gpu_fit.json that is there. Anywhere,
`python -m benchmarks.gpu_fit --render --output=DIR` writes benchmarks/results/gpu_fit.md from it.
Every measurement has a process of its own; those of first steps run three at a time.
"""

import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from typing import Any

from absl import app, flags

from benchmarks import fit_model, gpu_environment, json_rows
from benchmarks.fit_model import BATCH, BATCHES, CHECK_ROWS, EPOCHS, STEPS, VOCABULARY

_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.")
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_RENDER = flags.DEFINE_bool("render", False, "Write the page instead of measuring.")
_POLICIES = flags.DEFINE_multi_string("policy", None, "Measure only these rows of the first table.")
_CHILD = flags.DEFINE_string("child", None, "A measurement and its arguments, as JSON, for itself.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
SYSTEMS = ("this package", "Keras", "no recurrent layers")
POLICIES = ("float32", "mixed_float16", CHECK_ROWS, "mixed_bfloat16")
# Networks whose first step and memory are measured: cell, layers, units, directions, batch, steps,
# type.
NETWORKS = [
    ("LSTM", 1, 256, 1, 64, 200, "float16"),
    ("LSTM", 1, 256, 1, 64, 200, "float32"),
    ("LSTM", 1, 512, 1, 64, 200, "float32"),
    ("GRU", 2, 128, 1, 64, 50, "float32"),
    ("LSTM", 3, 320, 2, 32, 400, "float16"),
    ("LSTM", 1, 1024, 1, 64, 100, "float16"),
]


def _step(system: str, *network: Any) -> dict[str, Any]:
    """Runs training steps of a network with a mask: the first one's time, and the peak memory."""
    import keras
    import numpy as np
    import tensorflow as tf

    cell, layers, units, directions, batch, steps, dtype = network
    keras.config.set_dtype_policy(dtype)
    lengths = np.random.default_rng(0).integers(steps // 4, steps + 1, batch)

    def step_of(layers, inputs, mask):
        for layer in layers:
            layer.build(inputs.shape)
            inputs = tf.zeros((*inputs.shape[:2], units * directions), inputs.dtype)
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
    data = tf.zeros((batch, steps, units), dtype), tf.sequence_mask(lengths, steps)
    made = fit_model.recurrent(system, cell, layers, units, directions)
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


def _first_steps(network: tuple[Any, ...]) -> dict[str, Any]:
    """Measures the first step of a network, beside those of other networks on the same GPU."""
    growth = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    with tempfile.TemporaryDirectory() as cache:
        kernels = {"CUDNN_RNN_TF_KERNEL_CACHE": cache}
        cold = _run("step", "this package", *network, **growth, **kernels)
        warm = _run("step", "this package", *network, **growth, **kernels)
    keras = _run("step", "Keras", *network, **growth)
    return {"network": network, "cold": cold, "warm": warm, "keras": keras}


def _measure(directory: pathlib.Path) -> None:
    environment = {**gpu_environment.environment(_COMMIT.value), **_run("versions")}
    path = directory / "gpu_fit.json"
    results: dict[str, Any] = {"environment": environment, "fit": []}
    if _POLICIES.value:
        results = json.loads(path.read_text())
        results["fit"] = [row for row in results["fit"] if row["policy"] not in _POLICIES.value]
    for policy in _POLICIES.value or POLICIES:
        for system in SYSTEMS:
            if (system, policy) == ("Keras", "mixed_bfloat16"):
                continue  # Its cuDNN op has no such kernel.
            row = {"system": system, "policy": policy}
            if _POLICIES.value:
                row["commit"] = _COMMIT.value
            results["fit"].append({**row, **_run("fit", system, policy)})
            path.write_text(json_rows.dumps(results))
    if not _POLICIES.value:
        with concurrent.futures.ThreadPoolExecutor(3) as executor:
            results["step"] = list(executor.map(_first_steps, NETWORKS))
    path.write_text(json_rows.dumps(results))


# The page.


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def _text(results: dict[str, Any]) -> str:
    times = {(row["system"], row["policy"]): row["ms"] for row in results["fit"]}

    def cell(system: str, policy: str) -> str:
        ms = times.get((system, policy))
        return f"{statistics.median(ms):.1f} ({min(ms):.1f}–{max(ms):.1f})" if ms else "–"

    fit = [[policy, *(cell(system, policy) for system in SYSTEMS)] for policy in POLICIES]
    steps = []
    for row in results["step"]:
        name, layers, units, directions, batch, length, dtype = row["network"]
        sides = "bidirectional " if directions == 2 else ""
        stack = f"{layers}×{units}" if layers > 1 else f"{units}"
        own, keras = row["warm"], row["keras"]
        steps.append(
            [
                f"{sides}{name} {stack}, B{batch} T{length}, "
                + ("tf32" if dtype == "float32" else dtype),
                *(f"{row[which]['seconds']:.2f}" for which in ("cold", "warm", "keras")),
                *(f"{one['megabytes']:.0f}" for one in (own, keras)),
                f"{own['megabytes'] / keras['megabytes']:.2f}",
            ]
        )
    environment = dict(results["environment"])
    environment["GPU"] = gpu_environment.describe_gpus(environment["GPU"])
    run = ", ".join(f"{name} {value}" for name, value in environment.items())
    later = {row["policy"]: row["commit"] for row in results["fit"] if "commit" in row}
    run += "".join(
        f"; the row “{policy}” was measured at commit {later[policy]}" for policy in later
    )
    parts = [
        "# `model.fit`, the first step, and memory on a GPU",
        "## `model.fit`",
        f"The model is an embedding of {VOCABULARY:,} words with a mask, two bidirectional LSTM "
        "layers of 256 units in each direction, and a dense layer. "
        f"Batches have {BATCH} sequences of {STEPS // 4} to "
        f"{STEPS} words. The numbers are milliseconds of a training step of `model.fit`. The mean "
        f"time of a step was taken for each of {EPOCHS} epochs of {BATCHES} steps. A cell has the "
        "median of these means and, in parentheses, the smallest and the largest. The last column "
        "is the same model without the LSTM layers. TensorFloat-32 was on. Keras's layers cannot "
        "use cuDNN in bfloat16. “–” marks what was not measured.",
        _table(["dtype policy", *SYSTEMS], fit),
        "In float16, Keras's `LossScaleOptimizer` checks in every step whether a gradient has "
        "overflowed. For the gradient of an embedding, TensorFlow does a part of this check on "
        "the CPU, and the program enqueues no more work for the GPU until the result is there. In "
        "the row “check of used rows”, a subclass of this optimizer checks only the rows of the "
        "gradient that belong to words of the batch, since all others are zero ([how to write "
        "it](../../docs/guides/speed.md#what-gains-little-on-a-gpu)).",
        "## The first step, and memory",
        "A training step is a forward and a backward pass of the layers alone, with a mask, in a "
        "`tf.function`. The seconds are those of a network's first step, with the tracing of the "
        "function, in a process that has already run another network. “Cold” and “warm” "
        "are this package's times: “cold” without compiled kernels from earlier processes, “warm” "
        "with them. Megabytes are the peak of GPU memory in a later "
        "step, without the weights and the data. The last column is this package's peak, divided "
        "by Keras's. “LSTM 256, B64 T200” is a layer of 256 units, with 64 sequences of 200 steps; "
        "`L×` before the units means L layers, and tf32 is float32 with TensorFloat-32 allowed.",
        _table(
            [
                *("network", "cold (s)", "warm (s)", "Keras (s)"),
                *("this package (MB)", "Keras (MB)", "ratio"),
            ],
            steps,
        ),
        f"Written by `python -m benchmarks.gpu_fit` from a run with {run}.",
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
    directory = pathlib.Path(_OUTPUT.value)
    if _RENDER.value:
        results = json.loads((directory / "gpu_fit.json").read_text())
        (ROOT / "benchmarks" / "results" / "gpu_fit.md").write_text(_text(results))
        return
    directory.mkdir(parents=True, exist_ok=True)
    _measure(directory)


if __name__ == "__main__":
    app.run(main)
