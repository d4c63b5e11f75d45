"""Networks on a GPU while others capture CUDA graphs, or profile."""

import os

import pytest
import test_gpu
from fresh_process import run_program

pytestmark = test_gpu.pytestmark

BESIDE_A_CAPTURE = """
import concurrent.futures, ctypes, os, sys
import cudnn_rnn_tf as crnn
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)

def step(config, x, params, algorithm):
    with tf.GradientTape() as tape:
        tape.watch(x)
        states = [tf.zeros(shape, x.dtype) for shape in config.state_shapes(x.shape[1], True)]
        outputs, _ = ops.forward(config, x, states, params, algorithm=algorithm)
        value = tf.reduce_sum(outputs * outputs)
    return tape.gradient(value, x)

device, context, stream, graph = (ctypes.c_int(), *(ctypes.c_void_p() for _ in range(3)))
def draw(config, batch, dtype):
    return [tf.cast(0.2 * tf.random.stateless_normal(shape, [1, 2]), dtype)
            for shape in ([30, batch, config.input_size], [config.layout.size])]
measured = RnnConfig("gru", 1, 64, 64)
x, params = draw(measured, 16, tf.float16)
y, others = draw(measured, 3, tf.float32)
# The caller's own eager ops load their kernels, and make TensorFlow's pool of memory.
step(measured, y, others, "standard")
tf.zeros([1 << 26])
few, _ = draw(measured, 5, tf.float16)
step(measured, few, params, "standard")
def infer(algorithm):
    states = [tf.zeros([1, 5, 64], tf.float16)]
    return ops.forward(measured, few, states, params, is_training=False, algorithm=algorithm)[0]
tf.test.experimental.sync_devices()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuStreamBeginCapture_v2", stream, int(sys.argv[1]))
def passes():  # First uses, one that captures, and replays.
    gradients = [step(measured, x, params, "auto") for _ in range(5)]
    return gradients, [infer("auto") for _ in range(3)]
if sys.argv[2] == "same":
    gradients, outputs = passes()
else:
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        gradients, outputs = other.submit(passes).result()
call("cuStreamEndCapture", stream, ctypes.byref(graph))
nodes = ctypes.c_size_t(1)
call("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
assert nodes.value == 0
assert crnn.info()["gpu"]["replays"] > 0 or os.environ.get("CUDNN_RNN_TF_CUDA_GRAPH") == "0"
expected = step(measured, x, params, "auto")
tf.debugging.assert_equal(gradients[-1], expected)
first, last = (tf.cast(gradient, tf.float32) for gradient in (gradients[0], expected))
assert tf.norm(first - last) < 2e-2 * tf.norm(last)
for output in outputs:
    tf.debugging.assert_near(output, infer("standard"), atol=2e-3)
print("passed")
"""


@pytest.mark.parametrize("thread", ["same", "other"])
@pytest.mark.parametrize("mode", range(3), ids=["global", "thread_local", "relaxed"])
def test_ops_leave_a_capture_of_another_stream_alone(mode, thread):
    assert run_program(BESIDE_A_CAPTURE, str(mode), thread) == "passed\n"


PROFILED = """
import pathlib, sys
import tensorflow as tf
import cudnn_rnn_tf as crnn
tf.keras.utils.set_random_seed(1)
layer = crnn.CudnnLSTM(2, 64, algorithm="standard")
x = tf.random.stateless_normal([4, 20, 32], [0, 1])

def steps():
    for _ in range(4):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(layer(x, training=True) ** 2)
        gradients = tape.gradient(value, [x, *layer.trainable_variables])
    return [gradient.numpy().tobytes() for gradient in gradients]

# While a profile runs, no graphs are made, and those that there are go on.
for run in range(2):
    tf.profiler.experimental.start(sys.argv[1])
    profiled = steps()
    tf.profiler.experimental.stop()
    print(crnn.info()["gpu"]["replays"])
    assert steps() == profiled, run
    print(crnn.info()["gpu"]["replays"])
(trace, *_) = pathlib.Path(sys.argv[1]).glob("**/*.xplane.pb")
assert b"CudnnRnnTf" in trace.read_bytes()
"""


def test_profiled_steps_are_replayed_as_others(tmp_path):
    before, made, profiled, after = map(int, run_program(PROFILED, str(tmp_path)).split())
    assert before == 0
    if os.environ.get("CUDNN_RNN_TF_CUDA_GRAPH") == "0":
        assert after == 0
    else:
        assert 0 < made < profiled < after
