"""`CpuPredictor` in several threads and processes."""

import concurrent.futures
import dataclasses
import gc
import multiprocessing
import os
import pathlib
import threading
import time

import layer_reference
import numpy as np
import pytest
import random_configs
from fresh_process import run_program
from predictor_runs import assert_same_bits, large_cases, make, run

import cudnn_rnn_tf as crnn

pytestmark = pytest.mark.usefixtures("on_cpu")

ROOT = pathlib.Path(__file__).resolve().parents[2]


def threads() -> set[str]:
    """Returns the identifiers of this process's threads; TensorFlow's may end at any time."""
    return set(os.listdir("/proc/self/task"))


def test_concurrent_calls():
    """Threads call one predictor, which has threads of its own, with different shapes."""
    case = large_cases()[0]
    datas = [
        random_configs.draw_data(dataclasses.replace(case, max_time=max_time), "float32")
        for max_time in (4, 12, 25, 12)
    ]
    datas = [data._replace(params=datas[0].params) for data in datas]
    expected = [run(make(case, data), case, data) for data in datas]
    predictor = make(case, datas[0], 2)
    failures = []

    def work(index):
        try:
            for _ in range(30):
                assert_same_bits(run(predictor, case, datas[index]), expected[index])
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=work, args=(index,)) for index in range(len(datas))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_threads_start_when_needed_and_end_with_the_predictor():
    case = large_cases()[0]
    data = random_configs.draw_data(case, "float32")
    small = dataclasses.replace(case, max_time=1)
    before = threads()
    predictor = make(case, data, 3)
    run(predictor, small, random_configs.draw_data(small, "float32"))
    assert not threads() - before
    run(predictor, case, data)
    assert len(threads() - before) == 2
    del predictor
    gc.collect()
    assert not threads() - before


def test_small_calls_that_follow_each_other_share_a_step():
    """They get helpers, which large calls have from the first one, and the results are the same."""
    case = dataclasses.replace(large_cases()[0], max_time=2)
    data = random_configs.draw_data(case, "float32")
    expected = run(make(case, data), case, data)
    before = threads()
    predictor = make(case, data, 2)
    for call in range(100):
        assert_same_bits(run(predictor, case, data), expected)
        if call == 0:
            assert not threads() - before
    # This may take a while if the processors are busy with something else between two calls.
    deadline = time.monotonic() + 60
    while not threads() - before and time.monotonic() < deadline:
        for _ in range(10):
            assert_same_bits(run(predictor, case, data), expected)
    assert len(threads() - before) == 1
    for _ in range(10):
        assert_same_bits(run(predictor, case, data), expected)


def test_forked_process():
    """A forked process starts its own threads, and ends without waiting for its parent's."""
    program = """
import os, sys
sys.modules["tensorflow"] = None
import numpy as np
from cudnn_rnn_tf import native
layout = native.ParamLayout("lstm", 1, 300, 280)
params = np.linspace(-0.05, 0.05, layout.size, dtype=np.float32)
predictor = native._native.PredictorBinding(layout, params, False, False, 2)
inputs = np.ones((1, 20, 280), np.float32)
expected = predictor(inputs, None, None, None)[0]
child = os.fork()
same = np.array_equal(predictor(inputs, None, None, None)[0], expected)
threads = len(os.listdir("/proc/self/task"))
del predictor
if child == 0:
    os._exit(0 if same and threads == 2 else 1)
assert os.waitpid(child, 0)[1] == 0 and same
print("done")
"""
    assert run_program(program) == "done\n"


@pytest.mark.slow
def test_daemon_threads_at_exit():
    """Threads that come back from a call while the interpreter shuts down end with the process."""
    program = """
import threading, time
import numpy as np
from cudnn_rnn_tf.native import ParamLayout, _native

layout = ParamLayout("lstm", 1, 128, 64)
predictor = _native.PredictorBinding(layout, np.zeros(layout.size, np.float32), False, False, 2)
inputs, called = np.zeros((8, 50, 64), np.float32), threading.Event()


def call():
    while True:
        predictor(inputs, None, None, None)
        called.set()


for _ in range(3):
    threading.Thread(target=call, daemon=True).start()
called.wait()
time.sleep(0.05)
"""
    for _ in range(3):
        run_program(program)


def test_goes_to_other_processes():
    layer = layer_reference.make("lstm", 2, 5, direction="bidirectional", num_proj=3)
    layer_reference.randomize(layer, (None, None, 4))
    predictor = crnn.CpuPredictor(layer, num_threads=2)
    inputs = np.random.default_rng(0).normal(size=(2, 7, layer.input_size)).astype("float32")
    outputs, states = predictor(inputs)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        again, states_again = pool.submit(predictor, inputs).result()
    np.testing.assert_array_equal(again, outputs)
    for state, state_again in zip(states, states_again, strict=True):
        np.testing.assert_array_equal(state_again, state)
