"""The short examples, run as programs of their own."""

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
    # GPUs must multiply float32 numbers in float32, too.
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("v2_behavior", ["--v2_behavior", "--nov2_behavior"])
def test_variable_lengths(v2_behavior):
    printed = run("variable_lengths.py", "--steps=150", v2_behavior)
    # Always answering the mean would give an error of 1/6, the variance of a sum of two numbers
    # from [0, 1].
    assert float(re.search(r"test: squared error (\S+)", printed)[1]) < 0.05
    assert float(re.search(r"between op and cells: (\S+)", printed)[1]) < 1e-5


def test_float16_bidirectional():
    printed = run("float16_bidirectional.py", "--steps=150")
    assert "computed in float16 with ['float32', 'float32']" in printed
    # Always answering zero would give an error of about 2/3, the variance of a sum of two numbers
    # from [-1, 1].
    assert float(re.search(r"last: squared error (\S+)", printed)[1]) < 0.1


def test_tag_source(tmp_path):
    picture = tmp_path / "made" / "tags.png"
    printed = run("tag_source.py", "--lines=3000", f"--output={picture}")
    # Always answering a character's most frequent tag would be right in 80 % of all cases.
    right = re.search(r"tags of 300 lines that were held out: (\S+)% are right", printed)
    assert float(right[1]) > 95
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_forecast_co2(tmp_path):
    picture = tmp_path / "made" / "co2.png"
    printed = run("forecast_co2.py", f"--output={picture}")
    error, as_last_year = re.search(r"off by (\S+) ppm; as last year: (\S+) ppm", printed).groups()
    assert float(error) < 0.9 * float(as_last_year)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("program", ["tag_source.py", "forecast_co2.py"])
def test_short_examples_stay_short(program):
    assert 40 <= len((EXAMPLES / program).read_text().splitlines()) <= 80
