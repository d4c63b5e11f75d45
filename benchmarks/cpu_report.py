"""Makes the CPU benchmark's table and plot from its numbers."""

import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks import pages
from benchmarks.cpu_models import Network
from benchmarks.cpu_worker import (
    FUSED,
    HALF_TYPES,
    KERAS,
    MATMUL_SIZE,
    ONNX,
    PREDICTOR,
    TORCH,
    in_half_type,
)

TITLES = {"training": "Training", "inference": "Inference"}
SMALLEST_MEMORY = 1e6
# The two ways to run this package; the predictor is for inference only.
SYSTEMS = (FUSED, PREDICTOR)
_NAMES = {FUSED: "a layer in a `tf.function`", PREDICTOR: f"`{PREDICTOR}`"}
_COLUMNS = {FUSED: "this package", PREDICTOR: f"this package, {PREDICTOR}"}
PEERS_OF_PLOTS = (TORCH, KERAS, ONNX)

LEGEND = f"""\
* **Network**: the kind of cell, then L, B, T, I, H, D: layers, sequences, time steps, input size,
  units, directions.
* **This package** is a Keras layer in a `tf.function`; **{PREDICTOR}** is the layer's inference on
  NumPy arrays, without the overhead of calling TensorFlow. Keras runs in a `tf.function` as well.
  In inference, PyTorch runs in `torch.inference_mode`, and ONNX Runtime runs one node per layer,
  with inputs and outputs in fixed buffers. Each library has the same number of threads, and its
  data in its default layout.
* **Ratio**: in each round, the fastest other library's time over this package's; the tables have
  the median over rounds and, in parentheses, the quartiles; above 1, this package is faster.
* **Times** are milliseconds of a call: the median over rounds and, in parentheses, the quartiles.
  Networks are in float32 unless the page says otherwise. A training step is the forward pass and
  the gradients of the inputs and all weights.
* **Of matmul's rate**: the rate at which this package's layer (in a `tf.function`) computes the
  network's matrix products, divided by that of `tf.matmul` of two {MATMUL_SIZE}×{MATMUL_SIZE}
  matrices, timed in the same process and the same rounds.
* **The call alone** is the time of a `tf.function` that adds two numbers. It is only an
  estimate of what a call of a layer in a `tf.function` spends outside the layer: the shortest calls
  of a layer take less than this in all.

In each round, inference and training of all libraries are timed one after the other, in random
order; each is called several times. Before anything is timed, the results of all libraries in
float32 are compared: outputs and gradients."""

MEMORY_METHOD = """\
The table compares the memory that a training step uses with a reference amount. The memory
*used* is a sum: the inputs, the weights, the gradient of the outputs, and the peak that one more
training step adds in a process that has already run three. The *reference* of a network is the
same for all libraries. It is the sum of inputs, outputs, weights, the gradients of all three, and
(G + 2)·T·B·H·L·D float32 numbers that the forward pass keeps for the backward pass, where G is the
number of gates. The *ratio* is the memory used over the reference. A library that keeps fewer
numbers can use less than the reference.

The peak is that of the resident set (`VmHWM`). malloc is configured to give freed memory back to
the system at once, and TensorFlow's memory pool is off. Results below a megabyte are not reliable,
because Linux counts pages in batches."""


WHERE_IT_IS_SLOWER = f"""\
In inference of only a few time steps, or of only one sequence, a layer in a `tf.function` can be
slower than ONNX Runtime or PyTorch, because the call alone takes a large part of the time ([what to
know for speed](../../docs/internals/cpu.md#what-to-know-for-speed)). `{PREDICTOR}` does not call
TensorFlow. In inference, large LSTMs of this package and of PyTorch both run at about 90 % of the
rate of TensorFlow's matrix product. So their ratio is near 1."""


