"""Weights that the op on a CPU keeps from call to call are those that the variable has now."""

import ctypes
import ctypes.util
import gc
import pathlib
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from fresh_process import run_program
from layer_reference import config_of, make, normal, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import contrib, ops
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf.config import RnnConfig

pytestmark = pytest.mark.usefixtures("on_cpu")

# Of 16 steps of sequences or fewer, no packed weights are kept.
INPUTS = normal(4, 5, 4)


def expected(layer: Any, inputs: np.ndarray = INPUTS) -> np.ndarray:
    """What the op computes from a copy of the layer's weights, without keeping anything."""
    states = [tf.zeros(shape, inputs.dtype) for shape in layer.state_shape(len(inputs))]
    outputs, _ = ops.forward(
        config_of(layer),
        tf.constant(inputs),
        states,
        tf.constant(layer.kernel.numpy()),
        time_major=False,
        is_training=False,
    )
    return outputs.numpy()


def on_cpu_in_thread(call: Any, inputs: np.ndarray) -> Any:
    """Calls on the CPU, since a thread does not inherit the device of the one that starts it."""
    with tf.device("CPU:0"):
        return call(inputs)


def assert_is_right(found: Any, layer: Any) -> None:
    np.testing.assert_allclose(found, expected(layer), rtol=1e-5, atol=1e-6)


def scatter(layer: Any, *_: Any) -> None:
    """From now on, each read of the variable makes a copy, and writes do not."""
    layer.kernel.value.scatter_nd_update([[0], [5]], layer.kernel.value[1:3])


def train(layer: Any, *_: Any) -> None:
    model = keras.Sequential([keras.Input(INPUTS.shape[1:]), layer])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(INPUTS, np.ones((*INPUTS.shape[:2], layer.num_units)), verbose=0)


def restore(layer: Any, random: np.random.Generator, folder: pathlib.Path) -> None:
    layer.kernel.assign(random.standard_normal(layer.kernel.shape))
    checkpoint = tf.train.Checkpoint(layer=layer)
    path = checkpoint.save(folder / "checkpoint")
    layer.kernel.assign(random.standard_normal(layer.kernel.shape))
    layer(INPUTS)
    checkpoint.restore(path).assert_consumed()


def assign(layer: Any, random: np.random.Generator, _: Any) -> None:
    layer.kernel.assign(random.standard_normal(layer.kernel.shape))


CHANGES = {
    "assign": assign,
    "assign_add": lambda layer, *_: layer.kernel.assign_add(tf.fill(layer.kernel.shape, 0.1)),
    "assign_sub": lambda layer, *_: layer.kernel.assign_sub(tf.fill(layer.kernel.shape, 0.1)),
    "scatter": scatter,
    "set_weights": lambda layer, *_: layer.set_weights([w * 0.9 for w in layer.get_weights()]),
    "train": train,
    "restore": restore,
}


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_variable_are_seen(change, is_traced, tmp_path):
    layer = randomize(make("lstm"), (None, None, 4))
    call = tf.function(layer) if is_traced else layer
    random = np.random.default_rng(0)
    for _ in range(3):
        for _ in range(2):
            assert_is_right(call(INPUTS), layer)
        before = layer.kernel.numpy()
        CHANGES[change](layer, random, tmp_path)
        assert change == "scatter" or not np.array_equal(before, layer.kernel.numpy())
    scatter(layer)
    CHANGES[change](layer, random, tmp_path)
    assert_is_right(call(INPUTS), layer)


def negate(weights: Any) -> None:
    weights.neg_()


def exchange(weights: Any) -> None:
    weights[[0, -1]] = weights[[-1, 0]]


def change_last(weights: Any) -> None:
    weights.reshape(-1)[-1] += 1


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("write", [negate, exchange, change_last])
def test_writes_of_others_are_seen(write, is_traced):
    """TensorFlow does not know of what a program writes to memory that it got by DLPack."""
    dtype = "float64"
    layer = make("gru", 2, 6, dtype=dtype)
    drop_in = drop_ins.LSTM(5, bias_initializer="random_normal", dtype=dtype)
    inputs = INPUTS.astype(dtype)
    randomize(layer, inputs.shape)
    drop_in.build(inputs.shape)
    call, call_drop_in = map(tf.function, (layer, drop_in)) if is_traced else (layer, drop_in)
    stock = keras.layers.LSTM(5, dtype=dtype)
    stock.build(inputs.shape)
    for variable in (layer.kernel, *drop_in.weights):
        for _ in range(2):
            call(inputs), call_drop_in(inputs)
        before = variable.numpy()
        write(torch.from_dlpack(tf.experimental.dlpack.to_dlpack(variable.value.value())))
        assert not np.array_equal(before, variable.numpy())
        np.testing.assert_allclose(call(inputs), expected(layer, inputs), rtol=1e-13)
        stock.set_weights([weight.numpy() for weight in drop_in.weights])
        np.testing.assert_allclose(call_drop_in(inputs), stock(inputs), rtol=1e-13, atol=1e-15)


