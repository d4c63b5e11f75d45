"""Runs Python programs in processes of their own."""

import os
import subprocess
import sys


def run_program(program: str, *arguments: object, **environment: str) -> str:
    """Returns the output of a program that finds the modules that this process finds."""
    return _run(program, *arguments, **environment).stdout


def logged_lines(program: str) -> list[str]:
    """Returns the lines that this package writes to TensorFlow's log at verbosity 1."""
    levels = {"TF_CPP_MAX_VLOG_LEVEL": "1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    lines = _run(program, **levels).stderr.splitlines()
    return [line for line in lines if "cudnn_rnn_tf: " in line]


def _run(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    completed = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed
