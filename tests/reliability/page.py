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
        "Child processes call ops (`raw_ops`) and the native module (`native_module`) with sizes, "
        "types, attributes and objects that nobody would pass, and load graphs and SavedModels in "
        "which nodes of this package's ops were edited (`graphs`). `make fuzz` does the same. "
        "“ok” means that a call was accepted and returned. A hang is a call of more than "
        "a minute.",
    ),
    "files": (
        "Damaged files",
        "files",
        "Bytes of good files are changed, inserted, removed or cut off. In the "
        "rows `files`, the package's command `convert` is given a file, and must convert it, or "
        "say in one line what is wrong and write nothing. In the rows `saved`, Keras and "
        "TensorFlow read models, weights, checkpoints and SavedModels; a layer that could not be "
        "loaded must stay as it was. Files without checksums, such as HDF5, may load with changed "
        "numbers; that is not counted as a failure. A GPU program keeps compiled kernels for the "
        "next process (`kernel code`); earlier versions also kept measured choices of algorithms "
        "(`choice file`). Archives that would fill the memory, pipes and "
        "links in place of files, and files of wrong sizes are in the rows `archives`: the command "
        "must say in one line what is wrong, with bounded memory, and write nothing.",
    ),
    "models": (
        "Random models",
        "models",
        "Random layers, with masks of all kinds and with NaN in the padding, must give the values "
        "and gradients of Keras's layers or of a reference in float64 (`layers`). Accelerated "
        "copies of random models must predict what the models do, with the same weights frozen "
        "and after a step of training, and a class of the caller's own must not be taken for one "
        "of this package's (`models`). ONNX graphs in which other nodes compute a network's "
        "inputs must be refused, or converted to what ONNX Runtime computes (`onnx_graphs`).",
    ),
    "kills": (
        "Kills",
        "kills",
        "`examples/char_lm.py` is killed (SIGKILL), resumed and killed again, at random moments "
        "and while it writes. After each kill, the newest checkpoint must not be older than the "
        "newest one that was seen before the kill. The tensors in this checkpoint must equal, bit "
        "for bit, those that an undisturbed run saved at the same step. At the end, the file of "
        "the training history must be the same as that of an undisturbed run. `convert` is told "
        "to overwrite a file and is killed at a random moment; afterwards, the file must be the "
        "whole old file or the whole new one. Programs that write the kernel "
        "code are killed as well; a write lasts about a millisecond, so few kills fall inside one.",
    ),
    "disks": (
        "Full and read-only disks",
        "programs",
        "The disks are file systems in memory. Some are read-only. The others are small, with "
        "random or very small sizes; they are called “full” here, although some turned out to be "
        "large enough. "
        "`convert` and the training program must say in "
        "one line that they cannot write, and every program must "
        "leave the files that are there as they are. When there is room again, training must go on "
        "and end with the same bits as an undisturbed run.",
    ),
    "soak": (
        "Soaks",
        "steps or kills",
        "A soak has the parts below; some runs had only some of them. First, threads do three "
        "things with changing shapes and lengths: inference, gradients, and training steps of a "
        "model. They do so first in one process, then in two processes at the same time, with "
        "eight threads in each. The outputs of inference, and the gradients, must agree with "
        "those that a CPU computed while nothing else ran. After a training step, the loss must "
        "be finite. Memory is sampled, and each quarter of the time is represented by its "
        "smallest sample. The value of the last quarter must not be larger than that of the "
        "second by more than 5 % plus 100 MB. In the next part, training steps of growing size "
        "run with about 1 GiB of memory (the GPU's, if there is one), three of each size. The "
        "larger ones run out of memory. After each such error, a small step must still give the "
        "right result. In the last part, a program that trains under "
        "`keras.callbacks.BackupAndRestore` is killed and resumed. In a program with two workers "
        "under `tf.distribute.MultiWorkerMirroredStrategy`, one worker is killed; then the other "
        "is ended too, and both are started again from the last checkpoint. Threads call "
        "`tf.function`s, since eager ops of several threads on one GPU can receive each other's "
        "tensors, [also without this package](../guides/gpu.md#habits-worth-having). An earlier "
        "soak, whose threads called eager ops, is not counted for this reason.",
    ),
}
# Earlier runs recorded these words, which the page replaces by clearer ones.
CLEARER = {
    "all lines are choices": "all choices were still read",
    "as on a CPU": "as computed alone on a CPU",
    "conversions that were killed and left the old file or the new, whole": (
        "conversions that were killed and left the whole old file or the whole new one"
    ),
    "finite": "the loss is finite",
    "lines left out": "damaged lines were ignored",
    "no memory backward, then a small step was right": (
        "out of memory in the backward pass, then a small step was right"
    ),
    "no memory forward, then a small step was right": (
        "out of memory in the forward pass, then a small step was right"
    ),
    "not changed": "the change happened to leave the file as it was, so it was read",
    "resumed, in the end equal to the bit": "resumed; the final weights are equal to the bit",
    "said so in one line, left nothing": (
        "reported in one line that it could not write; made no output file"
    ),
    "said so in one line, then went on to the same end": (
        "reported in one line that it could not write; later went on to the same end"
    ),
    "said so in one line; what is there can be converted to elsewhere": (
        "reported in one line that it could not write; the file on the read-only disk could be "
        "converted to another disk"
    ),
    "training runs that were killed, resumed and equal to the bit": (
        "training runs that were killed, resumed, and ended with the bits of an undisturbed run"
    ),
    "what was stored stays": "earlier contents kept",
    "CPU:0": "a CPU, whose name was not recorded",
    "processes: inference: AssertionError: result 0 of RnnConfig(rnn_mode='lstm', num_layers=1, "
    "num_units=96, input_size=16, input_mode='linear_input', direction='unidirectional', "
    "bias_mode='double', num_proj=32, dropout=0.0, cell_clip=0.0, recurrent_dropout=0.0), "
    "float16, is off by nan": (
        "while two processes ran at once, in one of 70,331 inferences, a float16 LSTM of 96 units "
        "with `num_proj=32` had NaN among its outputs. cuDNN runs this network. The cause is most "
        "likely a CUDA graph that another thread launched in the midst of cuDNN's pass. A "
        "[lock](../../kernels/gpu/libraries.h) now prevents that for graphs of this package; "
        "those of XLA do not take it. Since then, soaks of 2, 16, 21, 6 and 5 minutes on H100s had "
        "no wrong result."
    ),
    **{
        f"processes: memory of the host grew from {before} MB to {after} MB": (
            f"the resident set of one of two processes grew from {before} MB to {after} MB. This "
            "part took only 25 s, which is too short to tell growth from the start of a process."
        )
        for before, after in ((1892, 2317), (2004, 2244))
    },
}
PROCESSES = {
    "threads": ["in one process"],
    "processes": ["in the first of two processes", "in the second"],
}
MEMORY = {"host": "resident set (RSS)", "gpu": "GPU memory"}


