"""Replay's bookkeeping, on a driver that only notes what it is told."""

import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_launches_run_over_the_addresses_they_are_given(tmp_path):
    headers = pathlib.Path(tf.sysconfig.get_include(), "third_party", "gpus")
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile the program with")
    if not headers.is_dir():
        pytest.skip("this TensorFlow came without its headers")
    program = tmp_path / "replay_on_fake_driver"
    subprocess.run(
        [
            *("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}"),
            *("-isystem", headers / "cuda" / "include", "-isystem", headers / "cudnn" / "include"),
            ROOT / "tests" / "programs" / "replay_on_fake_driver.cc",
            *(ROOT / "kernels" / "cudnn" / "replay.cc", "-o", program),
        ],
        check=True,
    )
    completed = subprocess.run([program, "25"], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout
    assert completed.stdout == "25 seeds passed\n"
