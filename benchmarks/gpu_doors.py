"""Times the drop-ins and accelerated models, beside Keras and this package's own layers.

benchmarks/command.py says how to run it; `--only` names rows. With `--device=cpu`, a CPU runs other
rows; with `--padding`, Keras's layers without cuDNN and drop-ins, each compiled by XLA and not, run
those of the page's last table.

A step runs recurrent layers on inputs and a mask that lie in the device's memory, in one
`tf.function`; a training step also computes the gradients of inputs and weights and adds them to
variables. Masks are drawn anew for each step. A sample is about 50 ms of steps, after which the
device is waited for. The systems and masks of a row take turns, a sample each; the median of seven
samples counts. All systems run in one process.
"""

import argparse
import gc
import json
import pathlib
import re
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import command, machine, pages, tensorflow_steps
from benchmarks.rows import DRAWS, Row
from benchmarks.systems import keras_layers, layer_of
from benchmarks.timing import StepFunction, sample_in_turns

MASKS = ("none", "behind", "in front", "holes")
DOORS = ("drop-in", "accelerated")
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

CPU_ROWS = [
    Row(*network, "float32", training)
    for network, training in [
        (("lstm", 1, 64, 1, 32, 20), True),
        (("lstm", 1, 64, 2, 16, 30), True),
        (("lstm", 2, 64, 2, 16, 30), True),
        (("lstm", 1, 64, 1, 32, 20), False),
        (("lstm", 1, 256, 1, 1, 100), True),
        (("lstm", 1, 256, 1, 64, 100), True),
        (("lstm", 2, 128, 2, 32, 100), True),
        (("lstm", 1, 512, 1, 16, 25), True),
        (("lstm", 1, 1024, 1, 64, 25), True),
        (("gru", 1, 256, 1, 64, 100), True),
        (("lstm", 1, 64, 1, 1, 25), True),
        (("lstm", 2, 320, 2, 8, 400), True),
        (("gru", 3, 512, 1, 16, 100), True),
        (("gru", 2, 320, 1, 24, 60), True),
    ]
]
PADDING_ROWS = [
    Row(*network, "tf32", True)
    for network in [
        ("lstm", 1, 256, 1, 64, 200),
        ("lstm", 1, 64, 1, 32, 50),
        ("gru", 1, 256, 1, 64, 100),
        ("lstm", 1, 512, 1, 64, 100),
        ("lstm", 1, 128, 2, 32, 100),
    ]
]
PADDED = ("keras", "keras compiled", "drop-in", "drop-in compiled")
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

    inputs = outputs = keras.Input((row.time, row.units), dtype=row.dtype)
    for layer in keras_layers(row, use_cudnn):
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def systems(row: Row) -> Iterator[tuple[str, list[Any]]]:
    """Yields names, each with the layers to call one after the other."""
    import cudnn_rnn_tf as crnn

    stock = stock_model(row)
    if row.dtype != "bfloat16":  # Keras's cuDNN op has no such kernel.
        yield "keras", stock.layers[1:]
    yield "drop-in", crnn.accelerate(stock, stacks=False).layers[1:]
    yield "accelerated", crnn.accelerate(stock).layers[1:]
    layer = layer_of(row)
    layer.build((row.batch, row.time, row.units))
    yield "CudnnLSTM", [layer]


def steps_of(row: Row, device: str, padding: bool) -> dict[str, StepFunction]:
    """Returns what is timed, by a system's name and a kind of mask."""
    if padding:
        # Keras's cuDNN op takes no such masks.
        layers = {"keras": stock_model(row, use_cudnn=False).layers[1:]}
        layers["drop-in"] = next(each for name, each in systems(row) if name == "drop-in")
        return {
            f"{name}, in front": step_of(row, layers[system], "in front", device, bool(compiled))
            for name in PADDED
            for system, compiled, _ in [name.partition(" compiled")]
        }
    return {
        f"{name}, {kind}": step_of(row, layers, kind, device, False)
        for name, layers in systems(row)
        for kind in MASKS_ON[device]
        if name != "keras" or device == "cpu" or kind not in MASKS[2:]
    }


