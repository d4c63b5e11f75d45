"""Writes the pages of the benchmark of sequences of different lengths, and their plots."""

import json
import pathlib
import statistics

from benchmarks import gpu_environment, pages
from benchmarks.rows import ROWS, STEP_ROWS, SYSTEMS, Row

MASKED = (", mask", ", packed")  # What Keras and PyTorch are given for different lengths.
# Milliseconds by system, row and variant.
Times = dict[tuple[str, str, str], float]


def _cell(milliseconds: float | None) -> str:
    return f"{milliseconds:.3f}" if milliseconds else "–"


def _ratio(theirs: float | None, own: float) -> str:
    return f"{theirs / own:.1f}" if theirs else "–"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    return pages.table(titles, rows) + "\n"


def _means(ratios: dict[str, list[float]]) -> str:
    found = [
        f"{statistics.geometric_mean(values):.2f} against {name} (smallest: {min(values):.2f})"
        for name, values in ratios.items()
        if values
    ]
    listed = " and ".join([", ".join(found[:-1])] * (len(found) > 1) + found[-1:])
    return f"\nThe geometric mean of the ratios is {listed}.\n"


def _rows(times: Times, training: bool) -> list[Row]:
    """The rows of training or of inference that were timed."""
    return [
        row
        for row in ROWS
        if row.training == training and ("cudnn_rnn_tf", str(row), "full") in times
    ]


def _against_keras(times: Times, row: str, variant: str) -> float:
    """Keras's time over this package's; rows that Keras cannot run come last."""
    theirs = times.get(("keras", row, variant))
    return theirs / times["cudnn_rnn_tf", row, variant] if theirs else float("inf")


def _speed_table(times: Times, training: bool, variant: str) -> str:
    """All rows of training or of inference, those that gain the least over Keras first."""
    rows = sorted(
        map(str, _rows(times, training)), key=lambda row: _against_keras(times, row, variant)
    )
    titles, own_variants = ["this package"], [variant]
    peers = {"Keras": ("keras", variant), "PyTorch": ("torch", variant)}
    if variant == "full":
        peers["cuDNN"] = ("cudnn_rnn_tf", "cudnn")
    else:
        titles, own_variants = ["this package, mask", "this package, lengths"], [variant, "lengths"]
    suffixes = ("", "") if variant == "full" else MASKED
    titles += [name + suffix for name, suffix in zip(peers, suffixes, strict=False)]
    titles += ["by cuDNN"] if variant == "full" else []
    ratios: dict[str, list[float]] = {name: [] for name in peers}
    table = []
    for row in rows:
        own = times["cudnn_rnn_tf", row, variant]
        cells = [_cell(times.get(("cudnn_rnn_tf", row, name))) for name in own_variants]
        of_peers = {name: times.get((system, row, kind)) for name, (system, kind) in peers.items()}
        for name, time in of_peers.items():
            if time:
                ratios[name].append(time / own)
        gains = [_ratio(time, own) for time in of_peers.values()]
        table.append([row.rsplit(", ", 1)[0], *gains, *cells, *map(_cell, of_peers.values())])
    titles = ["network", *(f"as {name}" for name in peers), *titles]
    return _table(titles, table) + _means(ratios)


def _steps_table(times: Times) -> str:
    """The rows of STEP_ROWS that were timed; those that different lengths cost the most first."""
    rows = []
    for row in map(str, STEP_ROWS):
        if ("cudnn_rnn_tf", row, "mask") not in times:
            continue
        mask, lengths, full = (
            times["cudnn_rnn_tf", row, variant] for variant in ("mask", "lengths", "cudnn")
        )
        peers = [times.get(peer) for peer in (("keras", row, "mask"), ("torch", row, "mask"))]
        cells = [row, _cell(mask), _cell(lengths), _cell(full), f"{lengths / full:.2f}"]
        rows.append((-lengths / full, [*cells, *map(_cell, peers)]))
    titles = ["this package, mask", "this package, lengths", "full length by cuDNN"]
    titles += ["lengths over full length", "Keras, mask", "PyTorch, packed"]
    return _table(["network", *titles], [cells for _, cells in sorted(rows)]) if rows else ""


