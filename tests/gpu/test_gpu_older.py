"""The kernels of older GPUs, which a newer one runs within their limits.

A process that imitates a GPU runs that GPU's code on as many multiprocessors, with as much memory.
"""

import json
import re

import fresh_process
import pytest
import tensorflow as tf
import test_gpu

pytestmark = test_gpu.pytestmark

ALL_TYPES = "float16,bfloat16,tf32,float32"
# The architecture, the largest cluster, and the types; float32 is without TF32.
GPUS = {
    "A100": (80, 1, ALL_TYPES),
    "RTX 4090": (89, 1, ALL_TYPES),
    "L4": (89, 1, ALL_TYPES),
    "T4": (75, 1, "float16,float32"),
}


@pytest.fixture(params=GPUS)
def gpu(request) -> str:
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    major, minor = details["compute_capability"]
    if 10 * major + minor < GPUS[request.param][0]:
        pytest.skip("the GPU is older than the one to imitate")
    return request.param


def test_networks_run_as_on_the_gpu(gpu):
    architecture, largest_cluster, dtypes = GPUS[gpu]
    output = fresh_process.run_program(
        "import sys, older_gpu_runs; older_gpu_runs.main(*sys.argv[1:])",
        *(dtypes, 5),
        CUDNN_RNN_TF_IMITATE_GPU=gpu,
    )
    report = json.loads(output.splitlines()[-1])
    assert report["ran"] > report["too_large"]
    # The others are refused with a reason, such as that a cluster is too large for the GPU.
    kernels = {name: text for name, text in report["kernels"].items() if ": " not in text}
    assert kernels
    for name, division in kernels.items():
        assert division.endswith(f"sequences, architecture {architecture}"), (name, division)
        if cluster := re.search(r"clusters of (\d+) blocks", division):
            assert int(cluster[1]) <= largest_cluster, (name, division)


def test_a_wrong_variable_is_an_error():
    program = """
import tensorflow as tf
import cudnn_rnn_tf as crnn
try:
    crnn.CudnnGRU(1, 8)(tf.ones([2, 3, 4]))
except tf.errors.InvalidArgumentError as error:
    print(error.message)
"""
    output = fresh_process.run_program(program, CUDNN_RNN_TF_IMITATE_GPU="A1000")
    assert "CUDNN_RNN_TF_IMITATE_GPU must be a GPU's name (T4, " in output
