"""Measures a network with this package, Keras and PyTorch, or a model as it is and accelerated."""

import contextlib
import dataclasses
import functools
import importlib.util
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import messages
from cudnn_rnn_tf._private_names import layers_in
from cudnn_rnn_tf.commands.command_line import BATCH_SIZE, STEPS
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import network
from cudnn_rnn_tf.convert.keras_format import to_keras
from cudnn_rnn_tf.convert.torch_format import to_torch
from cudnn_rnn_tf.exports import targets
from cudnn_rnn_tf.keras import accelerate, to_stock

# From this spread on, the numbers say more of the machine than of the libraries.
_UNSTEADY = 0.2
_FEWEST = 3  # Samples of each number.


@dataclasses.dataclass(frozen=True)
class Workload:
    """The network, without what `keras.layers` lack, and the data that are measured.

    The sequences' lengths are spread evenly from `shortest` to `steps`; with None, all are full,
    and there is no mask.
    """

    config: RnnConfig
    batch_size: int
    steps: int
    dtype: str = "float32"
    shortest: int | None = None

    @property
    def lengths(self) -> np.ndarray | None:
        """The sequences' lengths, int32 [B]; None for full sequences."""
        if self.shortest is None:
            return None
        return np.linspace(self.steps, self.shortest, self.batch_size).round().astype(np.int32)


class Time(NamedTuple):
    """The median in milliseconds, and half the distance of the quartiles divided by it."""

    ms: float
    spread: float


class Row(NamedTuple):
    """What was measured; None if the library cannot run it, and `problem` says why."""

    library: str
    inference: Time | None
    training: Time | None
    problem: str = ""


def bench(
    workload: Workload, seconds: float, say: Callable[[str], None] = lambda _: None
) -> Iterator[Row]:
    """Measures each library that is installed, this package first, on the same weights and inputs.

    An inference is a call that ends when its numbers are there; a training step also has the
    gradients of all weights and of the inputs. TensorFlow's run in a `tf.function`, and Keras's
    layers once more in one that XLA compiles, without cuDNN. PyTorch packs sequences of different
    lengths and, in one direction, reads them padded as well. Each number takes so many `seconds`;
    `say` is told what is being measured.
    """
    options = {
        key: getattr(workload.config, key)
        for key in ("num_layers", "num_units", "direction", "bias_mode")
    }
    layer = network.LAYERS[workload.config.rnn_mode](**options, dtype=workload.dtype)
    layer.build((None, None, workload.config.input_size))
    shape = (workload.batch_size, workload.steps, workload.config.input_size)
    inputs = np.random.default_rng(0).normal(size=shape)
    compiled = functools.partial(_keras, is_compiled=True)
    libraries: dict[str, Callable[..., Any]] = {"cudnn_rnn_tf": _ours, "keras": _keras}
    libraries["keras, compiled"] = compiled
    if importlib.util.find_spec("torch"):
        libraries["torch"] = _torch
        # Padding is what a backward direction would read first.
        if workload.lengths is not None and workload.config.direction != "bidirectional":
            libraries["torch, padded"] = functools.partial(_torch, is_padded=True)
    took = 0.0
    for index, (name, make) in enumerate(libraries.items()):
        left = max(2 * seconds, took) * (len(libraries) - index)
        say(f"measuring {name} ({index + 1} of {len(libraries)}), about {left:.0f} s left")
        start = time.perf_counter()
        try:
            calls = make(layer, workload, inputs)
            for call in calls:
                _seconds(call)
            inference, training = (_times(call, seconds=seconds)[0] for call in calls)
            yield Row(name, inference, training)
        except Exception as error:
            # Another library may raise anything for what it does not support.
            yield Row(name, None, None, messages.reason(error))
        took = time.perf_counter() - start


