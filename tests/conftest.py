"""What all tests share."""

import os

# Before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest


@pytest.fixture
def on_cpu():
    """Keeps a test of the CPU kernels on the CPU where there is a GPU as well."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        yield
