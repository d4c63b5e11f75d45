"""Times sequences of different lengths and of full length on a GPU, beside Keras and PyTorch.

On the GPU machine, in the root of the repository, for one system after the other:

    python -m benchmarks.gpu_lengths --system=SYSTEM --output=DIR --commit=HASH

leaves DIR/SYSTEM.jsonl. Anywhere, from these files:

    python -m benchmarks.gpu_lengths --system=report --output=DIR

writes a page and a plot to benchmarks/results, both named like DIR. The files that the committed
pages were made from are in benchmarks/results/gpu_lengths (H200) and gpu_lengths_h100. A page has
the rows of ROWS that this package was timed on.

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

import dataclasses
import gc
import json
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import gpu_environment

_SYSTEM = flags.DEFINE_enum(
    "system", None, ["cudnn_rnn_tf", "keras", "torch", "report"], "What to time.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_ROWS = flags.DEFINE_string("rows", "", "A regular expression: the rows to time.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
DRAWS = 8  # The number of lists of lengths, which take turns.
STEPS_OF_CALL = {"full_8": DRAWS, "cudnn_8": DRAWS}  # By variant; others have one.
WARM_UP_SECONDS, SAMPLE_SECONDS, SAMPLES = 0.2, 0.05, 7


@dataclasses.dataclass(frozen=True)
class Row:
    """A network, the shape of its data and its type; "tf32" is float32 with TF32 allowed."""

    mode: str
    layers: int
    units: int
    directions: int
    batch: int
    time: int
    type: str
    training: bool

    @property
    def dtype(self) -> str:
        return "float32" if self.type == "tf32" else self.type

    def __str__(self) -> str:
        sides = "bidirectional " if self.directions == 2 else ""
        stack = f"{self.layers}×{self.units}" if self.layers > 1 else f"{self.units}"
        what = "training" if self.training else "inference"
        return (
            f"{sides}{self.mode.upper()} {stack}, B{self.batch} T{self.time}, {self.type}, {what}"
        )


ROWS = [
    Row(*network, type_, training)
    for network, types, training in [
        (("lstm", 1, 384, 1, 48, 120), ("float16", "tf32"), True),
        (("lstm", 2, 640, 1, 32, 80), ("float16",), True),
        (("gru", 1, 512, 1, 64, 300), ("float16",), True),
        (("lstm", 3, 320, 2, 32, 400), ("float16",), True),
        (("lstm", 1, 256, 1, 64, 200), ("bfloat16", "float16", "tf32"), True),
        (("lstm", 1, 512, 1, 64, 200), ("float16", "tf32"), True),
        (("lstm", 1, 64, 1, 32, 100), ("tf32",), True),
        (("gru", 2, 128, 1, 64, 50), ("tf32",), True),
        (("lstm", 1, 128, 2, 32, 300), ("tf32",), True),
        (("lstm", 1, 128, 1, 512, 50), ("tf32",), True),
        (("lstm", 1, 32, 1, 64, 100), ("tf32",), True),
        (("lstm", 1, 768, 1, 32, 100), ("float16",), True),
        (("gru", 1, 1024, 1, 32, 100), ("float16",), True),
        (("lstm", 1, 1024, 1, 64, 100), ("float16", "tf32"), True),
        (("lstm", 2, 512, 1, 16, 100), ("float16",), False),
        (("lstm", 2, 512, 1, 2, 60), ("float16",), False),
        (("lstm", 2, 256, 2, 64, 200), ("tf32",), False),
        (("gru", 1, 256, 1, 128, 100), ("float16",), False),
        (("lstm", 1, 128, 1, 8, 100), ("tf32",), False),
        (("lstm", 1, 512, 1, 32, 100), ("tf32",), False),
        (("gru", 1, 1024, 1, 64, 100), ("float16",), False),
    ]
    for type_ in types
]


# Runs a step, which is given its number.
StepFunction = Callable[[int], None]


def sample_in_turns(
    steps: dict[str, StepFunction], wait: Callable[[], None]
) -> dict[str, list[float]]:
    """Milliseconds of a step of each variant, some times."""

    def seconds(step: StepFunction, count: int) -> float:
        start = time.perf_counter()
        for index in range(count):
            step(index)
        wait()
        return (time.perf_counter() - start) / count

    counts = {}
    for variant, step in steps.items():
        deadline = time.perf_counter() + WARM_UP_SECONDS
        seconds(step, 2 * DRAWS)
        while time.perf_counter() < deadline:
            seconds(step, DRAWS)
        counts[variant] = max(DRAWS, int(SAMPLE_SECONDS / seconds(step, DRAWS)))
    samples: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(SAMPLES):
        for variant, step in steps.items():
            samples[variant].append(1e3 * seconds(step, counts[variant]))
    return samples


def draw_lengths(row: Row) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(row.time // 4, row.time + 1, size=row.batch) for _ in range(DRAWS)]


def draw_times(row: Row) -> list[int]:
    rng = np.random.default_rng(1)
    return [int(steps) for steps in rng.integers(row.time // 2, row.time + 1, size=DRAWS)]


# TensorFlow.


def _tensorflow_step(
    row: Row, call: Callable[..., Any], variables: Callable[[], list[Any]], variant: str
) -> StepFunction:
    """Makes a step, or several, of `call(inputs, mask, training)`, which returns outputs.

    `mask` may be None.
    """
    import tensorflow as tf

    dtype = tf.as_dtype(row.dtype)
    inputs = tf.cast(tf.random.normal((row.batch, row.time, row.units)), dtype)
    size = row.units * row.directions
    d_outputs = tf.cast(0.1 * tf.random.normal((row.batch, row.time, size)), dtype)
    with_mask = variant in ("mask", "lengths")
    masks = [tf.sequence_mask(lengths, row.time) for lengths in draw_lengths(row)]
    times = draw_times(row) if variant == "drawn" else [row.time] * DRAWS
    draws = [
        (tf.identity(inputs[:, :steps]), tf.identity(d_outputs[:, :steps]), mask)
        for steps, mask in zip(times, masks, strict=True)
    ]
    call(inputs, masks[0] if with_mask else None, False)
    takers = [tf.Variable(tf.zeros_like(tensor)) for tensor in variables()]
    of_inputs = tf.Variable(tf.zeros_like(inputs), shape=(row.batch, None, row.units))

    def step(inputs, d_outputs, mask):
        mask = mask if with_mask else None
        if not row.training:
            return call(inputs, mask, False)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = call(inputs, mask, True)
        gradient, *gradients = tape.gradient(
            outputs, [inputs, *variables()], output_gradients=d_outputs
        )
        of_inputs.assign(gradient, read_value=False)
        for taker, gradient in zip(takers, gradients, strict=True):
            taker.assign_add(gradient, read_value=False)
        return None

    if variant in STEPS_OF_CALL:
        steps = tf.function(lambda: [step(*draw) for draw in draws])
        return lambda _: steps()
    max_time = None if variant == "drawn" else row.time
    one_step = tf.function(
        step,
        input_signature=[
            tf.TensorSpec((row.batch, max_time, row.units), dtype),
            tf.TensorSpec((row.batch, max_time, size), dtype),
            tf.TensorSpec((row.batch, row.time), tf.bool),
        ],
    )
    return lambda index: one_step(*draws[index % DRAWS])


def _cudnn_rnn_tf(row: Row) -> Iterator[tuple[str, StepFunction]]:
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
    make = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU}[row.mode]
    for variant in ("mask", "lengths", "full", "drawn", "cudnn", "full_8", "cudnn_8"):
        layer = make(
            row.layers,
            row.units,
            direction="bidirectional" if row.directions == 2 else "unidirectional",
            algorithm="cudnn" if variant.startswith("cudnn") else "auto",
            dtype=row.dtype,
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

    if row.dtype == "bfloat16":
        return  # Its cuDNN op has no such kernel.
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
    network = make(
        row.units, row.units, row.layers, bidirectional=row.directions == 2, batch_first=True
    )
    network = network.cuda().to(dtype)
    network.flatten_parameters()
    network.train(row.training)
    inputs = torch.randn(row.batch, row.time, row.units, device="cuda", dtype=dtype)
    inputs.requires_grad_(row.training)
    size = row.units * row.directions
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


SYSTEMS = {
    "cudnn_rnn_tf": (_cudnn_rnn_tf, _wait_in_tensorflow, _tensorflow_versions),
    "keras": (_keras, _wait_in_tensorflow, _tensorflow_versions),
    "torch": (_torch, _wait_in_torch, _torch_versions),
}


def _measure(system: str, path: pathlib.Path) -> None:
    variants, wait, versions = SYSTEMS[system]
    environment = {**gpu_environment.environment(_COMMIT.value), **versions()}
    with path.open("a") as file:
        print(json.dumps({"environment": environment}), file=file)
        for row in ROWS:
            if not re.search(_ROWS.value, str(row)):
                continue
            gc.collect()
            for variant, milliseconds in sample_in_turns(dict(variants(row)), wait).items():
                steps = STEPS_OF_CALL.get(variant, 1)
                of_step = [time / steps for time in milliseconds]
                result = {"row": str(row), "variant": variant, "ms": of_step}
                print(json.dumps(result), file=file, flush=True)


# The report.

# Milliseconds by system, row and variant.
Times = dict[tuple[str, str, str], float]


def _cell(milliseconds: float | None) -> str:
    return f"{milliseconds:.3f}" if milliseconds else "–"


def _ratio(theirs: float | None, own: float) -> str:
    return f"{theirs / own:.1f}" if theirs else "–"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)]) + "\n"


def _means(ratios: dict[str, list[float]]) -> str:
    found = [
        f"{statistics.geometric_mean(values):.2f} against {name} (smallest: {min(values):.2f})"
        for name, values in ratios.items()
        if values
    ]
    listed = " and ".join([", ".join(found[:-1])] * (len(found) > 1) + found[-1:])
    return f"\nThe geometric mean of the ratios is {listed}.\n"


def _rows(times: Times, training: bool) -> list[Row]:
    """The rows of training or of inference that were timed."""
    return [
        row
        for row in ROWS
        if row.training == training and ("cudnn_rnn_tf", str(row), "full") in times
    ]


def _against_keras(times: Times, row: str, variant: str) -> float:
    """Keras's time over this package's; rows that Keras cannot run come last."""
    theirs = times.get(("keras", row, variant))
    return theirs / times["cudnn_rnn_tf", row, variant] if theirs else float("inf")


def _speed_table(times: Times, training: bool, variant: str) -> str:
    """All rows of training or of inference, those that gain the least over Keras first."""
    rows = sorted(
        map(str, _rows(times, training)), key=lambda row: _against_keras(times, row, variant)
    )
    peers = {"Keras": ("keras", variant), "PyTorch": ("torch", variant)}
    if variant == "full":
        titles = ["this package", "Keras", "ratio", "PyTorch", "ratio"]
        own_variants = [variant]
    else:
        titles = ["this package, mask", "this package, lengths"]
        titles += ["Keras, mask", "ratio", "PyTorch, packed", "ratio"]
        own_variants = [variant, "lengths"]
    ratios: dict[str, list[float]] = {name: [] for name in peers}
    table = []
    for row in rows:
        own = times["cudnn_rnn_tf", row, variant]
        cells = [_cell(times.get(("cudnn_rnn_tf", row, name))) for name in own_variants]
        for name, (system, theirs) in peers.items():
            time = times.get((system, row, theirs))
            cells += [_cell(time), _ratio(time, own)]
            if time:
                ratios[name].append(time / own)
        table.append([row.rsplit(", ", 1)[0], *cells])
    return _table(["network", *titles], table) + _means(ratios)


def _cudnn_table(times: Times, training: bool) -> str:
    """All rows, with as many steps in a call as were measured; those that gain least come first."""
    names = [str(row) for row in _rows(times, training)]
    steps_of = {
        suffix: text
        for suffix, text in (("_8", "eight steps"), ("", "one step"))
        if ("cudnn_rnn_tf", names[0], "full" + suffix) in times
    }
    rows: list[tuple[list[float], list[str]]] = []
    for name in names:
        ratios, cells = [], [name.rsplit(", ", 1)[0]]
        for suffix in steps_of:
            own, cudnn = (
                times["cudnn_rnn_tf", name, which + suffix] for which in ("full", "cudnn")
            )
            ratios.append(cudnn / own)
            cells += [_cell(own), _cell(cudnn), f"{cudnn / own:.2f}"]
        rows.append((ratios, cells))
    titles = ["network"]
    for steps in steps_of.values():
        titles += [f"this package, {steps}", f"by cuDNN, {steps}", "ratio"]
    means = " and ".join(
        f"{statistics.geometric_mean(found):.2f} with {steps} in a call "
        f"(smallest: {min(found):.2f})"
        for steps, found in zip(
            steps_of.values(), zip(*(ratios for ratios, _ in rows), strict=True), strict=True
        )
    )
    table = _table(titles, [cells for _, cells in sorted(rows)])
    return f"{table}\nThe geometric mean of the ratios is {means}.\n"


def _drawn_table(times: Times) -> str:
    rows = sorted(
        _rows(times, training=True), key=lambda row: _against_keras(times, str(row), "drawn")
    )
    ratios, cells = [], []
    for row in rows:
        own = times["cudnn_rnn_tf", str(row), "drawn"]
        steps = statistics.mean(draw_times(row)) / row.time
        of_full = own / steps / times["cudnn_rnn_tf", str(row), "full"]
        keras = times.get(("keras", str(row), "drawn"))
        if keras:
            ratios.append(keras / own)
        name = str(row).rsplit(", ", 1)[0]
        cells.append([name, _cell(own), _cell(keras), _ratio(keras, own), f"{of_full:.2f}"])
    titles = ["network", "this package", "Keras", "ratio", "per time step, over full length"]
    return _table(titles, cells) + _means({"Keras": ratios})


def _plot(times: Times, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot, ticker

    pyplot.rcParams.update({"svg.hashsalt": path.stem, "font.size": 9})
    peers = {
        "against Keras, with a mask": ("keras", "#c0392b"),
        "against PyTorch, with packed sequences": ("torch", "#2471a3"),
    }

    def speed(system: str, row: str) -> float | None:
        theirs = times.get((system, row, "mask"))
        return theirs / times["cudnn_rnn_tf", row, "mask"] if theirs else None

    rows = sorted(map(str, _rows(times, training=True)), key=lambda row: speed("torch", row) or 0.0)
    figure, panel = pyplot.subplots(figsize=(9, 0.9 + 0.3 * len(rows)), layout="constrained")
    for offset, (label, (system, colour)) in zip((0.2, -0.2), peers.items(), strict=True):
        bars = [(i + offset, speed(system, row)) for i, row in enumerate(rows)]
        bars = [(place, value) for place, value in bars if value]
        panel.barh(*zip(*bars, strict=True), height=0.38, color=colour, label=label)
    panel.axvline(1, color="black", linewidth=1)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g×"))
    panel.set_yticks(range(len(rows)), [row.rsplit(", ", 1)[0] for row in rows])
    panel.grid(axis="x", color="#dddddd")
    panel.set_axisbelow(True)
    panel.set_xlabel("how many times as fast this package trains on sequences of different lengths")
    panel.set_ylabel("network")
    panel.legend(loc="lower right", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# By what was measured, training or inference, the systems and where they ran.
Environments = dict[str, dict[str, dict[str, str]]]


def _read(directory: pathlib.Path) -> tuple[Times, Environments]:
    """Reads all systems' files, in which an environment holds for the records that follow it."""
    times: Times = {}
    environments: Environments = {}
    for system in SYSTEMS:
        for line in (directory / f"{system}.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "environment" in record:
                environment = record["environment"]
                environment["GPU"] = gpu_environment.describe_gpus(environment["GPU"])
            else:
                what = record["row"].rpartition(", ")[2]
                environments.setdefault(what, {})[system] = environment
                times[system, record["row"], record["variant"]] = statistics.median(record["ms"])
    return times, environments


LEGEND = """\
* **Network**: the kind of cell and its number of units; `L×` before the units means a stack of L
  layers; then B sequences and T time steps; then the type, where tf32 is float32 with
  TensorFloat-32 allowed.
* **Times** are milliseconds of a step: in training, a forward and a backward pass; in inference, a
  forward pass. Below about 1 ms, TensorFlow's work on the CPU, not the GPU, may decide how long a
  step takes. The time of this work varies by chance, so small differences between such times may
  be chance.
* **Different lengths**: each sequence has a length drawn from [T/4, T]. Eight lists, each with a
  length for every sequence, were drawn; each call uses the next list. **Mask**: this package's
  layer and Keras's are called with the same mask; PyTorch gets packed sequences. **Lengths**: this
  package's layer is called with lengths instead of a mask.
* **Full length**: all sequences have T time steps, and the layers get neither a mask nor lengths.
* **By cuDNN**: this package with `algorithm="cudnn"`, so that cuDNN's kernels compute the layer
  instead of this package's; the kernels of a pass are recorded as a CUDA graph, and then launched
  together.
* **Ratio**: the time in the column to its left, divided by this package's time (in the tables
  “different lengths”, its time with a mask); above 1, this package's kernels are faster. Each table
  is sorted by its first ratio column, smallest first.
* **–** was not measured. Keras does not run bfloat16 by cuDNN."""


def _merged(environments: list[dict[str, str]]) -> dict[str, None]:
    """Everything that these environments name, once."""
    return {
        f"{name} {value}": None
        for environment in environments
        for name, value in environment.items()
    }


def _text(times: Times, environments: Environments, name: str) -> str:
    gpu = environments["training"]["cudnn_rnn_tf"]["GPU"].partition(",")[0]
    runs = ". ".join(
        f"{what.capitalize()}: {', '.join(_merged(list(systems.values())))}"
        for what, systems in environments.items()
    )
    parts = [
        f"# Sequences of different lengths and of full length on an {gpu}",
        f"![How many times as fast this package is]({name}.svg)",
        LEGEND,
        "## Training, different lengths",
        _speed_table(times, training=True, variant="mask").rstrip(),
        "## Training, full length",
        _speed_table(times, training=True, variant="full").rstrip(),
        "## Inference, different lengths",
        _speed_table(times, training=False, variant="mask").rstrip(),
        "## Inference, full length",
        _speed_table(times, training=False, variant="full").rstrip(),
        "## Training, full length: own kernels and cuDNN",
        "If a network is small, TensorFlow's work on the CPU takes longer than the GPU's work. "
        "Most of the CPU's work is done once in each call of a `tf.function`, however many steps "
        "the call runs. So in this table and the next, the first columns come from calls that run "
        "eight steps one after another. The last columns, and all other tables of this page, come "
        "from calls of one step.",
        _cudnn_table(times, training=True).rstrip(),
        "## Inference, full length: own kernels and cuDNN",
        _cudnn_table(times, training=False).rstrip(),
        "## Training, with a different sequence length in each training step",
        "All sequences of a training step have the same length, which changes from step to step; "
        "eight lengths from [T/2, T] take turns. The last column divides this package's time per "
        "time step in this table by its time per time step in “Training, full length”.",
        _drawn_table(times).rstrip(),
        f"Written by `python -m benchmarks.gpu_lengths` from these runs. {runs}.",
    ]
    return "\n\n".join(parts) + "\n"


def main(_: list[str]) -> None:
    directory = pathlib.Path(_OUTPUT.value)
    if _SYSTEM.value == "report":
        results = ROOT / "benchmarks" / "results"
        times, environments = _read(directory)
        (results / f"{directory.name}.md").write_text(_text(times, environments, directory.name))
        _plot(times, results / f"{directory.name}.svg")
        return
    directory.mkdir(parents=True, exist_ok=True)
    _measure(_SYSTEM.value, directory / f"{_SYSTEM.value}.jsonl")


if __name__ == "__main__":
    app.run(main)
