"""Writes the page of the GPU benchmark from what `benchmarks.gpu` has left.

    python -m benchmarks.gpu_page [--input=DIR]

brings it into benchmarks/results/gpu_speed.json, in place of what earlier runs have left of the
same rows and systems, and writes gpu_speed.md and gpu_speed.svg from there. With --near=MARGIN it
prints instead, as JSON, for each system a regular expression of the rows whose ratio is at most
that much above an aim: those to run again, with --rows and an --output in DIR.
"""

import collections
import json
import math
import pathlib
import re
import statistics
from collections.abc import Callable
from typing import Any

from absl import app, flags

from benchmarks import gpu_environment, gpu_rows

_INPUT = flags.DEFINE_string("input", None, "Directory that runs have left, or their folders.")
_NEAR = flags.DEFINE_float("near", None, "Print the rows this near an aim, or below it.")

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
# By a comparison's title: the peer whose time is divided by this package's, the layout of this
# package's data, the aims for the geometric mean and for every row, which --near reads, and the
# least milliseconds of a row that counts.
COMPARISONS = {
    "Keras": ("keras", "batch-major", 2.0, 1.0, 0.0),
    "PyTorch": ("torch", "time-major", 1.6, 0.97, 0.0),
    "cuDNN, eager": ("bare eager", "time-major", 1.2, 0.95, 0.0),
    "cuDNN, graph": ("bare graph", "time-major", None, 0.93, 0.2),
}
# The peers that every row shows, in the order of its columns.
PEERS = [comparison[:2] for comparison in COMPARISONS.values()]
PARTS = ("training", "inference")
COLORS = ("#c0392b", "#2471a3", "#1e8449", "#7d3c98")
# The GPUs and versions that results came from, by name.
Environment = dict[str, list[str]]
# "environments" has an environment by commit. "rows" has, by row, "ms" and "commits" by system (by
# layout for this package), "bytes" by system, and "choices" by layout.
Results = dict[str, Any]
Times = dict[str, dict[str, float]]
# Maps rows and systems to bytes.
Memory = dict[str, dict[str, int]]
# Maps rows and layouts to choices.
Choices = dict[str, dict[str, dict[str, str]]]


def _read(directory: pathlib.Path) -> Results:
    """Medians, our choices, and peaks of memory with batch-major data."""
    environments: dict[str, Environment] = {}
    rows: dict[str, Any] = collections.defaultdict(lambda: collections.defaultdict(dict))
    samples: dict[tuple[str, str, str], list[float]] = collections.defaultdict(list)
    for path in sorted(directory.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            result = json.loads(line)
            if "environment" in result:
                commit = result["environment"]["commit"]
                values = {name: [value] for name, value in result["environment"].items()}
                environments[commit] = _join(environments.get(commit, {}), values)
                continue
            key, system = result["row"], path.name.split(".")[0]
            row = rows[key]
            if path.stem.endswith(".memory"):
                if result["layout"] == "batch-major":
                    row["bytes"][system] = result["memory"]
                    row["commits"][f"{system}'s memory"] = commit
                continue
            if system == "cudnn_rnn_tf":
                system = result["layout"]
                row["choices"][system] = result["choice"]
            elif system == "bare":
                system = f"bare {result['way']}"
            row["commits"][system] = commit
            samples[key, system, result.get("algorithm", "")] += result["ms"]
    for (key, system, _), milliseconds in samples.items():
        # The time of bare cuDNN is that of its fastest algorithm.
        best = rows[key]["ms"].get(system, math.inf)
        rows[key]["ms"][system] = round(min(best, statistics.median(milliseconds)), 6)
    return {"environments": environments, "rows": rows}


def _join(*environments: Environment) -> Environment:
    names = dict.fromkeys(name for one in environments for name in one)
    return {
        name: sorted({value for one in environments for value in one.get(name, [])})
        for name in names
    }


def _merge(results: Results, newer: Results) -> None:
    """Adds what is newer, of each row and system, to the results or in place of theirs."""
    for commit, environment in newer["environments"].items():
        known = results["environments"].get(commit, {})
        results["environments"][commit] = _join(known, environment)
    for key, parts in newer["rows"].items():
        row = results["rows"].setdefault(key, {})
        for part, values in parts.items():
            row.setdefault(part, {}).update(values)
    used = {commit for row in results["rows"].values() for commit in row["commits"].values()}
    for commit in results["environments"].keys() - used:
        del results["environments"][commit]


def _part(results: Results, name: str) -> dict[str, dict[str, Any]]:
    return {key: row.get(name, {}) for key, row in results["rows"].items()}


def _save(results: Results, path: pathlib.Path) -> None:
    """With a line for each row, so that differences can be read."""
    rows = ",\n".join(
        f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(row)}"
        for key, row in sorted(results["rows"].items())
    )
    environments = json.dumps(results["environments"])
    path.write_text(f'{{"environments": {environments},\n "rows": {{\n{rows}}}}}\n')


