"""Writes the page of `benchmarks.cpu`, and its plots."""

import functools
import json
import pathlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import pages
from benchmarks.cpu_models import Network
from benchmarks.cpu_worker import (
    FUSED,
    HALF_TYPES,
    KERAS,
    ONNX,
    PREDICTOR,
    TORCH,
    in_half_type,
)

TITLES = ("training", "inference")

# What is timed, and how this package runs it.
PARTS = {
    "training": ("training", FUSED),
    "inference": ("inference", FUSED),
    PREDICTOR: ("inference", PREDICTOR),
}

LEGEND = """\
* **Ratio**: the time of the fastest other library (PyTorch, Keras or ONNX Runtime), with the same
  number of threads, over this package's in float32; above 1, this package is faster. *Training* and
  *inference* are those of a Keras layer in a `tf.function`, which XLA does not compile, as `fit`
  does not by default on a CPU; *CpuPredictor* is the layer's inference on NumPy arrays. With
  *different lengths*, this package's layer and Keras's get a mask, PyTorch packs the sequences (a
  network of one direction may run over the padding instead, which takes as long as sequences of
  equal length), and ONNX Runtime and `CpuPredictor` get the lengths.
* **Speed in** a half type: this package's time in float32 over its time in that type.
* **Scaling**: the time with one thread, divided by the time with the number of threads that the
  column names. For comparison, `tf.matmul` has the product of two 2048×2048 matrices, which was
  timed beside each network; it is not a limit. What ran twice has the times of the later run.
* A cell has the geometric mean over the networks and, in parentheses, the least. Inference in a
  `tf.function` that takes less than a millisecond in float32 is left out, because TensorFlow's own
  work then takes much of the time."""

ABOUT_MEMORY = """\
Times are the median call in milliseconds and, in parentheses, the quartiles. *The call alone* is
that of a `tf.function` that adds two numbers. *Memory* is a sum: the inputs, the weights, the
gradient of the outputs, and the peak that one more training step adds to the resident set (`VmHWM`)
of a process that has run three, with a malloc that gives freed memory back at once. The *reference*
is the same for all libraries: inputs, outputs, weights, the gradients of all three, and
(G + 2)·T·B·H·L·D float32 numbers that the forward pass keeps, where G is the number of gates. The
last columns are the other libraries' memory over it. Below a megabyte, Linux counts too coarsely to
tell."""


def described(environment: dict[str, str]) -> str:
    """The machine and the versions."""
    # Earlier runs named the load average less clearly.
    names = {"load average before": "load average before the run"}
    return ", ".join(f"{names.get(name, name)} {value}" for name, value in environment.items())


def has_memory(report: dict[str, Any]) -> bool:
    """Whether a report is of a run that measured memory, which has a table of its own."""
    return "memory" in report["runs"][0]


