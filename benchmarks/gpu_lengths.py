"""Times sequences of different lengths and of full length on a GPU, beside Keras and PyTorch.

On the GPU machine, in the root of the repository, for one system after the other:

    python -m benchmarks.gpu_lengths --system=SYSTEM --output=DIR --commit=HASH

leaves DIR/SYSTEM.jsonl. Anywhere, from these files:

    python -m benchmarks.gpu_lengths --system=report --output=DIR

writes a page and a plot to benchmarks/results, both named like DIR. The files that the committed
pages were made from are in benchmarks/results/gpu_lengths (H200) and gpu_lengths_h100. A page has
the rows of ROWS and STEP_ROWS that this package was timed on.

The layer is called as a user calls it: one `tf.function` a step, with another draw of lengths each
step, uniform in [T/4, T]; PyTorch packs its sequences in each step. For the variants "full" and
"cudnn", every sequence has T steps; "full_8" and "cudnn_8" run eight such steps in each call of the
`tf.function`, one after another. For "drawn", all of a step's sequences
are equally long, but each step has another length, in [T/2, T]. A training step is a forward and a
backward pass, from a given gradient of the outputs to those of inputs and weights, which are added
to variables. In a sample, steps run back to back for about 50 ms, then the
device is waited for. A row's variants take turns, a sample each, so that a slow moment of the host
meets all of them; the median of a variant's seven samples counts.
"""

import gc
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from absl import app, flags

from benchmarks import gpu_environment, gpu_lengths_page, tensorflow_steps
from benchmarks.gpu_lengths_rows import (
    DRAWS,
    ROWS,
    STEP_ROWS,
    SYSTEMS,
    Row,
    draw_lengths,
    draw_times,
)
from benchmarks.gpu_timing import StepFunction, sample_in_turns

_SYSTEM = flags.DEFINE_enum("system", None, [*SYSTEMS, "report"], "What to time.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_ROWS = flags.DEFINE_string("rows", "", "A regular expression: the rows to time.")

STEPS_OF_CALL = {"full_8": DRAWS, "cudnn_8": DRAWS}  # By variant; others have one.


# TensorFlow.


def _tensorflow_step(
    row: Row, call: Callable[..., Any], variables: Callable[[], list[Any]], variant: str
) -> StepFunction:
    """Makes a step, or several, of `call(inputs, mask, training)`, where `mask` may be None."""
    import tensorflow as tf

    masks = [None] * DRAWS
    if variant in ("mask", "lengths"):
        masks = [tf.sequence_mask(lengths, row.time) for lengths in draw_lengths(row)]
    times = draw_times(row) if variant == "drawn" else ()
    calls = STEPS_OF_CALL.get(variant, 1)
    return tensorflow_steps.step_of(row, call, variables, masks, times, calls)


def _cudnn_rnn_tf(row: Row) -> Iterator[tuple[str, StepFunction]]:
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
    make = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU}[row.mode]
    options = {"num_proj": row.projection or None, "cell_clip": 1.0 if row.clips else None}
    variants = ("mask", "lengths", "full", "drawn", "cudnn", "full_8", "cudnn_8")
    for variant in ("mask", "lengths", "cudnn") if row in STEP_ROWS else variants:
        layer = make(
            row.layers,
            row.units,
            direction="bidirectional" if row.directions == 2 else "unidirectional",
            algorithm="cudnn" if variant.startswith("cudnn") else "auto",
            dtype=row.dtype,
            **(options if row.mode == "lstm" else {}),
        )

        def call(inputs, mask, training, layer=layer, variant=variant):
            if variant == "lengths":
                lengths = tf.reduce_sum(tf.cast(mask, tf.float32), axis=1)
                return layer(inputs, sequence_lengths=tf.cast(lengths, tf.int32), training=training)
            return layer(inputs, mask=mask, training=training)

        yield (
            variant,
            _tensorflow_step(row, call, lambda layer=layer: layer.trainable_variables, variant),
        )