def _plot(times: Times, path: pathlib.Path) -> None:
    rows = sorted(
        map(str, _rows(times, training=True)),
        key=lambda row: times["torch", row, "mask"] / times["cudnn_rnn_tf", row, "mask"],
        reverse=True,
    )
    series = {
        label: [
            times[system, row, "mask"] / times["cudnn_rnn_tf", row, "mask"]
            if (system, row, "mask") in times
            else None
            for row in rows
        ]
        for label, system in (("as Keras", "keras"), ("as PyTorch", "torch"))
    }
    title = "times as fast in training, sequences of different lengths"
    pages.plot_ratios(path, title, [row.rsplit(", ", 1)[0] for row in rows], series)


# By system and row, where it ran.
Environments = dict[str, dict[str, str]]


def read(directory: pathlib.Path) -> tuple[Times, Environments]:
    """Reads all systems' files, in which an environment holds for the records that follow it."""
    times: Times = {}
    environments: Environments = {system: {} for system in SYSTEMS}
    for system in SYSTEMS:
        for line in (directory / f"{system}.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "environment" in record:
                gpu = gpu_environment.describe_gpus(record["environment"]["GPU"])
                environment = pages.listed({**record["environment"], "GPU": gpu})
            else:
                environments[system][record["row"]] = environment
                times[system, record["row"], record["variant"]] = statistics.median(record["ms"])
    return times, environments


LEGEND = """\
* **Network**: the kind of cell and its number of units; `L×` before the units means a stack of L
  layers; then B sequences and T time steps; then the type, where tf32 is float32 with
  TensorFloat-32 allowed.
* **Times** are milliseconds of a step: in training, a forward and a backward pass; in inference, a
  forward pass. Below about 1 ms, TensorFlow's work on the CPU, not the GPU, may decide how long a
  step takes. The time of this work varies by chance, so small differences between such times may
  be chance.
* **Different lengths**: each sequence has a length drawn from [T/4, T]. Eight lists, each with a
  length for every sequence, were drawn; each call uses the next list. **Mask**: this package's
  layer and Keras's (by cuDNN) are called with the same mask; PyTorch gets packed sequences.
  **Lengths**: this package's layer is called with lengths instead of a mask.
* **Full length**: all sequences have T time steps, and the layers get neither a mask nor lengths.
* **By cuDNN**: this package with `algorithm="cudnn"`, so that cuDNN's kernels compute the layer
  instead of this package's; the kernels of a pass are recorded as a CUDA graph, and then launched
  together.
* **As Keras**, **as PyTorch** and **as cuDNN** say how many times as fast as these this package is:
  their time, divided by this package's (in the tables “different lengths”, its time with a mask).
  Each table is sorted by the first of these columns, smallest first.
* **–** was not measured. Keras does not run bfloat16 by cuDNN."""


def page(times: Times, environments: Environments, name: str) -> str:
    """The text of the page; its plot is in `name`.svg."""
    names = {"cudnn_rnn_tf": "This package", "keras": "Keras", "torch": "PyTorch"}
    runs = {names[system]: pages.runs(rows) for system, rows in environments.items()}
    # Of a machine's GPUs, one is timed.
    gpu = runs["This package"].partition(",")[0].removeprefix("GPU ").rpartition("× ")[2]
    parts = [
        f"# Sequences of different lengths and of full length on an {gpu}",
        f"![How many times as fast as Keras and PyTorch this package trains]({name}.svg)",
        LEGEND,
        "## Training, different lengths",
        _speed_table(times, training=True, variant="mask").rstrip(),
        "## Training, full length",
        _speed_table(times, training=True, variant="full").rstrip(),
        "## Inference, different lengths",
        _speed_table(times, training=False, variant="mask").rstrip(),
        "## Inference, full length",
        _speed_table(times, training=False, variant="full").rstrip(),
        *(
            [
                "## Different lengths where no persistent kernel fits",
                "Projections, clipping, float64 and layers that are too large run step by step. "
                "The ratio says how many times as long that takes as sequences of full length "
                "take, which cuDNN runs.",
                of_steps.rstrip(),
            ]
            if (of_steps := _steps_table(times))
            else []
        ),
        "Written by `python -m benchmarks.gpu_lengths` from these runs. "
        + " ".join(f"{system}: {run}." for system, run in runs.items()),
    ]
    return "\n\n".join(parts) + "\n"


def write(directory: pathlib.Path) -> None:
    """Writes a page and a plot, both named like this directory of the systems' files."""
    times, environments = read(directory)
    text = page(times, environments, directory.name)
    (pages.RESULTS / f"{directory.name}.md").write_text(text)
    _plot(times, pages.RESULTS / f"{directory.name}.svg")
