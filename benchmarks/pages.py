"""What pages of results are made of."""

import pathlib
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