def step_of(row: Row, layers: list[Any], kind: str, device: str, jit_compile: bool) -> StepFunction:
    import tensorflow as tf

    def call(inputs, mask, training):
        for layer in layers:
            inputs = layer(inputs, mask=mask, training=training)
        return inputs

    masks = [None] * DRAWS
    if kind != "none":
        with tf.device(f"{device}:0"):
            masks = [tf.identity(tf.constant(mask)) for mask in draw_masks(row, kind)]
    return tensorflow_steps.step_of(
        row,
        call,
        lambda: [weight for layer in layers for weight in layer.trainable_variables],
        masks,
        jit_compile=jit_compile,
    )


def measure(options: argparse.Namespace) -> None:
    import tensorflow as tf

    of_gpu = options.device == "gpu"
    wait, fewest = (tf.test.experimental.sync_devices, DRAWS) if of_gpu else (lambda: None, 2)
    about = machine.environment(options.commit, "TensorFlow", "Keras", on_cpu=not of_gpu)
    for row in PADDING_ROWS if options.padding else ROWS if of_gpu else CPU_ROWS:
        if not re.search(options.only, str(row)):
            continue
        tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
        steps = steps_of(row, options.device, options.padding)
        samples = sample_in_turns(steps, wait, fewest)
        with options.output.open("a") as file:
            print(json.dumps({"row": str(row), "about": about, "ms": samples}), file=file)
        medians = {name: statistics.median(times) for name, times in samples.items()}
        print(row, {name: round(ms, 3) for name, ms in medians.items()}, flush=True)
        del steps
        gc.collect()


MASKED = (
    'Sequences are masked: not at all; behind, as `keras.utils.pad_sequences(…, padding="post")` '
    'pads (lengths uniform in [T/4, T]); in front, as it pads by default (`"pre"`)'
)
ON_GPU = (
    "# Drop-ins and accelerated models on a GPU",
    f"{MASKED}, or with as many holes at random places. In the latter two cases, cuDNN does not "
    "run Keras's layers; [how fast they are without](#padding-in-front) ends this page. "
    "Steps below a millisecond are bounded by the host, and vary with what else it does. In a "
    "training step, the host also reads and changes each of Keras's weights, six a bidirectional "
    "layer, where "
    "`CudnnLSTM` has one buffer for all layers. ",
)
ON_CPU = (
    "# Drop-ins and accelerated models on a CPU",
    f"{MASKED}. XLA compiles no step, as `fit` does not by default on a CPU. ",
)


class Results:
    """What a file of lines says."""

    def __init__(self, path: pathlib.Path) -> None:
        """Reads a file; of a row that is there twice, the later one counts."""
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.medians: dict[str, dict[str, float]] = {}
        self.padding: dict[str, dict[str, float]] = {}
        for line in lines:
            ms = {key: statistics.median(times) for key, times in line["ms"].items()}
            found = self.padding if f"{PADDED[-1]}, in front" in ms else self.medians
            found[line["row"]] = ms
        self.environments = {pages.listed(line["about"]): None for line in lines}
        self.device = "gpu" if "GPU" in lines[0]["about"] else "cpu"
        self.kinds = MASKS_ON[self.device]

    def ms(self, row: str, system: str, kind: str) -> float | None:
        if system == "keras" and kind in MASKS[2:] and self.device == "gpu":
            return None  # Only without cuDNN: see `padding`.
        return self.medians[row].get(f"{system}, {kind}")

    def ratio(self, row: str, slower: str, faster: str, kind: str) -> float | None:
        ms = self.ms(row, slower, kind)
        return ms and ms / self.ms(row, faster, kind)

    def ratios(self, slower: str, faster: str, kind: str) -> list[float]:
        found = [self.ratio(row, slower, faster, kind) for row in self.medians]
        return [ratio for ratio in found if ratio]

    def padding_rows(self) -> list[tuple[str, list[float], list[float]]]:
        """Returns, for each network, ratios to the faster of Keras's steps, and milliseconds."""
        rows = []
        for row, found in self.padding.items():
            ms = [found[f"{system}, in front"] for system in PADDED]
            rows.append((row, [min(ms[:2]) / own for own in ms[2:]], ms))
        return rows


