"""Times the CPU backend beside other libraries with several numbers of threads.

    python -m benchmarks.cpu_threads [--threads=1,2,4,8,16] [--quick] [--shapes=REGEX]
                                     [--nohalf_types]

Each network runs with all numbers of threads before the next network begins, so what is compared
was measured within minutes. The run leaves cpu_threads/NAME.json (every round's median; the name
says the processor, its cores, this package's instruction set and the numbers of threads),
cpu_threads.md and its plots in --output. The page is made of all files there, with a part for
each processor, number of cores and instruction set. `--render` only writes the page. The other
flags are those of benchmarks.cpu.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from benchmarks import cpu_timing, json_rows, pages
from benchmarks.cpu_models import NETWORKS, NETWORKS_OF_DIFFERENT_LENGTHS, Network
from benchmarks.cpu_report import TITLES, described, geometric_mean
from benchmarks.cpu_timing import IN_HALF_TYPES
from benchmarks.cpu_worker import FUSED, HALF_TYPES, PREDICTOR, Worker, in_half_type

_OUTPUT = flags.DEFINE_string(
    "output", str(cpu_timing.ROOT / "benchmarks" / "results"), "Where to write."
)
_SHAPES = flags.DEFINE_string("shapes", "", "A regular expression: the networks to run.")
_PEERS = flags.DEFINE_list("peers", ["torch", "keras", "onnxruntime"], "Whom to compare with.")
_THREADS = flags.DEFINE_list(
    "threads",
    [str(2**power) for power in range(8) if 2**power <= len(os.sched_getaffinity(0))],
    "The numbers of threads of each library.",
)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Rounds per network.", lower_bound=1)
_HALF_TYPES = flags.DEFINE_bool("half_types", True, "Time this package in half types as well.")
_QUICK = flags.DEFINE_bool("quick", False, "3 rounds of a few calls: to see that all works.")
_RENDER = flags.DEFINE_bool("render", False, "Write the page of the files that are there.")

MATMUL = "tf.matmul"

LEGEND = """\
* **Network**: the kind of cell, then L, B, T, I, H, D: layers, sequences, time steps, input size,
  units, directions. If T is a range, the sequences have different lengths, which are spread evenly
  over it. This package's layer and Keras's then get a mask, PyTorch packs the sequences (a network
  of one direction may run over the padding instead, which takes as long as sequences of equal
  length), and ONNX Runtime and `CpuPredictor` get the lengths. Ratios are those of float32.
* **Ratio**: the time of the fastest other library, with the same number of threads, over this
  package's; above 1, this package is faster. The rows are in the order of the smallest ratio in
  each row.
* **Scaling**: the time with one thread, divided by the time with the number of threads that the
  column names. For comparison, the row `tf.matmul` has the product of two 2048×2048 matrices, which
  was timed beside each network; it is not a limit. The times that are divided may come from
  different runs; the end of the page says which run had which numbers of threads. What ran twice
  has the times of the later run.
