"""The persistent kernels while another kernel holds a part of the GPU.

Blocks of a team wait for each other, so all of them must run at the same time.
"""

import fresh_process
import pytest
import tensorflow as tf
import test_gpu

pytestmark = test_gpu.pytestmark

# Each block of this kernel takes a multiprocessor for itself, by its shared memory, until the host
# sets a word.
SPIN = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 word) {
  .reg .u64 address;
  .reg .u32 value;
  .reg .pred waits;
  ld.param.u64 address, [word];
again:
  ld.volatile.global.u32 value, [address];
  setp.eq.u32 waits, value, 0;
  @waits bra again;
  ret;
}
"""

# Arguments: how many multiprocessors are held, and after how many seconds they are given back; 0
# stands for the end of the work, and then it is a failure if the work has not ended in a minute.
PROGRAM = f"""
import ctypes, os, sys, threading, time
import numpy as np
import tensorflow as tf
import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

cuda = ctypes.CDLL("libcuda.so.1")
SPIN = {SPIN!r}
MULTIPROCESSORS, MOST_SHARED_MEMORY = 16, 97  # Attributes of a device.
MAX_DYNAMIC_SHARED_SIZE = 8  # An attribute of a function.
MAPPED, NON_BLOCKING = 2, 1  # Flags of memory and of streams.


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)


def networks():
    for mode, units, batch, dtype in (
        *(("lstm", 512, 64, "float32"), ("gru", 600, 40, "float32"), ("lstm", 96, 30, "float32")),
        *(("gru", 900, 20, "float16"), ("lstm", 200, 64, "float16")),
    ):
        # cuBLAS runs kernels of its own for the real GPU. Those of float16 have clusters of eight
        # blocks, for which 40 multiprocessors that are spread over an H200 leave no room.
        if dtype == "float16" and os.environ.get("CUDNN_RNN_TF_IMITATE_GPU") == "T4":
            continue
        config = RnnConfig(mode, 1, units, 8)
        rng = np.random.default_rng(units)
        inputs = tf.cast(rng.standard_normal((40, batch, 8)), dtype)
        states = [tf.zeros(shape, dtype) for shape in config.state_shapes(batch, True)]
        params = tf.cast(0.05 * rng.standard_normal(config.layout.size), dtype)
        lengths = tf.constant(rng.integers(0, 41, batch), tf.int32)
        yield config, inputs, states, params, lengths


def results_of(network):
    config, inputs, states, params, lengths = network
    with tf.GradientTape() as tape:
        tape.watch([inputs, params])
        outputs, _ = ops.forward(
            config, inputs, states, params, sequence_lengths=lengths, algorithm="persistent"
        )
        total = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
    return [outputs, *tape.gradient(total, [inputs, params])]


def fits(network):
    try:
        results_of(network)
    except tf.errors.UnimplementedError as error:
        assert "the weights do not fit" in error.message, error.message
        return False
    return True


drawn = [network for network in networks() if fits(network)]
# Code is loaded before, since this may wait for all kernels of the process. So may making a graph,
# which is why the processes make none.
for _ in range(2):
    expected = [[value.numpy() for value in results_of(network)] for network in drawn]

held, seconds = int(sys.argv[1]), float(sys.argv[2])
device, context, module, function, stream = (
    ctypes.c_int(), *(ctypes.c_void_p() for _ in range(4))
)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
all_of_gpu, shared_bytes = ctypes.c_int(), ctypes.c_int()
call("cuDeviceGetAttribute", ctypes.byref(all_of_gpu), MULTIPROCESSORS, device)
call("cuDeviceGetAttribute", ctypes.byref(shared_bytes), MOST_SHARED_MEMORY, device)
blocks = held if held > 0 else all_of_gpu.value + held
word, address = ctypes.c_void_p(), ctypes.c_uint64()
call("cuMemHostAlloc", ctypes.byref(word), 4, MAPPED)
call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), word, 0)
flag = ctypes.cast(word, ctypes.POINTER(ctypes.c_uint32))
flag[0] = 0
call("cuModuleLoadData", ctypes.byref(module), SPIN.encode())
call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE, shared_bytes)
call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
call("cuLaunchKernel", function, blocks, 1, 1, 32, 1, 1, shared_bytes, stream, parameters, None)
time.sleep(0.2)  # By then the blocks run.
assert cuda.cuStreamQuery(stream) == 600, "the kernel does not spin"


def give_back():
    flag[0] = 1


timer = threading.Timer(seconds or 60, give_back)
timer.daemon = True
timer.start()
for _ in range(3):
    received = [[value.numpy() for value in results_of(network)] for network in drawn]
was_held = not flag[0]
give_back()
call("cuStreamSynchronize", stream)
timer.cancel()
for values, wanted in zip(received, expected):
    for value, other in zip(values, wanted):
        np.testing.assert_array_equal(value, other)
assert was_held == (seconds == 0), "the work ended " + ("early" if was_held else "late")
kernels = list(crnn.info()["gpu"]["kernels"].values())
assert any(text.startswith("teams of ") for text in kernels), kernels
print("passed")
"""


@pytest.fixture
def is_hopper():
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    if details["compute_capability"] < (9, 0):
        pytest.skip("the GPU may have no more multiprocessors than the one to imitate")


@pytest.mark.parametrize("gpu, own", [("A100", 108), ("L4", 58), ("T4", 40)])
@pytest.mark.usefixtures("is_hopper")
def test_kernels_keep_to_the_multiprocessors_that_are_imitated(gpu, own):
    """Were a launch larger, its last blocks would wait for the others for ever."""
    output = fresh_process.run_program(
        PROGRAM, -own, 0, CUDNN_RNN_TF_IMITATE_GPU=gpu, CUDNN_RNN_TF_CUDA_GRAPH="0"
    )
    assert output.splitlines()[-1] == "passed"


def test_kernels_wait_for_multiprocessors():
    """Others hold the whole GPU but for a few blocks' room, and give it back after two seconds."""
    output = fresh_process.run_program(PROGRAM, -20, 2, CUDNN_RNN_TF_CUDA_GRAPH="0")
    assert output.splitlines()[-1] == "passed"
