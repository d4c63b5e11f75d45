"""Times what other libraries run as a loop over time steps, beside such loops.

benchmarks/command.py says how to run it; `--only` names rows. Of equal measurements, the last
one counts. Each system has a process of its own.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import command, pages, systems, tensorflow_steps, timing
from benchmarks.rows import DRAWS, Row

RESETS, CELLS, NORM = "resets", "cell states of all steps", "layer normalization"
ZONEOUT, RATE = "zoneout", 0.1  # As in Tacotron 2, of h and of c.
ROWS = {
    f"R2D2, LSTM 512, B64 T121, {RESETS}": (RESETS, 512, 64, 121),
    f"PPO, LSTM 256, B8 T128, {RESETS}": (RESETS, 256, 8, 128),
    f"LSTM 256, B64 T100, {CELLS}": (CELLS, 256, 64, 100),
    f"LSTM 256, B64 T100, {NORM}": (NORM, 256, 64, 100),
    f"LSTM 512, B64 T100, {NORM}": (NORM, 512, 64, 100),
    f"LSTM 256, B64 T100, {ZONEOUT}": (ZONEOUT, 256, 64, 100),
}
OURS, WITHOUT, KERAS, TORCH = "this package", "without", "Keras, a loop", "PyTorch, a loop"


def draw_resets(row: Row) -> list[np.ndarray]:
    """Where episodes begin, one step in 50; the lists take turns."""
    rng = np.random.default_rng(0)
    return [rng.random((row.batch, row.time)) < 0.02 for _ in range(DRAWS)]


def _ours(row: Row, feature: str) -> timing.StepFunction:
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    rate = RATE if feature == ZONEOUT else 0.0
    layer = crnn.CudnnLSTM(
        *(1, row.units),
        zoneout=rate,
        cell_zoneout=rate,
        use_layer_norm=feature == NORM,
        return_cell_sequences=feature == CELLS,
    )
    resets = [tf.constant(draw) for draw in draw_resets(row)]

    def run(inputs: Any, draw: Any, training: bool) -> Any:
        outputs = layer(inputs, training=training, resets=draw)
        return outputs[0] + outputs[1] if feature == CELLS else outputs

    draws = resets if feature == RESETS else [None]
    return tensorflow_steps.step_of(row, run, lambda: layer.trainable_variables, draws)


def _of_keras(row: Row, feature: str) -> timing.StepFunction:
    """A step of Keras's loop over a cell, compiled by XLA."""
    import keras
    import tensorflow as tf

    class Cell(keras.layers.LSTMCell):
        """A cell whose last input says where an episode begins."""

        def build(self, shape):
            super().build((*shape[:-1], row.input_size))
            sizes = {"gates": (4, row.units), "cells": (row.units,)} if feature == NORM else {}
            for name, size in sizes.items():
                for kind in ("ones", "zeros"):
                    weight = self.add_weight(shape=size, initializer=kind, name=f"{name}_{kind}")
                    setattr(self, f"{name}_{kind}", weight)

        def call(self, inputs, states, training=False):
            if feature == RESETS:
                states = [state * (1 - inputs[:, -1:]) for state in states]
                inputs = inputs[:, :-1]
            if feature == NORM:
                return self.normalized(inputs, *states)
            output, (h, c) = super().call(inputs, states, training=training)
            if feature == ZONEOUT:
                zoned = [self.zoned(*pair, training) for pair in zip(states, (h, c), strict=True)]
                return zoned[0], zoned
            return output + c if feature == CELLS else output, [h, c]

        def zoned(self, before, after, training):
            """In inference, the expected value."""
            kept = tf.nn.dropout(after - before, RATE) if training else after - before
            return before + (1 - RATE) * kept

        def normalized(self, inputs, h, c):
            sums = tf.matmul(inputs, self.kernel) + tf.matmul(h, self.recurrent_kernel)
            sums = tf.reshape(sums, (-1, 4, row.units))
            i, f, g, o = tf.unstack(self.norm(sums) * self.gates_ones + self.gates_zeros, axis=1)
            c = tf.sigmoid(f + 1) * c + tf.sigmoid(i) * tf.tanh(g)
            c = self.norm(c) * self.cells_ones + self.cells_zeros
            h = tf.sigmoid(o) * tf.tanh(c)
            return h, [h, c]

        def norm(self, sums):
            mean, variance = tf.nn.moments(sums, [-1], keepdims=True)
            return (sums - mean) * tf.math.rsqrt(variance + 1e-12)

    layer = keras.layers.RNN(Cell(row.units, use_bias=feature != NORM), return_sequences=True)
    draws = [tf.constant(draw[..., None], tf.float32) for draw in draw_resets(row)]

    def run(inputs: Any, draw: Any, training: bool) -> Any:
        inputs = inputs if draw is None else tf.concat([inputs, draw], -1)
        return layer(inputs, training=training)

    draws = draws if feature == RESETS else [None]
    return tensorflow_steps.step_of(
        row, run, lambda: layer.trainable_variables, draws, jit_compile=True
    )


