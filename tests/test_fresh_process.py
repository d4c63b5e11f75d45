"""Forked processes are what processes of their own would be."""

import os
import subprocess

import fresh_process
import pytest


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("sys.exit(3)", 3), ("sys.exit('badly')", 1), ("1 / 0", 1)]
)
def test_a_program_has_its_own_arguments_surroundings_and_end(end, status, tmp_path):
    program = f"import os, sys; print(sys.argv, os.environ['A'], os.getcwd(), flush=True); {end}"
    environment = os.environ | {"A": "b"}
    done = fresh_process.run(["-c", program, 1], environment, folder=tmp_path)
    assert (done.returncode, done.stdout) == (status, f"['-c', '1'] b {tmp_path}\n")
    assert ("badly" in done.stderr) == ("badly" in end)
    assert ("ZeroDivisionError" in done.stderr) == ("/" in end)


def test_a_file_is_run_as_by_python(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "main.py").write_text("import beside, sys; print(__name__, beside.NAME, sys.argv)")
    done = fresh_process.run([tmp_path / "main.py", "x"])
    assert done.stdout == f"__main__ beside {[str(tmp_path / 'main.py'), 'x']}\n"


def test_tensorflow_is_as_after_its_import():
    """Nothing has made devices or functions, which could not be used in a fork."""
    program = """
import sys
assert {"tensorflow", "cudnn_rnn_tf"} & set(sys.modules) == {"tensorflow"}
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)  # Too late once there are devices.
"""
    fresh_process.run_program(program)


def test_the_largest_file_and_the_longest_time(tmp_path):
    program = "import sys; open(sys.argv[1], 'wb', 0).write(bytes(2000))"
    arguments = ["-c", program, tmp_path / "file"]
    assert fresh_process.run(arguments, largest_file=1000).returncode == 0
    assert (tmp_path / "file").stat().st_size == 1000
    with pytest.raises(subprocess.TimeoutExpired):
        fresh_process.run(["-c", "import time; time.sleep(100)"], timeout=0.1)
