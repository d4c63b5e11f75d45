"""Runs the GPU tests, and small networks under compute-sanitizer, and writes what was seen.

benchmarks/command.py says how to run it; `--only` names parts. `tests` runs what needs a GPU; the
others are kernels that run under NVIDIA's compute-sanitizer. The page has the last line of each
part, kind of GPU and version of CUDA.
"""

import argparse
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
from collections.abc import Iterator
from typing import Any

from benchmarks import command, machine, pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENDS = ("passed", "failed", "skipped")
FAILED = {"failure", "error"}
TIMED_OUT = 124  # What `timeout` ends with.
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")

# It is given a list of networks: arguments of RnnConfig and of `forward`, a type, and time steps.
SANITIZED = """
import json, sys
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
tf.config.experimental.enable_tensor_float_32_execution(True)
for network, call, dtype, steps, has_lengths in json.loads(sys.argv[1]):
    config = RnnConfig(input_size=9, **network)
    x = tf.cast(tf.random.stateless_normal([steps, 9, 9], [0, 1]), dtype)
    params = 0.05 * tf.random.stateless_normal([config.layout.size], [2, 3])
    params = tf.cast(params, dtype)
    states = [tf.ones(s, dtype) for s in config.state_shapes(9, True)]
    lengths = tf.constant([steps, 0, 3, 1, steps, 4, 2, 5, 6]) if has_lengths else None
    for _ in range(3):  # Passes over the same buffers are replayed.
        with tf.GradientTape() as tape:
            tape.watch([x, params])
            y, _ = ops.forward(config, x, states, params, sequence_lengths=lengths, **call)
        if call.get("is_training", True):
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


def _networks(algorithm: str, lengths: bool = True) -> str:
    """The networks that a part runs, as JSON."""
    call: dict[str, Any] = {"algorithm": algorithm}
    if algorithm == "persistent":
        # The teams of the first are clusters; the data of the third go round in rings.
        cells = [("lstm", 2, 48, "bfloat16"), ("gru", 1, 40, "float32"), ("lstm", 1, 720, "half")]
    else:
        cells = [(mode, 2, 24, "float32") for mode in ("lstm", "gru", "rnn_tanh")]
    of_all = {"direction": "bidirectional", "dropout": 0.2}
    networks = [
        (
            {"rnn_mode": mode, "num_layers": layers, "num_units": units, **of_all},
            call,
            dtype,
            40 if units == 720 else 6,
            lengths,
        )
        for mode, layers, units, dtype in cells
    ]
    if algorithm == "persistent":  # With recurrent dropout, steps have kernels of their own.
        dropping = {**networks[1][0], "num_units": 24, "recurrent_dropout": 0.3}
        networks.append((dropping, *networks[1][1:]))
    return json.dumps(networks)


def _runs(part: str) -> dict[str, tuple[str, list[str], dict[str, str]]]:
    """By name, compute-sanitizer's tool, the program with its arguments, and its environment."""
    filled = {"CUDNN_RNN_TF_POISON_SCRATCH": "1"}
    program = [SANITIZED, _networks(part)]
    runs = {tool: (tool, program, {}) for tool in TOOLS}
    runs["initcheck, after memory was filled with NaN"] = ("initcheck", program, filled)
    if part == "persistent":
        for gpu in ("A100", "T4"):
            imitated = {"CUDNN_RNN_TF_IMITATE_GPU": gpu}
            runs |= {f"{tool}, as {gpu}": (tool, program, imitated) for tool in TOOLS[:3]}
    if part == "cudnn":
        full = [SANITIZED, _networks(part, lengths=False)]
        runs |= {f"{tool}, full length": (tool, full, {}) for tool in TOOLS[:1]}
        runs["initcheck, torch.nn.LSTM for comparison"] = ("initcheck", [TORCH], {})
    return runs


