"""Calls in threads whose stacks are small, as servers and other languages' runtimes make them."""

import pytest
from fresh_process import run_program
from test_cpu_kernels import instruction_sets

# These networks' products pack, round, convert or read weights in place.
PROGRAM = """
import threading
import numpy as np
import random_configs
import tensorflow as tf
from cudnn_rnn_tf import native, ops
from cudnn_rnn_tf.config import RnnConfig

tf.config.threading.set_intra_op_parallelism_threads(1)
SIZES = [(1, 13, 300, 280), (3, 5, 290, 70), (1, 1, 64, 530), (24, 1, 330, 530), (70, 9, 130, 50)]

def cases():
    for index, (batch_size, max_time, num_units, input_size) in enumerate(SIZES):
        mode = ("lstm", "gru", "rnn_tanh")[index % 3]
        projection = {"num_proj": 150} if mode == "lstm" else {}
        config = RnnConfig(mode, 2, num_units, input_size, direction="bidirectional", **projection)
        case = random_configs.Case(index, config, max_time, batch_size, True, True, None)
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            yield case, random_configs.draw_data(case, dtype)

def predict(case, data):
    layout = case.config.layout
    predictor = native._native.PredictorBinding(layout, data.params, True, False, 1)
    outputs, states = predictor(data.inputs, data.states, None, None)
    return [outputs, *states]

def train(case, data):
    with tf.device("CPU:0"), tf.GradientTape() as tape:
        arguments = [tf.constant(a) for a in (data.inputs, data.params, *data.states)]
        tape.watch(arguments)
        inputs, params, *states = arguments
        outputs, final = ops.forward(case.config, inputs, states, params, time_major=True)
        results = [outputs, *final]
    return [*results, *tape.gradient(results, arguments)]

calls = list(cases())
# TensorFlow itself needs some tens of KiB.
for compute, stack_kib in ((predict, 64), (train, 128)):
    expected = [compute(*call) for call in calls]
    found = []
    threading.stack_size(stack_kib << 10)
    thread = threading.Thread(target=lambda: found.extend(compute(*call) for call in calls))
    thread.start()
    thread.join()
    for results, others in zip(found, expected, strict=True):
        for result, other in zip(results, others, strict=True):
            np.testing.assert_array_equal(result, other)
    print("done")
"""


@pytest.mark.parametrize(
    "isa",
    [pytest.param(isa, marks=pytest.mark.slow) for isa in instruction_sets()[:-1]]
    + [instruction_sets()[-1]],
)
def test_results_are_those_of_a_large_stack(isa):
    found = run_program(PROGRAM, CUDNN_RNN_TF_CPU_ISA=isa, CUDA_VISIBLE_DEVICES="-1")
    assert found == "done\ndone\n"