def _keras(row: Row) -> Iterator[tuple[str, StepFunction]]:
    import keras
    import tensorflow as tf

    if row.dtype == "bfloat16" or row.projection or row.clips:
        return  # Its cuDNN op has no such kernel, and its layers have no such option.
    tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
    make = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[row.mode]
    for variant in ("mask", "full", "drawn"):
        layers = []
        for _ in range(row.layers):
            layer = make(
                row.units,
                return_sequences=True,
                recurrent_initializer="glorot_uniform",  # An orthogonal matrix takes long to make.
                dtype=row.dtype,
            )
            if row.directions == 2:
                layer = keras.layers.Bidirectional(layer, dtype=row.dtype)
            layers.append(layer)

        def call(inputs, mask, training, layers=layers):
            for layer in layers:
                inputs = layer(inputs, mask=mask, training=training)
            return inputs

        def variables(layers=layers):
            return [v for layer in layers for v in layer.trainable_variables]

        yield variant, _tensorflow_step(row, call, variables, variant)


def _wait_in_tensorflow() -> None:
    import tensorflow as tf

    tf.test.experimental.sync_devices()


def _tensorflow_versions() -> dict[str, str]:
    import keras
    import tensorflow as tf

    return {"TensorFlow": tf.__version__, "Keras": keras.__version__}


# PyTorch.


def _torch(row: Row) -> Iterator[tuple[str, StepFunction]]:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = row.type == "tf32"
    dtype = getattr(torch, row.dtype)
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[row.mode]
    if row.clips:
        return
    network = make(
        *(row.units, row.units, row.layers),
        bidirectional=row.directions == 2,
        batch_first=True,
        **({"proj_size": row.projection} if row.projection else {}),
    )
    network = network.cuda().to(dtype)
    network.flatten_parameters()
    network.train(row.training)
    inputs = torch.randn(row.batch, row.time, row.units, device="cuda", dtype=dtype)
    inputs.requires_grad_(row.training)
    size = row.outputs
    d_outputs = 0.1 * torch.randn(row.batch, row.time, size, device="cuda", dtype=dtype)
    draws = [torch.tensor(lengths) for lengths in draw_lengths(row)]
    for variant in ("mask", "full"):

        def step(index: int, variant: str = variant) -> None:
            data, gradient = inputs, d_outputs
            if variant == "mask":
                data = pack_padded_sequence(
                    inputs, draws[index % DRAWS], batch_first=True, enforce_sorted=False
                )
            with torch.set_grad_enabled(row.training):
                outputs, _ = network(data)
            if row.training:
                if variant == "mask":
                    outputs = outputs.data
                    gradient = d_outputs.view(-1, size)[: outputs.shape[0]]
                outputs.backward(gradient)

        yield variant, step


def _wait_in_torch() -> None:
    import torch

    torch.cuda.synchronize()


def _torch_versions() -> dict[str, str]:
    import torch

    return {"PyTorch": torch.__version__}


MEASUREMENTS = {
    "cudnn_rnn_tf": (_cudnn_rnn_tf, _wait_in_tensorflow, _tensorflow_versions),
    "keras": (_keras, _wait_in_tensorflow, _tensorflow_versions),
    "torch": (_torch, _wait_in_torch, _torch_versions),
}


def _measure(system: str, path: pathlib.Path) -> None:
    variants, wait, versions = MEASUREMENTS[system]
    environment = {**gpu_environment.environment(_COMMIT.value), **versions()}
    with path.open("a") as file:
        print(json.dumps({"environment": environment}), file=file)
        for row in [*ROWS, *STEP_ROWS]:
            if not re.search(_ROWS.value, str(row)):
                continue
            gc.collect()
            for variant, milliseconds in sample_in_turns(dict(variants(row)), wait).items():
                steps = STEPS_OF_CALL.get(variant, 1)
                of_step = [time / steps for time in milliseconds]
                result = {"row": str(row), "variant": variant, "ms": of_step}
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
