"""Proves the GPU backend on a GPU and writes what was seen.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_report --output=DIR --commit=HASH [--parts=tests,sanitizer,…]

Each part leaves DIR/<part>.json. Anywhere, from these files:

    python -m benchmarks.gpu_report --render --output=DIR

writes benchmarks/results/gpu_tests.md; its sections of parts that DIR lacks stay. Parts: `tests`
runs the whole test suite with the GPU visible, `tests_of_gpu` what needs a GPU; `sanitizer` runs a
small network by cuDNN under compute-sanitizer, `sanitizer_persistent` by the persistent kernels.
Results of another kind of GPU get a section of their own if the kind is added to the file's name,
as in `tests_of_gpu_on_h100.json`.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Callable
from typing import Any

from absl import app, flags

from benchmarks import gpu_environment, pages

_OUTPUT = flags.DEFINE_string("output", None, "Directory of the parts' results.", required=True)
_SANITIZER_SECONDS = flags.DEFINE_integer("sanitizer_seconds", 300, "A tool may take so long.")
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_PARTS = flags.DEFINE_list(
    "parts", ["tests_of_gpu", "sanitizer", "sanitizer_persistent"], "What to run."
)
_MODULES = flags.DEFINE_string(
    "modules", "test_gpu*.py", "A pattern of the test files that `tests_of_gpu` runs."
)
_RENDER = flags.DEFINE_bool("render", False, "Write the report instead of running anything.")

ROOT = pathlib.Path(__file__).resolve().parent.parent

SANITIZED = """
import sys
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
for mode in ("lstm", "gru", "rnn_tanh"):
    for time_major in (True, False):
        config = RnnConfig(mode, 2, 24, 10, direction="bidirectional", dropout=0.2)
        x = tf.random.stateless_normal([6, 5, 10], [0, 1])
        params = tf.random.stateless_normal([config.layout.size], [2, 3])
        batch = x.shape[1 if time_major else 0]
        states = [tf.ones(s) for s in config.state_shapes(batch, time_major)]
        lengths = tf.constant([5, 0, 3, 1, 2, 4][:batch]) if sys.argv[1] == "padded" else None
        for _ in range(3):  # Full sequences are graphs; the second run measures.
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([x, params])
                y, _ = ops.forward(
                    config, x, states, params, time_major=time_major, sequence_lengths=lengths,
                    algorithm="cudnn")
            for _ in range(2):
                tape.gradient(y, [x, params])
print("done on", y.device)
"""


# This runs the kernel that keeps weights on the chip. The last network is one whose kernel fetches
# some weights at each step.
SANITIZED_RESIDENT = """
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
small = [(RnnConfig(mode, 2, 64, 10, direction="bidirectional"), 5, dtype)
         for mode in ("lstm", "gru", "rnn_relu") for dtype in (tf.float32, tf.float16)]
for config, max_time, dtype in [*small, (RnnConfig("gru", 1, 2560, 10), 3, tf.float32)]:
    x = tf.cast(tf.random.stateless_normal([max_time, 3, 10], [0, 1]), dtype)
    params = tf.cast(0.02 * tf.random.stateless_normal([config.layout.size], [2, 3]), dtype)
    states = [tf.ones(shape, dtype) for shape in config.state_shapes(3, time_major=True)]
    for _ in range(2):
        y, _ = ops.forward(
            config, x, states, params, is_training=False, algorithm="resident")
print("done on", y.device)
"""


# This runs layers whose teams are clusters; a layer whose teams are not, so that data go round in
# rings; and layers with recurrent dropout, whose steps have kernels of their own.
SANITIZED_PERSISTENT = """
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
tf.config.experimental.enable_tensor_float_32_execution(True)
for mode, layers, units, steps, dtype, rate in (
    ("lstm", 2, 48, 6, tf.bfloat16, 0.0), ("gru", 1, 40, 6, tf.float32, 0.0),
    ("lstm", 1, 720, 40, tf.float16, 0.0), ("gru", 2, 24, 6, tf.float32, 0.3),
):
    config = RnnConfig(
        mode, layers, units, 9, direction="bidirectional", dropout=0.2, recurrent_dropout=rate)
    x = tf.cast(tf.random.stateless_normal([steps, 9, 9], [0, 1]), dtype)
    params = tf.cast(0.05 * tf.random.stateless_normal([config.layout.size], [2, 3]), dtype)
    states = [tf.ones(s, dtype) for s in config.state_shapes(9, True)]
    lengths = tf.constant([steps, 0, 3, 1, steps, 4, 2, 5, 6])
    for given in (lengths, None):
        with tf.GradientTape() as tape:
            tape.watch([x, params])
            y, _ = ops.forward(
                config, x, states, params, sequence_lengths=given, algorithm="persistent")
        tape.gradient(y, [x, params])
