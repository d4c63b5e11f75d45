"""Writes the page of `benchmarks.gpu_older`, and says what it times."""

import json
import pathlib
import statistics

from benchmarks import gpu_environment, pages
from benchmarks.rows import Row

# The GPUs, and the types of each; "float32" is without TF32.
_ALL_TYPES = ("float16", "bfloat16", "tf32", "float32")
SYSTEMS = {
    "Hopper": _ALL_TYPES,
    "A100": _ALL_TYPES,
    "RTX 4090": _ALL_TYPES,
    "L4": _ALL_TYPES,
    "T4": ("float16", "float32"),
}
ROWS = [
    Row(*network, type_, True)
    for network, types in [
        (("lstm", 1, 256, 1, 64, 200), ("float16", "tf32")),
        (("lstm", 1, 512, 1, 64, 100), ("float16", "tf32")),
        (("gru", 1, 512, 1, 64, 100), ("tf32",)),
        (("lstm", 1, 128, 2, 32, 300), ("tf32",)),
        (("lstm", 3, 96, 1, 64, 100), ("tf32",)),
        (("lstm", 1, 128, 1, 64, 100), ("float16",)),
        (("lstm", 1, 32, 1, 64, 100), ("tf32",)),
        (("lstm", 1, 768, 1, 32, 100), ("bfloat16",)),
        (("lstm", 1, 1024, 1, 32, 50), ("float16",)),
        (("lstm", 1, 32, 1, 64, 100), ("float32",)),
        (("lstm", 1, 128, 1, 64, 100), ("float32",)),
        (("lstm", 1, 256, 1, 64, 200), ("float32",)),
        (("gru", 1, 256, 1, 64, 200), ("float32",)),
        (("lstm", 1, 384, 1, 64, 100), ("float32",)),
        (("lstm", 1, 512, 1, 64, 100), ("float32",)),
        (("lstm", 1, 128, 2, 32, 300), ("float32",)),
        (("lstm", 3, 96, 1, 64, 100), ("float32",)),
    ]
    for type_ in types
]

VARIANTS = ("lengths", "full")

# The kernel that computes a row's gradients, unless cuDNN does.
_KERNELS = {
    str(row): f"{row.mode}, {row.units} units, {row.type.replace('tf', 'TF')}, backward"
    for row in ROWS
}

# Milliseconds by system, row and variant.
Times = dict[tuple[str, str, str], float]


def read(directory: pathlib.Path) -> tuple[Times, list[str]]:
    """Returns the times in a directory, and where they were measured.

    Of equal rows, the last one counts. Rows that a GPU leaves to cuDNN have no time of its own
    kernels.
    """
    times: Times = {}
    environments: dict[str, list[str]] = {}
    for system in SYSTEMS:
        path = directory / f"{system.replace(' ', '_')}.jsonl"
        used: set[str] = set()  # Kernels of this process; a line has the new ones.
        for line in path.read_text().splitlines() if path.exists() else ():
            result = json.loads(line)
            if "environment" in result:
                about = result["environment"]
                del about["imitated"]
                about["GPU"] = gpu_environment.describe_gpus(about["GPU"])
                environments.setdefault(pages.listed(about), []).append(system)
                used.clear()
                continue
            row, variant = result["row"], result["variant"]
            used.update(name for name, _ in result["kernels"])
            times.pop((system, row, variant), None)
            if variant not in VARIANTS or _KERNELS.get(row) in used:
                times[system, row, variant] = statistics.median(result["ms"])
    runs = [f"{run} ({', '.join(dict.fromkeys(names))})" for run, names in environments.items()]
    return times, runs


def _cudnn(times: Times, system: str, row: str, variant: str) -> float | None:
    """The time of cuDNN in a system's process or, where it has timed none, in Hopper's."""
    own = times.get((system, row, f"cudnn_{variant}"))
    return own or times.get(("Hopper", row, f"cudnn_{variant}"))


def _ratios(times: Times, variant: str) -> dict[str, dict[str, float]]:
    """How many times as long cuDNN takes, by imitated GPU and row."""
    found: dict[str, dict[str, float]] = {system: {} for system in SYSTEMS if system != "Hopper"}
    for system, ratios in found.items():
        for row in map(str, ROWS):
            cudnn, own = _cudnn(times, system, row, variant), times.get((system, row, variant))
            if cudnn and own:  # Otherwise the row is newer than the data, or cuDNN ran it.
                ratios[row] = cudnn / own
    return found


def _name(row: str) -> str:
    return row.rsplit(", ", 1)[0]  # All rows are of training.


def _table(times: Times, variant: str) -> str:
    ratios = _ratios(times, variant)
    table = []
    for row in map(str, ROWS):
        cudnn = times.get(("Hopper", row, f"cudnn_{variant}"))
        if cudnn is None:  # The row is newer than the data.
            continue
        hopper = times.get(("Hopper", row, variant))
        cells = [_name(row), f"{cudnn:.2f}", f"{hopper:.2f}" if hopper else "–"]
        for system, found in ratios.items():
            own = times.get((system, row, variant))
            cells.append(f"{own:.2f} ({found[row]:.2f})" if own else "–")
        table.append(cells)
    titles = ["network", "cuDNN", "Hopper's kernels", *(f"as {system}" for system in ratios)]
    means = ", ".join(
        f"{statistics.geometric_mean(found.values()):.1f} as {system} "
        f"(smallest: {min(found.values()):.2f})"
        for system, found in ratios.items()
        if found
    )
    return f"{pages.table(titles, table)}\n\nThe geometric mean of the ratios is {means}.\n"


def plot(times: Times, path: pathlib.Path) -> None:
    """Draws how much faster than cuDNN each GPU's kernels are with different lengths."""
    ratios = _ratios(times, "lengths")
    rows = [row for row in map(str, ROWS) if any(row in found for found in ratios.values())]
    rows.sort(
        key=lambda row: statistics.geometric_mean([f[row] for f in ratios.values() if row in f]),
        reverse=True,
    )
    pages.plot_ratios(
        path,
        "times as fast as cuDNN in training, different lengths",
        [_name(row) for row in rows],
        {f"as {system}": [found.get(row) for row in rows] for system, found in ratios.items()},
    )


def page(times: Times, runs: list[str]) -> str:
    """Returns the page of results."""
    gpu = runs[0].partition(",")[0].removeprefix("GPU ")
    return f"""# Kernels of older GPUs, on a newer one

![How many times as fast as cuDNN the kernels of each GPU train](gpu_older.svg)

The code of these GPUs ran on a newer one ({gpu}), held to their number of multiprocessors and
their shared memory, and no such card was at hand. So the times show what the kernels cost within
these limits, with the newer GPU's clock, L2 cache, memory and tensor cores; a real card is slower.
One-block teams and the matrix products of cuBLAS had the whole GPU.

The numbers are milliseconds of a training step of one layer, called as a user calls it; in
parentheses, how many times as long cuDNN takes on the whole GPU, in the same process or, where that
has not timed it, in the one with Hopper's kernels, whose times the column “cuDNN” has. “–” means
that a GPU has no such type, or that cuDNN runs the layer there, since it is faster or there is too
little room. [How to run this](../gpu_older.py).

## Sequences of different lengths

Lengths are uniform in [T/4, T], with another draw in each step.

{_table(times, "lengths")}
## Sequences of full length

The host takes most of a small network's step, and not the same time in all processes.

{_table(times, "full")}
Written by `python -m benchmarks.gpu_older` from runs with {"; ".join(runs)}.
"""