def bench_model(
    load: Callable[[], keras.Model],
    batch_size: int | None,
    steps: int | None,
    seconds: float,
    padding: str = "post",
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, list[Row]]]:
    """Measures a model on each device: `accelerate`'s copy of it, and with Keras's own layers.

    Both run once more compiled by XLA, Keras's without cuDNN. They take turns; a row says so if
    they cannot run. The inputs are random; those of an `Embedding` are integers that it takes.
    Where the model has a mask, of an `Embedding` or a `Masking` layer, sequences are of random
    lengths, with `padding` "pre" or "post". An inference and a training step are as in `bench`, as
    are `seconds` and `say`. `batch_size` and `steps` are for what `load()`'s model does not say
    itself; None for 32 and 100.

    Returns:
        The names of the devices and the inputs, each with what was measured there.

    Raises:
        ValueError: if `accelerate` would replace no layer, the model says itself what is given as
            `batch_size` or `steps`, it is not known what an input takes, or nothing runs the model.
    """
    report = accelerate(load(), dry_run=True)
    if not report.replaces_any:
        say(str(report))
        raise ValueError(
            f"accelerate replaces no layer of model {report.model_name!r}, so there is nothing to "
            "compare; bench without a model measures networks of this package beside Keras's"
        )
    # TensorFlow runs a model on one GPU unless the program says otherwise.
    devices = ["CPU:0", "GPU:0"][: 1 + bool(tf.config.list_logical_devices("GPU"))]
    for index, device in enumerate(devices):
        with tf.device(device):
            model = load()
            for option, given, axis in (("--batch-size", batch_size, 0), ("--steps", steps, 1)):
                own = [each.shape[axis] for each in model.inputs if len(each.shape) > axis]
                if given is not None and None not in own:
                    raise ValueError(
                        f"{option} is {given}, but model {model.name!r} takes {own[0]} alone"
                    )
            # What runs where is decided when a layer is called, and a CPU has no cuDNN.
            fast, stock, compiled = accelerate(model), to_stock(model), to_stock(model)
            fast_compiled = accelerate(model)
            for layer in layers_in(compiled) + (layers_in(stock) if device == "CPU:0" else []):
                if hasattr(layer, "use_cudnn"):
                    layer.use_cudnn = False
            options = batch_size or BATCH_SIZE, steps or STEPS, padding
            drawn = [_numbers(model, each, *options) for each in model.inputs]
            inputs: Any = [numbers for numbers, _ in drawn]
            if isinstance(model, keras.Sequential):
                (inputs,) = inputs
            else:
                inputs = keras.tree.pack_sequence_as(model.input, inputs)
            calls = {
                name: _in_tensorflow(
                    functools.partial(each, inputs),
                    [weight.value for weight in each.trainable_weights],
                    is_compiled=name.endswith("compiled"),
                )
                for name, each in (
                    ("accelerated", fast),
                    ("accelerated, compiled", fast_compiled),
                    ("stock", stock),
                    ("stock, compiled", compiled),
                )
            }
            place = f"{device} ({index + 1} of {len(devices)})"
            say(f"compiling for {place}")
            problems, left = [], 0.0
            for name in list(calls):
                try:
                    left += sum(max(seconds, _FEWEST * _seconds(call)) for call in calls[name])
                except Exception as error:  # XLA may raise anything for what it does not compile.
                    problems.append(Row(name, None, None, messages.reason(error)))
                    del calls[name]
            if not calls:
                raise ValueError(f"nothing runs model {model.name!r}: {problems[0].problem}")
            say(f"measuring on {place}, about {left:.0f} s left there")
            measured = [
                _times(*(call[kind] for call in calls.values()), seconds=len(calls) * seconds)
                for kind in range(2)
            ]
        rows = [Row(name, *found) for name, *found in zip(calls, *measured, strict=True)]
        sizes = ", ".join("×".join(map(str, numbers.shape)) for numbers, _ in drawn)
        lengths = f", random lengths, {padding=}" if any(padded for _, padded in drawn) else ""
        yield f"{device}, inputs {sizes}{lengths}", rows + problems


