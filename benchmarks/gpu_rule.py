"""Times the algorithms that a GPU has for full-length networks, beside the one that the rule takes.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_rule --output=FILE.jsonl --commit=HASH [--part=0 --parts=4]

adds a line for each algorithm of each network to the file. Anywhere, from this file:

    python -m benchmarks.gpu_rule --output=benchmarks/results/gpu_rule.jsonl --report

writes the page beside it. The networks come in a random order, so that a run that was cut off has
some of each kind. A network's algorithms take turns, a sample each; the median of a step counts.
"""

import gc
import json
import pathlib
import random
import statistics
from collections.abc import Callable

from absl import app, flags

from benchmarks import gpu_environment, gpu_timing
from benchmarks.gpu_lengths_rows import Row

_OUTPUT = flags.DEFINE_string("output", None, "File of the results, a line each.")
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page.")
_PART = flags.DEFINE_integer("part", 0, "Which part of the networks to time.")
_PARTS = flags.DEFINE_integer("parts", 1, "Of how many.")

AUTO = "auto"
FIXED = ("persistent", "standard", "persist_static", "resident")
TIME = 50
BATCHES = {
    512: (1, 2, 4, 8, 128, 512),
    768: (1, 8, 64, 256),
    1024: (1, 2, 4, 8, 32, 64, 128),
    1280: (1, 4, 32, 64, 128),
    1536: (1, 2, 4, 8, 16, 32, 64, 128),
    2048: (1, 4, 8, 32, 128),
    2816: (1, 32),
}
# Layers, units, directions and sequences of networks of other kinds.
OTHERS = ((1, 256, 1, 2048), (2, 1280, 1, 32), (1, 1280, 2, 32), (3, 1024, 1, 32))
# The rule counts as wrong where a fixed algorithm takes less than this part of its time.
LIMIT = 0.9


def networks() -> list[Row]:
    """Returns the networks in a random order, which is always the same."""
    shapes = [(1, units, 1, batch) for units, batches in BATCHES.items() for batch in batches]
    rows = [
        Row(mode, layers, units, directions, batch, TIME, type_, training)
        for mode in ("lstm", "gru")
        for type_ in ("float16", "tf32")
        for training in (True, False)
        for layers, units, directions, batch in (*shapes, *OTHERS)
    ]
    random.Random(0).shuffle(rows)
    return rows


def _step(row: Row, algorithm: str) -> Callable[[int], object]:
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    make = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU}[row.mode]
    direction = "bidirectional" if row.directions == 2 else "unidirectional"
    layer = make(row.layers, row.units, direction=direction, algorithm=algorithm, dtype=row.dtype)
    shape = (row.batch, row.time, row.units)
    inputs = tf.cast(tf.random.normal(shape), row.dtype)
    size = row.units * row.directions
    d_outputs = tf.cast(0.1 * tf.random.normal((*shape[:2], size)), row.dtype)

    def step() -> object:
        if not row.training:
            return layer(inputs, training=False)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
        sources = [inputs, *layer.trainable_variables]
        return tape.gradient(outputs, sources, output_gradients=d_outputs)

    function = tf.function(step)
    function()
    return lambda _: function()


def _measure(path: pathlib.Path) -> None:
    import tensorflow as tf

    gpu_timing.WARM_UP_SECONDS, gpu_timing.SAMPLE_SECONDS = 0.1, 0.025
    environment = gpu_environment.environment(_COMMIT.value)
    environment["TensorFlow"] = tf.__version__
    with path.open("a") as file:
        print(json.dumps({"environment": environment}), file=file)
        for row in networks()[_PART.value :: _PARTS.value]:
            gc.collect()
            tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
            steps, refused = {}, {}
            for algorithm in (AUTO, *FIXED):
                try:
                    steps[algorithm] = _step(row, algorithm)
                except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
                    refused[algorithm] = str(error)[:200]
            times = gpu_timing.sample_in_turns(steps, tf.test.experimental.sync_devices)
            result = {"row": str(row), "ms": times, "refused": refused}
            print(json.dumps(result), file=file, flush=True)


def _medians(line: dict) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in line["ms"].items()}


def page(lines: list[dict]) -> str:
    """Returns the page for the lines of a results file."""
    found = [line["environment"] for line in lines if "environment" in line]
    rows = {line["row"]: _medians(line) for line in lines if "row" in line}
    ratios = {}
    for row, times in rows.items():
        fixed = {name: times[name] for name in FIXED if name in times}
        ratios[row] = min(fixed.values()) / times[AUTO]
    described = "; ".join(
        dict.fromkeys(
            ", ".join(f"{key} {value}" for key, value in environment.items())
            for environment in found
        )
    )
    order = sorted(rows, key=lambda row: ratios[row])
    wrong = [row for row in rows if ratios[row] < LIMIT]
    text = [
        "# The rule and the fixed algorithms",
        "This page is generated by `python -m benchmarks.gpu_rule`; do not edit it by hand.",
        f"Measured with: {described}.",
        f"A step of each network, with sequences of {TIME} time steps that all have full length, in"
        " milliseconds, by the algorithm that the rule takes (`auto`) and by those that a layer's"
        " `algorithm` can name. “–” means that the algorithm cannot run the network. The last"
        " column is the time of the fastest fixed algorithm as a part of `auto`'s; it is below 1"
        " where the rule is not the fastest, and above 1 by chance alone. It is"
        f" {statistics.geometric_mean(ratios.values()):.2f} in the geometric mean of"
        f" {len(rows)} networks, and below {LIMIT} in {len(wrong)}.",
    ]
    table = ["| network | auto | " + " | ".join(FIXED) + " | fastest / auto |"]
    table.append("|---" * (len(FIXED) + 3) + "|")
    for row in order:
        cells = [f"{rows[row][name]:.3f}" if name in rows[row] else "–" for name in (AUTO, *FIXED)]
        table.append(f"| {row} | {' | '.join(cells)} | {ratios[row]:.2f} |")
    return "\n\n".join([*text, "\n".join(table)]) + "\n"


def main(_: list[str]) -> None:
    path = pathlib.Path(_OUTPUT.value)
    if _REPORT.value:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.with_suffix(".md").write_text(page(lines))
        return
    _measure(path)


if __name__ == "__main__":
    app.run(main)
