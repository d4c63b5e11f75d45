"""What pages of results are made of."""

import html
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
STYLES = (("#c0392b", "o"), ("#2471a3", "s"), ("#d68910", "D"), ("#1e8449", "^"))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, without an end of line."""
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of rows that name their columns; the first row has all columns."""
    titles = list(rows[0])
    return table(titles, [[str(row[title]) for title in titles] for row in rows])


def listed(environment: Mapping[str, str]) -> str:
    """What an environment names, for readers."""
    return ", ".join(f"{name} {value}" for name, value in environment.items())


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


def plot_ratios(
    path: pathlib.Path,
    title: str,
    rows: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
) -> None:
    """Writes a plot that has a line of dots for each row, as SVG.

    It is as wide as a phone shows without making letters small.

    Args:
        path: The file. The same numbers become the same file.
        title: What the numbers mean.
        rows: Names of networks; what follows the first comma gets a line of its own.
        series: A label and a ratio for each row, or `None` where there is none.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot, ticker

    # Letters stay text, which is small and can be searched.
    settings = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9}
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(5, 1 + 0.28 * len(rows)), layout="constrained")
        for (label, ratios), (colour, marker) in zip(series.items(), STYLES, strict=False):
            found = [(ratio, place) for place, ratio in enumerate(ratios) if ratio]
            values, places = zip(*found, strict=True)
            axes.plot(values, places, marker, color=colour, label=label, markersize=5)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g×"))
        axes.set_yticks(
            range(len(rows)), [row.replace(", ", "\n", 1) for row in rows], fontsize=7.5
        )
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(title)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


BAR_COLOURS = ("#2471a3", "#d68910")
BARS_STYLE = """
text { font: 12px sans-serif; fill: #1f2328 } .title { font-weight: bold; font-size: 14px }
.paper { fill: #ffffff } .line { stroke: #9aa4b0 } .one { stroke: #1f2328; stroke-width: 1.5 }
.number { font-size: 10px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #0d1117 } .line { stroke: #4b535d } .one { stroke: #e6edf3 }
}
"""


def plot_bars(
    path: pathlib.Path,
    title: str,
    rows: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
) -> None:
    """Writes a plot that has a bar for each row and series, from 1 to its ratio, as SVG.

    The first row is that of the means. The scale is logarithmic; colours follow the reader's.
    """
    rows = [f"geometric mean of {len(rows)}", *rows]
    known = {}
    for name, values in series.items():
        measured = [ratio for ratio in values if ratio]
        known[name] = [statistics.geometric_mean(measured) if measured else None, *values]
    all_ratios = [ratio for values in known.values() for ratio in values if ratio]
    low = min(0, math.floor(math.log2(min(all_ratios))))
    high = math.ceil(math.log2(max(all_ratios)))
    left, width, bar = 230, 480, 11
    tall = bar * len(series) + 7
    top, bottom = 66, 66 + tall * len(rows)

    def place(ratio: float) -> float:
        return left + width * (math.log2(ratio) - low) / (high - low)

    marks = [
        f'<rect class="paper" width="{left + width + 50}" height="{bottom + 30}"/>',
        f'<text class="title" x="12" y="24">{html.escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = f"{place(2.0**power):.1f}"
        kind = "line" if power else "one"
        marks.append(f'<path class="{kind}" d="M{x} {top - 4}V{bottom}"/>')
        marks.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{2.0**power:g}×</text>')
    for place_of_series, name in enumerate(known):
        x, colour = left + 110 * place_of_series, BAR_COLOURS[place_of_series]
        marks.append(f'<rect x="{x}" y="38" width="14" height="11" fill="{colour}"/>')
        marks.append(f'<text x="{x + 20}" y="48">{html.escape(name)}</text>')
    for index, row in enumerate(rows):
        y = top + tall * index
        middle = y + bar * len(series) / 2 + 4
        bold = "" if index else ' font-weight="bold"'
        anchor = f'x="{left - 10}" y="{middle:g}" text-anchor="end"{bold}'
        marks.append(f"<text {anchor}>{html.escape(row)}</text>")
        for place_of_series, values in enumerate(known.values()):
            ratio = values[index]
            if not ratio:
                continue
            start, end = sorted((place(1), place(ratio)))
            line = y + bar * place_of_series
            marks.append(
                f'<rect x="{start:.1f}" y="{line}" width="{max(end - start, 1):.1f}"'
                f' height="{bar - 1}" fill="{BAR_COLOURS[place_of_series]}"/>'
            )
            marks.append(
                f'<text class="number" x="{end + 4:.1f}" y="{line + bar - 2}">{ratio:.3g}</text>'
            )
    size = f"{left + width + 50} {bottom + 30}"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}">'
        f"<style>{BARS_STYLE}</style>\n" + "\n".join(marks) + "\n</svg>\n"
    )
