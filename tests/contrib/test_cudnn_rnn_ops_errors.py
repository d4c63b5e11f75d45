"""Tests the errors of the op-level models and functions for bad arguments.

Those of configurations and shapes are `ops.forward`'s, which test_forward_errors.py is about.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cudnn_rnn_tf import cudnn_rnn_ops

v1 = tf.compat.v1


# The arguments of a good call, with T = 5, B = 3, and the model below.
INPUTS = np.zeros((5, 3, 3), np.float32)
STATE = np.zeros((2, 3, 4), np.float32)
GRU_PARAMS = np.zeros(3 * (4 * 3 + 4 * 4 + 8) + 3 * (4 * 4 + 4 * 4 + 8), np.float32)
LSTM_PARAMS = np.zeros(4 * (4 * 3 + 4 * 4 + 8) + 4 * (4 * 4 + 4 * 4 + 8), np.float32)


def make_gru(**options: Any) -> cudnn_rnn_ops.CudnnGRU:
    return cudnn_rnn_ops.CudnnGRU(2, 4, 3, **options)


def test_is_training_must_be_a_bool():
    for is_training in (1, "yes", None, np.True_, tf.constant(True)):
        for call in (make_gru(), cudnn_rnn_ops.cudnn_gru):
            with pytest.raises(TypeError, match="expected is_training to be a Python bool"):
                call(INPUTS, STATE, GRU_PARAMS, is_training=is_training)


def test_wrong_values():
    with pytest.raises(TypeError, match="received True: pass is_training by name"):
        make_gru()(INPUTS, STATE, GRU_PARAMS, True)  # Where older programs have it.
    with pytest.raises(TypeError, match="sequence_lengths to be integers, but received float32"):
        make_gru()(INPUTS, STATE, GRU_PARAMS, sequence_lengths=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"expected seed of shape \(2,\)"):
        make_gru(dropout=0.5, seed=tf.constant([1, 2, 3]))(INPUTS, STATE, GRU_PARAMS)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"input_data": INPUTS[0, 0]}, "inputs of rank 3"),
        ({"input_data": INPUTS[0]}, "states of rank 2 with inputs of rank 2"),
        ({"input_data": INPUTS[0], "sequence_lengths": [3]}, "no sequence_lengths with .* rank 2"),
        ({"input_data": INPUTS[..., :2]}, "inputs of size 3"),
        ({"time_major": False}, "initial h of shape"),
    ],
)
def test_wrong_shapes(change, message):
    good = {"input_data": INPUTS, "input_h": STATE, "params": GRU_PARAMS}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        make_gru()(**{**good, **change})


@pytest.mark.parametrize(
    "argument, shape",
    [
        ("inputs", [5, 3, None]),
        ("inputs", [3]),
        ("inputs", None),
        ("input_h", [None, 3, 4]),
        ("input_h", [2, 3, None]),
        ("input_c", [2, 3, None]),
        ("input_c", None),
    ],
)
def test_functions_need_static_sizes(argument, shape):
    good = {"inputs": INPUTS.shape, "input_h": STATE.shape, "input_c": STATE.shape}
    with tf.Graph().as_default():
        tensors = [v1.placeholder(tf.float32, n) for n in {**good, argument: shape}.values()]
        params = v1.placeholder(tf.float32, [None])
        with pytest.raises(ValueError, match=f"expected {argument} of rank 3 with static"):
            cudnn_rnn_ops.cudnn_lstm(*tensors, params, True)


def test_functions_whose_arguments_contradict_each_other():
    with pytest.raises(ValueError, match=r"input_h to be num_proj, 3, but received .* 4\)"):
        cudnn_rnn_ops.cudnn_lstm(INPUTS, STATE, STATE, LSTM_PARAMS, True, num_proj=3)
    states = np.zeros((3, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"even number of states .* received 3"):
        cudnn_rnn_ops.cudnn_gru(INPUTS, states, GRU_PARAMS, True, direction="bidirectional")
    with tf.Graph().as_default():
        inputs = v1.placeholder(tf.float32, [5, 3, None])  # Params do not say the size either.
        with pytest.raises(ValueError, match="expected params of shape"):
            cudnn_rnn_ops.cudnn_lstm(inputs, STATE, STATE, LSTM_PARAMS[1:], True)
