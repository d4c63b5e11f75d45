"""Runs Python programs in processes of their own.

Most of these are forked from a process that has imported TensorFlow and has done nothing else,
since the import takes several seconds of a core.
"""

import gc
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tensorflow"])


def run_program(program: str, *arguments: object, **environment: str) -> str:
    """Returns the output of a program that finds the modules that this process finds."""
    done = run(["-c", program, *arguments], {**_environment(), **environment}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def logged_lines(program: str) -> list[str]:
    """Returns the lines that this package writes to TensorFlow's log at verbosity 1."""
    # TensorFlow reads these variables when it is imported.
    levels = {"TF_CPP_MAX_VLOG_LEVEL": "1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**_environment(), **levels},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stderr.splitlines() if "cudnn_rnn_tf: " in line]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(
    arguments: Sequence[object],
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
    timeout: float = 150,
) -> subprocess.CompletedProcess[str]:
    """Returns what comes of a program, as `subprocess.run` does.

    Args:
        arguments: Python's: `-c`, a program and its arguments; or a file and its arguments.
        environment: the process's environment; this process's by default.
        folder: where the program runs.
        timeout: after how many seconds the process is killed, and an error is raised.
    """
    with tempfile.TemporaryDirectory() as outputs:
        process = start(arguments, outputs, environment, folder)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired([*map(str, arguments)], timeout)
        texts = [pathlib.Path(outputs, name).read_text("utf-8") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess([*map(str, arguments)], process.exitcode, *texts)


def start(
    arguments: Sequence[object],
    outputs: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
) -> BaseProcess:
    """Starts a process as `run` does, whose outputs go to files in the folder `outputs`."""
    process = _SERVER.Process(
        target=_be,
        args=(
            [*map(str, arguments)],
            os.path.abspath(outputs),
            dict(os.environ if environment is None else environment),
            os.path.abspath(folder),
        ),
    )
    process.start()
    return process


def _be(
    arguments: list[str],
    outputs: str,
    environment: dict[str, str],
    folder: str,
) -> None:
    """Makes the process that it runs in a program's."""
    gc.freeze()  # What TensorFlow has made stays, so it need not be looked through for garbage.
    for number, name in enumerate(("stdout", "stderr"), 1):
        with open(f"{outputs}/{name}", "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # It is looked for anew.
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")
