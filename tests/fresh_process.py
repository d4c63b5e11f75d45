"""Runs Python programs in processes of their own."""

import os
import subprocess
import sys


def run_program(program: str, *arguments: object, **environment: str) -> str:
    """Returns the output of a program that finds the modules that this process finds."""
    completed = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed.stdout
