"""Runs the GPU benchmark as a whole: all systems side by side, on all GPUs there are.

On the GPU machine, in the root of the repository:

    python -m benchmarks.gpu_all --output=DIR --commit=HASH [--seconds=S]
        [--types=NAMES] [--rows=REGEX] [--parts=NAMES]

The rows of one type and mode, inference or training, are a group. A group's systems run on one
GPU, one after another; then its rows near an aim once more, and after all groups those still below
theirs twice more. Peaks of memory come last. `python -m benchmarks.gpu_page --input=DIR` makes the
page.

What has been run is not run again: with --seconds, --types, --rows or --parts, a later call goes on
where one stopped. The file `log` in each folder is what its runs printed.
"""

import contextlib
import itertools
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

from absl import app, flags

from benchmarks import gpu_rows

_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_SECONDS = flags.DEFINE_float("seconds", 1e9, "Stop after this time.")
_TYPES = flags.DEFINE_list("types", list(gpu_rows.TYPES), "Of the rows to run, in this order.")
_ROWS = flags.DEFINE_string("rows", "", "Regular expression of the rows to run; all by default.")
SYSTEMS = ("cudnn_rnn_tf", "bare", "keras", "torch")
PARTS = (*SYSTEMS, "memory")
_PARTS = flags.DEFINE_list("parts", list(PARTS), "What to run.")
flags.register_validator(
    _TYPES, lambda names: set(names) <= set(gpu_rows.TYPES), f"must be of {gpu_rows.TYPES}"
)
flags.register_validator(_PARTS, lambda names: set(names) <= set(PARTS), f"must be of {PARTS}")
MODES = ("GRU", "LSTM")  # The slowest mode comes first.
NEAR = 0.03  # Rows are near an aim up to this far above it.


def rows_of(type_: str, mode: str, what: str) -> str:
    """A regular expression of a group's rows, of those that --rows names."""
    return f"^(?=.*(?:{_ROWS.value})).*{mode} .*, {type_}, {what}$"


class Benchmark:
    """Runs of `benchmarks.gpu`, a process each, until the time is up."""

    def __init__(self, output: pathlib.Path, commit: str, seconds: float) -> None:
        self._output = output
        self._commit = commit
        self._start = time.monotonic()
        self._deadline = self._start + seconds
        self.num_failed = 0

    def run(self, system: str, directory: pathlib.Path, *arguments: str, gpu: str = "") -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            return
        environment = {
            **os.environ,
            "CUDNN_RNN_TF_CHOICE_CACHE": str(self._output / "choices"),
            **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}),
        }
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "log").open("a") as log:
            process = subprocess.run(
                [
                    *(sys.executable, "-m", "benchmarks.gpu", f"--system={system}"),
                    *(f"--output={directory}", f"--commit={self._commit}", f"--seconds={left}"),
                    *arguments,
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        self.num_failed += process.returncode != 0
        now = time.monotonic()
        print(
            f"{now - self._start:.0f} s: {system}, {directory.relative_to(self._output)}, "
            f"{' '.join(arguments)[:60]}: {left + now - self._deadline:.0f} s, "
            f"exit status {process.returncode}",
            flush=True,
        )

    def run_group(self, directory: pathlib.Path, rows: str, gpu: str) -> None:
        for system in SYSTEMS:
            if system in _PARTS.value:
                self.run(system, directory, f"--rows={rows}", gpu=gpu)
        self.run_again(directory, "again_1", NEAR, gpu)

    def run_again(self, directory: pathlib.Path, name: str, near: float, gpu: str) -> None:
        """Runs the group's rows within `near` of an aim, into a folder of the group's."""
        command = (sys.executable, "-m", "benchmarks.gpu_page", f"--input={directory}")
        found = subprocess.run(
            [*command, f"--near={near}"], capture_output=True, text=True, check=True
        )
        for system, rows in json.loads(found.stdout).items():
            self.run(system, directory / name, f"--rows={rows}", gpu=gpu)

    def run_memory(self) -> None:
        for system in ("cudnn_rnn_tf", "keras"):
            self.run(system, self._output, "--memory", f"--rows={_ROWS.value}")


def _gpus() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return [str(gpu) for gpu in range(len(listed.stdout.splitlines()))]


def main(_: list[str]) -> None:
    output = pathlib.Path(_OUTPUT.value).resolve()
    benchmark = Benchmark(output, _COMMIT.value, _SECONDS.value)
    groups: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for mode, what, type_ in itertools.product(MODES, ("training", "inference"), _TYPES.value):
        groups.put((f"{type_}_{mode}_{what}", rows_of(type_, mode, what)))

    def work(gpu: str) -> None:
        mine = []
        with contextlib.suppress(queue.Empty):
            while True:
                name, rows = groups.get_nowait()
                mine.append(output / name)
                benchmark.run_group(mine[-1], rows, gpu)
        for name in ("again_2", "again_3"):
            for directory in mine:
                benchmark.run_again(directory, name, 0.0, gpu)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in _gpus()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if "memory" in _PARTS.value:
        benchmark.run_memory()
    if benchmark.num_failed > 0:
        sys.exit(f"{benchmark.num_failed} runs failed; the files named log say why")


if __name__ == "__main__":
    app.run(main)
