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

from benchmarks import gpu_rows

_INPUT = flags.DEFINE_string("input", None, "Directory that runs have left, or their folders.")
_NEAR = flags.DEFINE_float("near", None, "Print the rows this near an aim, or below it.")

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
# Of a comparison: its title, whose time is divided by ours in which layout, the aims for the
# geometric mean and for every row, and from how many milliseconds on rows count.
COMPARISONS = {
    "Keras on TensorFlow": ("keras", "batch-major", 2.0, 1.0, 0.0),
    "torch.nn": ("torch", "time-major", 1.6, 0.97, 0.0),
    "bare cuDNN, eager": ("bare eager", "time-major", 1.2, 0.95, 0.0),
    "bare cuDNN, graph": ("bare graph", "time-major", None, 0.93, 0.2),
}
LONG = 375  # Steps.
COLORS = ("#c0392b", "#2471a3", "#1e8449", "#7d3c98")
# The GPUs and versions that were seen, by name.
Environment = dict[str, list[str]]
# "environments" by commit; "rows": each with "ms" and "commits" by system, or layout for ours,
# "bytes" by system, and "choices" by layout.
Results = dict[str, Any]
Times = dict[str, dict[str, float]]
# By row and system.
Memory = dict[str, dict[str, int]]
# By row and layout.
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
                # Of GPUs, a line for each.
                lines = {name: value.splitlines() for name, value in result["environment"].items()}
                environments[commit] = _join(environments.get(commit, {}), lines)
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
        # Of bare cuDNN's algorithms, the best.
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


def _list(summary: str, keys: set[str]) -> str:
    return f"<details><summary>{summary}</summary>\n\n{'; '.join(sorted(keys))}.\n\n</details>"


def _by_commit(results: Results, part: str) -> list[str]:
    """Which rows have times, or peaks of memory, of another commit than most, if any."""
    rows: dict[str, set[str]] = collections.defaultdict(set)
    for key, row in results["rows"].items():
        for name, commit in row["commits"].items():
            if name.endswith("'s memory") == (part == "memory"):
                rows[commit].add(key)
    usual = max(rows, key=lambda commit: len(rows[commit]), default="")
    return [
        _list(f"{len(keys)} rows have {part} of {commit}, the others of {usual}", keys)
        for commit, keys in sorted(rows.items())
        if commit != usual
    ]


def _not_run(times: Times) -> list[str]:
    keys = {row.key for row in gpu_rows.rows()} - {key for key, row in times.items() if row}
    return [_list(f"{len(keys)} rows have not been run", keys)] if keys else []


def _ratios(times: Times, system: str, layout: str, least: float) -> dict[str, float]:
    return {
        key: row[system] / row[layout]
        for key, row in times.items()
        if system in row and layout in row and row[system] > least
    }


def _summary(times: Times) -> list[str]:
    lines = [
        "| against | rows | geometric mean | aim | slowest row | aim | rows below |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, (system, layout, mean_aim, row_aim, least) in COMPARISONS.items():
        ratios = list(_ratios(times, system, layout, least).values())
        if not ratios:
            continue
        lines.append(
            f"| {title}{' (rows over 0.2 ms)' if least else ''} | {len(ratios)} | "
            f"{statistics.geometric_mean(ratios):.2f} | {mean_aim or '—'} | {min(ratios):.2f} | "
            f"{row_aim} | {sum(ratio < row_aim for ratio in ratios)} |"
        )
    return lines


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
        f"Peak memory over Keras's: median {statistics.median(ratios.values()):.2f}, most "
        f"{ratios[most]:.2f} ({most}); aim 1.3, above it "
        f"{sum(ratio > 1.3 for ratio in ratios.values())} of {len(ratios)} rows."
    )