def _ratios(times: Times, system: str, layout: str, least: float) -> dict[str, float]:
    return {
        key: row[system] / row[layout]
        for key, row in times.items()
        if system in row and layout in row and row[system] > least
    }


def _summary(times: Times) -> list[str]:
    """For each question and peer, how many times as fast this package is."""
    lines = [
        "| | against | networks and types | geometric mean | smallest ratio, and its row "
        "| rows in which the other is faster |",
        "|---|---|---|---|---|---|",
    ]
    for part in PARTS:
        for title, (system, layout, *_, least) in COMPARISONS.items():
            ratios = _ratios(_of(times, part), system, layout, least)
            if not ratios:
                continue
            slowest = min(ratios, key=lambda key: ratios[key])
            lines.append(
                f"| {part} | {title} | {len(ratios)} | "
                f"{statistics.geometric_mean(ratios.values()):.2f} | {ratios[slowest]:.2f}, "
                f"{slowest.rpartition(', ')[0]} | {sum(x < 1 for x in ratios.values())} |"
            )
    return lines


def _of(times: Times, part: str) -> Times:
    """The rows of training or of inference."""
    return {key: row for key, row in times.items() if key.endswith(f", {part}")}


def _memory_ratios(memory: Memory) -> dict[str, float]:
    """Our peak over Keras's."""
    return {
        key: peaks["cudnn_rnn_tf"] / peaks["keras"]
        for key, peaks in memory.items()
        if len(peaks) == 2
    }


def _memory_summary(memory: Memory) -> str:
    ratios = _memory_ratios(memory)
    if not ratios:
        return "Memory beside Keras's was not measured."
    most = max(ratios, key=lambda key: ratios[key])
    return (
        f"The median row takes {statistics.median(ratios.values()):.2f} of Keras's peak memory. "
        f"{sum(ratio > 1 for ratio in ratios.values())} of {len(ratios)} rows take more than "
        f"Keras's; the most is {ratios[most]:.2f} times, in {most}."
    )


LEGEND = """\
* **Network**: the kind of cell and its number of units; `L×` before the units means a stack of L
  layers; then B sequences and T steps. The networks and lengths are those of DeepBench, a
  benchmark of Baidu's, and some more.
* **Type**: tf32 is float32 where TensorFloat-32 is allowed.
* **Times** are milliseconds of a step; in training, that is a forward and a backward pass. In
  TensorFlow, one call of a `tf.function` runs 8 steps, up to 64 if they are very short, or one if
  they are long.
* **Ratio**: the time in the column to its left, divided by this package's; above 1, this package
  is faster. Each library is timed in its own layout: Keras with batch-major data, PyTorch and cuDNN
  with time-major data. This package is timed in both layouts, and a ratio
  uses its time in the layout of the other library.
* **cuDNN** is called from C++, without a framework: kernel by kernel (“eager”), or as a replayed
  CUDA graph (“graph”), each with the fastest of cuDNN's algorithms. In float32 without
  TensorFloat-32, only cuDNN's basic algorithm, `standard`, is timed: cuDNN's other algorithms,
  whose names begin with `persist_`, are exact to about 1e-5 only, and this package does not use
  them there. The tables “In short” and “By type” leave out, in the comparison with “cuDNN, graph”
  only, the rows in which that graph takes 0.2 ms or less. So some ratios against “cuDNN, graph” in
  the table “Inference” are smaller than the smallest one that “In short” names.
* **Algorithm**: the one that this package chose by measuring
  ([how](../../docs/internals/cudnn.md#choice)). In inference, it is the fastest. In training, it is
  also the fastest, unless `standard` is less than 5 % slower; then it is `standard`. `resident` is
  this package's own, the others are cuDNN's.
* **Memory** is the peak of what TensorFlow's allocator gave out, divided by Keras's peak.
* **–** was not measured. Keras does not run bfloat16 by cuDNN."""