class Spread(NamedTuple):
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}–{self.high:{spec}})"


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(numerators: Iterable[float], denominators: Iterable[float]) -> Spread:
    """The ratios within each round, summed up."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


class Timing:
    """One network, in inference or in training.

    Args:
        result: an element of `runs` in cpu.json.
        what: "inference" or "training".
        peers: other libraries, of which those count that ran the network.
    """

    def __init__(self, result: dict[str, Any], what: str, peers: Sequence[str]):
        self.network = Network(**result["network"])
        self.seconds: dict[str, list[float]] = result["seconds"][what]
        self.peers = [peer for peer in peers if peer in self.seconds]
        self.fastest = min(
            self.peers, key=lambda peer: statistics.median(self.seconds[peer]), default=None
        )
        flops = self.network.forward_flops * (3 if what == "training" else 1)
        self.rate = spread([flops / seconds for seconds in self.seconds[FUSED]])
        rate_of_matmul = [2 * MATMUL_SIZE**3 / s for s in result["seconds"]["matmul"][FUSED]]
        self.matmul_rate = spread(rate_of_matmul)
        self.call = spread([1e3 * s for s in result["seconds"]["tf.function"][FUSED]])
        self.share = ratio([flops / s for s in self.seconds[FUSED]], rate_of_matmul)

    def milliseconds(self, library: str) -> str:
        return f"{spread([1e3 * seconds for seconds in self.seconds[library]]):.3g}"

    def speed_against(self, library: str, system: str = FUSED) -> Spread:
        return ratio(self.seconds[library], self.seconds[system])


def described(environment: dict[str, str]) -> str:
    """The machine and the versions."""
    # Earlier runs named the load average less clearly.
    names = {"load average before": "load average before the run"}
    return ", ".join(f"{names.get(name, name)} {value}" for name, value in environment.items())


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.mean(map(math.log, values)))


def _timing_row(timing: Timing, report: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"network": timing.network}
    for system in SYSTEMS:
        if system not in timing.seconds:
            continue
        row[_COLUMNS[system]] = timing.milliseconds(system)
        if timing.fastest:
            ratio_to_fastest = timing.speed_against(timing.fastest, system)
            row["ratio" if system == FUSED else f"ratio, {PREDICTOR}"] = f"{ratio_to_fastest:.2f}"
    for peer in timing.peers:
        row[peer] = timing.milliseconds(peer)
    for peer in report["not installed"]:
        row[peer] = "not installed"
    row["of matmul's rate"] = f"{timing.share:.0%}"
    row["the call alone"] = f"{timing.call:.2g}"
    return row


def _slowest_first(timings: Sequence[Timing]) -> list[Timing]:
    def least(timing: Timing) -> float:
        return timing.speed_against(timing.fastest).median if timing.fastest else math.inf

    return sorted(timings, key=least)


def _summary(
    timings: dict[str, list[Timing]],
    memory: dict[str, Spread],
) -> list[dict[str, str]]:
    """A row per question: the mean over all networks, and the network that gains the least."""
    rows = []

    def add(question: str, ratios: dict[str, float], is_gain: bool = True) -> None:
        worst = (min if is_gain else max)(ratios, key=ratios.__getitem__)
        slower = sum(one < 1 for one in ratios.values()) if is_gain else "–"
        rows.append(
            {
                "question": question,
                "networks": len(ratios),
                "geometric mean": f"{geometric_mean(ratios.values()):.2f}",
                "least favourable ratio, and its network": f"{ratios[worst]:.2f}, {worst}",
                "networks with a ratio below 1": slower,
            }
        )

    for what, of_networks in timings.items():
        for system in SYSTEMS:
            ratios = {
                str(timing.network): timing.speed_against(timing.fastest, system).median
                for timing in of_networks
                if timing.fastest and system in timing.seconds
            }
            if ratios:
                question = f"{TITLES[what]}, {_NAMES[system]}: how many times as fast as the "
                add(question + "fastest other library", ratios)
            for dtype in HALF_TYPES:
                stored = in_half_type(system, dtype)
                ratios = {
                    str(timing.network): timing.speed_against(system, stored).median
                    for timing in of_networks
                    if stored in timing.seconds
                }
                if ratios:
                    question = f"{TITLES[what]}, {_NAMES[system]}: how many times as fast in "
                    add(question + f"{dtype} as in float32", ratios)
    if memory:
        question = (
            "Training: memory used over the reference ([both explained below]"
            "(#memory-of-a-training-step)), for networks whose reference is a megabyte or more"
        )
        add(question, {network: one.median for network, one in memory.items()}, is_gain=False)
    return rows


def _text(report: dict[str, Any], timings: dict[str, list[Timing]]) -> str:
    results = {str(Network(**result["network"])): result for result in report["runs"]}
    needed = {name: Network(**result["network"]).needed_bytes for name, result in results.items()}
    memory = {
        name: {
            library: spread([used / needed[name] for used in values])
            for library, values in result["memory"].items()
        }
        for name, result in results.items()
    }
    large = {n: of[FUSED] for n, of in memory.items() if needed[n] >= SMALLEST_MEMORY}
    environment = described(report["environment"])
    text = [
        "# Speed on a CPU",
        "This page says how many times as fast this package is as PyTorch, Keras and ONNX Runtime. "
        "The tables of times begin with the smallest ratios, the table of memory with the largest.",
        "![Training: how many times as fast as each other library, per network](cpu_training.svg)",
        "![Inference by CpuPredictor: the same](cpu_inference.svg)",
        "In the plots, `L×` before the units means a stack of L layers; then B sequences and T "
        "time steps.",
        LEGEND,
        "## In short",
        pages.table_of(_summary(timings, large)),
        WHERE_IT_IS_SLOWER,
    ]
    for what, of_networks in timings.items():
        rows = [_timing_row(timing, report) for timing in _slowest_first(of_networks)]
        text += [f"## {TITLES[what]}", pages.table_of(rows)]
    rows = [
        {
            "network": name,
            "reference, MB": f"{needed[name] / 1e6:.2f}",
            "this package, MB": f"{needed[name] / 1e6 * of[FUSED].median:.2f}",
            "ratio, this package": f"{of[FUSED]:.2f}"
            + ("" if needed[name] >= SMALLEST_MEMORY else " (too small to tell)"),
            **{
                f"ratio, {library}": f"{of[library].median:.2f}"
                for library in of
                if library != FUSED
            },
        }
        for name, of in sorted(memory.items(), key=lambda item: -item[1][FUSED].median)
    ]
    text += ["## Memory of a training step", MEMORY_METHOD, pages.table_of(rows)]
    differences = [of["differences"] for of in results.values()]
    half = [one for of in differences for library, one in of.items() if "float16" in library]
    others = [one for of in differences for library, one in of.items() if "float16" not in library]
    text += [
        "## Do they compute the same?",
        "Before a network was timed, all libraries' outputs and gradients were compared with this "
        "package's. The largest difference, as a part of a tensor's largest magnitude, is "
        f"{max(others):.1e} in float32 and {max(half):.1e} where this package computes in a half "
        "type.",
        f"Written by `python -m benchmarks.cpu` from [cpu.json](cpu.json): {environment}; "
        f"{report['rounds']} rounds.",
    ]
    return "\n\n".join(text) + "\n"


def _plot(what: str, timings: list[Timing], path: pathlib.Path) -> None:
    """Draws how many times as fast this package is, with a marker for each other library.

    In inference, this package is `CpuPredictor`.
    """
    system = PREDICTOR if what == "inference" else FUSED
    ratios = {
        timing.network.label: {
            peer: timing.speed_against(peer, system).median
            for peer in PEERS_OF_PLOTS
            if peer in timing.peers
        }
        for timing in timings
    }
    rows = sorted(ratios, key=lambda row: min(ratios[row].values()), reverse=True)
    series = {
        f"as {peer}": found
        for peer in PEERS_OF_PLOTS
        if any(found := [ratios[row].get(peer) for row in rows])
    }
    pages.plot_ratios(path, f"times as fast in {what} in float32", rows, series)


def _timings(report: dict[str, Any]) -> dict[str, list[Timing]]:
    return {
        what: [Timing(result, what, report["peers"]) for result in report["runs"]]
        for what in TITLES
    }


def page(report: dict[str, Any]) -> str:
    """The text of cpu.md, from what cpu.json holds."""
    return _text(report, _timings(report))


def write(directory: pathlib.Path) -> None:
    """Writes cpu.md and its plots from the directory's cpu.json, if it has one."""
    if not (directory / "cpu.json").exists():
        return
    report = json.loads((directory / "cpu.json").read_text())
    (directory / "cpu.md").write_text(page(report))
    for what, timings in _timings(report).items():
        _plot(what, timings, directory / f"cpu_{what}.svg")
