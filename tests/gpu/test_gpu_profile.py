"""Tests that the host does not wait for a GPU in a step of `model.fit`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU"),
]

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "profiled_fit.py"


def test_recurrent_layers_add_no_copies_to_the_host_and_no_waits(tmp_path):
    """`fit` itself reads the loss at an epoch's end, as it does without recurrent layers."""
    completed = subprocess.run(
        [sys.executable, PROGRAM, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    result = json.loads(completed.stdout.splitlines()[-1])
    print(result)
    for policy in ("float32", "mixed_bfloat16"):
        found = {
            name.removeprefix(f"{policy}, "): counts
            for name, counts in result["found"].items()
            if name.startswith(policy)
        }
        without = found["no recurrent layers"]
        read = found["no recurrent layers, each step read"]
        # The profiler sees the GPU, and the copies to the host.
        assert without["on_gpu"] > result["steps"]
        assert read["copies"] >= without["copies"] + result["steps"]
        for door in ("drop-in", "accelerated"):
            assert found[door]["on_gpu"] > 2 * without["on_gpu"]
            assert found[door]["copies"] <= without["copies"], (policy, found)
            assert found[door]["waits"] <= without["waits"], (policy, found)