print("done on", y.device)
"""


# PyTorch uses the same cuDNN, so what the tools find in both is cuDNN's.
TORCH = """
import torch
net = torch.nn.LSTM(10, 24, num_layers=2, bidirectional=True, dropout=0.2).cuda()
net(torch.randn(6, 5, 10, device="cuda"))[0].sum().backward()
torch.cuda.synchronize()
print("done on GPU")
"""


def _run(command: list[str], timeout: int = 560, **environment: str) -> tuple[int, str]:
    command = ["timeout", "--signal=KILL", str(timeout), *command]
    process = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return process.returncode, process.stdout


def _environment() -> dict[str, str]:
    program = (
        "import ctypes, keras, tensorflow as tf\n"
        "tf.config.list_logical_devices()\n"
        "print('VERSIONS', tf.__version__, keras.__version__,"
        " ctypes.CDLL('libcudnn.so.9').cudnnGetVersion())"
    )
    _, output = _run([sys.executable, "-c", program])
    tensorflow, keras, cudnn = re.search(r"VERSIONS (\S+) (\S+) (\d+)", output).groups()
    return {
        **gpu_environment.environment(_COMMIT.value),
        "TensorFlow": tensorflow,
        "Keras": keras,
        "cuDNN": f"{int(cudnn) // 10000}.{int(cudnn) // 100 % 100}.{int(cudnn) % 100}",
    }


def _tests(*arguments: str, **environment: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        junit = os.path.join(directory, "junit.xml")
        # Several processes run tests on the GPU at the same time.
        processes = str(3 * len(os.sched_getaffinity(0)) // 4)
        code, output = _run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", processes),
                *(f"--junitxml={junit}", *arguments),
            ],
            TF_FORCE_GPU_ALLOW_GROWTH="true",
            # By default, each process would have a thread for each core.
            TF_NUM_INTRAOP_THREADS="2",
            TF_NUM_INTEROP_THREADS="2",
            OMP_NUM_THREADS="2",
            **environment,
        )
        cases = xml.etree.ElementTree.parse(junit).getroot().iter("testcase")
        outcomes: dict[str, dict[str, int]] = {}
        notes: list[str] = []
        for case in cases:
            module = case.get("classname", "").rpartition(".")[2]
            counts = outcomes.setdefault(module, {"passed": 0, "failed": 0, "skipped": 0})
            problem = (
                case.find("failure") if case.find("failure") is not None else case.find("error")
            )
            skipped = case.find("skipped")
            if problem is not None:
                counts["failed"] += 1
                notes.append(f"failed: {case.get('name')}: {problem.get('message', '')[:300]}")
            elif skipped is not None:
                counts["skipped"] += 1
                notes.append(f"skipped: {case.get('name')}: {skipped.get('message', '')[:200]}")
            else:
                counts["passed"] += 1
    return {"exit status": code, "modules": outcomes, "notes": notes, "tail": output[-1500:]}


TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Maps a run's name to compute-sanitizer's tool, a program, its argument and its environment.
Sanitized = dict[str, tuple[str, str, str, dict[str, str]]]
SANITIZED_BY_CUDNN: Sanitized = {
    "memcheck, full sequences": ("memcheck", SANITIZED, "full", {}),
    "memcheck, padded sequences": ("memcheck", SANITIZED, "padded", {}),
    **{f"{tool}, resident weights": (tool, SANITIZED_RESIDENT, "", {}) for tool in TOOLS},
    "initcheck, padded sequences": ("initcheck", SANITIZED, "padded", {}),
    # This tells reads of cuDNN's scratch memory from other reads.
    "initcheck, padded sequences, after scratch memory was filled with NaN": (
        *("initcheck", SANITIZED, "padded"),
        {"CUDNN_RNN_TF_POISON_SCRATCH": "1"},
    ),
    "initcheck, full sequences, after scratch memory was filled with NaN": (
        *("initcheck", SANITIZED, "full"),
        {"CUDNN_RNN_TF_POISON_SCRATCH": "1"},
    ),
    "initcheck, torch.nn.LSTM for comparison": ("initcheck", TORCH, "", {}),
}


def _sanitizer(runs: Sanitized) -> dict[str, Any]:
    def run(one: tuple[str, str, str, dict[str, str]]) -> dict[str, Any]:
        tool, program, argument, environment = one
        code, output = _run(
            [
                *("compute-sanitizer", "--tool", tool, "--error-exitcode", "3"),
                # The errors are expected: the only way to learn how many arguments a kernel has is
                # to pass one more, which the driver refuses.
                *(["--report-api-errors", "no"] if tool == "memcheck" else []),
                *(sys.executable, "-c", program, argument),
            ],
            timeout=_SANITIZER_SECONDS.value,
            TF_FORCE_GPU_ALLOW_GROWTH="true",
            **environment,
        )
        # "at void elemWiseRNNcell<float, …>(…)+0x3d0"
        kernels = re.findall(r"={9} +at (?:void )?([\w:]+)", output)
        return {
            "exit status": code,  # -9 and 137: killed at the time limit.
            "ran to its end": "done on" in output and "GPU" in output,
            "summary": re.findall(r"(?:ERROR|RACECHECK) SUMMARY: [^\n]*", output)[:1],
            "kernels named": sorted(set(kernels)),
            "tail": output[-1500:],
        }

    with concurrent.futures.ThreadPoolExecutor() as executor:
        return dict(zip(runs, executor.map(run, runs.values()), strict=True))


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "tests": _tests,
    "tests_of_gpu": lambda: _tests(*map(str, (ROOT / "tests").glob(_MODULES.value))),
    "sanitizer": lambda: _sanitizer(SANITIZED_BY_CUDNN),
    "sanitizer_persistent": lambda: _sanitizer(
        {tool: (tool, SANITIZED_PERSISTENT, "", {}) for tool in TOOLS}
        | {
            f"{tool}, as {gpu}": (tool, SANITIZED_PERSISTENT, "", {"CUDNN_RNN_TF_IMITATE_GPU": gpu})
            for gpu in ("A100", "T4")
            for tool in TOOLS[:3]
        }
        | {
            "initcheck, after all memory that passes write to was filled with NaN": (
                *("initcheck", SANITIZED_PERSISTENT, ""),
                {"CUDNN_RNN_TF_POISON_SCRATCH": "1"},
            )
        }
    ),
}


# Says what initcheck's reports mean in each part that runs it.
OF_INITCHECK = {
    "sanitizer": (
        "If the ops' workspace and reserve space, which are cuDNN's scratch memory, are filled "
        "with NaN first, `initcheck` reports nothing. So without this filling, its reports are "
        "about reads of that memory by cuDNN. `torch.nn.LSTM` ran on full "
        "sequences and without this filling; this package's `initcheck` run of full sequences had "
        "it. “Resident weights” are those of [a kernel of this "
        "package](../../docs/internals/cudnn.md#resident-weights)."
    ),
    "sanitizer_persistent": (
        "`initcheck` reports nothing when all memory that a pass writes to is filled with NaN "
        "first. The reports without this filling are harmless: a "
        "[test](../../tests/test_gpu_persistent.py) runs networks with and without this filling, "
        "and the results are the same bits. So no result depends on memory that was not written."
    ),
}
# Maps each part to a text that says what it ran.
ABOUT = {
    "tests": (
        "all tests that the commit named in the section had (later commits have more), with the "
        "GPU visible"
    ),
    "tests_of_gpu": "the tests that need a GPU",
    "sanitizer": "small networks that the cuDNN backend runs, under NVIDIA's compute-sanitizer",
    "sanitizer_persistent": (
        "small networks that the [persistent kernels](../../docs/internals/gpu_kernels.md) run, "
        "under compute-sanitizer"
    ),
}


def _part_of(section: str) -> str:
    return section.partition("_on_")[0]


def _about(section: str) -> str:
    part, _, kind = section.partition("_on_")
    return ABOUT[part] + (f", on an {kind.upper()}" if kind else "")


def _render(directory: pathlib.Path) -> None:
    report = pages.RESULTS / "gpu_tests.md"
    old = report.read_text().rstrip() if report.exists() else ""
    # The pieces are a section's heading, its text, the next heading, and so on.
    pieces = re.split(r"^## (\w+)$", old, flags=re.MULTILINE)
    sections = {
        name: text.partition("\n\nWritten by")[0].strip()
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True)
        if _part_of(name) in PARTS
    }
    for path in directory.glob("*.json"):
        sections[path.stem] = _section(path.stem, json.loads(path.read_text()))
    text = [
        "# Tests of the package on a GPU",
        "Each section names a machine and says what ran on it, and with what result:",
        "\n".join(f"* [{name}](#{name}): {_about(name)}" for name in sorted(sections)),
    ]
    for name, section in sorted(sections.items()):
        text += [f"## {name}", section]
    text.append("Written by `python -m benchmarks.gpu_report`, whose docstring says how to run it.")
    report.write_text("\n\n".join(text) + "\n")


def _named(environment: dict[str, str]) -> str:
    """The machine and the versions."""
    described = gpu_environment.describe_gpus(environment["GPU"])
    return pages.listed({**environment, "GPU": described})


def _grouped(notes: list[str]) -> list[str]:
    """Notes such as "skipped: test: reason", with the skipped tests of a reason counted."""
    skipped = [re.match(r"skipped: \w+(?:\[.*?\])?: (.*)", note) for note in notes]
    failed = [note for note, found in zip(notes, skipped, strict=True) if not found]
    reasons = collections.Counter(found[1] for found in skipped if found)
    return failed + [f"{count} skipped: {reason}" for reason, count in reasons.most_common()]


def _section(name: str, part: dict[str, Any]) -> str:
    environment, result = part["environment"], part["result"]
    text = [_named(environment)]
    if name.startswith("tests"):
        rows = [
            {"module": module, **counts} for module, counts in sorted(result["modules"].items())
        ]
        total = {key: sum(row[key] for row in rows) for key in ("passed", "failed", "skipped")}
        text += [pages.table_of([*rows, {"module": "**all**", **total}])]
        notes = [note.partition("\n")[0].replace("#x1B[1m", "") for note in result["notes"]]
        # Absolute paths only say where the project was.
        notes = [
            re.sub(r"(?:(?<=-I)|(?<![\w.]))/[\w.-]+(/[\w.-]+)+", r"…\1", note) for note in notes
        ]
        text += ["\n".join(f"* {note}" for note in _grouped(notes)) or "Nothing was skipped."]
    else:
        rows = [
            {
                "run": tool,
                "ran to its end": one["ran to its end"],
                "summary": "; ".join(one["summary"]),
                "kernels named": ", ".join(f"`{kernel}`" for kernel in one["kernels named"]),
            }
            for tool, one in result.items()
        ]
        text += [
            "compute-sanitizer has four tools: `memcheck` looks for accesses outside allocated "
            "memory, `racecheck` for races in shared memory, `synccheck` for wrong "
            "synchronization, and `initcheck` for reads of memory that was never written. The "
            "last column has the kernels that their reports name. A run that was stopped at its "
            "time limit has no summary.",
            pages.table_of(rows),
        ]
        text += [OF_INITCHECK[name]]
    return "\n\n".join(text)


def main(_: list[str]) -> None:
    directory = pathlib.Path(_OUTPUT.value)
    if _RENDER.value:
        _render(directory)
        return
    directory.mkdir(parents=True, exist_ok=True)
    environment = _environment()
    for name in _PARTS.value:
        if name not in PARTS:
            raise app.UsageError(f"expected parts among {', '.join(PARTS)}, but received {name}")
        result = PARTS[name]()
        part = {"environment": environment, "result": result}
        (directory / f"{name}.json").write_text(json.dumps(part, indent=1))
        print(name, json.dumps(result)[:1500], flush=True)


if __name__ == "__main__":
    app.run(main)
