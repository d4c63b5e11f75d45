"""Writes the pages and the plots of `benchmarks.models` and `benchmarks.networks`."""

import json
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks import pages
from benchmarks.model_list import PEAK_FLOPS, Model, models

SYSTEMS = {"cudnn_rnn_tf": "this package", "torch": "PyTorch", "keras": "Keras"}
OURS, *OTHERS = SYSTEMS
# By the list: the page's title, and what it has.
TITLES = {"models": "Models that people train", "networks": "Networks that stand for many"}
ABOUT = {
    "models": """
The recurrent part of models that people train, by this package, PyTorch and Keras, each model on
one GPU; [models.json](../models.json) says which file of which program each is from. Dropout,
weight dropout and resets are left out, and in PyTorch the clipping of ELMo's cells. *peak* is the
most memory that the tensors of a training step hold, inputs and gradients included, as each
library's allocator was asked for it, in the libraries' order.
""",
    "networks": """
Networks of [networks.json](../networks.json), by this package, PyTorch and Keras, each on one GPU.
A network is its kind of cell and number of units (after `L×` in L layers), then B sequences of T
steps, then the type, where tf32 is float32 with TF32 allowed.
""",
}
INTRODUCTION = """
A training step is a forward and a backward pass. A network that tells no inputs has as many as
units. *lengths* are different ones, drawn uniformly from [T/4, T] for each step; PyTorch packs or
pads such sequences, Keras has a mask, and the faster way of each library counts. Keras's layers run
by cuDNN, but in bfloat16, which it lacks there, compiled (in other types, XLA made them slower in
eight models of eight), PyTorch's without `torch.compile` and CUDA graphs; steps of TensorFlow are
concrete functions. *times as fast* is the time of the faster of PyTorch and Keras over this
package's: above 1, this package is faster. A dash means that the library has no such layer, or that
the row was not measured. *spread* is the range of the samples as a part of their median, of the
libraries in their order.
"""
OF_SHARE = """
*share* is a yardstick's part of this package's time. The yardstick is the longer of two times: the
products of matrices of the steps that are read, at the chip's dense peak for the type, and 1.7 µs
for each step of a layer in each pass. Small layers can be faster than that. Float32 without TF32
has no yardstick.
"""
ON_CPU = """
A CPU ran the models in float32, with at most 8 sequences of 100 steps.
"""


class Measured(NamedTuple):
    """The fastest variant of a system."""

    milliseconds: float
    spread: float  # The range of the samples as a part of their median.
    variant: str
    peak_bytes: int | None = None


# By the model's name, the system, and whether it is training.
Times = dict[tuple[str, str, bool], Measured]


def read(path: pathlib.Path) -> tuple[Times, list[dict[str, str]], list[str]]:
    """Returns the times, the environments, and what failed; later lines replace earlier ones."""
    found: dict[tuple[str, str, bool], dict[str, Measured]] = {}
    peaks: dict[tuple[str, str, bool, str], int] = {}
    failed: dict[tuple[str, ...], str] = {}
    environments = []
    for line in map(json.loads, path.read_text().splitlines()):
        if "environment" in line:
            environments.append(line["environment"])
            continue
        key = line["model"], line["system"], line.get("training", True)
        what = *key[:2], "training" if key[2] else "inference", line["variant"]
        failed.pop(what, None)
        if "failed" in line:
            failed[what] = line["failed"]
            continue
        failed.pop((*what[:2], "training", "process"), None)
        if line.get("peak_bytes"):
            peaks[(*key, line["variant"])] = line["peak_bytes"]
        if "ms" not in line:
            continue
        median = statistics.median(line["ms"])
        spread = (max(line["ms"]) - min(line["ms"])) / median
        found.setdefault(key, {})[line["variant"]] = Measured(median, spread, line["variant"])
    reasons = [
        f"{model}, {SYSTEMS[system]}, {variant}, {what}: {reason.splitlines()[0][:160]}"
        for (model, system, what, variant), reason in failed.items()
    ]
    fastest = {key: min(ways.values()) for key, ways in found.items()}
    times = {
        key: way._replace(peak_bytes=peaks.get((*key, way.variant))) for key, way in fastest.items()
    }
    return times, environments, reasons


def ratio(times: Times, model: Model, training: bool) -> float | None:
    """Returns how many times as fast as the faster of the others this package is."""
    others = [times[key] for s in OTHERS if (key := (model.name, s, training)) in times]
    ours = times.get((model.name, OURS, training))
    return min(others).milliseconds / ours.milliseconds if ours and others else None


