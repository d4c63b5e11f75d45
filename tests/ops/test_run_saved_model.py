"""The C++ example and the commands with which the documentation builds and runs it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import make, normal, randomize

import cudnn_rnn_tf as crnn

# One worker of pytest-xdist runs all of them, so that what they share is compiled once.
pytestmark = pytest.mark.xdist_group("run_saved_model")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "deploying.md"
BUILD, RUN = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


def shell(command: str, directory: pathlib.Path) -> subprocess.CompletedProcess:
    python = os.path.dirname(sys.executable)
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=directory,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": os.pathsep.join([python, os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "CUDA_VISIBLE_DEVICES": "-1",
        },
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compiles the program, and returns its directory."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile the example with")
    if not os.path.exists(os.path.join(tf.sysconfig.get_include(), "tensorflow/c/c_api.h")):
        pytest.skip("this TensorFlow came without its headers")
    directory = tmp_path_factory.mktemp("run_saved_model")
    (directory / "examples").symlink_to(ROOT / "examples")
    completed = shell(BUILD, directory)
    assert completed.returncode == 0, completed.stderr
    assert "warning" not in completed.stderr
    return directory


@pytest.mark.slow
def test_computes_what_python_does(program):
    layer = make("lstm", 2, 3, direction="bidirectional", return_state=True)
    inputs = keras.Input((None, 16))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer, (None, None, 16))
    model.export(program / "exported", verbose=False)
    data = normal(4, 20, 16)
    np.savetxt(program / "numbers.txt", data.ravel())
    completed = shell(RUN, program)
    assert completed.returncode == 0, completed.stderr
    lines = dict(line.split(" ", 1) for line in completed.stdout.splitlines())
    for index, expected in enumerate(model(data)):
        numbers = np.array(lines[f"output_{index}"].split(), np.float32)
        np.testing.assert_array_equal(numbers, np.ravel(expected))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: run_saved_model"),
        (["none.so", "m", "1"], "none.so"),
        ([crnn.op_library_path(), "none", "1"], "none"),
        ([crnn.op_library_path(), "none", "-1"], "negative"),
        ([crnn.op_library_path(), "none", "2"], "expected 2 numbers"),
    ],
)
def test_errors_are_clear(program, arguments, message):
    command = " ".join(["echo 1 | ./run_saved_model", *arguments])
    completed = shell(command, program)
    assert completed.returncode == 1
    assert message in completed.stderr.splitlines()[-1]