def _means_by(times: Times) -> list[str]:
    """Geometric means by type and by what is timed."""
    rows = {row.key: row for row in gpu_rows.rows()}
    groups: dict[str, Callable[[gpu_rows.Row], bool]] = {
        f"{'training' if training else 'inference'}, {type_}": (
            lambda row, type_=type_, training=training: (
                (row.type, row.training) == (type_, training)
            )
        )
        for training in (False, True)
        for type_ in gpu_rows.TYPES
    }
    lines = ["| | " + " | ".join(COMPARISONS) + " |", "|---" * (len(COMPARISONS) + 1) + "|"]
    for name, holds in groups.items():
        cells = []
        for system, layout, _, _, least in COMPARISONS.values():
            found = _ratios(times, system, layout, least)
            ratios = [ratio for key, ratio in found.items() if key in rows and holds(rows[key])]
            cells.append(
                f"{statistics.geometric_mean(ratios):.2f} ({len(ratios)})" if ratios else "–"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _table(times: Times, memory: Memory, choices: Choices) -> list[str]:
    """A row for each network and type, those that gain the least over a peer first."""
    memory_ratios = _memory_ratios(memory)
    lines = [
        "| network | type | this package | Keras | ratio | this package, time-major | PyTorch | "
        "ratio | cuDNN, eager | ratio | cuDNN, graph | ratio | algorithm | memory over Keras's |",
        "|---" * 14 + "|",
    ]

    def ratio(row: dict[str, float], system: str, layout: str) -> float | None:
        return row[system] / row[layout] if system in row and layout in row else None

    def least(key: str) -> float:
        found = [ratio(times[key], *columns) for columns in PEERS]
        return min((one for one in found if one is not None), default=math.inf)

    def cell(value: float | None, form: str = ".3f") -> str:
        return "–" if value is None else f"{value:{form}}"

    for key in sorted(times, key=least):
        row = times[key]
        if "time-major" not in row:
            continue
        network, type_, _ = key.rsplit(", ", 2)
        cells = [network, type_]
        previous = None
        for system, layout in PEERS:
            if layout != previous:
                cells.append(cell(row.get(layout)))
            previous = layout
            cells += [cell(row.get(system)), cell(ratio(row, system, layout), ".2f")]
        cells.append(choices[key]["time-major"]["algorithm"])
        cells.append(cell(memory_ratios.get(key), ".2f"))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _near(times: Times) -> dict[str, str]:
    """By system, a regular expression of the rows near an aim or below it."""
    rows: dict[str, set[str]] = collections.defaultdict(set)
    for system, layout, _, aim, least in COMPARISONS.values():
        for key, ratio in _ratios(times, system, layout, least).items():
            if ratio <= aim + _NEAR.value:
                rows["cudnn_rnn_tf"].add(key)
                rows[system.partition(" ")[0]].add(key)
    return {
        system: f"^({'|'.join(map(re.escape, sorted(keys)))})$" for system, keys in rows.items()
    }


def _plot(times: Times) -> str:
    """Each comparison's rows by how much faster ours are, on a logarithmic axis."""
    width, height, left, bottom, top = 760, 380, 60, 40, 20
    low, high = math.log2(0.5), math.log2(32)

    def y(ratio: float) -> float:
        place = (min(max(math.log2(ratio), low), high) - low) / (high - low)
        return height - bottom - place * (height - bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in (0.5, 1, 2, 4, 8, 16, 32):
        color = "#555" if tick == 1 else "#ddd"
        parts.append(
            f'<line x1="{left}" x2="{width - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="{color}"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" '
            f'text-anchor="end">{tick:g}×</text>'
        )
    for index, (title, (system, layout, *_)) in enumerate(COMPARISONS.items()):
        ratios = sorted(_ratios(times, system, layout, 0.0).values())
        if len(ratios) < 2:
            continue
        points = " ".join(
            f"{left + i / (len(ratios) - 1) * (width - left - 10):.1f},{y(ratio):.1f}"
            for i, ratio in enumerate(ratios)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLORS[index]}" '
            f'stroke-width="2"/><text x="{left + 12}" y="{top + 16 * (index + 1)}" '
            f'fill="{COLORS[index]}">against {title} ({len(ratios)} rows)</text>'
        )
    parts.append(
        f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">networks and types, each '
        'line sorted for itself</text><text text-anchor="middle" '
        f'transform="translate(14 {height / 2}) rotate(-90)">'
        "how many times as fast this package is</text></svg>"
    )
    return "\n".join(parts) + "\n"


def page(results: Results) -> str:
    """The text of gpu_speed.md."""
    times, memory, choices = (_part(results, name) for name in ("ms", "bytes", "choices"))
    environment = _join(*results["environments"].values())
    environment["GPU"] = [gpu_environment.describe_gpus(gpus) for gpus in environment["GPU"]]
    versions = "; ".join(f"{name} {', '.join(values)}" for name, values in environment.items())
    text = [
        "# Sequences of equal length on a GPU",
        "These measurements are from the time before this package had [persistent "
        "kernels](../../docs/internals/gpu_kernels.md). The page compares the package's speed with "
        "that of Keras, of PyTorch, and of a C++ program that calls cuDNN. The tables under "
        "“Training” and “Inference” have a row for each network and type, sorted by the smallest "
        "ratio in the row, the lowest first.",
        "![Sorted ratios](gpu_speed.svg)",
        LEGEND,
        "## In short",
        "\n".join(_summary(times)),
        "Another page says [for which networks this package gains little over the others, and "
        "why](../../docs/internals/cudnn.md#where-this-backend-gains-little).",
        "## By type",
        "The table has geometric means of the ratios and, in parentheses, the numbers of rows.",
        "\n".join(_means_by(times)),
        "## Memory",
        _memory_summary(memory),
    ]
    for part in PARTS:
        text += [f"## {part.capitalize()}", "\n".join(_table(_of(times, part), memory, choices))]
    text.append(
        "Written by `python -m benchmarks.gpu_page` from [gpu_speed.json](gpu_speed.json), which "
        "has the commit of each number; the runs were those of `python -m benchmarks.gpu`, with "
        f"{versions}."
    )
    return "\n\n".join(text) + "\n"


def main(_: list[str]) -> None:
    newer = _read(pathlib.Path(_INPUT.value)) if _INPUT.value else None
    if _NEAR.value is not None:
        if newer is None:
            raise app.UsageError("--near wants an --input.")
        print(json.dumps(_near(_part(newer, "ms"))))
        return
    file = RESULTS / "gpu_speed.json"
    results: Results = {"environments": {}, "rows": {}}
    if file.exists():
        results = json.loads(file.read_text())
    if newer is not None:
        _merge(results, newer)
        _save(results, file)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu_speed.md").write_text(page(results))
    (RESULTS / "gpu_speed.svg").write_text(_plot(_part(results, "ms")))


if __name__ == "__main__":
    app.run(main)