* **This package** is a Keras layer in a `tf.function`; **CpuPredictor** is the layer's inference on
  NumPy arrays. In the tables of inference by a layer in a `tf.function`, calls that take less than
  a millisecond in float32 are left out (–), because TensorFlow's own work then takes much of the
  time. A network whose call takes less with one thread has no row."""


def run(folder: pathlib.Path) -> None:
    """Runs the benchmark as the flags say; its file has all finished networks at any time."""
    counts = sorted({int(count) for count in _THREADS.value})
    networks = [
        network
        for network in (*NETWORKS, *NETWORKS_OF_DIFFERENT_LENGTHS)
        if re.search(_SHAPES.value, str(network))
    ]
    peers, missing = cpu_timing.find_peers(_PEERS.value)
    in_half_types = IN_HALF_TYPES if _HALF_TYPES.value else []
    rounds = 3 if _QUICK.value else _ROUNDS.value
    environment = cpu_timing.environment()
    runs: list[dict[str, Any]] = []
    report = {
        "environment": environment,
        "rounds": rounds,
        "peers": peers,
        "not installed": missing,
        "runs": runs,
    }
    with contextlib.ExitStack() as stack:
        workers = {
            (threads, library): stack.enter_context(Worker(library, threads))
            for threads in counts
            for library in (FUSED, PREDICTOR, *in_half_types, *peers)
        }
        workers[counts[0], FUSED].ask("check_is_current")
        for worker in workers.values():
            worker.send("versions")
        for worker in workers.values():
            environment.update(worker.receive())
        words = re.findall(r"[a-z0-9]+", environment["processor"].lower().replace("(r)", ""))
        words += [environment["cores"], "cores", environment["instruction set"]]
        file = folder / f"{'_'.join([*words, *map(str, counts), 'threads'])}.json"
        for network, threads in itertools.product(networks, counts):
            of_count = {
                library: one for (count, library), one in workers.items() if count == threads
            }
            seconds = cpu_timing.time_network(
                network, of_count, rounds, cpu_timing.block_seconds(_QUICK.value)
            )["seconds"]
            name = dataclasses.asdict(network)
            runs.append({"threads": threads, "network": name, "seconds": seconds})
            file.write_text(json_rows.dumps(report))
            print(threads, network, flush=True)


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


def _comparisons(report: dict[str, Any]) -> list[tuple[str, Times]]:
    """What the sequences have and the times, of equal and of different lengths, where it ran."""
    both = (
        ("equal length", Times(report)),
        ("different lengths", Times(report, different_lengths=True)),
    )
    return [(lengths, times) for lengths, times in both if times.networks]


Value = Callable[[str, str, str, int], float | None]


def _means(times: Times, what: str, system: str, value: Value) -> list[float | None]:
    """The geometric means over the networks, one for each number of threads."""
    means = []
    for count in times.counts:
        values = [value(network, what, system, count) for network in times.counted(what, system)]
        known = [one for one in values if one is not None]
        means.append(geometric_mean(known) if known else None)
    return means


def _cells(values: Sequence[float | None], counts: Sequence[int]) -> dict[str, str]:
    return {
        f"{count} thread{'s' * (count > 1)}": "–" if value is None else f"{value:.2f}"
        for count, value in zip(counts, values, strict=True)
    }


def _rows(times: Times, what: str, system: str, value: Value) -> list[dict[str, str]]:
    rows = []
    for network in times.counted(what, system):
        values = [value(network, what, system, count) for count in times.counts]
        least = min((one for one in values if one is not None), default=0.0)
        rows.append((least, network, values))
    means = _means(times, what, system, value)
    return [
        *({"network": name, **_cells(values, times.counts)} for _, name, values in sorted(rows)),
        {"network": "geometric mean", **_cells(means, times.counts)},
    ]


def page(reports: list[dict[str, Any]]) -> str:
    """The text of cpu_threads.md, from what `load` returns."""
    text = [
        "# Speed on a CPU with several numbers of threads",
        "This package and other libraries ran with several numbers of threads. This page says how "
        "many times as fast this package is as the fastest other library with the same number of "
        "threads, and how much faster each becomes with more threads. There is a part for each "
        "machine; its title ends with this package's instruction set.",
        "![Training: how many times as fast, over the number of threads](cpu_threads_training.svg)",
        "![Inference: the same, by CpuPredictor](cpu_threads_inference.svg)",
        "The plots have geometric means over the networks.",
        LEGEND,
    ]
    for report in reports:
        text += _part(report)
    files = ". ".join(
        f"[{name}](cpu_threads/{name}): {run}"
        for report in reports
        for name, run in report["files"].items()
    )
    text.append(f"Written by `python -m benchmarks.cpu_threads`. {files}.")
    return "\n\n".join(text) + "\n"


def _part(report: dict[str, Any]) -> list[str]:
    text = [f"## {report['title']}", f"The other libraries: {', '.join(report['peers'])}."]
    for lengths, times in _comparisons(report):
        text += [f"### Sequences of {lengths}", *_tables(times)]
    return text


def _tables(times: Times) -> list[str]:
    text = []
    parts = [("training", FUSED), ("inference", FUSED), ("inference", PREDICTOR)]
    names = {FUSED: "this package's layer in a `tf.function`", PREDICTOR: f"`{PREDICTOR}`"}
    for what, system in parts:
        text += [
            f"{TITLES[what]}, {names[system]}, **ratio**:",
            pages.table_of(_rows(times, what, system, times.ratio)),
        ]
    for dtype in HALF_TYPES:
        gain = functools.partial(times.gain, dtype)
        for what, system in parts:
            if in_half_type(system, dtype) in times.libraries:
                text += [
                    f"{TITLES[what]}, {names[system]}, **speed in {dtype}**: this package's time "
                    f"in float32, with the same number of threads, over its time in {dtype}.",
                    pages.table_of(_rows(times, what, system, gain)),
                ]
    rows = [
        {
            "what": f"{TITLES[what]}, {names.get(library, library)}",
            **_cells(_means(times, what, library, times.scaling), times.counts),
        }
        for what in TITLES
        for library in (FUSED, PREDICTOR, *times.peers)
        if times.of(times.networks[0], what, library, times.counts[0]) is not None
    ]
    of_matmul = _means(times, "matmul", FUSED, times.scaling)
    rows.append({"what": f"`{MATMUL}`", **_cells(of_matmul, times.counts)})
    scaling = "**Scaling**: geometric means over the networks."
    if times.counted("inference", FUSED) != times.networks:
        scaling += (
            " The row “Inference, this package's layer in a `tf.function`” leaves out the networks "
            "that its tables above leave out; the other rows have all."
        )
    return [*text, scaling, pages.table_of(rows)]


def _plot(what: str, reports: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws how many times as fast as the fastest other library, over the number of threads.

    Machines that ran with one and two threads only are in the tables alone.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot, ticker

    pyplot.rcParams.update({"svg.hashsalt": "cpu_threads", "font.size": 10})
    system = PREDICTOR if what == "inference" else FUSED
    figure, panel = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    panel.axhline(1, color="black", linewidth=1)
    for report in reports:
        for lengths, times in _comparisons(report):
            if len(times.counts) > 2:
                means = _means(times, what, system, times.ratio)
                cores = report["title"].split(", ")[1]
                panel.plot(times.counts, means, "o-", label=f"{lengths}, {cores}")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    panel.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g×"))
    panel.set_ylim(bottom=0)
    panel.grid(color="#dddddd")
    panel.set_xlabel("threads, on Intel Xeons")
    panel.set_ylabel(f"{what}: how many times as fast\nas the fastest other library")
    panel.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(_: list[str]) -> None:
    directory = pathlib.Path(_OUTPUT.value)
    folder = directory / "cpu_threads"
    if not _RENDER.value:
        folder.mkdir(parents=True, exist_ok=True)
        run(folder)
    reports = load(folder)
    (directory / "cpu_threads.md").write_text(page(reports))
    for what in TITLES:
        _plot(what, reports, directory / f"cpu_threads_{what}.svg")
    print(directory / "cpu_threads.md")


if __name__ == "__main__":
    app.run(main)
