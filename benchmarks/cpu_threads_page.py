"""Writes the page of `benchmarks.cpu` with several numbers of threads."""

import functools
import json
import pathlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import pages
from benchmarks.cpu_models import Network
from benchmarks.cpu_report import TITLES, described, geometric_mean
from benchmarks.cpu_worker import FUSED, HALF_TYPES, PREDICTOR, in_half_type

# What is timed, and how this package runs it.
PARTS = {
    "training": ("training", FUSED),
    "inference": ("inference", FUSED),
    PREDICTOR: ("inference", PREDICTOR),
}

LEGEND = """\
* **Ratio**: the time of the fastest other library (PyTorch, Keras or ONNX Runtime), with the same
  number of threads, over this package's in float32; above 1, this package is faster. *Training* and
  *inference* are those of a Keras layer in a `tf.function`; *CpuPredictor* is the layer's inference
  on NumPy arrays. With *different lengths*, this package's layer and Keras's get a mask, PyTorch
  packs the sequences (a network of one direction may run over the padding instead, which takes as
  long as sequences of equal length), and ONNX Runtime and `CpuPredictor` get the lengths.
* **Speed in** a half type: this package's time in float32 over its time in that type.
* **Scaling**: the time with one thread, divided by the time with the number of threads that the
  column names. For comparison, `tf.matmul` has the product of two 2048×2048 matrices, which was
  timed beside each network; it is not a limit. What ran twice has the times of the later run.
* A cell has the geometric mean over the networks and, in parentheses, the least. Inference in a
  `tf.function` that takes less than a millisecond in float32 is left out, because TensorFlow's own
  work then takes much of the time."""


def load(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a report for each kind of machine, the one with the most cores first.

    A kind is a processor, a number of cores, and the instruction set that this package used. A
    report has its runs in the order of their dates, so that later times replace earlier ones.
    """
    reports: dict[tuple[str, str, str], dict[str, Any]] = {}
    files = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    for path, one in sorted(files, key=lambda file: file[1]["environment"]["date"]):
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
            mean = f"{geometric_mean(found):.2f} ({min(found):.2f})" if found else "–"
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


def page(reports: list[dict[str, Any]]) -> str:
    """The text of cpu_threads.md, from what `load` returns."""
    text = [
        "# Speed on a CPU with several numbers of threads",
        "How many times as fast this package is as the fastest other library with the same number "
        "of threads, and how much faster each becomes with more threads. Each machine's title ends "
        "with this package's instruction set. The files that this page ends with have all times "
        "of all networks.",
        LEGEND,
    ]
    for report in reports:
        text += [f"## {report['title']}", _machine_table(report)]
    text += [
        "## Each network",
        "The ratio with as many threads as the machine has cores. A network is the kind of cell, "
        "then L, B, T, I, H, D: layers, sequences, time steps, input size, units, directions. If T "
        "is a range, the sequences have different lengths, which are spread evenly over it.",
    ]
    for name, (what, system) in PARTS.items():
        text += [f"### {name[0].upper()}{name[1:]}", _networks_table(reports, what, system)]
    files = "\n".join(
        f"* [{name}](cpu_threads/{name}): {run}."
        for report in reports
        for name, run in report["files"].items()
    )
    text.append(f"Written by `python -m benchmarks.cpu` from:\n\n{files}")
    return "\n\n".join(text) + "\n"


def write(directory: pathlib.Path) -> None:
    """Writes the page of the files in the directory's cpu_threads/."""
    reports = load(directory / "cpu_threads")
    if not reports:
        return
    (directory / "cpu_threads.md").write_text(page(reports))
