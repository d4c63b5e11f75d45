"""Runs the own tests of `tf.contrib.cudnn_rnn` on `cudnn_rnn_tf.contrib`.

    python tests/run_contrib_tests.py TENSORFLOW_SOURCE [pytest's options]

TENSORFLOW_SOURCE is a folder with the source of TensorFlow 1.15, or of what else has
tensorflow/contrib/cudnn_rnn. The tests' text stays as it is; modules under the names that they
import stand for `tensorflow.contrib`, and for what TensorFlow itself has dropped since. Prints each
test that did not pass, and how many did; the exit status is 1 if any failed.
"""

import argparse
import pathlib
import sys

import run_keras_tests

FOLDER = "tensorflow/contrib/cudnn_rnn/python/kernel_tests"
FILES = ("cudnn_rnn_test.py", "cudnn_rnn_ops_test.py")
# This becomes the tests' conftest.py, which pytest runs before it imports the tests.
CONFTEST = '''\
import builtins
import collections.abc
import sys
import types

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import test_util
from tensorflow.python.ops import array_ops, control_flow_ops, rnn_cell_impl
from tensorflow.python.platform import test
from tensorflow.python.util import compat

import cudnn_rnn_tf.contrib as contrib
from cudnn_rnn_tf.contrib.python.layers import cudnn_rnn
from cudnn_rnn_tf.contrib.python.ops import cudnn_rnn_ops

tf.compat.v1.disable_v2_behavior()
# On a machine without a GPU, ops that are placed on one run on the CPU.
tf.config.set_soft_device_placement(True)


def module(name, **attributes):
    """A module of this name, in its packages."""
    parent, _, child = name.rpartition(".")
    if parent and parent not in sys.modules:
        module(parent)
    made = sys.modules[name] = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(attributes)
    if parent:
        setattr(sys.modules[parent], child, made)


module("tensorflow.contrib.cudnn_rnn.python.layers", cudnn_rnn=cudnn_rnn)
module("tensorflow.contrib.cudnn_rnn.python.ops", cudnn_rnn_ops=cudnn_rnn_ops)
module(
    "tensorflow.contrib.rnn.python.ops.rnn",
    stack_bidirectional_dynamic_rnn=contrib.stack_bidirectional_dynamic_rnn,
)
module(
    "tensorflow.python.training.tracking.util",
    Checkpoint=tf.compat.v1.train.Checkpoint,
)
compat.collections_abc = collections.abc
array_ops.stack, control_flow_ops.while_loop = tf.stack, tf.while_loop
# NumPy no longer sums generators.
np_sum = np.sum
np.sum = lambda a, *rest, **options: np_sum(
    list(a) if isinstance(a, types.GeneratorType) else a, *rest, **options
)
# The tests are for GPUs; the ops here run anywhere.
test_util.run_gpu_only = lambda function: function
test.is_built_with_cuda = lambda: True
# The file, run as a program, takes these from its command line.
builtins.FLAGS = types.SimpleNamespace(grad_check_num_samples=5)


for name in ("BasicRNNCell", "LSTMCell", "LSTMStateTuple", "MultiRNNCell"):
    setattr(rnn_cell_impl, name, getattr(contrib.rnn_cell, name))
'''


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=pathlib.Path, metavar="TENSORFLOW_SOURCE")
    options, pytest_options = parser.parse_known_args(arguments)
    tests = {name: (options.source / FOLDER / name).read_text() for name in FILES}
    results = run_keras_tests.run({**tests, "conftest.py": CONFTEST}, pytest_options)
    return run_keras_tests.report(results, "tests of tf.contrib.cudnn_rnn")


if __name__ == "__main__":
    sys.exit(main())
