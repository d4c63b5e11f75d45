"""Writes `docs/internals/reliability.md` from the lines that runs have left."""

import collections
import pathlib
import textwrap
from typing import Any

import record

PAGE = record.ROOT / "docs" / "internals" / "reliability.md"
# Each kind of run has a title, a word for what its numbers count, and a text on what was done.
KINDS = {
    "calls": (
        "Hostile calls",
        "calls",
        "Ops, graphs and the native module are called with sizes, types, attributes and objects "
        "that nobody would pass, each in a child process (`make fuzz`). A signal, a hang of more "
        "than a minute or an exception that users are not told to expect would be a failure.",
    ),
    "files": (
        "Damaged files",
        "files",
        "Bytes of good files are changed, put in, taken out or cut off. `files` are given to "
        "`python -m cudnn_rnn_tf convert`, which is to convert them, or to say in one line what is "
        "wrong and to write nothing; `saved` are read by Keras and TensorFlow, and a layer that "
        "could not be loaded is to be as it was. Formats without checksums, as HDF5, let changed "
        "numbers pass as numbers. GPU programs keep the choice file and the kernels' code.",
    ),
    "kills": (
        "Kills",
        "kills",
        "`examples/char_lm.py` is killed (SIGKILL) at random moments and while it writes, resumed, "
        "and killed again. After each kill the newest checkpoint is to be none older than the "
        "newest that was seen before it, and its tensors those, to the bit, that a run that "
        "nothing disturbed had saved at that step; at the end the history is to be the same text. "
        "`convert` is killed while it replaces a file, which is to be the old one or the new one, "
        "whole; so are processes that keep measured choices and kernels' code, which take a "
        "millisecond each. Programs begin as forks of a process that has imported TensorFlow.",
    ),
    "disks": (
        "Full and read-only disks",
        "programs",
        "The disks are file systems in memory, of random sizes or mounted read-only, in a mount "
        "namespace. A program says in one line that it cannot write and leaves what was there; "
        "training goes on, once there is room, to the end that a run that nothing disturbed has "
        "come to, to the bit.",
    ),
    "soak": (
        "Soaks",
        "steps",
        "`tests/reliability/soak.py`: eight threads train and infer with changing shapes and "
        "lengths and compare with a CPU, in one process and in two at once, while the memory is "
        "watched: at the least, the last quarter of the time is to need no more than the second, "
        "but for 5 % and 100 MB. Steps run out of memory, and a small one after each is to be "
        "right. A program under `keras.callbacks.BackupAndRestore`, and one of two workers under "
        "`tf.distribute.MultiWorkerMirroredStrategy`, are killed and resumed.",
    ),
}


def write(path: pathlib.Path = PAGE) -> None:
    path.write_text(text(record.read()))


def text(rows: list[dict[str, Any]]) -> str:
    """The page of these rows."""
    lines = [
        "# What was tried, and what was lost",
        "",
        _wrapped(
            "Calls are wrong, files are damaged, programs are killed and disks are full: `make "
            'reliability ARGS="calls --seconds=600"` and its like try it, add a line to '
            "[reliability.jsonl](../../benchmarks/results/reliability.jsonl) and write this page "
            "from all of them. A failure is a crash, a hang, an exception of a wrong type, a wrong "
            "result, a layer that is half restored, or a step that was saved and is lost."
        ),
        "",
        "| run | how many | failures | hours |",
        "|---|---|---|---|",
    ]
    kinds = {kind: [row for row in rows if row["run"] == kind] for kind in KINDS}
    for kind, of_kind in kinds.items():
        title, unit, _ = KINDS[kind]
        failures = sum(len(row["failures"]) for row in of_kind)
        hours = sum(row["seconds"] for row in of_kind) / 3600
        total = _totals(of_kind).total()
        lines.append(f"| {title} | {total:,} {unit} | {failures} | {hours:.1f} |")
    for kind, of_kind in kinds.items():
        if of_kind:
            lines += _section(of_kind, *KINDS[kind])
    lines += ["", "## The runs", "", "Where a commit has a +, there were changes beyond it.", ""]
    lines += ["| run | date | commit | machine | minutes |"]
    lines += ["|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['run']} | {row['date']} | {row['commit']} | {row['machine']} "
            f"| {row['seconds'] / 60:.0f} |"
        )
    versions = collections.Counter(
        ", ".join(f"{name} {version}" for name, version in row["versions"].items()) for row in rows
    )
    lines += ["", *(f"* {count} with {names}" for names, count in versions.items())]
    return "\n".join(lines) + "\n"


def _section(rows: list[dict[str, Any]], title: str, unit: str, about: str) -> list[str]:
    """What the runs of one kind were and came to."""
    lines = ["", f"## {title}", "", _wrapped(about), ""]
    lines += [f"| what | how it ended | {unit} |", "|---|---|---|"]
    for (group, end), count in sorted(_totals(rows).items()):
        lines.append(f"| {group} | {end} | {count:,} |")
    notes = []
    for row in rows:
        notes += [f"{what}: {count:,}" for what, count in row.get("seen", {}).items()]
        for part, processes in row.get("memory", {}).items():
            notes += [f"{_memory(part, samples)} ({row['machine']})" for samples in processes]
        notes += [f"Failed at {row['commit']}: {failure}" for failure in row["failures"]]
    return lines + [""] * bool(notes) + [f"* {note}" for note in notes]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _memory(part: str, samples: list[dict[str, int]]) -> str:
    """The least that a process needed in each quarter of its time."""
    quarter = max(1, len(samples) // 4)
    texts = []
    for name in samples[0]:
        needs = [
            min(sample[name] for sample in samples[begin : begin + quarter])
            for begin in range(0, 4 * quarter, quarter)
            if begin < len(samples)
        ]
        texts.append(f"{name} {', '.join(map(str, needs))} MB")
    return f"memory by quarters, {part}: {'; '.join(texts)}"


def _totals(rows: list[dict[str, Any]]) -> collections.Counter:
    """How often each end came, by what was run and the end."""
    totals: collections.Counter = collections.Counter()
    for row in rows:
        for group, ends in row["counts"].items():
            for end, count in ends.items():
                totals[group, end] += count
    return totals


if __name__ == "__main__":
    write()
