"""Measures one network on this machine with this package, Keras and PyTorch."""

import dataclasses
import importlib.util
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import network
from cudnn_rnn_tf.convert.keras_format import to_keras
from cudnn_rnn_tf.convert.torch_format import to_torch


@dataclasses.dataclass(frozen=True)
class Workload:
    """The network and data that are measured.

    Attributes:
        config: the network, without what `keras.layers` lack: projection, clipping, skip input.
        batch_size: sequences, B.
        steps: of the longest sequence, T.
        dtype: "float64", "float32", "float16" or "bfloat16", of weights and data.
        shortest: of the sequences, whose lengths are spread evenly from here to `steps`; None for
            full sequences, without a mask.

    Raises:
        ValueError: if `shortest` is out of range.
    """

    config: RnnConfig
    batch_size: int
    steps: int
    dtype: str = "float32"
    shortest: int | None = None

    def __post_init__(self) -> None:
        if self.shortest is not None and not 0 <= self.shortest <= self.steps:
            raise ValueError(
                f"expected shortest to lie in [0, {self.steps}], but received {self.shortest}"
            )

    @property
    def lengths(self) -> np.ndarray | None:
        """The sequences' lengths, int32 [B]; None for full sequences."""
        if self.shortest is None:
            return None
        return np.linspace(self.steps, self.shortest, self.batch_size).round().astype(np.int32)


class Row(NamedTuple):
    """Medians in milliseconds; None if the library cannot run it, and `problem` says why."""

    library: str
    inference: float | None
    training: float | None
    problem: str = ""


def bench(workload: Workload, seconds: float) -> Iterator[Row]:
    """Measures each library that is installed, this package first, on the same weights and inputs.

    An inference is a call that ends when its numbers are there; a training step also has the
    gradients of all weights and of the inputs. TensorFlow's run in a `tf.function`.

    Args:
        workload: what to measure.
        seconds: for each number.
    """
    options = {
        key: getattr(workload.config, key)
        for key in ("num_layers", "num_units", "direction", "bias_mode")
    }
    layer = network.LAYERS[workload.config.rnn_mode](**options, dtype=workload.dtype)
    layer.build((None, None, workload.config.input_size))
    shape = (workload.batch_size, workload.steps, workload.config.input_size)
    inputs = np.random.default_rng(0).normal(size=shape)
    libraries: dict[str, Callable[..., Any]] = {"cudnn_rnn_tf": _ours, "keras": _keras}
    if importlib.util.find_spec("torch"):
        libraries["torch"] = _torch
    for name, make in libraries.items():
        try:
            infer, train = make(layer, workload, inputs)
            yield Row(name, _milliseconds(infer, seconds), _milliseconds(train, seconds))
        except Exception as error:
            # Another library may raise anything for what it does not support.
            yield Row(name, None, None, network.reason(error))


def _milliseconds(call: Callable[[], Any], seconds: float) -> float:
    for _ in range(3):
        call()
    end = time.perf_counter() + seconds
    times: list[float] = []
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _in_tensorflow(
    run: Callable[[tf.Tensor, bool], tf.Tensor], weights: list[Any], workload: Workload, inputs: Any
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    x = tf.constant(inputs, workload.dtype)

    # The function returns one number of the results, and the measurement waits for it: a GPU has it
    # only when all work is done.
    @tf.function
    def infer() -> tf.Tensor:
        return run(x, False)[0, 0, 0]

    @tf.function
    def train() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = run(x, True)
        gradients = tape.gradient(outputs, [x, *weights])
        return [tf.reshape(gradient, [-1])[0] for gradient in gradients]

    return lambda: infer().numpy(), lambda: [number.numpy() for number in train()]


def _ours(layer: Any, workload: Workload, inputs: np.ndarray) -> Any:
    lengths = workload.lengths

    def run(x: tf.Tensor, training: bool) -> tf.Tensor:
        return layer(x, sequence_lengths=lengths, training=training)

    return _in_tensorflow(run, [layer.kernel.value], workload, inputs)


def _keras(layer: Any, workload: Workload, inputs: np.ndarray) -> Any:
    stock = keras.Sequential(to_keras(layer))
    lengths = workload.lengths
    mask = None if lengths is None else tf.sequence_mask(lengths, workload.steps)

    def run(x: tf.Tensor, training: bool) -> tf.Tensor:
        for part in stock.layers:
            x = part(x, mask=mask, training=training)
        return x

    weights = [weight.value for weight in stock.trainable_weights]
    return _in_tensorflow(run, weights, workload, inputs)


def _torch(layer: Any, workload: Workload, inputs: np.ndarray) -> Any:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = to_torch(layer).to(device)
    x: Any = torch.from_numpy(inputs).to(device, getattr(torch, workload.dtype)).requires_grad_()
    lengths = workload.lengths

    def run() -> Any:
        if lengths is None:
            return module(x)[0]
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x, torch.from_numpy(lengths), batch_first=True
        )
        outputs, _ = module(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)[0]

    def infer() -> float:
        with torch.inference_mode():
            return run()[0, 0, 0].item()

    def train() -> float:
        module.zero_grad()
        x.grad = None
        run().sum().backward()
        return x.grad[0, 0, 0].item()

    return infer, train


def table(rows: list[Row]) -> str:
    """Returns the rows as text, with each row's time relative to the first row's.

    A line below them says what the ratios mean.
    """
    lines = [f"{'':14}{'inference':>16}{'':9}{'training':>16}"]
    for row in rows:
        cells = [f"{row.library:14}"]
        for name in ("inference", "training"):
            value, ours = getattr(row, name), getattr(rows[0], name)
            ratio = f"{value / ours:7.2f} x" if value and ours else ""
            cells.append(f"{value:13.3f} ms{ratio:9}" if value else f"{'-':>16}{'':9}")
        lines.append("".join([*cells, row.problem]).rstrip())
    lines.append(
        f"x: the time divided by {rows[0].library}'s; above 1, {rows[0].library} is faster"
    )
    return "\n".join(lines)


def check_plot(path: str) -> None:
    """Checks what `plot` needs, which is of use before the rows are measured.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the path's suffix names no format of pictures.
        FileNotFoundError: if the path's directory does not exist.
    """
    network.load_package("matplotlib", "'cudnn_rnn_tf[plot]'")
    import matplotlib.figure

    suffixes = [f".{name}" for name in matplotlib.figure.Figure().canvas.get_supported_filetypes()]
    if pathlib.Path(path).suffix.lower() not in suffixes:
        raise ValueError(
            f"expected the picture's name to end in {', '.join(suffixes)}, but received {path!r}"
        )
    if not pathlib.Path(path).parent.is_dir():
        raise FileNotFoundError(f"there is no directory {str(pathlib.Path(path).parent)!r}")


def plot(rows: list[Row], title: str, path: str) -> None:
    """Draws the rows as bars into a picture, in the format that the path's suffix names.

    Raises:
        ImportError: if matplotlib is not installed.
        OSError: if the picture cannot be written.
    """
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("inference", "training"), strict=True):
        measured = [row for row in rows if getattr(row, name)]
        bars = axes.barh(
            [row.library for row in measured], [getattr(row, name) for row in measured]
        )
        axes.bar_label(bars, fmt="%.3g", padding=2)
        axes.invert_yaxis()
        axes.set_xlabel(f"{name}, ms")
        axes.margins(x=0.15)
    figure.suptitle(title)
    figure.savefig(path)