def test_changes_within_a_function_are_seen():
    layer = randomize(make("gru", 2, 6), (None, None, 4))

    @tf.function
    def run(steps):
        found = tf.TensorArray(tf.float32, steps)
        for step in tf.range(steps):
            found = found.write(step, layer(INPUTS))
            layer.kernel.assign(0.5 * layer.kernel)
        return found.stack()

    values = layer.kernel.numpy()
    for outputs in run(4):
        layer.kernel.assign(values)
        assert_is_right(outputs, layer)
        values = 0.5 * values


def test_threads_see_old_or_new_weights():
    """A thread changes the weights while others call; each call has all old or all new ones."""
    layer = randomize(make("lstm", 1, 16), (None, None, 4))
    values = [0.3 * normal(layer.params_size(), seed=seed) for seed in range(2)]
    allowed = []
    for value in values:
        layer.kernel.assign(value)
        allowed.append(layer(INPUTS).numpy())
    call, wrong, ended = tf.function(layer), [], threading.Event()

    def work():
        while not ended.is_set():
            outputs = on_cpu_in_thread(call, INPUTS).numpy()
            if not any(np.array_equal(outputs, one) for one in allowed):
                wrong.append(outputs)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for index in range(300):
        layer.kernel.assign(values[index % 2])
    ended.set()
    for thread in threads:
        # TensorFlow keeps a function's lock if a call has other arguments than its signature.
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not wrong


def test_more_layers_than_are_kept():
    layers = [randomize(make("rnn_tanh"), (None, None, 4), seed=seed) for seed in range(80)]
    for _ in range(2):
        for layer in layers:
            assert_is_right(layer(INPUTS), layer)


def make_drop_in(kind: str, dtype: str | None = None) -> Any:
    # Keras's own recurrent initializer has no bfloat16.
    options = {"return_sequences": True, "recurrent_initializer": "he_normal", "dtype": dtype}
    if kind == "lstm":
        return drop_ins.LSTM(5, **options)
    if kind == "stack":
        return drop_ins.Stack([drop_ins.SimpleRNN(5, **options) for _ in range(2)])
    return drop_ins.Bidirectional(drop_ins.GRU(5, **options), dtype=dtype)


DROP_INS = ("lstm", "stack", "bidirectional")


def as_keras_runs_it(layer: Any) -> np.ndarray:
    """What Keras's own loops over time compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_ins.layers.Fusion, "reason", lambda *_: "as Keras runs it")
        patch.setattr(
            drop_ins.bidirectional.Bidirectional, "needs_two_ops", "so that the layers run alone"
        )
        outputs = INPUTS
        for part in layer.layers if isinstance(layer, drop_ins.Stack) else [layer]:
            outputs = part(outputs)
    return outputs.numpy()


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("name", DROP_INS)
def test_changes_of_each_weight_of_keras_are_seen(name, is_traced):
    """A drop-in's buffer is made of several variables, of which any one may change."""
    layer = make_drop_in(name)
    layer.build(INPUTS.shape)
    call = tf.function(layer) if is_traced else layer
    random = np.random.default_rng(0)
    for variable in [*layer.trainable_variables, *layer.trainable_variables]:
        variable.assign(random.standard_normal(variable.shape))
        for _ in range(2):
            np.testing.assert_allclose(call(INPUTS), as_keras_runs_it(layer), rtol=1e-5, atol=1e-5)


def resident_bytes() -> int:
    """The memory that this process has now, without what the allocator keeps of freed blocks."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def call_in_threads(layer: Any, inputs: np.ndarray) -> None:
    """Calls the layer in threads, so that several of them are the first that have its weights."""
    threads = [threading.Thread(target=on_cpu_in_thread, args=(layer, inputs)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def call_whole_and_parts(layer: Any, inputs: np.ndarray) -> None:
    """Calls a wrapper and its layers, which have each weight in two buffers."""
    for part in (layer, layer.forward_layer, layer.backward_layer):
        part(inputs)


@pytest.mark.parametrize(
    ("layer", "call"),
    [
        (make("lstm", 1, 400), call_in_threads),
        (drop_ins.LSTM(400), call_in_threads),
        (drop_ins.Bidirectional(drop_ins.LSTM(300)), call_whole_and_parts),
    ],
)
def test_weights_that_nobody_has_any_more_are_dropped(layer, call):
    inputs = normal(2, 9, 400)
    layer(inputs)
    sizes = []
    for _ in range(30):
        for variable in layer.trainable_variables:
            variable.assign_add(tf.fill(variable.shape, 1e-3))
        call(layer, inputs)
        sizes.append(resident_bytes())
    # Each of the later changes makes at least 5 MB of weights and as much of their packed form. The
    # need of threads varies by some tens of MB, so the least of the last sizes counts.
    assert min(sizes[-10:]) - sizes[3] < 100e6


def test_training_drops_what_is_kept_of_models_that_are_gone():
    layers = [make("lstm", 1, 800) for _ in range(5)]
    for layer in layers:
        layer(normal(2, 9, 800))
    freed = tf.zeros([5_000_000])
    with_freed = resident_bytes()
    del freed
    before = resident_bytes()
    del layers, layer
    gc.collect()
    make("lstm", 1, 4)(INPUTS, training=True)
    # Each layer had 20 MB of weights, whose memory TensorFlow's allocator may keep where the
    # processor has instructions for neural networks, and as much of their packed form.
    least = 150e6 if with_freed - before > 15e6 else 80e6
    assert before - resident_bytes() > least


GROWTH = """
import pathlib
import numpy as np
import tensorflow as tf
import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

