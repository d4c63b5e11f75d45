"""Times `model.fit` on a GPU, of a model of recurrent layers behind an embedding with a mask.

benchmarks/command.py says how to run it; `--only` names policies. Each measurement has a process of
its own, and of equal measurements, the last one counts.
"""

import argparse
import json
import pathlib
import re
import statistics
import time
from typing import Any

from benchmarks import command, pages

# Each is this package's layers, its drop-ins, an accelerated model, Keras's layers, or no recurrent
# layers at all.
SYSTEMS = ("this package", "drop-in", "accelerated", "Keras", "no recurrent layers")
# With CHECK_ROWS, the optimizer looks for overflows only in those rows of the embedding's gradient
# that the batch uses.
CHECK_ROWS = "mixed_float16, check of used rows"
# With COMPILED, XLA compiles the steps.
COMPILED = "jit_compile=True"
POLICIES = (
    *("float32", f"float32, {COMPILED}"),
    *("mixed_float16", CHECK_ROWS, f"mixed_float16, {COMPILED}"),
    *("mixed_bfloat16", f"mixed_bfloat16, {COMPILED}"),
)
VOCABULARY, CLASSES, BATCH, STEPS, BATCHES, EPOCHS = 20000, 20, 64, 200, 60, 4


def _recurrent(system: str) -> list[Any]:
    """Makes the recurrent layers, to be called one after the other."""
    import keras

    import cudnn_rnn_tf as crnn

    if system == "no recurrent layers":
        return []
    if system == "this package":
        return [crnn.CudnnLSTM(2, 256, direction="bidirectional")]
    source = crnn.keras if system == "drop-in" else keras.layers
    # Keras's default, an orthogonal matrix, takes long to make.
    options = {"return_sequences": True, "recurrent_initializer": "glorot_uniform"}
    return [source.Bidirectional(source.LSTM(256, **options)) for _ in range(2)]


def fit(system: str, policy: str) -> list[float]:
    """Trains a tagger, whose sequences have different lengths, with `model.fit`.

    Returns:
        The mean milliseconds of a step, for each epoch.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    class CheckRows(keras.mixed_precision.LossScaleOptimizer):
        def check_finite(self, grads):
            return super().check_finite(
                [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
            )

    keras.mixed_precision.set_global_policy(policy.partition(",")[0])
    adam = keras.optimizers.Adam()
    rng = np.random.default_rng(0)
    ids = rng.integers(1, VOCABULARY, (BATCHES * BATCH, STEPS)).astype("int32")
    for row, length in zip(ids, rng.integers(STEPS // 4, STEPS + 1, len(ids)), strict=True):
        row[length:] = 0
    labels = rng.integers(0, CLASSES, ids.shape).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH).cache().prefetch(4)

    tokens = keras.Input((None,), dtype="int32")
    values = keras.layers.Embedding(VOCABULARY, 128, mask_zero=True)(tokens)
    for layer in _recurrent(system):
        values = layer(values)
    model = keras.Model(tokens, keras.layers.Dense(CLASSES, dtype="float32")(values))
    if system == "accelerated":
        model = crnn.accelerate(model)
    optimizer = CheckRows(adam) if policy == CHECK_ROWS else adam
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=policy.endswith(COMPILED) or "auto")
    model.fit(data, verbose=0)
    milliseconds = []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        model.fit(data, verbose=0)
        milliseconds.append(1e3 * (time.perf_counter() - start) / BATCHES)
    return milliseconds


def measure(system: str, policy: str) -> None:
    print(json.dumps({"system": system, "policy": policy, "ms": fit(system, policy)}))


def _run_all(options: argparse.Namespace) -> None:
    calls = [
        (system, policy)
        for policy in filter(re.compile(options.only).search, POLICIES)
        for system in SYSTEMS
        # Keras's cuDNN op has no kernel for bfloat16, and XLA cannot compile it.
        if system != "Keras" or not re.search(f"bfloat16|{COMPILED}", policy)
    ]
    command.measure_each("gpu_fit", calls, options, "TensorFlow", "Keras")


def page(path: pathlib.Path) -> str:
    """Returns the page of a file of results."""
    times: dict[tuple[str, str], list[float]] = {}
    runs: dict[str, str] = {}  # By policy, the environment.
    for line in map(json.loads, path.read_text().splitlines()):
        if "environment" in line:
            environment = pages.listed(line["environment"])
        elif "policy" in line:
            times[line["system"], line["policy"]] = line["ms"]
            runs[line["policy"]] = environment

    def cell(system: str, policy: str) -> str:
        ms = times.get((system, policy))
        return f"{statistics.median(ms):.1f} ({min(ms):.1f}–{max(ms):.1f})" if ms else "–"

    def ratio(policy: str) -> str:
        keras, drop_in = (times.get((system, policy)) for system in ("Keras", "drop-in"))
        known = keras and drop_in
        return f"{statistics.median(keras) / statistics.median(drop_in):.1f}" if known else "–"

    measured = [policy for policy in POLICIES if any((each, policy) in times for each in SYSTEMS)]
    fits = [
        [policy, ratio(policy), *(cell(system, policy) for system in SYSTEMS)]
        for policy in measured
    ]
    parts = [
        "# `model.fit` on a GPU",
        f"The model is an embedding of {VOCABULARY:,} words with a mask, two bidirectional LSTM "
        "layers of 256 units in each direction, and a dense layer. "
        f"Batches have {BATCH} sequences of {STEPS // 4} to "
        f"{STEPS} words. After a ratio, numbers are milliseconds of a training step of "
        "`model.fit`. The mean "
        f"time of a step was taken for each of {EPOCHS} epochs of {BATCHES} steps. A cell has the "
        "median of these means and, in parentheses, the smallest and the largest. “This package” "
        "is one `CudnnLSTM`, “drop-in” the layers of `cudnn_rnn_tf.keras`, and “accelerated” "
        "`accelerate`'s copy of the model with Keras's layers. The last column "
        "is the same model without the LSTM layers, which Keras lets XLA compile by default. "
        "TensorFloat-32 was on. Keras's layers cannot "
        "use cuDNN in bfloat16, or when compiled by XLA. “–” marks what was not measured.",
        pages.table(["dtype policy", "Keras / drop-in", *SYSTEMS], fits),
        "In float16, Keras's `LossScaleOptimizer` checks in every step whether a gradient has "
        "overflowed. For the gradient of an embedding, TensorFlow does a part of this check on "
        "the CPU, and the program enqueues no more work for the GPU until the result is there. In "
        "the row “check of used rows”, a subclass of this optimizer checks only the rows of the "
        "gradient that belong to words of the batch, since all others are zero "
        "(`CheckRows` in [gpu_fit.py](../gpu_fit.py)).",
        f"Written by `python -m benchmarks.gpu_fit` from a run with {pages.runs(runs)}.",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    command.run(__doc__, _run_all, page)
