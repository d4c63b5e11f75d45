"""Times the drop-ins and accelerated models, beside Keras and this package's own layers.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_doors --output=FILE.jsonl --commit=HASH [--rows=REGEX]

With `--fit`, it times `model.fit` instead; its lines go to the same file. Anywhere,
`python -m benchmarks.gpu_doors --report --output=FILE.jsonl` writes the page
benchmarks/results/gpu_doors.md. With `--device=cpu`, other rows run on a CPU, and the page is
benchmarks/results/cpu_doors.md.

A step runs recurrent layers on inputs and a mask that lie in the device's memory, in one
`tf.function`; a training step also computes the gradients of inputs and weights and adds them to
variables. Masks are drawn anew for each step. A sample is about 50 ms of steps, after which the
device is waited for. The systems and masks of a row take turns, a sample each; the median of seven
samples counts. All systems run in one process. With `--fit`, each has one of its own.
"""

import gc
import itertools
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import cpu_timing, fit_model, gpu_environment
from benchmarks.cpu_models import NETWORKS
from benchmarks.gpu_lengths_rows import DRAWS, Row
from benchmarks.gpu_timing import StepFunction, sample_in_turns

_OUTPUT = flags.DEFINE_string("output", None, "The file of results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_FILTER = flags.DEFINE_string("rows", "", "A regular expression: the rows to time.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page.")
_DEVICE = flags.DEFINE_enum("device", "gpu", ["gpu", "cpu"], "Where the layers run.")
_FIT = flags.DEFINE_bool("fit", False, "Time model.fit.")

MASKS = ("none", "behind", "in front", "holes")
DOORS = ("drop-in", "accelerated")
FIT_POLICIES = ("float32", "mixed_bfloat16")
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

# These are the networks of `benchmarks.cpu` as well, with as many inputs as units.
CPU_ROWS = [
    Row(*network, "float32", training)
    for network, training in [
        (("lstm", 1, 64, 1, 32, 20), True),
        (("lstm", 1, 64, 2, 16, 30), True),
        (("lstm", 2, 64, 2, 16, 30), True),
        (("lstm", 1, 64, 1, 32, 20), False),
        *(
            ((n.rnn_mode, n.num_layers, n.num_units, n.num_dirs, n.batch_size, n.num_steps), True)
            for n in NETWORKS
            if n.num_steps > 1 and n.rnn_mode in ("lstm", "gru")
        ),
    ]
]
# Keras's layers with masks in front take as long as with masks behind on a CPU.
MASKS_ON = {"gpu": MASKS, "cpu": MASKS[:3]}


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
    with tf.device(f"{_DEVICE.value}:0"):
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


def describe() -> dict[str, str]:
    import keras
    import tensorflow as tf

    if _DEVICE.value == "gpu":
        machine = gpu_environment.environment(_COMMIT.value)
    else:
        machine = cpu_timing.environment()
        if _COMMIT.value != "unknown":
            machine["commit"] = _COMMIT.value  # The code may lie there without its history.
    return machine | {"TensorFlow": tf.__version__, "Keras": keras.__version__}


def measure(output: pathlib.Path, rows: list[Row]) -> None:
    import tensorflow as tf

    of_gpu = _DEVICE.value == "gpu"
    kinds = MASKS_ON[_DEVICE.value]
    wait, fewest = (tf.test.experimental.sync_devices, DRAWS) if of_gpu else (lambda: None, 2)
    about = describe()
    for row in rows:
        tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
        steps = {}
        for name, layers in systems(row):
            # Without cuDNN, Keras's layers take as long whichever steps are masked.
            for kind in MASKS[:3] if name == "keras" else kinds:
                steps[f"{name}, {kind}"] = step_of(row, layers[kind], kind)
        samples = sample_in_turns(steps, wait, fewest)
        write(output, {"row": str(row), "about": about, "ms": samples})
        medians = {name: statistics.median(times) for name, times in samples.items()}
        print(row, {name: round(ms, 3) for name, ms in medians.items()}, flush=True)
        del steps
        gc.collect()


def measure_fit(output: pathlib.Path) -> None:
    about = describe()
    for policy in FIT_POLICIES:
        samples = {}
        for system in fit_model.SYSTEMS:
            if (system, policy) == ("Keras", "mixed_bfloat16"):
                continue  # Its cuDNN op has no such kernel.
            program = (
                "import json; from benchmarks import fit_model; "
                f"print(json.dumps(fit_model.fit({system!r}, {policy!r})))"
            )
            child = subprocess.run(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
            )
            samples[system] = json.loads(child.stdout.splitlines()[-1])["ms"]
            print(policy, system, samples[system], flush=True)
        write(output, {"fit": policy, "about": about, "ms": samples})


def write(output: pathlib.Path, result: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        file.write(json.dumps(result) + "\n")


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.mean(map(math.log, ratios)))


ON_GPU = (
    "# Drop-ins and accelerated models on a GPU",
    "Sequences are masked: not at all, behind (lengths uniform in [T/4, T]), in front, or with as "
    "many holes at random places. In the latter two cases, Keras's layers have `use_cudnn=False`, "
    "since cuDNN refuses such masks; their time is that with masks in front. Steps below a "
    "millisecond are bounded by the host, and vary with what else it does. ",
)
ON_CPU = (
    "# Drop-ins and accelerated models on a CPU",
    "Sequences are masked: not at all, behind (lengths uniform in [T/4, T]), or in front. ",
)


def describe_run(about: dict[str, str]) -> str:
    gpus = f"GPU {gpu_environment.describe_gpus(about['GPU'])}, " if "GPU" in about else ""
    return gpus + ", ".join(f"{key} {value}" for key, value in about.items() if key != "GPU")


def report(output: pathlib.Path) -> str:
    """Returns the page: milliseconds of a step, and ratios over all rows."""
    lines_of_file = [json.loads(line) for line in output.read_text().splitlines()]
    results = [line for line in lines_of_file if "row" in line]
    of_fit = [line for line in lines_of_file if "fit" in line]
    about = results[0]["about"]
    kinds = MASKS_ON["gpu" if "GPU" in about else "cpu"]
    title, masks = ON_GPU if "GPU" in about else ON_CPU
    lines = [
        title,
        "",
        "Milliseconds of a step by the medians of seven samples; the smaller, the faster. "
        "`drop-in` is `cudnn_rnn_tf.keras`, `accelerated` is `accelerate`'s copy of the stock "
        "model, and `own` is `CudnnLSTM` or `CudnnGRU`. "
        + masks
        + "[benchmarks/gpu_doors.py](../gpu_doors.py) says what a step is.",
        "",
        describe_run(about),
        "",
        "| network | mask | Keras | drop-in | accelerated | own | Keras / drop-in |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {}
    for result in results:
        medians = {key: statistics.median(times) for key, times in result["ms"].items()}
        for kind in kinds:
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
        for system, kind in itertools.product(SYSTEMS[1:], kinds[2:]):
            ratio = medians[f"{system}, {kind}"] / medians[f"{system}, behind"]
            ratios.setdefault(f"{system}: {kind} / behind", []).append(ratio)
    lines += ["", "| ratio | geometric mean | least | most |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {geometric_mean(values):.2f} | {min(values):.2f} | {max(values):.2f} |"
        for name, values in ratios.items()
    ]
    if of_fit:
        lines += [
            "",
            "Milliseconds of a step of `model.fit`, the medians of four epochs of 60 steps: an "
            "embedding with a mask, two bidirectional LSTM layers of 256 units in each direction "
            "and a dense layer, on 64 sequences of 50 to 200 steps "
            "([benchmarks/fit_model.py](../fit_model.py)). Keras cannot use cuDNN in bfloat16.",
            "",
            describe_run(of_fit[0]["about"]),
            "",
            "| dtype policy | " + " | ".join(fit_model.SYSTEMS) + " |",
            "|---" * (1 + len(fit_model.SYSTEMS)) + "|",
        ]
        for result in of_fit:
            cells = [
                f"{statistics.median(result['ms'][system]):.1f}" if system in result["ms"] else "–"
                for system in fit_model.SYSTEMS
            ]
            lines.append(f"| {result['fit']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(_: list[str]) -> None:
    output = pathlib.Path(_OUTPUT.value)
    if _REPORT.value:
        page = pathlib.Path(__file__).parent / "results" / f"{_DEVICE.value}_doors.md"
        page.write_text(report(output))
    elif _FIT.value:
        measure_fit(output)
    else:
        rows = ROWS if _DEVICE.value == "gpu" else CPU_ROWS
        measure(output, [row for row in rows if re.search(_FILTER.value, str(row))])


if __name__ == "__main__":
    app.run(main)
