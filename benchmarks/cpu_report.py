"""Makes the CPU benchmark's table and plot from its numbers."""

import itertools
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.cpu_models import Network
from benchmarks.cpu_worker import (
    BFLOAT16,
    FUSED,
    KERAS,
    MATMUL_SIZE,
    ONNX,
    PREDICTOR,
    PREDICTOR_BFLOAT16,
    TIME_MAJOR,
    TORCH,
)

# How many times the fastest peer's speed is wanted, as the geometric mean over networks.
WANTED_RATIO = {"inference": 1.3, "training": 1.4}
TITLES = {"inference": "Inference", "training": "Forward and backward"}
# The part of the product's rate that is wanted, from this batch size on.
WANTED_SHARE, LARGE_BATCH = 0.85, 32
MEMORY_LIMIT = 1.2
SMALLEST_MEMORY = 1e6
# What of ours is compared with the peers: the layer and, in inference, the predictor.
SYSTEMS = (FUSED, PREDICTOR)
_BFLOAT16 = {FUSED: BFLOAT16, PREDICTOR: PREDICTOR_BFLOAT16}
_NAMES = {FUSED: "layer in `tf.function`", PREDICTOR: f"`{PREDICTOR}`"}
COLOURS = {TORCH: "#d95f02", KERAS: "#7570b3", ONNX: "#1b9e77"}

METHOD = f"""\
Shapes are (L, B, T, I, H, D): layers, batch, steps, input size, units, directions; all float32 but
where it says otherwise. Each library runs in a process of its own, with the same number of threads,
and gets its data in its default layout: batch-major in `{FUSED}` (a Keras layer) and `{KERAS}`,
both inside `tf.function`; time-major in `{TORCH}` (inference in `torch.inference_mode`) and
{ONNX} (one node per layer, inputs and outputs bound). `{PREDICTOR}` is the layer's inference
without TensorFlow's call: batch-major NumPy arrays in, new ones out. A training step is the forward
pass and the gradients of the inputs and all weights, from a given gradient of the outputs.

Before anything is timed, outputs and gradients of all libraries are compared; the largest
difference, as a part of a tensor's largest magnitude, is in the table. Then come rounds: in each,
every library is called a few times, in random order, one after the other. A time is the median over
rounds of a round's median call, a ratio the median over rounds of the ratio within a round, and
what is in parentheses is the interquartile range over rounds. The fastest peer is the one with the
smallest median; a ratio above 1 says that `{FUSED}`, or `{PREDICTOR}`, is faster.

GFLOP/s count the matrix products: forward 2·T·B·D·G·H·(fan_in + H), summed over layers; backward
twice that. The share is that rate over the rate of `tf.matmul` of two {MATMUL_SIZE}×{MATMUL_SIZE}
matrices, timed in the same process in the same rounds. *`tf.function` alone* adds two numbers: what
a call of any function takes, and a part of every time of `{FUSED}` and `{KERAS}`."""

MEMORY_METHOD = """\
In a fresh process per library and network, after warm-up: what one training step adds to the
resident set at its peak (`VmHWM`, reset by `/proc/self/clear_refs`), plus the inputs, the weights
and the gradient of the outputs, which are there before. malloc is told (by its environment
variables) to take blocks of a page and more from the system and to give them back at once, and
TensorFlow's pool for oneDNN is off, so the peak is what is in use, of whatever allocator, and not
what is kept for later. The kernel counts a process's pages in steps of 32 per core, so networks
that need less than a megabyte are too small to tell. *Needed* is the sum of inputs, outputs,
weights, the gradients of all three, and (G + 2)·T·B·H·L·D elements of reserve space."""


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
    """Of the ratios within each round."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


class Timing:
    """One network, in inference or in training.

    Args:
        result: an element of `networks` in cpu.json.
        what: "inference" or "training".
        peers: of which those count that did it.
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


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.mean(map(math.log, values)))