def _numbers(
    model: keras.Model, tensor: Any, batch_size: int, steps: int, padding: str
) -> tuple[tf.Tensor, bool]:
    """Returns what a model takes as one of its inputs, and whether a mask finds padding in it."""
    batch, *others = tensor.shape
    others = [steps if size is None and place == 0 else size for place, size in enumerate(others)]
    if None in others or tensor.dtype == "string":
        raise ValueError(
            f"expected inputs of known size and numbers, but {tensor.name!r} of model "
            f"{model.name!r} has shape {tensor.shape} and dtype {tensor.dtype}"
        )
    shape = [batch or batch_size, *others]
    random = np.random.default_rng(0)
    numbers: Any = random.normal(size=shape)
    embeddings, is_read = _readers(model, tensor, keras.layers.Embedding)
    maskings, _ = _readers(model, tensor, keras.layers.Masking)
    values = [layer.mask_value for layer in maskings if len(shape) > 2]
    if is_read or (embeddings and "int" in tensor.dtype):
        count = min(layer.input_dim for layer in embeddings)
        numbers = random.integers(min(1, count - 1), count, shape)
        values = [0.0 for layer in embeddings if layer.mask_zero]
    is_padded = bool(values) and len(shape) > 1
    if is_padded:
        random = np.random.default_rng(1)  # Inputs have the same lengths.
        lengths = random.integers(max(1, shape[1] // 4), shape[1] + 1, (shape[0], 1))
        is_read_step = np.arange(shape[1]) < lengths
        numbers[~(is_read_step[:, ::-1] if padding == "pre" else is_read_step)] = values[0]
    return tf.cast(numbers, tensor.dtype), is_padded


def _readers(model: keras.Model, tensor: Any, kind: type[Any]) -> tuple[list[Any], bool]:
    """Returns the layers of a kind that read an input, or all of them if that is not known."""
    layers = [layer for layer in layers_in(model) if isinstance(layer, kind)]
    found = []
    for layer in layers:
        with contextlib.suppress(AttributeError, ValueError):
            found += [layer] * (layer.input is tensor)
    return found or layers, bool(found)


def _seconds(call: Callable[[], Any]) -> float:
    """Returns the seconds of a second call; the first one traces and compiles."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _times(*calls: Callable[[], Any], seconds: float) -> list[Time]:
    """Measures calls, which take turns, in so many seconds."""
    end = time.perf_counter() + seconds
    times: list[list[float]] = [[] for _ in calls]
    while time.perf_counter() < end or len(times[0]) < _FEWEST:
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(1e3 * (time.perf_counter() - start))
    found = []
    for taken in times:
        low, median, high = statistics.quantiles(taken, n=4)
        found.append(Time(median, (high - low) / 2 / median))
    return found


def _in_tensorflow(
    run: Callable[..., Any], sources: list[Any], is_compiled: bool = False
) -> tuple[Callable[[], Any], ...]:
    """Returns calls of an inference and of a training step, which may be compiled by XLA.

    They return one number of each result, and so wait for it: a GPU has it only when all work is
    done. `run` returns outputs, given the argument `training`; a training step has the gradients of
    `sources`.
    """

    @tf.function(jit_compile=is_compiled or None)
    def infer() -> list[tf.Tensor]:
        return [tf.reshape(output, [-1])[0] for output in tf.nest.flatten(run(training=False))]

    @tf.function(jit_compile=is_compiled or None)
    def train() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = tf.nest.flatten(run(training=True))
            loss = sum(tf.reduce_sum(tf.cast(output, "float32")) for output in outputs)
        found = [each for each in tape.gradient(loss, sources) if each is not None]
        return [tf.reshape(tf.convert_to_tensor(each), [-1])[0] for each in found]

    return tuple(lambda call=call: [each.numpy() for each in call()] for call in (infer, train))


def _ours(layer: Any, workload: Workload, inputs: np.ndarray) -> Any:
    x = tf.constant(inputs, workload.dtype)
    run = functools.partial(layer, x, sequence_lengths=workload.lengths)
    return _in_tensorflow(run, [x, layer.kernel.value])


def _keras(layer: Any, workload: Workload, inputs: np.ndarray, is_compiled: bool = False) -> Any:
    stock = keras.Sequential(to_keras(layer))
    for each in layers_in(stock) if is_compiled else ():
        if hasattr(each, "use_cudnn"):
            each.use_cudnn = False
    lengths = workload.lengths
    mask = None if lengths is None else tf.sequence_mask(lengths, workload.steps)
    x = tf.constant(inputs, workload.dtype)

    def run(training: bool) -> tf.Tensor:
        outputs = x
        for part in stock.layers:
            outputs = part(outputs, mask=mask, training=training)
        return outputs

    sources = [x, *(weight.value for weight in stock.trainable_weights)]
    return _in_tensorflow(run, sources, is_compiled)


def _torch(layer: Any, workload: Workload, inputs: np.ndarray, is_padded: bool = False) -> Any:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = to_torch(layer).to(device)
    x: Any = torch.from_numpy(inputs).to(device, getattr(torch, workload.dtype)).requires_grad_()
    lengths = None if is_padded else workload.lengths

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


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as text, with each row's time relative to the first row's.

    Lines below them say what the columns mean, and that a machine is unsteady.
    """
    kinds = ("inference", "training")
    cells = [("", *(title for kind in kinds for title in (f"{kind}, ms", "±", "x")), "")]
    spreads = []
    for row in rows:
        line = [row.library]
        for kind in kinds:
            found, ours = getattr(row, kind), getattr(rows[0], kind)
            line += [f"{found.ms:.3f}", f"{100 * found.spread:.0f} %"] if found else ["-", ""]
            line.append(f"{found.ms / ours.ms:.2f}" if found and ours else "")
            spreads += [found.spread] if found else []
        cells.append((*line, row.problem))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:-1]), problem]).rstrip()
        for name, *numbers, problem in cells
    ]
    first = rows[0].library
    lines.append(
        f"±: half the distance of the quartiles; x: the time divided by {first}'s; above 1, "
        f"{first} is faster"
    )
    if spreads and max(spreads) > _UNSTEADY:
        lines.append(
            f"This machine is unsteady: times vary by up to {100 * max(spreads):.0f} %. End what "
            "else it does, or give more --seconds"
        )
    return "\n".join(lines)


def check_plot(path: str) -> None:
    """Checks what `plot` needs, which is of use before the rows are measured.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the path's suffix names no format of pictures.
        FileNotFoundError: if the path's directory does not exist.
    """
    messages.load_package("matplotlib", "'cudnn_rnn_tf[plot]'")
    import matplotlib.figure

    suffixes = [f".{name}" for name in matplotlib.figure.Figure().canvas.get_supported_filetypes()]
    targets.check(path, *suffixes, force=True, argument="the picture's name")


def plot(rows: Sequence[Row], title: str, path: str) -> None:
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
            [row.library for row in measured],
            [getattr(row, name).ms for row in measured],
            xerr=[getattr(row, name).ms * getattr(row, name).spread for row in measured],
        )
        axes.bar_label(bars, fmt="%.3g", padding=2)
        axes.invert_yaxis()
        axes.set_xlabel(f"{name}, ms")
        axes.margins(x=0.25)
    figure.suptitle(title)
    targets.write_whole(pathlib.Path(path), figure.savefig, force=True)
