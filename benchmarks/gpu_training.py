"""Times `model.fit`, the first step and the memory of a training step on a GPU, beside Keras's.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_training --output=DIR --commit=HASH

adds to DIR/training.jsonl, with --measures=fit,first,memory or some of these. Anywhere, from this
file:

    python -m benchmarks.gpu_training --report --output=DIR

writes benchmarks/results/gpu_training.md.

The model is Embedding(mask_zero) → two bidirectional LSTM layers of 256 units → Dense, with 64
sequences a step, of lengths from 50 to 200. Each measurement has a process of its own, and starts
with an empty folder of kernels unless it says "warm".
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app, flags

_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_MEASURES = flags.DEFINE_list("measures", ["fit", "first", "memory"], "What to measure.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page instead of running anything.")
_ONE = flags.DEFINE_list("one", None, "A measurement, as main() starts it.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH, TIME, WORDS, STEPS, EPOCHS = 64, 200, 5000, 60, 3
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
# Units, sequences, steps, type.
MEMORY_ROWS = [
    (256, 64, 200, "float16"),
    (256, 64, 200, "float32"),
    (512, 64, 200, "float16"),
    (128, 512, 50, "float32"),
    (384, 48, 120, "float16"),
    (1024, 32, 100, "float16"),
]
OURS, KERAS = "cudnn_rnn_tf", "Keras"
# The same model with a mean over time instead: what Keras itself takes.
NEITHER = "neither"


def _fit(library: str, policy: str) -> dict[str, float]:
    import keras
    import numpy as np
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    keras.mixed_precision.set_global_policy(policy)
    rng = np.random.default_rng(0)
    words = rng.integers(1, WORDS, size=(BATCH * STEPS, TIME))
    lengths = rng.integers(TIME // 4, TIME + 1, size=len(words))
    words[np.arange(TIME) >= lengths[:, None]] = 0
    classes = rng.integers(0, 2, size=len(words))
    inputs = keras.Input((TIME,), dtype="int32")
    hidden = keras.layers.Embedding(WORDS, 256, mask_zero=True)(inputs)
    if library == OURS:
        layer = crnn.CudnnLSTM(2, 256, direction="bidirectional", return_sequences=False)
        hidden = layer(hidden)
    elif library == NEITHER:
        hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    else:
        for return_sequences in (True, False):
            layer = keras.layers.LSTM(256, return_sequences=return_sequences)
            hidden = keras.layers.Bidirectional(layer)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
    # A model with a recurrent layer in cuDNN cannot be compiled by XLA.
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices((words, classes)).batch(BATCH).cache().prefetch(4)
    model.fit(data, verbose=0)
    milliseconds = []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        model.fit(data, verbose=0)
        milliseconds.append(1e3 * (time.perf_counter() - start) / STEPS)
    return {"ms": sorted(milliseconds)[EPOCHS // 2]}


def _step_of(library: str, units: int, batch: int, steps: int, dtype: str):
    """A training step of one LSTM layer, and the variables that keep its gradients."""
    import keras
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    if library == OURS:
        layer = crnn.CudnnLSTM(1, units, dtype=dtype)
    else:
        layer = keras.layers.LSTM(units, return_sequences=True, dtype=dtype)
    inputs = tf.cast(tf.random.normal((batch, steps, units)), dtype)
    lengths = tf.random.uniform([batch], steps // 4, steps + 1, tf.int32)
    mask = tf.sequence_mask(lengths, steps)
    d_outputs = tf.ones((batch, steps, units), dtype)
    layer.build(inputs.shape)
    takers = [tf.Variable(tf.zeros_like(v)) for v in (inputs, *layer.trainable_variables)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, mask=mask, training=True)
        gradients = tape.gradient(
            outputs, [inputs, *layer.trainable_variables], output_gradients=d_outputs
        )
        for taker, gradient in zip(takers, gradients, strict=True):
            taker.assign_add(gradient, read_value=False)

    return step


def _first_step(library: str, dtype: str) -> dict[str, float]:
    import tensorflow as tf

    step = _step_of(library, 256, 64, 200, dtype)
    tf.linalg.matmul(tf.ones((64, 64)), tf.ones((64, 64)))
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    step()
    tf.test.experimental.sync_devices()
    return {"seconds": time.perf_counter() - start}


def _name_of(row: tuple[int, int, int, str]) -> str:
    units, batch, steps, dtype = row
    return f"LSTM {units}, B{batch} T{steps}, {dtype}"


def _memory(library: str) -> dict[str, float]:
    import tensorflow as tf

    peaks = {}
    for row in MEMORY_ROWS:
        step = _step_of(library, *row)
        step()
        tf.test.experimental.sync_devices()
        held = tf.config.experimental.get_memory_info("GPU:0")["current"]
        tf.config.experimental.reset_memory_stats("GPU:0")
        for _ in range(2):
            step()
        tf.test.experimental.sync_devices()
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        peaks[_name_of(row)] = (peak - held) / 2**20
    return peaks


MEASURES = {"fit": _fit, "first": _first_step, "memory": _memory}


def _run_one(name: str, *arguments: str, kernels: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gpu_training", "--output=."]
    command.append("--one=" + ",".join((name, *arguments)))
    environment = {**os.environ, "CUDNN_RNN_TF_KERNEL_CACHE": kernels}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode != 0:
        raise RuntimeError(f"{name} {arguments} failed: {process.stderr[-2000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def _measure(path: pathlib.Path) -> None:
    import keras
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    environment = {
        "GPU": tf.config.experimental.get_device_details(gpus[0])["device_name"],
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "commit": _COMMIT.value,
    }
    with path.open("a") as file:
        print(json.dumps({"environment": environment}), file=file)

        def note(name: str, library: str, variant: str, value: dict[str, float]) -> None:
            record = {"measure": name, "library": library, "variant": variant, "value": value}
            print(json.dumps(record), file=file, flush=True)

        for policy in POLICIES if "fit" in _MEASURES.value else ():
            for library in (OURS, KERAS, NEITHER):
                if library == KERAS and policy == "mixed_bfloat16":
                    continue  # Its cuDNN op has no such kernel.
                with tempfile.TemporaryDirectory() as kernels:
                    note("fit", library, policy, _run_one("fit", library, policy, kernels=kernels))
        for dtype in ("float32", "float16") if "first" in _MEASURES.value else ():
            with tempfile.TemporaryDirectory() as kernels:
                for state in ("cold", "warm"):
                    value = _run_one("first", OURS, dtype, kernels=kernels)
                    note("first", OURS, f"{dtype}, {state}", value)
                note("first", KERAS, dtype, _run_one("first", KERAS, dtype, kernels=kernels))
        for library in (OURS, KERAS) if "memory" in _MEASURES.value else ():
            with tempfile.TemporaryDirectory() as kernels:
                note("memory", library, "", _run_one("memory", library, kernels=kernels))


def _page(path: pathlib.Path) -> str:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    environments = [r.pop("environment") for r in records if "environment" in r]
    values = {(r["measure"], r["library"], r["variant"]): r["value"] for r in records if r}

    def value(measure: str, library: str, variant: str, key: str) -> float | None:
        # A run that was cut off lacks some.
        return values.get((measure, library, variant), {}).get(key)

    def cell(number: float | None, form: str) -> str:
        return "–" if number is None else f"{number:{form}}"

    def ratio(own: float | None, keras: float | None) -> float:
        return keras / own if own and keras else float("inf")

    def table(titles: str, rows: list[tuple[float, list[str]]]) -> str:
        """The rows that gain the least first; each with its ratio, in place of {}."""
        lines = [titles, "|---" * (titles.count("|") - 1) + "|"]
        for gain, cells in sorted(rows, key=lambda row: row[0]):
            shown = "–" if gain == float("inf") else f"{gain:.1f}"
            lines.append("| " + " | ".join(cells).format(shown) + " |")
        return "\n".join(lines)

    fit, first, memory = [], [], []
    for policy in POLICIES:
        own, keras, rest = (value("fit", name, policy, "ms") for name in (OURS, KERAS, NEITHER))
        cells = [policy, cell(own, ".1f"), cell(keras, ".1f"), "{}", cell(rest, ".1f")]
        fit.append((ratio(own, keras), cells))
    for dtype in ("float32", "float16"):
        runs = [(OURS, f"{dtype}, cold"), (OURS, f"{dtype}, warm"), (KERAS, dtype)]
        cold, warm, keras = (value("first", *run, "seconds") for run in runs)
        if cold is not None:
            cells = [dtype, cell(cold, ".2f"), cell(warm, ".2f"), cell(keras, ".2f"), "{}"]
            first.append((ratio(cold, keras), cells))
    for row in map(_name_of, MEMORY_ROWS):
        own, keras = (value("memory", library, "", row) for library in (OURS, KERAS))
        memory.append((ratio(own, keras), [row, cell(own, ".0f"), cell(keras, ".0f"), "{}"]))
    runs = "; ".join(
        ", ".join(f"{name} {value}" for name, value in environment.items())
        for environment in environments
    )
    parts = [
        "# `model.fit` on a GPU",
        "A ratio is Keras's number over this package's: above 1, this package takes less. Rows "
        "with the smallest ratios come first; – was not measured.",
        "## How long does a step take?",
        "Milliseconds of a step of `model.fit`: Embedding(mask_zero) → two bidirectional LSTM "
        f"layers of 256 units → Dense, {BATCH} sequences of {TIME // 4} to {TIME} steps. The last "
        "column is the same model with a mean over time instead of the recurrent layers: what "
        "Keras takes for the rest. With mixed_float16 that is much, since Keras asks whether the "
        "gradient of an embedding is finite by way of the host's memory.",
        table("| policy | this package | Keras | ratio | without recurrent layers |", fit),
        "## How long does the first step take?",
        "Seconds of the first step of one LSTM layer of 256 units in a process that has used the "
        "GPU: with an empty folder of compiled kernels, and with one that an earlier process has "
        "filled. The ratio is for the empty one.",
        table("| type | this package, empty folder | filled folder | Keras | ratio |", first),
        "## How much memory does a step take?",
        "MiB that a training step with a mask adds to what is held before and after it.",
        table("| network | this package | Keras | ratio |", memory),
        f"Written by `python -m benchmarks.gpu_training` from runs on {runs}.",
    ]
    return "\n\n".join(parts) + "\n"


def main(_: list[str]) -> None:
    if _ONE.value:
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(True)
        name, *arguments = _ONE.value
        print(json.dumps(MEASURES[name](*arguments)))
        return
    directory = pathlib.Path(_OUTPUT.value)
    if _REPORT.value:
        page = ROOT / "benchmarks" / "results" / "gpu_training.md"
        page.write_text(_page(directory / "training.jsonl"))
        return
    directory.mkdir(parents=True, exist_ok=True)
    _measure(directory / "training.jsonl")


if __name__ == "__main__":
    app.run(main)