def load(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a report for each kind of machine, the one with the most cores first.

    A kind is a processor, a number of cores, and the instruction set that this package used. A
    report has its runs in the order of their dates, so that later times replace earlier ones.
    """
    reports: dict[tuple[str, str, str], dict[str, Any]] = {}
    files = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    for path, one in sorted(files, key=lambda file: file[1]["environment"]["date"]):
        if has_memory(one):
            continue
        environment = one["environment"]
        key = (environment["processor"], environment["cores"], environment["instruction set"])
        title = f"{key[0]}, {key[1]} cores, {key[2]}"
        report = reports.setdefault(
            key, {"title": title, "peers": one["peers"], "runs": [], "files": {}}
        )
        report["runs"] += one["runs"]
        threads = ", ".join(map(str, sorted({run["threads"] for run in one["runs"]})))
        report["files"][path.name] = (
            f"threads {threads}, {described(environment)}; {one['rounds']} rounds"
        )
    return [reports[key] for key in sorted(reports, key=lambda key: -int(key[1]))]


class Times:
    """The median times of the runs with sequences of equal or of different lengths, in seconds."""

    def __init__(self, report: dict[str, Any], different_lengths: bool = False):
        runs = [
            (Network(**run["network"]), run)
            for run in report["runs"]
            if (run["network"].get("shortest") is not None) == different_lengths
        ]
        self.peers: list[str] = report["peers"]
        self.counts = sorted({run["threads"] for _, run in runs})
        self._medians: dict[tuple[str, str, str, int], float] = {}
        for network, one in runs:
            for what, of_libraries in one["seconds"].items():
                for library, seconds in of_libraries.items():
                    key = (str(network), what, library, one["threads"])
                    self._medians[key] = statistics.median(seconds)
        self.libraries = {library for _, _, library, _ in self._medians}
        # Networks can be compared only if they ran with every number of threads. The last one of a
        # run that was cut off did not.
        networks = dict.fromkeys(network for network, *_ in self._medians)
        self.networks = [
            network
            for network in networks
            if all((network, "inference", FUSED, count) in self._medians for count in self.counts)
        ]

    def of(self, network: str, what: str, library: str, threads: int) -> float | None:
        return self._medians.get((network, what, library, threads))

    def is_short(self, network: str, what: str, system: str, threads: int) -> bool:
        """Whether TensorFlow's own work takes much of the time of such a call."""
        time = self.of(network, what, system, threads)
        return (what, system) == ("inference", FUSED) and time is not None and time < 1e-3

    def ratio(self, network: str, what: str, system: str, threads: int) -> float | None:
        """The fastest peer's time over this package's."""
        if self.is_short(network, what, system, threads):
            return None
        times = [self.of(network, what, peer, threads) for peer in self.peers]
        others = [time for time in times if time is not None]
        own = self.of(network, what, system, threads)
        return min(others) / own if others and own is not None else None

    def gain(self, dtype: str, network: str, what: str, system: str, threads: int) -> float | None:
        """The time in float32 over that in a half type."""
        if self.is_short(network, what, system, threads):
            return None
        own = self.of(network, what, in_half_type(system, dtype), threads)
        float32 = self.of(network, what, system, threads)
        return float32 / own if float32 is not None and own is not None else None

    def scaling(self, network: str, what: str, library: str, threads: int) -> float | None:
        least, many = (self.of(network, what, library, n) for n in (self.counts[0], threads))
        return least / many if least is not None and many is not None else None

    def counted(self, what: str, system: str) -> list[str]:
        """The networks that a table of this part and system has."""
        return [
            network
            for network in self.networks
            if not self.is_short(network, what, system, self.counts[0])
        ]


Value = Callable[[str, str, str, int], float | None]


def _comparisons(report: dict[str, Any]) -> Iterator[tuple[str, Times]]:
    """What is said of the sequences, and the times, of equal and of different lengths."""
    for name, different in (("", False), (", different lengths", True)):
        times = Times(report, different)
        if times.networks:
            yield name, times


def _values(times: Times, what: str, system: str, count: int, value: Value) -> list[float]:
    found = [value(network, what, system, count) for network in times.counted(what, system)]
    return [one for one in found if one is not None]


def _machine_table(report: dict[str, Any]) -> str:
    """A row for each thing that is compared, with a column for each number of threads."""
    rows = []

    def add(name: str, times: Times, what: str, system: str, value: Value) -> None:
        cells = {"what": name}
        for count in times.counts:
            found = _values(times, what, system, count, value)
            mean = f"{statistics.geometric_mean(found):.2f} ({min(found):.2f})" if found else "–"
            cells[f"{count} thread{'s' * (count > 1)}"] = mean
        rows.append(cells)

    for lengths, times in _comparisons(report):
        for name, (what, system) in PARTS.items():
            add(f"**ratio**, {name}{lengths}", times, what, system, times.ratio)
        for dtype in HALF_TYPES:
            gain = functools.partial(times.gain, dtype)
            for name, (what, system) in PARTS.items():
                if in_half_type(system, dtype) in times.libraries:
                    add(f"**speed in {dtype}**, {name}{lengths}", times, what, system, gain)
        named = [*PARTS.items()]
        named += [(f"{what}, {peer}", (what, peer)) for what in TITLES for peer in times.peers]
        for name, (what, system) in (*named, ("`tf.matmul`", ("matmul", FUSED))):
            first = times.of(times.networks[0], what, system, times.counts[0])
            if first is not None and not lengths:
                add(f"**scaling**, {name}", times, what, system, times.scaling)
    return pages.table_of(rows)


def _networks_table(reports: list[dict[str, Any]], what: str, system: str) -> str:
    """The ratios of each network with the most threads of each machine."""
    titles = [report["title"].replace("(R)", "").replace(" Processor", "") for report in reports]
    rows: dict[str, dict[str, Any]] = {}
    for title, report in zip(titles, reports, strict=True):
        for _, times in _comparisons(report):
            for network in times.networks:
                row = rows.setdefault(network, {"network": network, **dict.fromkeys(titles, "–")})
                ratio = times.ratio(network, what, system, times.counts[-1])
                row[title] = f"{ratio:.2f}" if ratio else "–"
    return pages.table_of(list(rows.values()))


def _milliseconds(seconds: list[float]) -> str:
    """The median and, in parentheses, the quartiles."""
    ms = [1e3 * one for one in seconds]
    if len(ms) == 1:
        return f"{ms[0]:.3g}"
    low, median, high = statistics.quantiles(ms, n=4, method="inclusive")
    return f"{median:.3g} ({low:.3g}–{high:.3g})"


def _memory_table(report: dict[str, Any]) -> str:
    """The times and the memory of each network; those that need the most memory come first."""
    rows = []
    for run in report["runs"]:
        network, seconds = Network(**run["network"]), run["seconds"]
        used = {name: statistics.median(values) for name, values in run["memory"].items()}
        ratios = {name: value / network.needed_bytes for name, value in used.items()}
        row = {
            "network": str(network),
            "training, ms": _milliseconds(seconds["training"][FUSED]),
            "inference, ms": _milliseconds(seconds["inference"][FUSED]),
            f"{PREDICTOR}, ms": _milliseconds(seconds["inference"][PREDICTOR]),
            "the call alone, ms": _milliseconds(seconds["tf.function"][FUSED]),
            "memory, MB": f"{used[FUSED] / 1e6:.2f}",
            "over the reference": f"{ratios[FUSED]:.2f}",
            **{name: f"{ratio:.2f}" for name, ratio in ratios.items() if name != FUSED},
        }
        rows.append((-ratios[FUSED], row))
    return pages.table_of([row for _, row in sorted(rows, key=lambda item: item[0])])


def _plot(what: str, report: dict[str, Any], path: pathlib.Path) -> None:
    """Draws how many times as fast this package is; in inference, it is `CpuPredictor`."""
    system = PREDICTOR if what == "inference" else FUSED
    ratios: dict[str, dict[str, float]] = {}
    for run in report["runs"]:
        seconds = run["seconds"][what]
        ratios[Network(**run["network"]).label] = {
            peer: statistics.median(
                theirs / own for theirs, own in zip(seconds[peer], seconds[system], strict=True)
            )
            for peer in (TORCH, KERAS, ONNX)
            if peer in seconds
        }
    rows = sorted(ratios, key=lambda row: min(ratios[row].values()), reverse=True)
    peers = dict.fromkeys(peer for found in ratios.values() for peer in found)
    series = {f"as {peer}": [ratios[row].get(peer) for row in rows] for peer in peers}
    pages.plot_ratios(path, f"times as fast in {what} in float32", rows, series)


def page(folder: pathlib.Path) -> str:
    """The text of cpu.md, from the files in a folder."""
    reports = load(folder)
    files = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    with_memory = {name: report for name, report in files.items() if has_memory(report)}
    text = [
        "# Speed on a CPU",
        "How many times as fast this package is as the fastest other library with the same number "
        "of threads, and how much faster each becomes with more threads. Each machine's title ends "
        "with this package's instruction set. The files that this page ends with have all times "
        "of all networks.",
        "![Training: how many times as fast as each other library](cpu_training.svg)",
        "![Inference by CpuPredictor: the same](cpu_inference.svg)",
        "In the plots, of two cores of a Xeon, `L×` before the units means a stack of L layers; "
        "then B sequences and T time steps.",
        LEGEND,
    ]
    for report in reports:
        text += [f"## {report['title']}", _machine_table(report)]
    text += [
        "## Each network",
        "The ratio with as many threads as the machine has cores. A network is the kind of cell, "
        "then L, B, T, I, H, D: layers, sequences, time steps, input size, units, directions. If T "
        "is a range, the sequences have different lengths, which are spread evenly over it. Below "
        "1, most networks are of a few time steps or of one sequence, where the call alone takes a "
        "large part of the time ([what to know for speed]"
        "(../../docs/internals/cpu.md#what-to-know-for-speed)); large LSTMs of this package and of "
        "PyTorch both infer at about 90 % of the rate of TensorFlow's matrix product.",
    ]
    for name, (what, system) in PARTS.items():
        text += [f"### {name[0].upper()}{name[1:]}", _networks_table(reports, what, system)]
    runs = [run for report in reports for run in report["files"].items()]
    for name, report in with_memory.items():
        about = described(report["environment"])
        runs.append((name, f"{about}; {report['rounds']} rounds, with memory"))
        text += [
            "## Memory of a training step",
            ABOUT_MEMORY,
            _memory_table(report),
        ]
    listed = "\n".join(f"* [{name}]({folder.name}/{name}): {run}." for name, run in runs)
    text += ["## The runs", listed, "Written by `python -m benchmarks.cpu`."]
    return "\n\n".join(text) + "\n"


def write(directory: pathlib.Path) -> None:
    """Writes the page and its plots from the files in the directory's cpu/."""
    folder = directory / "cpu"
    (directory / "cpu.md").write_text(page(folder))
    for path in folder.glob("*.json"):
        report = json.loads(path.read_text())
        for what in TITLES if has_memory(report) else ():
            _plot(what, report, directory / f"cpu_{what}.svg")