def _table(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def _timing_row(timing: Timing, report: dict[str, Any]) -> dict[str, Any]:
    fastest = timing.speed_against(timing.fastest) if timing.fastest else None
    row: dict[str, Any] = {"network": timing.network, f"{FUSED}, ms": timing.milliseconds(FUSED)}
    for peer in timing.peers:
        row[f"{peer}, ms"] = timing.milliseconds(peer)
    for peer in report["not installed"]:
        row[f"{peer}, ms"] = "not installed"
    row["times the fastest peer's speed"] = f"{fastest:.2f}" if fastest else "no peer"
    row["not slower"] = _verdict(fastest.median >= 1) if fastest else ""
    if PREDICTOR in timing.seconds:
        row[f"{PREDICTOR}, ms"] = timing.milliseconds(PREDICTOR)
        if timing.fastest:
            predictor = timing.speed_against(timing.fastest, PREDICTOR)
            row[f"{PREDICTOR}: times the fastest peer's speed"] = f"{predictor:.2f}"
            row[f"{PREDICTOR}: not slower"] = _verdict(predictor.median >= 1)
    row["GFLOP/s"] = f"{timing.rate.median / 1e9:.0f}"
    row["tf.matmul, GFLOP/s"] = f"{timing.matmul_rate.median / 1e9:.0f}"
    row["share of it"] = f"{timing.share:.0%}"
    row["tf.function alone, ms"] = f"{timing.call:.2g}"
    row["time-major, ms"] = timing.milliseconds(TIME_MAJOR)
    return row


def _targets(
    timings: dict[str, list[Timing]],
    bfloat16: dict[str, dict[str, Spread]],
    memory: dict[str, Spread],
) -> list[dict[str, str]]:
    """A row per target: the worst network, or the mean over all."""
    rows = []

    def add(target: str, wanted: str, measured: str, is_met: bool) -> None:
        row = {"target": target, "wanted": wanted, "measured": measured, "": _verdict(is_met)}
        rows.append(row)

    for what, of_networks in timings.items():
        title = TITLES[what]
        for system in SYSTEMS:
            ratios = {
                str(timing.network): timing.speed_against(timing.fastest, system).median
                for timing in of_networks
                if timing.fastest and system in timing.seconds
            }
            if not ratios:
                continue
            mean, worst = geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
            wanted = WANTED_RATIO[what]
            name = _NAMES[system]
            add(
                f"{title}, {name}: speed over the fastest peer's, geometric mean of "
                f"{len(ratios)} networks",
                *(f"≥ {wanted}", f"{mean:.2f}", mean >= wanted),
            )
            add(
                f"{title}, {name}: the least of these",
                *("≥ 1", f"{ratios[worst]:.2f}, {worst}", ratios[worst] >= 1),
            )
        shares = {
            str(timing.network): timing.share.median
            for timing in of_networks
            if timing.network.batch_size >= LARGE_BATCH
        }
        if shares:
            worst = min(shares, key=shares.__getitem__)
            add(
                f"{title}, {_NAMES[FUSED]}: the least share of matmul's rate from batch "
                f"{LARGE_BATCH} on",
                f"≥ {WANTED_SHARE:.0%}",
                f"{shares[worst]:.0%}, {worst}",
                shares[worst] >= WANTED_SHARE,
            )
    for system, ratios in bfloat16.items():
        worst = min(ratios, key=lambda name: ratios[name].median)
        least = ratios[worst].median
        add(
            f"Inference at batch 1, {_NAMES[system]}: bfloat16's speed over float32's, the least",
            *("≥ 1", f"{least:.2f}, {worst}", least >= 1),
        )
    if memory:
        worst = max(memory, key=lambda name: memory[name].median)
        most = memory[worst].median
        add(
            "Training: peak memory over what is needed, the most",
            *(f"≤ {MEMORY_LIMIT}", f"{most:.2f}, {worst}", most <= MEMORY_LIMIT),
        )
    return rows


def _text(report: dict[str, Any], timings: dict[str, list[Timing]]) -> str:
    results = {str(Network(**result["network"])): result for result in report["networks"]}
    needed = {name: Network(**result["network"]).needed_bytes for name, result in results.items()}
    bfloat16: dict[str, dict[str, Spread]] = {}
    for timing in timings["inference"]:
        for system, stored in _BFLOAT16.items():
            if stored in timing.seconds:
                speed = timing.speed_against(system, stored)
                bfloat16.setdefault(system, {})[str(timing.network)] = speed
    memory = {
        name: {
            library: spread([used / needed[name] for used in values])
            for library, values in result["memory"].items()
        }
        for name, result in results.items()
    }
    large = {n: of[FUSED] for n, of in memory.items() if needed[n] >= SMALLEST_MEMORY}
    text = [
        "# The CPU backend beside other libraries",
        "Written by `python -m benchmarks.cpu`: "
        + ", ".join(f"{key} {value}" for key, value in report["environment"].items())
        + f"; {report['rounds']} rounds.",
        METHOD,
        "![Speed over each peer's, per network](cpu.svg)",
        "## Targets",
        _table(_targets(timings, bfloat16, large)),
    ]
    for what, of_networks in timings.items():
        text += [f"## {TITLES[what]}"]
        text += [_table([_timing_row(timing, report) for timing in of_networks])]
    if bfloat16:
        rows = [
            {
                "network": timing.network,
                "": _NAMES[system],
                "float32, ms": timing.milliseconds(system),
                "bfloat16, ms": timing.milliseconds(_BFLOAT16[system]),
                "times float32's speed": f"{ratios[str(timing.network)]:.2f}",
                "not slower": _verdict(ratios[str(timing.network)].median >= 1),
            }
            for timing in timings["inference"]
            for system, ratios in bfloat16.items()
            if str(timing.network) in ratios
        ]
        text += ["## bfloat16 storage, inference at batch 1", _table(rows)]
    rows = [
        {
            "network": name,
            "needed, MB": f"{needed[name] / 1e6:.2f}",
            f"{FUSED}, MB": f"{needed[name] / 1e6 * of[FUSED].median:.2f}",
            "over needed": f"{of[FUSED]:.2f}",
            "": _verdict(of[FUSED].median <= MEMORY_LIMIT)
            if needed[name] >= SMALLEST_MEMORY
            else "too small to tell",
            **{
                f"{library} over needed": f"{of[library].median:.2f}"
                for library in of
                if library != FUSED
            },
        }
        for name, of in memory.items()
    ]
    text += ["## Memory of a training step", MEMORY_METHOD, _table(rows)]
    rows = [
        {"network": name, **{k: f"{v:.1e}" for k, v in result["differences"].items()}}
        for name, result in results.items()
    ]
    rows = [{**dict.fromkeys({k: 0 for row in rows for k in row}, ""), **row} for row in rows]
    text += [f"## Largest difference from {FUSED}", _table(rows)]
    return "\n\n".join(text) + "\n"


def _plot(timings: dict[str, list[Timing]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot, ticker

    pyplot.rcParams.update({"svg.hashsalt": "cpu", "font.size": 9})
    networks = [str(timing.network) for timing in timings["inference"]]
    figure, panels = pyplot.subplots(
        *(1, 2),
        figsize=(10, 1.7 + 0.42 * len(networks)),
        sharey=True,
        sharex=True,
        layout="constrained",
    )
    for panel, (what, of_networks) in zip(panels, timings.items(), strict=True):
        panel.axvline(1, color="black", linewidth=1)
        for index, (peer, system) in enumerate(itertools.product(COLOURS, SYSTEMS)):
            places, ratios = [], []
            for place, timing in enumerate(of_networks):
                if peer in timing.peers and system in timing.seconds:
                    places.append(place + 0.13 * (index - 2.5))
                    ratios.append(timing.speed_against(peer, system))
            if ratios:
                medians = [one.median for one in ratios]
                bars = [
                    [one.median - one.low for one in ratios],
                    [one.high - one.median for one in ratios],
                ]
                style = {"fmt": "o", "markersize": 4.5, "capsize": 2, "color": COLOURS[peer]}
                if system == PREDICTOR:
                    style |= {"fmt": "D", "markersize": 4, "markerfacecolor": "white"}
                label = peer if system == FUSED else f"{peer}, {PREDICTOR}"
                panel.errorbar(medians, places, xerr=bars, label=label, **style)
        panel.set_title(TITLES[what])
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g×"))
        panel.tick_params(axis="x", labelsize="small")
        panel.grid(axis="x", color="#dddddd")
        panel.set_axisbelow(True)
        for edge in range(1, len(networks)):
            panel.axhline(edge - 0.5, color="#eeeeee", linewidth=0.8)
        panel.set_xlabel(f"speed of {FUSED} over the peer's")
    panels[0].set_yticks(range(len(networks)), networks)
    panels[0].set_ylim(len(networks) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Right of 1×: faster than the peer. Bars: interquartile range over rounds.")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes cpu.md and cpu.svg from the directory's cpu.json; returns their paths."""
    report = json.loads((directory / "cpu.json").read_text())
    timings = {
        what: [Timing(result, what, report["peers"]) for result in report["networks"]]
        for what in TITLES
    }
    text, plot = directory / "cpu.md", directory / "cpu.svg"
    text.write_text(_text(report, timings))
    _plot(timings, plot)
    return [text, plot]