def share(times: Times, model: Model, training: bool) -> float | None:
    """Returns the yardstick's part of this package's time."""
    ours = times.get((model.name, OURS, training))
    if model.row.type not in PEAK_FLOPS:
        return None
    return 1e3 * model.least_seconds(training) / ours.milliseconds if ours else None


def network(model: Model) -> str:
    """Describes the recurrent part of a model in a table's cell."""
    row = model.row
    inputs = f", inputs {row.input_size}" if row.input_size != row.units else ""
    lengths = ", lengths" if model.has_lengths else ""
    return str(row).removesuffix(", training") + inputs + lengths


def _means(ratios: Iterable[float | None]) -> str:
    known = [value for value in ratios if value]
    if not known:
        return "–"
    return f"{statistics.geometric_mean(known):.2f} (least {min(known):.2f}) over {len(known)}"


def _times_table(times: Times, chosen: Sequence[Model], training: bool) -> str:
    cells = []
    on_gpu = any(model.row.type in PEAK_FLOPS for model in chosen)
    has_peaks = training and any(found.peak_bytes for found in times.values())
    for model in chosen:
        if not any((model.name, system, training) in times for system in SYSTEMS):
            continue
        fast, part = ratio(times, model, training), share(times, model, training)
        row: dict[str, Any] = {
            model.list[:-1]: model.title or network(model),
            "times as fast": f"{fast:.2f}" if fast else "–",
        }
        if on_gpu:
            row["share"] = f"{part:.0%}" if part else "–"
        if model.list == "models":
            row["network"] = network(model)
        for system, title in SYSTEMS.items():
            measured = times.get((model.name, system, training))
            row[f"{title}, ms"] = f"{measured.milliseconds:.3g}" if measured else "–"
            if system != OURS:
                row[f"{title}, ms"] += f" ({measured.variant})" if measured else ""
        each = [times.get((model.name, system, training)) for system in SYSTEMS]
        row["spread"] = " / ".join(f"{found.spread:.0%}" if found else "–" for found in each)
        if has_peaks:
            peaks = [found.peak_bytes if found else None for found in each]
            row["peak, MB"] = " / ".join(f"{peak / 1e6:,.0f}" if peak else "–" for peak in peaks)
        cells.append(row)
    return pages.table_of(cells)


def _order(times: Times, chosen: Sequence[Model]) -> list[Model]:
    """Models of which this package gains the least come first."""
    return sorted(chosen, key=lambda model: ratio(times, model, True) or 0)


def page(path: pathlib.Path) -> str:
    """Returns the page for a file of results."""
    times, environments, reasons = read(path)
    on_gpu = "GPU" in environments[0]
    timed = {name for name, _, _ in times}
    listed = [model if on_gpu else model.on_cpu() for model in models() if model.name in timed]
    chosen = _order(times, listed)
    name, groups = chosen[0].list, {"the core models": [model for model in chosen if model.core]}
    if name == "networks":
        groups = {
            "networks with lengths": [model for model in chosen if model.has_lengths],
            "networks of full length": [model for model in chosen if not model.has_lengths],
        }
    parts = [
        f"# {TITLES[name]}",
        f"![How many times as fast as the faster of PyTorch and Keras]({path.stem}.svg)",
        ABOUT[name].strip(),
        INTRODUCTION.strip(),
        (OF_SHARE if on_gpu else ON_CPU).strip(),
        "Geometric means of *times as fast*:",
        "\n".join(
            f"* {words}: training {_means(ratio(times, model, True) for model in group)}"
            f"; inference {_means(ratio(times, model, False) for model in group)}"
            for words, group in groups.items()
        ),
        f"Ran with: {'; '.join(dict.fromkeys(map(pages.listed, environments)))}.",
        "Of equal measurements, the last one counts. Runs at different commits were apart in time.",
        "## Training",
        _times_table(times, chosen, True),
        "## Inference",
        _times_table(times, chosen, False),
    ]
    if reasons:
        parts += ["## What failed", "\n".join(f"* {reason}" for reason in reasons)]
    return "\n\n".join([*parts, f"Written by `python -m benchmarks.{name} --report`."]) + "\n"


def plot(path: pathlib.Path, picture: pathlib.Path) -> None:
    """Draws the core models of a file of results."""
    times, environments, _ = read(path)
    chosen = [model for model in models() if model.core and ratio(times, model, True)]
    chosen = _order(times, chosen)[::-1]
    device = environments[-1].get("GPU", "a CPU").partition(",")[0].replace("NVIDIA", "an")
    pages.plot_ratios(
        picture,
        f"Times as fast as the faster of PyTorch and Keras, on {device}",
        [model.title or network(model) for model in chosen],
        {
            "training": [ratio(times, model, True) for model in chosen],
            "inference": [ratio(times, model, False) for model in chosen],
        },
    )
