"""What all tests share."""

import os

# Before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests start processes of their own, which find no memory where this one has taken all of a GPU's.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True, scope="session")
def full_precision():
    """Products of float32 numbers in float32, on GPUs as well."""
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture
def on_cpu():
    """Keeps a test of the CPU kernels on the CPU where there is a GPU as well."""
    with tf.device("CPU:0"):
        yield