def page(path: pathlib.Path) -> str:
    """Returns the page of a file: milliseconds of a step, and ratios over all rows."""
    results = Results(path)
    title, masks = ON_GPU if results.device == "gpu" else ON_CPU
    rows = []
    for row in results.medians:
        cells = [row]
        for kind in results.kinds:
            ratio = results.ratio(row, "keras", "drop-in", kind)
            own = f"{results.ms(row, 'drop-in', kind):.3f} ms"
            cells.append(f"{ratio:.1f}× ({own})" if ratio else own)
        rows.append(cells)
    ratios = {
        f"{slower} / {faster}, mask: {kind}": results.ratios(slower, faster, kind)
        for kind in results.kinds
        for door in DOORS
        for slower, faster in (("keras", door), (door, "CudnnLSTM"))
    }
    padding = results.padding_rows()
    for place, system in enumerate(PADDED[2:] if padding else ()):
        ratios[f"keras / {system}, mask: in front"] = [found[place] for _, found, _ in padding]
    of_ratios = [
        [
            name.replace("keras", "Keras").replace("CudnnLSTM", "own"),
            *(f"{of(values):.2f}" for of in (statistics.geometric_mean, min, max)),
            str(len(values)),
        ]
        for name, values in ratios.items()
        if values
    ]
    parts = [
        title,
        f"![How many times as fast as Keras a drop-in is]({path.stem}.svg)",
        "The first table says how many times as fast as Keras a drop-in is, for each kind of mask, "
        "and how long a step of it takes, by the medians of seven samples; the data have the times "
        "of all. `drop-in` is `cudnn_rnn_tf.keras`, `accelerated` is `accelerate`'s copy of the "
        "stock model, and `own` is `CudnnLSTM` or `CudnnGRU`. "
        + masks
        + "[benchmarks/gpu_doors.py](../gpu_doors.py) says what a step is.",
        "; ".join(results.environments),
        pages.table(["network", *(f"mask: {kind}" for kind in results.kinds)], rows),
        pages.table(["ratio", "geometric mean", "least", "most", "networks"], of_ratios),
    ]
    if padding:
        ratio_titles = [f"Keras / {system}" for system in PADDED[2:]]
        ms_titles = [f"{system.replace('keras', 'Keras')}, ms" for system in PADDED]
        parts += [
            "## Padding in front",
            "Keras's layers run with `use_cudnn=False`; `fit` compiles such a model by XLA, but "
            "not one with a `Bidirectional` layer. Ratios are to the faster of both.",
            pages.table(
                ["network", *ratio_titles, *ms_titles],
                [
                    [row, *(f"{ratio:.1f}" for ratio in found), *(f"{one:.3g}" for one in ms)]
                    for row, found, ms in padding
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def plot(path: pathlib.Path, picture: pathlib.Path) -> None:
    """Draws how many times as fast as Keras's layers the drop-ins are, for each kind of mask."""
    results = Results(path)
    names = {"none": "no padding", "behind": "padding='post'", "in front": "padding='pre'"}
    rows = sorted(
        results.medians,
        key=lambda row: results.ratio(row, "keras", "drop-in", "none"),
        reverse=True,
    )
    series = {
        name: [results.ratio(row, "keras", "drop-in", kind) for row in rows]
        for kind, name in names.items()
        if results.ratios("keras", "drop-in", kind)
    }
    device = "an H200" if results.device == "gpu" else "a CPU"
    title = f"times as fast as Keras by default, with one changed import, on {device}"
    pages.plot_ratios(picture, title, rows, series)


if __name__ == "__main__":
    command.run(
        __doc__,
        measure,
        page,
        plot,
        device={"choices": ["gpu", "cpu"], "default": "gpu", "help": "What runs them."},
        padding={"action": "store_true", "help": "Measure padding in front."},
    )
