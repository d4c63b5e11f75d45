"""Makes layers of `cudnn_rnn_tf.contrib` in float64, and the graphs that test them."""

import numpy as np
import pytest
import tensorflow as tf

from cudnn_rnn_tf import contrib as cudnn_rnn

v1 = tf.compat.v1

LAYERS = {
    "lstm": cudnn_rnn.CudnnLSTM,
    "gru": cudnn_rnn.CudnnGRU,
    "rnn_tanh": cudnn_rnn.CudnnRNNTanh,
    "rnn_relu": cudnn_rnn.CudnnRNNRelu,
}
ALL_MODES = pytest.mark.parametrize("rnn_mode", LAYERS)
DIRECTIONS = pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
INPUTS = np.random.default_rng(9).standard_normal((5, 2, 4))

OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.2),
    "momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.02),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01),
}


def normal_initializer(shape, dtype=None, **_):
    """Draws random numbers, for biases that are not all zero."""
    return v1.random_normal(shape, stddev=0.5, dtype=dtype)


def make(rnn_mode: str, *sizes: int, **options):
    """Makes a layer in float64 with random weights and biases."""
    return LAYERS[rnn_mode](
        *(sizes or (2, 3)),
        dtype=tf.float64,
        kernel_initializer=normal_initializer,
        bias_initializer=normal_initializer,
        **options,
    )


def in_graph(program):
    """Returns what the program returns when it is called with a session in a new graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        return program(session)


def assert_close(values, expected):
    for value, other in zip(tf.nest.flatten(values), tf.nest.flatten(expected), strict=True):
        # ReLU networks can have large numbers, so there is a relative tolerance too.
        np.testing.assert_allclose(value, other, rtol=1e-12, atol=1e-12)
