"""Times sequences of different lengths and of full length on a GPU, beside Keras and PyTorch.

On the GPU machine, in the root of the repository, for one system after the other:

    python -m benchmarks.gpu_lengths --system=SYSTEM --output=DIR --commit=HASH

leaves DIR/SYSTEM.jsonl. Anywhere, from these files:

    python -m benchmarks.gpu_lengths --system=report --output=DIR

writes a page and a plot to benchmarks/results, both named like DIR. The files that the committed
page was made from are in benchmarks/results/gpu_lengths (H200); those of an H100 are in
gpu_lengths_h100. A page has the rows of ROWS and STEP_ROWS that this package was timed on.

The layer is called as a user calls it: one `tf.function` a step, with another draw of lengths each
step, uniform in [T/4, T]; PyTorch packs its sequences in each step. For the variants "full" and
"cudnn", every sequence has T steps. A training step is a forward and a
backward pass, from a given gradient of the outputs to those of inputs and weights, which are added
to variables. In a sample, steps run back to back for about 50 ms, then the
device is waited for. A row's variants take turns, a sample each, so that a slow moment of the host
meets all of them; the median of a variant's seven samples counts.
"""

import gc
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from absl import app, flags

from benchmarks import gpu_environment, gpu_lengths_page, systems
from benchmarks.rows import DRAWS, ROWS, STEP_ROWS, SYSTEMS, Row, draw_lengths
from benchmarks.timing import StepFunction, sample_in_turns

_SYSTEM = flags.DEFINE_enum("system", None, [*SYSTEMS, "report"], "What to time.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_ROWS = flags.DEFINE_string("rows", "", "A regular expression: the rows to time.")


def _lengths_of_mask(layer: Any, inputs: Any, mask: Any, training: bool) -> Any:
    """Calls a layer with lengths that only the GPU knows."""
    import tensorflow as tf

    lengths = tf.reduce_sum(tf.cast(mask, tf.float32), axis=1)
    return layer(inputs, sequence_lengths=tf.cast(lengths, tf.int32), training=training)


def _cudnn_rnn_tf(row: Row) -> Iterator[tuple[str, StepFunction | None]]:
    for variant in ("mask", "lengths", "cudnn", *(() if row in STEP_ROWS else ("full",))):
        yield (
            variant,
            systems.ours(
                row,
                systems.masks(row) if variant in ("mask", "lengths") else [None] * DRAWS,
                algorithm="cudnn" if variant.startswith("cudnn") else "auto",
                call=_lengths_of_mask if variant == "lengths" else None,
            ),
        )


def _keras(row: Row) -> Iterator[tuple[str, StepFunction | None]]:
    if row.dtype == "bfloat16":
        return  # Its cuDNN op has no such kernel.
    for variant in ("mask", "full"):
        draws = systems.masks(row) if variant == "mask" else [None] * DRAWS
        yield variant, systems.of_keras(row, draws)


def _torch(row: Row) -> Iterator[tuple[str, StepFunction | None]]:
    for variant in () if row.clip else ("mask", "full"):
        yield variant, systems.of_torch(row, draw_lengths(row) if variant == "mask" else None)


VARIANTS = {"cudnn_rnn_tf": _cudnn_rnn_tf, "keras": _keras, "torch": _torch}


def _measure(system: str, path: pathlib.Path) -> None:
    framework = systems.FRAMEWORKS[system]
    environment = {**gpu_environment.environment(_COMMIT.value), **framework.versions()}
    with path.open("a") as file:
        print(json.dumps({"environment": environment}), file=file)
        for row in [*ROWS, *STEP_ROWS]:
            if not re.search(_ROWS.value, str(row)):
                continue
            gc.collect()
            made = {name: step for name, step in VARIANTS[system](row) if step}
            for variant, milliseconds in sample_in_turns(made, framework.wait).items():
                result = {"row": str(row), "variant": variant, "ms": milliseconds}
                print(json.dumps(result), file=file, flush=True)


def main(_: list[str]) -> None:
    directory = pathlib.Path(_OUTPUT.value)
    if _SYSTEM.value == "report":
        gpu_lengths_page.write(directory)
        return
    directory.mkdir(parents=True, exist_ok=True)
    _measure(_SYSTEM.value, directory / f"{_SYSTEM.value}.jsonl")


if __name__ == "__main__":
    app.run(main)