def _run(command: list[str], seconds: int, **variables: str) -> tuple[int, str]:
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    process = subprocess.run(
        # A run of tests that is interrupted still writes what came of them.
        ["timeout", "--signal=INT", "--kill-after=20", str(seconds), *command],
        cwd=ROOT,
        env={**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true", "PYTHONPATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return process.returncode, process.stdout


def _sanitize(part: str, seconds: int) -> Iterator[dict[str, Any]]:
    def run(name: str) -> dict[str, Any]:
        tool, program, variables = _runs(part)[name]
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3"]
        # Errors of calls are expected: the only way to learn how many arguments a kernel has is to
        # pass one more, which the driver refuses.
        command += ["--report-api-errors", "no"] if tool == "memcheck" else []
        _, output = _run([*command, sys.executable, "-c", *program], seconds, **variables)
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: [^\n]*", output)[:1]
        # "at void elemWiseRNNcell<float, …>(…)+0x3d0"
        kernels = re.findall(r"={9} +at (?:void )?([\w:]+)", output)
        return {
            "run": name,
            "ran to its end": "done on" in output and "GPU" in output,
            "summary": "".join(summary),
            "kernels named": ", ".join(f"`{kernel}`" for kernel in sorted(set(kernels))),
        }

    with concurrent.futures.ThreadPoolExecutor() as executor:
        yield from executor.map(run, _runs(part))


def _test(pattern: str, seconds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns how many tests passed and did not, and notes of those that did not."""
    ends_of_all = dict.fromkeys(ENDS, 0)
    notes: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        junit = pathlib.Path(directory, "junit.xml")
        # Several processes run tests on the GPU at once, each with few threads.
        processes = str(3 * len(os.sched_getaffinity(0)) // 4)
        command = [*(sys.executable, "-m", "pytest", "-q", "-n", processes), f"--junitxml={junit}"]
        threads = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        files = map(str, sorted((ROOT / "tests").rglob(pattern)))
        code, output = _run([*command, *files], seconds, **dict.fromkeys(threads, "2"))
        if not junit.exists():
            raise RuntimeError(f"the tests did not come to their end: {output[-1500:]}")
        for case in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
            if not case.get("classname"):  # It was interrupted.
                continue
            ends = {child.tag: (child.get("message") or "").split("\n")[0] for child in case}
            end = "skipped" if "skipped" in ends else "failed" if ends.keys() & FAILED else "passed"
            ends_of_all[end] += 1
            if end == "skipped":
                notes[f"skipped: {ends['skipped'][:200]}"] += 1
            elif end == "failed":
                notes[f"failed: {case.get('name')}: {''.join(ends.values())[:200]}"] += 1
    listed = [f"{count} {note}" for note, count in notes.most_common()]
    if code == TIMED_OUT:
        listed.insert(0, f"The time limit of {seconds} s ended the run before all tests had run.")
    return [ends_of_all], listed


def _versions() -> dict[str, str]:
    program = (
        "import ctypes, keras, tensorflow as tf\n"
        "tf.config.list_logical_devices()\n"
        "version = ctypes.CDLL('libcudnn.so.9').cudnnGetVersion()\n"
        "cublas = ctypes.CDLL('libcublas.so.12')\n"  # That name may lead to CUDA 13's.
        "parts = [ctypes.c_int() for _ in range(2)]\n"
        "for i, part in enumerate(parts): cublas.cublasGetProperty(i, ctypes.byref(part))\n"
        "print('VERSIONS', tf.__version__, keras.__version__,"
        " '.'.join(map(str, (version // 10000, version // 100 % 100, version % 100))),"
        " '.'.join(str(part.value) for part in parts))"
    )
    _, output = _run([sys.executable, "-c", program], 200)
    found = re.search(r"VERSIONS (\S+) (\S+) (\S+) (\S+)", output)
    return dict(zip(("TensorFlow", "Keras", "cuDNN", "CUDA"), found.groups(), strict=True))


ABOUT = {
    "tests": "The tests that need a GPU.",
    "cudnn": "Small networks by cuDNN. `torch.nn.LSTM` ran for comparison, with full length.",
    "persistent": "Small networks by [persistent kernels](../../docs/internals/gpu_kernels.md).",
}


def page(path: pathlib.Path) -> str:
    """Returns the page of a file of results."""
    lines = map(json.loads, path.read_text().splitlines())
    gpu = re.compile(r"NVIDIA (\w+)")
    last = {}
    for line in lines:
        environment = line["environment"]
        cuda = environment.get("CUDA", "13").partition(".")[0]
        last[line["part"], gpu.search(environment["GPU"])[1], cuda] = line
    parts = [
        "# Tests of the package on a GPU",
        "The tests that need a GPU, and small networks under NVIDIA's compute-sanitizer. It has "
        "four tools: `memcheck` looks for accesses outside allocated memory, `racecheck` for "
        "races in shared memory, `synccheck` for wrong synchronization, and `initcheck` for "
        "reads of memory that was never written. The last column has the kernels that their "
        "reports name. A run that was stopped at its time limit has no summary. `initcheck` "
        "reports nothing where the memory that a pass writes to was filled with NaN first. So "
        "its other reports are of reads of that memory: cuDNN reads its scratch memory, and a "
        "[test](../../tests/gpu/test_gpu_persistent.py) shows that the persistent kernels' results "
        "are the same bits with and without the filling.",
    ]
    for (part, kind, cuda), line in sorted(last.items()):
        rows = line["rows"]
        if part == "tests":
            rows = [{end: sum(row[end] for row in rows) for end in ENDS}]
        parts += [
            f"## {part} on an {kind}, CUDA {cuda}",
            f"{ABOUT[part]} {pages.listed(line['environment'])}.",
            pages.table_of(rows),
        ]
        if line.get("notes"):
            parts.append("\n".join(f"* {note}" for note in line["notes"]))
    return "\n\n".join([*parts, "Written by `python -m benchmarks.gpu_tests --report`."]) + "\n"


def _measure(options: argparse.Namespace) -> None:
    environment = {**machine.environment(options.commit), **_versions()}
    for part in filter(re.compile(options.only).search, ABOUT):
        line: dict[str, Any] = {"part": part, "environment": environment}
        if part == "tests":
            line["rows"], line["notes"] = _test(options.pattern, options.seconds)
        else:
            line["rows"] = list(_sanitize(part, options.seconds))
        with options.output.open("a") as file:
            print(json.dumps(line), file=file, flush=True)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    command.run(
        __doc__,
        _measure,
        page,
        pattern={"default": "test_gpu*.py", "help": "The files of the tests."},
        seconds={"type": int, "default": 300, "help": "A run may take so long."},
    )
