"""Tests the cuDNN kernels against the reference, the CPU kernels and TensorFlow's op.

These tests run if TensorFlow sees a GPU. The layers of all other tests then run on it, too.
"""

import dataclasses

import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_ops_errors
from fresh_process import run_program

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU"),
]

# The largest errors, as parts of the largest magnitude in a tensor. cuDNN sums in another order
# than the reference.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
# cuDNN rounds the states of every step to the half type.
RMS_TOLERANCE = random_configs.RMS_TOLERANCE


def without_dropout(case: random_configs.Case) -> random_configs.Case:
    """Removes what GPUs do differently or lack: dropout masks, and projections to all units."""
    config = dataclasses.replace(
        case.config,
        dropout=0.0,
        num_proj=case.config.num_proj % case.config.num_units,
    )
    return dataclasses.replace(case, config=config)


CASES = [without_dropout(case) for case in random_configs.random_cases(320, seed=20240)]


def run_on(device: str, case: random_configs.Case, data: random_configs.Data):
    with tf.device(device):
        return random_configs.run_ops(case, data)


@pytest.mark.parametrize("dtype", [*TOLERANCE, *RMS_TOLERANCE])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_reference_and_cpu(case, dtype):
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = run_on("GPU:0", case, data)
    if dtype in TOLERANCE:
        on_cpu = run_on("CPU:0", case, data)
        against_cpu = random_configs.errors(results, type(expected)(*on_cpu), dtype)
        assert all(error <= 2 * TOLERANCE[dtype] for error in against_cpu.values()), against_cpu
    rounds_factors = dtype in RMS_TOLERANCE
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "case", [case for case in CASES[::3] if case.config.layout.is_in_cudnn], ids=str
)
def test_algorithms_that_the_rule_names_agree_with_the_reference(case, dtype):
    """In float16 and with TF32, the rule names not only the algorithm standard."""
    data, expected = random_configs.draw_smooth_data(case, dtype)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        results, again = (
            random_configs.run_forward(ops.forward, case, data, algorithm="cudnn") for _ in range(2)
        )
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)
    # TF32 has float16's digits.
    assert not random_configs.beyond_tolerance(case, results, expected, "float16", True)
    assert random_configs.bits(again) == random_configs.bits(results)