def _means_by(times: Times) -> list[str]:
    """Geometric means by type and by what is timed, and of the longest rows and the others."""
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
    groups[f"GRUs of {LONG} steps or more"] = lambda row: row.mode == "gru" and row.time >= LONG
    groups["all others"] = lambda row: row.mode != "gru" or row.time < LONG
    lines = ["| | " + " | ".join(COMPARISONS) + " |", "|---" * (len(COMPARISONS) + 1) + "|"]
    for name, holds in groups.items():
        cells = []
        for system, layout, _, _, least in COMPARISONS.values():
            found = _ratios(times, system, layout, least)
            ratios = [ratio for key, ratio in found.items() if key in rows and holds(rows[key])]
            cells.append(
                f"{statistics.geometric_mean(ratios):.2f} ({len(ratios)})" if ratios else "—"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _table(times: Times, memory: Memory, choices: Choices) -> list[str]:
    columns = ("time-major", "batch-major", "keras", "torch", "bare eager", "bare graph")
    lines = [
        "| row | " + " | ".join(columns) + " | algorithm | memory / Keras's |",
        "|---" * (len(columns) + 3) + "|",
    ]
    ratios = _memory_ratios(memory)
    for row in gpu_rows.rows():
        if row.key not in times or "time-major" not in times[row.key]:
            continue
        found = times[row.key]
        cells = [f"{found[column]:.3f}" if column in found else "—" for column in columns]
        cells.append(choices[row.key]["time-major"]["algorithm"])
        cells.append(f"{ratios[row.key]:.2f}" if row.key in ratios else "—")
        lines.append(f"| {row.key} | {' | '.join(cells)} |")
    return lines


def _on_the_gpu(choice: dict[str, str]) -> float | None:
    """Milliseconds that the GPU took for both passes when the choice was measured, if it was."""
    start = f"{choice['algorithm']} "
    for part in choice["timings"].split("; "):
        if part.startswith(start):
            return sum(map(float, part.removeprefix(start).removesuffix(" ms").split(" + ")))
    return None


def _below(times: Times, choices: Choices) -> list[str]:
    lines = []
    for title, (system, layout, _, aim, least) in COMPARISONS.items():
        ratios = _ratios(times, system, layout, least)
        rows = sorted((ratio, key) for key, ratio in ratios.items() if ratio < aim)
        if not rows:
            continue
        lines += [
            f"<details><summary>{title}: {len(rows)} below {aim}</summary>\n",
            "| row | ratio | theirs, ms | ours, ms | of which on the GPU, ms |",
            "|---|---|---|---|---|",
        ]
        for ratio, key in rows:
            on_the_gpu = _on_the_gpu(choices[key][layout])
            lines.append(
                f"| {key} | {ratio:.2f} | {times[key][system]:.3f} | {times[key][layout]:.3f} | "
                + ("—" if on_the_gpu is None else f"{on_the_gpu:.3f}")
                + " |"
            )
        lines.append("\n</details>\n")
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
        f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">rows, each line sorted: '
        "how many times faster this package is</text></svg>"
    )
    return "\n".join(parts) + "\n"


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
    times, memory, choices = (_part(results, name) for name in ("ms", "bytes", "choices"))
    environment = _join(*results["environments"].values())
    text = [
        "# Speed on a GPU",
        "Written by `python -m benchmarks.gpu_page` from runs of `python -m benchmarks.gpu`, whose "
        "docstring at that commit says how a step is timed, with "
        + "; ".join(f"{name} {', '.join(values)}" for name, values in environment.items())
        + ". Ratios are the other's time over this package's: above 1, this package is faster.",
        "![Sorted ratios](gpu_speed.svg)",
        "\n".join(_summary(times)),
        "Keras is compared with batch-major data, its layout; the others with time-major data, "
        "theirs. In bfloat16 Keras has no cuDNN kernel. "
        "In float32 bare cuDNN runs the standard algorithm alone: the persistent ones are exact to "
        "about 1e-5 only, and are no candidates of this package either. Geometric means, and of "
        "how many rows:",
        "\n".join(_means_by(times)),
        _memory_summary(memory),
        "## Rows below their aim",
        "[What lies behind such rows](../../docs/internals/cudnn.md#where-it-gains-little). *On "
        "the GPU*: what the passes took there, by CUDA events, when the choice was measured (for "
        "all lengths up to the same power of two once, at the first of them).",
        "\n".join(_below(times, choices)) or "None.",
        "## What was run",
        "Of each row, all systems ran on one GPU, one after the other, except for memory.",
        *_by_commit(results, "times"),
        *_by_commit(results, "memory"),
        *_not_run(times),
        "## All rows",
        "Milliseconds of a step. Memory is the peak of what TensorFlow's allocator gave out for "
        "the row, over Keras's, both batch-major.",
        "\n".join(_table(times, memory, choices)),
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu_speed.md").write_text("\n\n".join(text) + "\n")
    (RESULTS / "gpu_speed.svg").write_text(_plot(times))


if __name__ == "__main__":
    app.run(main)
