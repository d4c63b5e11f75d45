"""Times models, loops and training steps with and without XLA, beside Keras's layers.

In the root of the repository, on a machine with a GPU or without one:

    python -m benchmarks.xla --device=cpu|gpu --output=FILE.jsonl --commit=HASH [--rows=REGEX]

Lines are added to the file. `python -m benchmarks.xla --report --output=FILE.jsonl` writes the page
beside it from the lines of all devices.

Each row has four variants: this package's layers and Keras's, each as it is and compiled. They take
turns in one process. What counts is the median of the ratios of runs that follow each other.
"""

import argparse
import functools
import gc
import json
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import gpu_environment, pages

OURS, KERAS = "this package", "Keras"
SYSTEMS = (OURS, KERAS)
COMPILED = ", compiled"
MISSING = "–"  # Of a variant that cannot be compiled.
VOCABULARY = 200
# Shared machines are slow for tenths of a second at a time, so runs are short and many.
ROUNDS, EPOCH_SECONDS = 9, 0.08
LOOP_STEPS = 500
# Batch size, time steps, units.
SMALL = [(8, 5, 32), (8, 20, 64), (32, 20, 64), (32, 50, 32), (16, 50, 128)]
LARGE = {"cpu": [], "gpu": [(64, 100, 512)]}
LOOPS = (64, 256)
# Batch size, time steps, units of training steps outside of `fit`.
TRAINED = [(32, 50, 32), (32, 50, 64), (32, 50, 128)]
TRAINED_STEPS = 100  # In a run.

Run = Callable[[], None]


def lstm(system: str, units: int, **options: Any) -> Any:
    """Makes a layer. Keras's cannot be compiled with cuDNN."""
    import keras

    import cudnn_rnn_tf as crnn

    if system.startswith(OURS):
        return crnn.CudnnLSTM(1, units, **options)
    use_cudnn = "auto" if system == KERAS else False
    if options.pop("direction", "") == "bidirectional":
        return keras.layers.Bidirectional(lstm(system, units, **options))
    return keras.layers.LSTM(units, return_sequences=True, use_cudnn=use_cudnn, **options)


def tagger(system: str, units: int, values: Any) -> Any:
    return lstm(system, units)(values)


def stack(system: str, units: int, values: Any) -> Any:
    import keras

    for _ in range(2):
        values = lstm(system, units, direction="bidirectional")(values)
        values = keras.layers.LayerNormalization()(keras.layers.Dropout(0.1)(values))
    return values


def transformer(system: str, units: int, values: Any) -> Any:
    import keras

    layers = keras.layers
    attention = layers.MultiHeadAttention(4, units // 4, dropout=0.1)(values, values)
    attended = layers.LayerNormalization()(values + attention)
    hidden = layers.Dense(4 * units, "gelu")(attended)
    block = layers.LayerNormalization()(attended + layers.Dense(units)(hidden))
    return layers.Concatenate()([block, lstm(system, units)(values)])


MODELS: dict[str, Any] = {
    "Embedding, LSTM, Dense": tagger,
    "two bidirectional LSTMs, Dropout, LayerNormalization": stack,
    "a transformer block beside an LSTM": transformer,
}


def rows_of_fit(device: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    first, *others = MODELS
    for shape in SMALL + LARGE[device]:
        yield first, shape
    for name in others:
        yield name, (16, 20, 64)


def fit(system: str, name: str, shape: tuple[int, int, int]) -> tuple[Run, int]:
    """Returns a run of `fit`, and its number of steps."""
    import keras
    import numpy as np
    import tensorflow as tf

    batch, steps, units = shape
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (batch, steps)).astype("int32")
    one = tf.data.Dataset.from_tensors((tokens, tokens)).cache()
    keras.utils.set_random_seed(0)
    inputs = keras.Input((steps,), dtype="int32")
    values = MODELS[name](system, units, keras.layers.Embedding(VOCABULARY, units)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(VOCABULARY)(values))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=system.endswith(COMPILED))
    if model.jit_compile != system.endswith(COMPILED):
        raise RuntimeError("Keras says that the model does not support jit_compile=True")
    model.fit(one.repeat(3), verbose=0)
    start = time.perf_counter()
    model.fit(one.repeat(10), verbose=0)
    count = max(10, int(10 * EPOCH_SECONDS / (time.perf_counter() - start)))
    data = one.repeat(count).prefetch(4)
    return lambda: model.fit(data, verbose=0), count