def test_runs_on_the_gpu():
    config = RnnConfig("gru", 1, 4, 3)
    outputs, _ = ops.forward(
        config, tf.ones([2, 5, 3]), [tf.zeros([1, 5, 4])], tf.zeros([config.layout.size])
    )
    assert "GPU" in outputs.device
    assert crnn.info()["backends"]["cudnn"] == "available"


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_agrees_with_tensorflows_op(rnn_mode, bidirectional):
    """`tf.raw_ops.CudnnRNNV3` and its gradient get the bytes of the same buffer."""
    direction = "bidirectional" if bidirectional else "unidirectional"
    config = RnnConfig(rnn_mode, 2, 13, 7, direction=direction)
    rng = np.random.default_rng(0)
    time, batch = 5, 4
    inputs = tf.constant(rng.standard_normal((time, batch, 7)), tf.float32)
    states = [
        tf.constant(rng.standard_normal(shape), tf.float32)
        for shape in config.state_shapes(batch, time_major=True)
    ]
    params = tf.constant(rng.standard_normal(config.layout.size) * 0.3, tf.float32)
    lengths = tf.constant([5, 3, 1, 4])
    variables = [inputs, *states, params]

    def loss(outputs, final_states):
        return tf.add_n([tf.reduce_sum(tf.sin(x)) for x in (outputs, *final_states)])

    with tf.GradientTape() as tape:
        tape.watch(variables)
        ours = ops.forward(config, inputs, states, params, sequence_lengths=lengths)
        value = loss(*ours)
    gradients = tape.gradient(value, variables)
    with tf.GradientTape() as tape:
        tape.watch(variables)
        outputs, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
            input=inputs,
            input_h=states[0],
            input_c=states[1] if rnn_mode == "lstm" else tf.zeros_like(states[0]),
            params=params,
            sequence_lengths=lengths,
            rnn_mode=rnn_mode,
            direction=direction,
            time_major=True,
        )
        theirs = outputs, (h, c)[: len(states)]
        value = loss(*theirs)
    expected = tape.gradient(value, variables)
    for mine, other in zip(
        tf.nest.flatten([ours, gradients]), tf.nest.flatten([theirs, expected]), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_poisoned_padding_is_ignored():
    for case in [case for case in CASES if case.sequence_lengths][:40]:
        data = random_configs.draw_data(case, "float32")
        padding = np.arange(case.max_time) >= np.array(case.sequence_lengths)[:, None]
        padding = padding.T if case.time_major else padding
        poisoned = data._replace(inputs=data.inputs.copy(), d_outputs=data.d_outputs.copy())
        poisoned.inputs[padding] = np.nan
        poisoned.d_outputs[padding] = np.nan
        results = run_on("GPU:0", case, poisoned)
        expected = run_on("GPU:0", case, data)
        assert np.all(results.outputs[padding] == 0), str(case)
        assert np.all(results.d_inputs[padding] == 0), str(case)
        for name, value in results.named().items():
            np.testing.assert_array_equal(value, expected.named()[name], err_msg=f"{case} {name}")


def identity_network(rate: float):
    """Returns two ReLU layers that return their positive inputs, with dropout between them."""
    config = RnnConfig(
        "rnn_relu", 2, 64, 64, input_mode="skip_input", bias_mode="none", dropout=rate
    )
    params = tf.concat([tf.zeros([64 * 64]), tf.reshape(tf.eye(64), [-1]), tf.zeros([64 * 64])], 0)
    states = [tf.zeros(shape) for shape in config.state_shapes(50, time_major=True)]

    def run(inputs: tf.Tensor, seed: list[int], is_training: bool = True) -> tf.Tensor:
        seed = tf.constant(seed, tf.int64)
        return ops.forward(config, inputs, states, params, seed=seed, is_training=is_training)[0]

    return run


def test_out_of_memory_is_an_error_and_no_end():
    config = RnnConfig("lstm", 1, 1024, 8)
    inputs = tf.zeros([20000, 4000, 8], tf.float16)
    states = [tf.zeros(s, tf.float16) for s in config.state_shapes(4000, time_major=True)]
    params = tf.zeros([config.layout.size], tf.float16)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        ops.forward(config, inputs, states, params)
    test_runs_on_the_gpu()


def test_a_reserve_space_that_begins_at_any_byte_is_refused():
    """Kernels load 16 bytes at once, but an array of another library begins anywhere."""
    torch = pytest.importorskip("torch")
    arguments = dict(test_ops_errors.good_backward())
    given = torch.zeros(arguments["reserve_space"].size + 1, dtype=torch.uint8, device="cuda")[1:]
    arguments["reserve_space"] = tf.experimental.dlpack.from_dlpack(
        torch.utils.dlpack.to_dlpack(given)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="must begin at a multiple of 16"):
        test_ops_errors.run_raw("eager", raw_ops.cudnn_rnn_tf_backward, arguments)


def test_projection_to_as_many_units_is_refused_by_cudnn_alone():
    config = RnnConfig("lstm", 1, 6, 3, num_proj=6)
    case = random_configs.Case(7000, config, 4, 2, True, True, None)
    data, expected = random_configs.draw_smooth_data(case, "float32")
    results = run_on("GPU:0", case, data)
    assert not random_configs.beyond_tolerance(case, results, expected, "float32", False)
    arguments = data.inputs, data.states, data.params
    with pytest.raises(tf.errors.UnimplementedError, match="num_proj equal to num_units"):
        ops.forward(config, *map(tf.constant, arguments), algorithm="standard")


@pytest.mark.parametrize("algorithm", ["standard", "cudnn"])
def test_recurrent_dropout_is_refused_by_cudnn_in_training_alone(algorithm):
    config = RnnConfig("gru", 1, 64, 64, recurrent_dropout=0.5)
    inputs = tf.random.normal([4, 32, 64])
    arguments = [inputs, [tf.zeros([1, 32, 64])], tf.random.normal([config.layout.size])]
    with pytest.raises(tf.errors.UnimplementedError, match="recurrent_dropout"):
        ops.forward(config, *arguments, algorithm=algorithm)
    outputs, _ = ops.forward(config, *arguments, algorithm=algorithm, is_training=False)
    without = dataclasses.replace(config, recurrent_dropout=0.0)
    expected, _ = ops.forward(without, *arguments, algorithm=algorithm, is_training=False)
    np.testing.assert_array_equal(outputs, expected)


GRADIENT_HASH = """
import hashlib
import tensorflow as tf
tf.keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
digest = hashlib.sha256()
for dtype in (tf.float32, tf.float16):
    for mode in ("lstm", "gru"):
        config = RnnConfig(mode, 2, 96, 64, direction="bidirectional", dropout=0.2)
        x = tf.cast(tf.random.stateless_normal([30, 40, 64], [1, 2]), dtype)
        p = tf.cast(tf.random.stateless_normal([config.layout.size], [3, 4]) * 0.1, dtype)
        states = [tf.zeros(s, dtype) for s in config.state_shapes(40, True)]
        with tf.GradientTape() as tape:
            tape.watch([x, p])
            y, _ = ops.forward(config, x, states, p, seed=tf.constant([1, 1], tf.int64))
        for tensor in (y, *tape.gradient(y, [x, p])):
            digest.update(tensor.numpy().tobytes())
print("digest", digest.hexdigest())
"""


def test_determinism():
    """Results repeat to the bit."""
    assert len({run_program(GRADIENT_HASH) for _ in range(2)}) == 1


MISSING_CUDNN = """
import tensorflow as tf
import cudnn_rnn_tf as crnn
layer = crnn.CudnnGRU(1, 4, algorithm="cudnn")
try:
    layer(tf.ones([2, 5, 3]))
except tf.errors.FailedPreconditionError as error:
    print("refused:", error.message)
crnn.CudnnGRU(1, 4)(tf.ones([2, 5, 3]))  # The package's own kernels need no cuDNN.
print("info:", crnn.info()["backends"]["cudnn"])
with tf.device("CPU"):
    crnn.CudnnGRU(1, 4)(tf.ones([2, 5, 3]))
print("went on")
"""


def test_missing_cudnn_is_named():
    output = run_program(MISSING_CUDNN, CUDNN_RNN_TF_CUDNN_LIBRARY="libcudnn.so.nowhere")
    assert "refused: " in output
    assert "cannot use the GPU: cuDNN libcudnn.so.nowhere was looked for" in output
    assert "info: not available: " in output
    assert "went on" in output


TRAIN = """
import json, sys
import keras, numpy as np, tensorflow as tf
import cudnn_rnn_tf as crnn
tf.config.experimental.enable_tensor_float_32_execution(False)
directory, first, last, export = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = np.random.default_rng(0)
x = rng.standard_normal((64, 12, 6)).astype("float32")
y = np.cumsum(x.mean(-1, keepdims=True), axis=1)
model = keras.Sequential([
    keras.Input((None, 6)),
    crnn.CudnnLSTM(2, 16, direction="bidirectional"), crnn.CudnnGRU(1, 8), keras.layers.Dense(1),
])
for variable in model.variables:
    variable.assign(np.random.default_rng(1).standard_normal(variable.shape) * 0.2)
model.compile(keras.optimizers.Adam(1e-2), "mse")
checkpoint = tf.train.Checkpoint(model=model)
if first:
    checkpoint.restore(directory + "/ckpt").expect_partial()
losses = [float(model.train_on_batch(x, y)) for _ in range(first, last)]
checkpoint.write(directory + "/ckpt")
if export:
    model.export(directory + "/exported", verbose=False)
    np.save(directory + "/outputs.npy", model.predict(x, verbose=0))
print("losses", json.dumps(losses))
"""

SERVE = """
import sys
import numpy as np, tensorflow as tf
import cudnn_rnn_tf
assert not tf.config.list_physical_devices("GPU")
x = np.random.default_rng(0).standard_normal((64, 12, 6)).astype("float32")
loaded = tf.saved_model.load(sys.argv[1] + "/exported")
outputs = loaded.serve(x)
np.testing.assert_allclose(outputs, np.load(sys.argv[1] + "/outputs.npy"), rtol=1e-4, atol=1e-5)
"""

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}


def losses_of(output: str) -> list[float]:
    line = next(line for line in output.splitlines() if line.startswith("losses"))
    return [float(number) for number in line[len("losses [") : -1].split(",")]


@pytest.mark.parametrize("first_on_gpu", [True, False])
def test_training_moves_between_devices(first_on_gpu, tmp_path):
    """Weights and Adam's slots move, and the losses are the same as without the move."""
    devices = [{}, WITHOUT_GPU] if first_on_gpu else [WITHOUT_GPU, {}]
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    straight.mkdir()
    moved.mkdir()
    expected = losses_of(run_program(TRAIN, str(straight), "0", "40", "", **devices[0]))
    losses = losses_of(run_program(TRAIN, str(moved), "0", "20", "", **devices[0]))
    losses += losses_of(run_program(TRAIN, str(moved), "20", "40", "", **devices[1]))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)


def test_exported_on_a_gpu_serves_on_a_cpu(tmp_path):
    run_program(TRAIN, str(tmp_path), "0", "3", "export")
    run_program(SERVE, str(tmp_path), **WITHOUT_GPU)
