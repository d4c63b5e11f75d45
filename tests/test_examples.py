"""The examples for TensorFlow 1, run as programs of their own."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(program: str, *flags: str) -> str:
    command = [sys.executable, str(EXAMPLES / program), *flags]
    # Products of float32 numbers in float32, on GPUs as well.
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("v2_behavior", ["--v2_behavior", "--nov2_behavior"])
def test_variable_lengths(v2_behavior):
    printed = run("variable_lengths.py", "--steps=150", v2_behavior)
    # To tell the mean errs by 1/6, the variance of a sum of two numbers from [0, 1].
    assert float(re.search(r"test: squared error (\S+)", printed)[1]) < 0.05
    assert float(re.search(r"between op and cells: (\S+)", printed)[1]) < 1e-5


def test_float16_bidirectional():
    printed = run("float16_bidirectional.py", "--steps=150")
    assert "computed in float16 with ['float32', 'float32']" in printed
    # To tell nothing errs by about 2/3, the variance of a sum of two numbers from [-1, 1].
    assert float(re.search(r"last: squared error (\S+)", printed)[1]) < 0.1