def _of_torch(row: Row, feature: str) -> timing.StepFunction:
    """A step of a loop in Python over a cell, replayed as a CUDA graph where there is a GPU."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    device, units, dropout = systems.torch_device(), row.units, torch.nn.functional.dropout

    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            if feature == NORM:
                self.of_inputs = torch.nn.Linear(row.input_size, 4 * units, bias=False)
                self.of_states = torch.nn.Linear(units, 4 * units, bias=False)
                self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(units, 1e-12) for _ in range(5))
            else:
                self.cell = torch.nn.LSTMCell(row.input_size, units)

        def normalized(self, sums, c):
            gates = zip(self.norms, sums.chunk(4, 1), strict=False)
            i, f, g, o = (norm(gate) for norm, gate in gates)
            c = self.norms[4](torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g))
            return torch.sigmoid(o) * torch.tanh(c), c

        def forward(self, inputs, keeps):
            h = c = inputs.new_zeros(row.batch, units)
            outputs = []
            if feature == NORM:
                inputs = self.of_inputs(inputs)
            for step in range(row.time):
                if feature == RESETS:
                    h, c = h * keeps[:, step], c * keeps[:, step]
                if feature == NORM:
                    h, c = self.normalized(inputs[:, step] + self.of_states(h), c)
                else:
                    before, (h, c) = (h, c), self.cell(inputs[:, step], (h, c))
                if feature == ZONEOUT:
                    pairs = zip(before, (h, c), strict=True)
                    h, c = (b + (1 - RATE) * dropout(a - b, RATE, self.training) for b, a in pairs)
                outputs.append(h + c if feature == CELLS else h)
            return torch.stack(outputs, 1)

    network = Loop().to(device).train(row.training)
    inputs = torch.randn(row.batch, row.time, row.input_size, device=device, requires_grad=True)
    d_outputs = 0.1 * torch.randn(row.batch, row.time, units, device=device)
    keeps = [torch.tensor(~draw[..., None]).to(inputs) for draw in draw_resets(row)]
    run: Callable[..., Any] = network
    if device == "cuda":
        run = torch.cuda.make_graphed_callables(network, (inputs, keeps[0]))

    def step(index: int) -> None:
        with torch.set_grad_enabled(row.training):
            outputs = run(inputs, keeps[index % DRAWS])
        if row.training:
            outputs.backward(d_outputs)

    return step


SYSTEMS: dict[str, Callable[[Row, str], timing.StepFunction]] = {
    OURS: _ours,
    WITHOUT: lambda row, _: _ours(row, ""),
    KERAS: _of_keras,
    TORCH: _of_torch,
}


def _measure(system: str, name: str) -> dict[str, list[float]]:
    """Milliseconds of a step of training and of inference."""
    feature, units, batch, time = ROWS[name]
    timing.SAMPLE_SECONDS = 0.1
    framework = systems.TORCH if system == TORCH else systems.TENSORFLOW
    times = {}
    for training in (True, False):
        row = Row("lstm", 1, units, 1, batch, time, "tf32", training)
        if system != TORCH:
            systems.allow_tf32(row)
        step = SYSTEMS[system](row, feature)
        times["training" if training else "inference"] = timing.sample_in_turns(
            {system: step}, framework.wait
        )[system]
    return times


def measure(system: str, only: str) -> None:
    """Prints a line for each row that a system runs."""
    for name in filter(re.compile(only).search, ROWS):
        try:
            line = {"row": name, "system": system, "ms": _measure(system, name)}
        except Exception as error:  # The system cannot run it; the rest goes on.
            print(name, system, error, file=sys.stderr, flush=True)
        else:
            print(json.dumps(line), flush=True)


def _run_all(options: argparse.Namespace) -> None:
    calls = [(system, options.only) for system in SYSTEMS]
    command.measure_each("loops", calls, options, "TensorFlow", "Keras", "PyTorch")


def page(path: pathlib.Path) -> str:
    """Returns the page of a file of results."""
    times: dict[str, dict[str, dict[str, list[float]]]] = {}
    environments = []
    for line in map(json.loads, path.read_text().splitlines()):
        if "environment" in line:
            environments.append(pages.listed(line["environment"]))
        else:
            times.setdefault(line["row"], {})[line["system"]] = line["ms"]
    tables = []
    for kind in ("training", "inference"):
        rows = []
        for name, of_row in times.items():
            medians = {system: statistics.median(ms[kind]) for system, ms in of_row.items()}
            best = min(medians[system] for system in (KERAS, TORCH) if system in medians)
            cells = {
                "": name,
                "times as fast": f"{best / medians[OURS]:.1f}",
                "price": f"{medians[OURS] / medians[WITHOUT]:.2f}",
            }
            cells |= dict.fromkeys(SYSTEMS, "–")
            for system, ms in of_row.items():
                span = f"{min(ms[kind]):.3g}–{max(ms[kind]):.3g}"
                cells[system] = f"{medians[system]:.3g} ({span})"
            rows.append(cells)
        tables += [f"## {kind.capitalize()}", pages.table_of(rows)]
    parts = [
        "# What others run as a loop over time steps",
        "This page is generated by `python -m benchmarks.loops`; do not edit it by hand.",
        f"Measured with: {'; '.join(dict.fromkeys(environments))}. Of equal measurements, the last"
        " one counts.",
        "Milliseconds of a step of one LSTM layer in float32 with TF32: the median, and in"
        " parentheses the range, of seven samples. A training step ends with the gradients of"
        " inputs and weights. *Without* is this package's layer without what the row names, and"
        " *price* is the time with it over the time without. Keras runs `RNN` of a cell of the"
        " user's, compiled by XLA; PyTorch a loop in Python over `LSTMCell`, or over a cell with"
        " `LayerNorm`, replayed as a CUDA graph; a dash stands where it could not be recorded."
        " *times as fast* compares with the faster of these two.",
        *tables,
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    command.run(__doc__, _run_all, page)