def loop(system: str, units: int) -> tuple[Run, int]:
    """Returns a run of a loop that samples tokens, and its number of steps."""
    import keras
    import tensorflow as tf

    embedding = keras.layers.Embedding(VOCABULARY, units)
    layer = lstm(system, units, return_state=True)
    dense = keras.layers.Dense(VOCABULARY)
    shape = [1, 1, units] if system.startswith(OURS) else [1, units]
    for one, of in ((embedding, (1, 1)), (layer, (1, 1, units)), (dense, (1, 1, units))):
        one.build(of)

    def sample() -> tf.Tensor:
        def body(step: tf.Tensor, token: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> Any:
            outputs, h, c = layer(embedding(token), initial_state=[h, c])
            return step + 1, tf.argmax(dense(outputs), -1, output_type=tf.int32), h, c

        state = tf.zeros(shape)
        first = (0, tf.zeros([1, 1], tf.int32), state, state)
        return tf.while_loop(lambda step, *_: step < LOOP_STEPS, body, first)[1]

    run = tf.function(sample, autograph=False, jit_compile=system.endswith(COMPILED) or None)
    run().numpy()
    return lambda: run().numpy(), LOOP_STEPS


def training(system: str, shape: tuple[int, int, int]) -> tuple[Run, int]:
    """Returns a run of training steps in a loop of our own, one in a call, and their number."""
    import tensorflow as tf

    batch, steps, units = shape
    layer = lstm(system, units)
    layer.build((batch, steps, units))
    inputs = tf.random.stateless_normal([batch, steps, units], [0, 1])
    variables = [variable.value for variable in layer.trainable_variables]

    def step(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(inputs, training=True) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    function = tf.function(step, autograph=False, jit_compile=system.endswith(COMPILED) or None)
    call = function.get_concrete_function(inputs)

    def run() -> None:
        for _ in range(TRAINED_STEPS - 1):
            call(inputs)
        float(call(inputs))

    run()
    return run, TRAINED_STEPS


def new_lengths(system: str) -> list[float]:
    """Returns microseconds of first calls, forward and backward, with another number of steps."""
    import tensorflow as tf

    batch, units = 16, 64
    layer = lstm(system, units)
    layer.build((batch, 20, units))

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(inputs, training=True) ** 2)
        return tape.gradient(loss, [variable.value for variable in layer.trainable_variables])

    run = tf.function(step, jit_compile=True)
    found = []
    for length in (20, 21, 22, 23, 24):
        start = time.perf_counter()
        float(tf.reduce_sum(run(tf.ones([batch, length, units]))[0]))
        found.append(1e6 * (time.perf_counter() - start))
    return found[1:]


def variants() -> list[str]:
    return [system + suffix for system in SYSTEMS for suffix in ("", COMPILED)]


def of_each(
    systems: list[str], make: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns what is made of each system, and the errors of those that cannot be compiled."""
    found, errors = {}, {}
    for system in systems:
        try:
            found[system] = make(system)
        except Exception as error:
            if not system.endswith(COMPILED):
                raise
            errors[system] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, errors


def in_turns(runs: dict[str, tuple[Run, int]]) -> dict[str, list[float]]:
    """Returns microseconds of a step, some times."""
    found: dict[str, list[float]] = {system: [] for system in runs}
    for number in range(ROUNDS + 1):
        for system, (run, count) in runs.items():
            start = time.perf_counter()
            run()
            if number > 0:
                found[system].append(1e6 * (time.perf_counter() - start) / count)
    return found


def rows(device: str) -> Iterator[tuple[str, str, Callable[[str], tuple[Run, int]]]]:
    """Yields the kind and the name of each row, and what makes a run of a variant."""
    for name, shape in rows_of_fit(device):
        row = f"{name}, {' × '.join(map(str, shape))}"
        yield "fit", row, functools.partial(fit, name=name, shape=shape)
    for units in LOOPS:
        yield "loop", f"LSTM {units}", functools.partial(loop, units=units)
    for shape in TRAINED:
        row = f"LSTM, {' × '.join(map(str, shape))}"
        yield "training", row, functools.partial(training, shape=shape)


def measure(output: pathlib.Path, device: str, commit: str, wanted: str) -> None:
    from benchmarks import tensorflow_steps

    about = tensorflow_steps.describe(device, commit)

    def write(kind: str, row: str, us: dict[str, list[float]], errors: dict[str, str]) -> None:
        result = {"device": device, "about": about, "kind": kind, "row": row, "us": us}
        if errors:
            result["errors"] = errors
        with output.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(row, medians(result), errors or "", flush=True)

    for kind, row, make in rows(device):
        if re.search(wanted, row):
            runs, errors = of_each(variants(), make)
            write(kind, row, in_turns(runs), errors)
            del runs
            gc.collect()
    if re.search(wanted, "new length"):
        write("length", "new length", *of_each([s + COMPILED for s in SYSTEMS], new_lengths))


def medians(result: dict[str, Any]) -> dict[str, float]:
    return {system: round(statistics.median(us), 2) for system, us in result["us"].items()}


def gain(result: dict[str, Any], slow: str, fast: str) -> str:
    """Returns the median and the quartiles of the ratios of runs that follow each other."""
    if not {slow, fast} <= result["us"].keys():
        return MISSING
    ratios = [a / b for a, b in zip(result["us"][slow], result["us"][fast], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


# By kind, what the page says of its rows, the unit in microseconds, and the digits of a time.
KINDS = {
    "fit": (
        "Milliseconds of a training step of `model.fit`, in float32. The sizes are batch size × "
        "time steps × units.",
        1e3,
        2,
    ),
    "loop": (
        f"Microseconds of a step of a `tf.while_loop` of {LOOP_STEPS} that samples tokens: "
        "Embedding, LSTM, Dense and argmax, of one sequence.",
        1,
        1,
    ),
    "training": (
        "Milliseconds of a training step outside of `fit`, one in a call of a concrete function: a "
        "layer forward and backward, and an update by the gradient. The sizes are batch size × "
        "time steps × units.",
        1e3,
        3,
    ),
}


def table(results: list[dict[str, Any]], scale: float, digits: int) -> str:
    titles = ["network", "this package", "compiled", "gain", "Keras", "compiled"]
    cells = []
    for result in results:
        us = medians(result)
        times = [f"{us[s] / scale:.{digits}f}" if s in us else MISSING for s in variants()]
        gains = [gain(result, slow, OURS + COMPILED) for slow in (OURS, KERAS + COMPILED)]
        cells.append([result["row"], *times[:2], gains[0], *times[2:], gains[1]])
    return pages.table([*titles, "Keras / this package, compiled"], cells)


def told_errors(results: list[dict[str, Any]]) -> list[str]:
    """Returns paragraphs that say which variants cannot be compiled, and why."""
    return [
        f"{result['row']}: {system.removesuffix(COMPILED)} cannot be compiled:\n\n    {error}"
        for result in results
        for system, error in result.get("errors", {}).items()
    ]


def page(path: pathlib.Path) -> str:
    """Returns the page of a file of results."""
    results = [json.loads(line) for line in path.read_text().splitlines()]
    parts = [
        "# XLA",
        "Models, loops and training steps as they are and compiled by XLA. Times are medians of "
        "nine runs; all variants of a row take turns in one process. A gain is the time of a run "
        "divided by that of the compiled run after it, the median and the quartiles of nine. "
        "[benchmarks/xla.py](../xla.py) says what a run is.",
    ]
    for device in sorted({result["device"] for result in results}):
        of_device = [result for result in results if result["device"] == device]
        runs = {}
        for result in of_device:
            # Lines of one version and machine belong together, whatever their date.
            about = {key: value for key, value in result["about"].items() if key != "date"}
            if "GPU" in about:
                about["GPU"] = gpu_environment.describe_gpus(about["GPU"])
            runs[result["row"]] = pages.listed(about)
        parts += [f"## On a {device.upper()}", f"From a run with {pages.runs(runs)}."]
        for kind, (text, scale, digits) in KINDS.items():
            if of_kind := [result for result in of_device if result["kind"] == kind]:
                parts += [text, table(of_kind, scale, digits), *told_errors(of_kind)]
        for result in (result for result in of_device if result["kind"] == "length"):
            seconds = " and ".join(
                f"{us / 1e6:.2f} s with {system.removesuffix(COMPILED)}"
                for system, us in medians(result).items()
            )
            parts += [
                "The first call with another number of time steps, of a compiled training step of "
                f"an LSTM of 64 units and 16 sequences, takes {seconds}.",
                *told_errors([result]),
            ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True, help="File of the results.")
    parser.add_argument("--commit", default="unknown", help="The commit that is run.")
    parser.add_argument("--rows", default="", help="A regular expression: the rows to time.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"], help="Of the models.")
    parser.add_argument("--report", action="store_true", help="Write the page.")
    options = parser.parse_args()
    if options.report:
        options.output.with_suffix(".md").write_text(page(options.output))
        return
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    measure(options.output, options.device, options.commit, options.rows)


if __name__ == "__main__":
    main()