def write(path: pathlib.Path = PAGE) -> None:
    path.write_text(text(record.read()))


def text(rows: list[dict[str, Any]]) -> str:
    """The page of these rows."""
    rows = [{**row, "number": number} for number, row in enumerate(rows, 1)]
    lines = [
        "# Reliability: what was tried, and what failed",
        "",
        _wrapped(
            "`make reliability` runs one of four kinds of test: it calls the package with wrong "
            "arguments, damages its files, kills programs that use it, or fills their disks. A "
            "run, such as "
            '`make reliability ARGS="calls --seconds=600"`, adds a line to '
            "[reliability.jsonl](../../benchmarks/results/reliability.jsonl). A [soak](#soaks), a "
            "run of mixed work, is started by `tests/reliability/soak.py --out=FILE`; "
            '`make reliability ARGS="add FILE"` then copies the line of that soak from FILE '
            "to reliability.jsonl. This page is written from these lines. A failure is a crash, a "
            "hang, an exception of a wrong type, a wrong result, memory that grows, a layer that "
            "is half restored, or a step that was saved and is lost."
        ),
        "",
        "| run | how many | failures | hours |",
        "|---|---|---|---|",
    ]
    kinds = {kind: [row for row in rows if row["run"] == kind] for kind in KINDS}
    for kind, of_kind in kinds.items():
        title, unit, _ = KINDS[kind]
        failures = sum(len(row["failures"]) for row in of_kind)
        if failures:
            title = f"[{title}](#{title.lower().replace(' ', '-')})"
        hours = sum(row["seconds"] for row in of_kind) / 3600
        total = _totals(of_kind).total()
        lines.append(f"| {title} | {total:,} {unit} | {failures} | {hours:.1f} |")
    for kind, of_kind in kinds.items():
        if of_kind:
            lines += _section(of_kind, *KINDS[kind])
    lines += [
        "",
        "## The runs",
        "",
        "A + after a commit means that files had been changed since that commit.",
        "",
    ]
    lines += ["| | run | date | commit | machine | minutes |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['number']} | {row['run']} | {row['date']} | {row['commit']} "
            f"| {_clearer(row['machine'])} | {row['seconds'] / 60:.0f} |"
        )
    versions = collections.defaultdict(list)
    for row in rows:
        names = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        versions[names].append(str(row["number"]))
    lines += ["", *(f"* runs {', '.join(runs)}: {names}" for names, runs in versions.items())]
    return "\n".join(lines) + "\n"


def _section(rows: list[dict[str, Any]], title: str, unit: str, about: str) -> list[str]:
    """What the runs of one kind were and came to."""
    lines = ["", f"## {title}", "", _wrapped(about), ""]
    lines += [f"| what | how it ended | {unit} |", "|---|---|---|"]
    for (group, end), count in sorted(_totals(rows).items()):
        lines.append(f"| {group} | {end} | {count:,} |")
    notes = []
    for row in rows:
        notes += [f"{_clearer(what)}: {count:,}" for what, count in row.get("seen", {}).items()]
        notes += _memory(row.get("memory", {}), row["number"])
        notes += [
            f"Failed in [run](#the-runs) {row['number']}: {_clearer(failure)}"
            for failure in row["failures"]
        ]
    return lines + [""] * bool(notes) + [f"* {note}" for note in notes]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _clearer(words: str) -> str:
    return CLEARER.get(words, words)


def _memory(memory: dict[str, list[list[dict[str, int]]]], number: int) -> list[str]:
    """The least that the processes of a run needed in each quarter of their time."""
    texts = collections.defaultdict(list)
    for part, processes in memory.items():
        for where, samples in zip(PROCESSES[part], processes, strict=True):
            quarter = max(1, len(samples) // 4)
            for name in samples[0]:
                needs = [
                    min(sample[name] for sample in samples[begin : begin + quarter])
                    for begin in range(0, 4 * quarter, quarter)
                    if begin < len(samples)
                ]
                texts[name].append(f"{where} {', '.join(map(str, needs))}")
    return [
        f"least {MEMORY[name]} in each quarter of the time, in MB: {'; '.join(found)} "
        f"(in [run](#the-runs) {number})"
        for name, found in texts.items()
    ]


def _totals(rows: list[dict[str, Any]]) -> collections.Counter:
    """How often each end came, by what was run and the end."""
    totals: collections.Counter = collections.Counter()
    for row in rows:
        for group, ends in row["counts"].items():
            for end, count in ends.items():
                totals[group, _clearer(end)] += count
    return totals


if __name__ == "__main__":
    write()
