"""Times the drop-ins and accelerated models on a GPU, beside Keras and this package's own layers.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_doors --output=FILE.jsonl --commit=HASH [--rows=REGEX]

Anywhere, `python -m benchmarks.gpu_doors --report --output=FILE.jsonl` writes the page
benchmarks/results/gpu_doors.md.

A step runs recurrent layers on inputs and a mask that lie in the GPU's memory, in one
`tf.function`; a training step also computes the gradients of inputs and weights and adds them to
variables. Masks are drawn anew for each step. A sample is about 50 ms of steps, after which the
device is waited for. The systems and masks of a row take turns, a sample each; the median of seven
samples counts. All systems run in one process.
"""

import gc
import itertools
import json
import math
import pathlib
import re
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import gpu_environment
from benchmarks.gpu_lengths_rows import DRAWS, Row
from benchmarks.gpu_timing import StepFunction, sample_in_turns

_OUTPUT = flags.DEFINE_string("output", None, "The file of results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_FILTER = flags.DEFINE_string("rows", "", "A regular expression: the rows to time.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page.")

MASKS = ("none", "behind", "in front", "holes")
DOORS = ("drop-in", "accelerated")
SYSTEMS = ("keras", *DOORS, "CudnnLSTM")  # "CudnnLSTM" stands for CudnnGRU too.
ROWS = [
    Row(*network, type_, training)
    for network, types, training in [
        (("lstm", 1, 64, 1, 32, 20), ("tf32",), True),
        (("lstm", 1, 64, 2, 16, 30), ("tf32",), True),
        (("lstm", 2, 64, 2, 16, 30), ("tf32",), True),
        (("lstm", 1, 256, 1, 64, 200), ("float16", "tf32"), True),
        (("lstm", 2, 256, 2, 64, 100), ("tf32",), True),
        (("lstm", 1, 512, 1, 64, 100), ("float16", "tf32"), True),
        (("gru", 1, 512, 1, 64, 100), ("tf32",), True),
        (("lstm", 1, 128, 2, 32, 300), ("tf32",), True),
        (("lstm", 3, 96, 1, 64, 100), ("tf32",), True),
        (("lstm", 1, 1024, 1, 32, 50), ("float16",), True),
        (("lstm", 1, 64, 1, 32, 20), ("tf32",), False),
        (("lstm", 2, 256, 2, 64, 100), ("tf32",), False),
        (("lstm", 1, 512, 1, 64, 100), ("float16",), False),
    ]
    for type_ in types
]


def draw_masks(row: Row, kind: str) -> list[np.ndarray]:
    """Draws masks [B, T] of the same number of steps, whichever kind they are of."""
    random = np.random.default_rng(0)
    masks = []
    for _ in range(DRAWS):
        lengths = random.integers(row.time // 4, row.time + 1, size=(row.batch, 1))
        mask = np.arange(row.time) < lengths
        if kind == "in front":
            mask = mask[:, ::-1]
        elif kind == "holes":
            mask = random.permuted(mask, axis=1)
        masks.append(np.ascontiguousarray(mask))
    return masks


def stock_model(row: Row, use_cudnn: str | bool = "auto") -> Any:
    """Makes a model of Keras's own layers."""
    import keras

    make = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[row.mode]
    inputs = keras.Input((row.time, row.units), dtype=row.dtype)
    outputs = inputs
    for _ in range(row.layers):
        # An orthogonal matrix takes long to make.
        layer = make(
            row.units,
            return_sequences=True,
            recurrent_initializer="glorot_uniform",
            use_cudnn=use_cudnn,
            dtype=row.dtype,
        )
        if row.directions == 2:
            layer = keras.layers.Bidirectional(layer, dtype=row.dtype)
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def systems(row: Row) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yields names and, for each kind of mask, the layers to call one after the other."""
    import cudnn_rnn_tf as crnn

    stock = stock_model(row)
    for name, model in (
        ("keras", stock),
        ("drop-in", crnn.accelerate(stock, stacks=False)),
        ("accelerated", crnn.accelerate(stock)),
    ):
        if name == "keras" and row.dtype == "bfloat16":
            continue  # Keras's cuDNN op has no such kernel.
        layers = dict.fromkeys(MASKS, model.layers[1:])
        if name == "keras":
            # Its cuDNN op takes masks only that are padded behind.
            without = stock_model(row, use_cudnn=False)
            layers |= dict.fromkeys(MASKS[2:], without.layers[1:])
        yield name, layers
    make = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU}[row.mode]
    direction = "bidirectional" if row.directions == 2 else "unidirectional"
    layer = make(row.layers, row.units, direction=direction, dtype=row.dtype)
    layer.build((row.batch, row.time, row.units))
    yield "CudnnLSTM", dict.fromkeys(MASKS, [layer])


def step_of(row: Row, layers: list[Any], kind: str) -> StepFunction:
    import tensorflow as tf

    def call(inputs, mask, training):
        for layer in layers:
            inputs = layer(inputs, mask=mask, training=training)
        return inputs

    weights = [weight for layer in layers for weight in layer.trainable_variables]
    inputs = tf.cast(tf.random.normal((row.batch, row.time, row.units)), row.dtype)
    shape = (row.batch, row.time, row.units * row.directions)
    d_outputs = tf.cast(0.1 * tf.random.normal(shape), row.dtype)
    masks = [tf.constant(mask) for mask in draw_masks(row, kind)]
    with tf.device("GPU:0"):
        masks = [tf.identity(mask) for mask in masks]
    takers = [tf.Variable(tf.zeros_like(weight.value)) for weight in weights]
    of_inputs = tf.Variable(tf.zeros_like(inputs))

    @tf.function
    def step(mask):
        mask = None if kind == "none" else mask
        if not row.training:
            return call(inputs, mask, False)
        values = [weight.value for weight in weights]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = call(inputs, mask, True)
        gradient, *gradients = tape.gradient(outputs, [inputs, *values], output_gradients=d_outputs)
        of_inputs.assign(gradient, read_value=False)
        for taker, gradient in zip(takers, gradients, strict=True):
            taker.assign_add(gradient, read_value=False)
        return None

    return lambda index: step(masks[index % DRAWS])


def measure(output: pathlib.Path, rows: list[Row]) -> None:
    import keras
    import tensorflow as tf

    about = gpu_environment.environment(_COMMIT.value) | {
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    for row in rows:
        tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
        steps = {}
        for name, layers in systems(row):
            # Without cuDNN, Keras's layers take as long whichever steps are masked.
            for kind in MASKS[:3] if name == "keras" else MASKS:
                steps[f"{name}, {kind}"] = step_of(row, layers[kind], kind)
        samples = sample_in_turns(steps, tf.test.experimental.sync_devices)
        with output.open("a") as file:
            file.write(json.dumps({"row": str(row), "about": about, "ms": samples}) + "\n")
        medians = {name: statistics.median(times) for name, times in samples.items()}
        print(row, {name: round(ms, 3) for name, ms in medians.items()}, flush=True)
        del steps
        gc.collect()


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.mean(map(math.log, ratios)))


def report(output: pathlib.Path) -> str:
    """Returns the page: milliseconds of a step, and ratios over all rows."""
    results = [json.loads(line) for line in output.read_text().splitlines()]
    about = results[0]["about"]
    lines = [
        "# Drop-ins and accelerated models on a GPU",
        "",
        "Milliseconds of a step by the medians of seven samples; the smaller, the faster. "
        "`drop-in` is `cudnn_rnn_tf.keras`, `accelerated` is `accelerate`'s copy of the stock "
        "model, and `own` is `CudnnLSTM` or `CudnnGRU`. Sequences are masked: not at all, behind "
        "(lengths uniform in [T/4, T]), in front, or with as many holes at random places. In the "
        "latter two cases, Keras's layers have `use_cudnn=False`, since cuDNN refuses such masks; "
        "their time is that with masks in front. Steps below a millisecond are bounded by the "
        "host, and vary with what else it does. "
        "[benchmarks/gpu_doors.py](../gpu_doors.py) says what a step is.",
        "",
        f"GPU {gpu_environment.describe_gpus(about['GPU'])}, "
        + ", ".join(f"{key} {value}" for key, value in about.items() if key != "GPU"),
        "",
        "| network | mask | Keras | drop-in | accelerated | own | Keras / drop-in |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {}
    for result in results:
        medians = {key: statistics.median(times) for key, times in result["ms"].items()}
        for kind in MASKS:
            keras_kind = "in front" if kind == "holes" else kind
            ms = [medians[f"{system}, {kind}"] for system in SYSTEMS[1:]]
            ms.insert(0, medians[f"keras, {keras_kind}"])
            lines.append(
                f"| {result['row']} | {kind} | "
                + " | ".join(f"{value:.3f}" for value in ms)
                + f" | {ms[0] / ms[1]:.1f} |"
            )
            for door, time in zip(DOORS, ms[1:3], strict=True):
                ratios.setdefault(f"Keras / {door}, mask: {kind}", []).append(ms[0] / time)
                ratios.setdefault(f"{door} / own, mask: {kind}", []).append(time / ms[3])
        for system, kind in itertools.product(SYSTEMS[1:], MASKS[2:]):
            ratio = medians[f"{system}, {kind}"] / medians[f"{system}, behind"]
            ratios.setdefault(f"{system}: {kind} / behind", []).append(ratio)
    lines += ["", "| ratio | geometric mean | least | most |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {geometric_mean(values):.2f} | {min(values):.2f} | {max(values):.2f} |"
        for name, values in ratios.items()
    ]
    return "\n".join(lines) + "\n"


def main(_: list[str]) -> None:
    output = pathlib.Path(_OUTPUT.value)
    if _REPORT.value:
        page = pathlib.Path(__file__).parent / "results" / "gpu_doors.md"
        page.write_text(report(output))
        return
    measure(output, [row for row in ROWS if re.search(_FILTER.value, str(row))])


if __name__ == "__main__":
    app.run(main)
