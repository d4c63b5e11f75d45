"""What pages of results are made of."""

import collections
import html
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, without an end of line."""
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of rows that name their columns; the first row has all columns."""
    titles = list(rows[0])
    return table(titles, [[str(row[title]) for title in titles] for row in rows])


def listed(environment: Mapping[str, str]) -> str:
    """What an environment names, for readers: `"GPU 2 × NVIDIA H200, driver 580.159.04, …"`."""
    shown = dict(environment)
    if "GPU" in shown:
        counts = collections.Counter(shown["GPU"].split("; "))
        kinds = [f"{count} × {gpu}" if count > 1 else gpu for gpu, count in counts.items()]
        shown["GPU"] = "; ".join(kind.replace(", ", ", driver ") for kind in kinds)
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def runs(environments: Mapping[str, str]) -> str:
    """Returns what says in which environment each row was measured; most rows are not named."""
    rows_of: dict[str, list[str]] = {}
    for row, environment in environments.items():
        rows_of.setdefault(environment, []).append(row)
    (most, _), *others = sorted(rows_of.items(), key=lambda item: -len(item[1]))
    return most + "".join(
        f"; the rows “{'”, “'.join(rows)}” from one with {environment}"
        for environment, rows in others
    )


COLOURS = ("#2471a3", "#d68910", "#1e8449", "#c0392b")
STYLE = """
text { font: 12px sans-serif; fill: #1f2328 } .strong { font-weight: bold }
.number { font-size: 10px }
.paper { fill: #ffffff } .line { stroke: #9aa4b0 } .one { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #0d1117 } .line { stroke: #4b535d } .one { stroke: #e6edf3 }
}
"""


def plot_ratios(
    path: pathlib.Path,
    title: str,
    rows: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
) -> None:
    """Writes a plot that has a bar for each row and series, from 1 to its ratio, as SVG.

    The first bars are those of the means. The scale is logarithmic. Colours follow the reader's.

    Args:
        path: The file. The same numbers become the same file.
        title: What the numbers mean.
        rows: Names of networks.
        series: A label and a ratio for each row, or `None` where there is none.
    """
    found = {name: [ratio for ratio in values if ratio] for name, values in series.items()}
    means = {name: [statistics.geometric_mean(values)] for name, values in found.items() if values}
    columns = [[*means.get(name, [None]), *values] for name, values in series.items()]
    rows = [f"geometric mean of {len(rows)}", *rows]
    low = min(0, math.floor(math.log2(min(min(values, default=1) for values in found.values()))))
    high = math.ceil(math.log2(max(max(values, default=2) for values in found.values())))
    left, width, bar, top = 20 + 7 * max(map(len, rows)), 320, 10, 64
    tall = bar * len(columns) + 7
    bottom, right = top + tall * len(rows), left + width + 45

    def x_of(ratio: float) -> float:
        return round(left + width * (math.log2(ratio) - low) / (high - low), 1)

    marks = [f'<rect class="paper" width="{right}" height="{bottom + 28}"/>']

    def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        attributes = f'x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}"'
        marks.append(f"<text {attributes}>{html.escape(words)}</text>")

    text(12, 22, title, "strong")
    for power in range(low, high + 1):
        x = x_of(2.0**power)
        marks.append(f'<path class="{"line" if power else "one"}" d="M{x} {top - 4}V{bottom}"/>')
        text(x, bottom + 18, f"{2.0**power:g}×", anchor="middle")
    x = left
    for name, colour in zip(series, COLOURS, strict=False):
        marks.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>')
        text(x + 17, 46, name)
        x += 40 + 7 * len(name)
    for index, row in enumerate(rows):
        y = top + tall * index
        text(left - 8, y + bar * len(columns) / 2 + 4, row, "" if index else "strong", "end")
        for place, (values, colour) in enumerate(zip(columns, COLOURS, strict=False)):
            if ratio := values[index]:
                start, end = sorted((x_of(1), x_of(ratio)))
                size = f'width="{max(end - start, 1):.1f}" height="{bar - 1}"'
                marks.append(f'<rect x="{start}" y="{y + bar * place}" {size} fill="{colour}"/>')
                text(round(end + 4, 1), y + bar * (place + 1) - 1, f"{ratio:.3g}", "number")
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" '
        f'viewBox="0 0 {right} {bottom + 28}"><style>{STYLE}</style>\n'
        + "\n".join([*marks, "</svg>\n"])
    )