random, inputs = np.random.default_rng(0), tf.zeros([1, 17, 400])
for layer in (crnn.CudnnLSTM(1, 400), drop_ins.LSTM(400)):
    layer(inputs)
    sizes = []
    for _ in range(30):
        for variable in layer.trainable_variables:
            variable.assign(random.standard_normal(variable.shape, np.float32))
        layer(inputs)
        sizes.append(resident_bytes())
    print(min(sizes[-10:]) - sizes[3])
"""


@pytest.mark.parametrize("name", [None, "jemalloc", "tcmalloc_minimal"])
def test_weights_that_arrays_became_are_dropped_with_any_allocator(name):
    """With some, most arrays are so aligned that TensorFlow takes them for its own tensors."""
    library = ctypes.util.find_library(name) if name else ""
    if library is None:
        pytest.skip(f"there is no lib{name}, which install_system_packages.sh installs")
    found = run_program(GROWTH, LD_PRELOAD=library, CUDA_VISIBLE_DEVICES="-1")
    # Each assignment makes 5 MB of weights, and as much of each form that is made of them.
    assert all(int(growth) < 100e6 for growth in found.split()), found


def test_the_packed_forms_of_all_weights_together_are_bounded():
    """Networks of different kinds read the same 300 MB; of their four packed forms, three stay."""
    params, inputs = tf.zeros([1024 * (1024 + 72000 + 1)]), tf.zeros([17, 1, 72000])
    sizes = [resident_bytes()]
    for mode in ("rnn_tanh", "rnn_relu"):
        for bias_mode in ("single_input", "single_recurrent"):
            config = RnnConfig(mode, 1, 1024, 72000, bias_mode=bias_mode)
            states = [tf.zeros([1, 1, 1024])]
            ops.forward(config, inputs, states, params, is_training=False, may_keep_params=True)
            sizes.append(resident_bytes())
    assert sizes[3] - sizes[0] > 800e6
    assert abs(sizes[4] - sizes[3]) < 150e6


def kept_flags(function: Any) -> set[bool]:
    """The values of the attribute `may_keep_params` in a function's graph."""
    return {
        op.get_attr("may_keep_params")
        for op in function.get_concrete_function().graph.get_operations()
        if op.type in ("CudnnRnnTf>Forward", "CudnnRnnTf>KerasToParams")
    }


@pytest.mark.parametrize(
    ("dtype", "is_kept"), [("float32", True), ("bfloat16", True), ("mixed_bfloat16", False)]
)
def test_only_a_variable_itself_is_kept(dtype, is_kept):
    """A layer that casts its weights makes a new tensor in each call."""
    for layer in (make("lstm", dtype=dtype), *(make_drop_in(kind, dtype) for kind in DROP_INS)):
        assert kept_flags(tf.function(lambda layer=layer: layer(INPUTS))) == {is_kept}
        training = tf.function(lambda layer=layer: layer(INPUTS, training=True))
        assert kept_flags(training) == {is_kept and isinstance(layer, crnn.CudnnLSTM)}


def test_reference_variables():
    """TensorFlow 1's variables write to memory that others hold, so nothing of them is kept."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.compat.v1.variable_scope("scope", use_resource=False):
            layer = contrib.CudnnLSTM(1, 3)
            outputs, _ = layer(INPUTS, training=False)
        assert layer.kernel.op.type == "VariableV2"
        double = layer.kernel.assign(2 * layer.kernel)
        session.run(tf.compat.v1.global_variables_initializer())
        found = [session.run(outputs), session.run(outputs)]
        np.testing.assert_array_equal(*found)
        session.run(double)
        assert np.abs(session.run(outputs) - found[0]).max() > 1e-3
