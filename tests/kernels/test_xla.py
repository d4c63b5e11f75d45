"""Functions and models that XLA compiles on a CPU, against the same ones uncompiled."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import fresh_process
import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cudnn_rnn_ops, ops
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import op_library

pytestmark = [
    pytest.mark.usefixtures("on_cpu"),
    pytest.mark.skipif(
        op_library.no_xla != "", reason=f"XLA cannot compile the ops: {op_library.no_xla}"
    ),
]
on_cpus_only = pytest.mark.skipif(
    bool(tf.config.get_visible_devices("GPU")), reason="Keras compiles for the GPU"
)

CASES = random_configs.with_resets(random_configs.random_cases(320, seed=20240))
CASES = random_configs.with_cell_sequences(CASES)
RECURRENT_CASES = [random_configs.with_recurrent_dropout(case) for case in CASES[:120]]
NORMALIZED = random_configs.layer_normalized(CASES)
ZONED = random_configs.with_zoneout(CASES)
SINGLE_STEPS = [
    dataclasses.replace(case, max_time=1, is_training=False, sequence_lengths=None)
    for case in CASES[:120] + NORMALIZED[:3] + ZONED[:12]
]
DTYPES = ("float64", "float32", "float16", "bfloat16")


def draw(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32)


def draw_mask(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).random(shape) < 0.6)


def assert_near(found: Any, expected: Any, atol: float = 1e-6) -> None:
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), found, expected
    )


def check_compiled(function: Callable[..., Any], *arguments: Any) -> None:
    """Checks that a function returns the same with XLA as without."""
    expected = tf.function(function, autograph=False)(*arguments)
    compiled = tf.function(function, autograph=False, jit_compile=True)(*arguments)
    assert_near(compiled, expected)


def with_gradients(layer: keras.layers.Layer, **arguments: Any) -> Callable[..., Any]:
    def run(inputs: tf.Tensor, **tensors: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, **arguments, **tensors)
        return outputs, tape.gradient(outputs, [inputs, *layer.trainable_variables])

    return run


# Ops.


@pytest.mark.parametrize(
    "case",
    random_configs.mostly_slow(CASES + RECURRENT_CASES, 40, one_of=8) + NORMALIZED[:2] + ZONED[:3],
    ids=str,
)
def test_ops_agree_with_the_reference(case):
    """Both passes are compiled in one function."""
    dtype = DTYPES[case.index // 40 % len(DTYPES)]
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = random_configs.run_ops(case, data, jit_compile=True)
    rounds_factors = random_configs.cpu_rounds_factors(dtype)
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)


@pytest.mark.parametrize("case", random_configs.mostly_slow(SINGLE_STEPS, 30, one_of=4), ids=str)
def test_single_steps_agree_with_the_reference(case):
    """XLA has operations of its own for these."""
    dtype = DTYPES[case.index // 2 % len(DTYPES)]
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = random_configs.run_ops(case, data, jit_compile=True)
    rounds_factors = random_configs.cpu_rounds_factors(dtype)
    assert not random_configs.beyond_tolerance(case, results, expected, dtype, rounds_factors)


@pytest.mark.parametrize("max_time, batch_size", [(0, 3), (4, 0), (0, 0)])
def test_without_steps_states_pass_through(max_time, batch_size):
    config = RnnConfig("lstm", 2, 5, 3, direction="bidirectional", num_proj=2)
    case = random_configs.Case(0, config, max_time, batch_size, True, True, None)
    data = random_configs.draw_data(case, "float32")
    results = random_configs.run_ops(case, data, jit_compile=True)
    assert results.outputs.shape == data.d_outputs.shape
    for state, initial in zip(results.states, data.states, strict=True):
        np.testing.assert_array_equal(state, initial)
    for gradient, upstream in zip(results.d_states, data.d_states, strict=True):
        np.testing.assert_array_equal(gradient, upstream)
    np.testing.assert_array_equal(results.d_params, np.zeros_like(data.params))


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_a_layer_that_reads_backwards(time_major, known):
    """XLA itself reverses no sequences without steps."""
    layer = crnn.CudnnGRU(1, 3, go_backwards=True, time_major=time_major)
    layer.build((None, None, 2))

    def run(inputs: tf.Tensor, lengths: tf.Tensor) -> Any:
        return tf.nest.flatten(with_gradients(layer)(inputs, sequence_lengths=lengths))

    for max_time in (0, 4):
        inputs, lengths = draw(2, max_time, 2), tf.constant([0, max_time // 2])
        inputs = tf.transpose(inputs, (1, 0, 2)) if time_major else inputs
        shape = inputs.shape if known else [None, None, 2]
        signature = [tf.TensorSpec(shape), tf.TensorSpec([2], tf.int32)]
        compiled = tf.function(run, jit_compile=True, input_signature=signature)
        assert_near(compiled(inputs, lengths), run(inputs, lengths))


@pytest.mark.parametrize(
    "config, dtype",
    [
        (RnnConfig("lstm", 2, 3, 2, num_proj=2, direction="bidirectional"), "float32"),
        (RnnConfig("gru", 2, 3, 4, direction="bidirectional"), "float64"),
        (RnnConfig("gru", 1, 3, 3, input_mode="skip_input", bias_mode="single_input"), "float16"),
        (RnnConfig("rnn_relu", 2, 3, 4, bias_mode="none"), "bfloat16"),
    ],
)
def test_conversions(config, dtype):
    params = tf.cast(tf.range(config.layout.size) % 200, dtype)
    num_pseudo_layers = config.num_layers * config.layout.num_dirs
    num_weights = num_pseudo_layers * (3 if config.num_proj else 2)
    if config.input_mode == "skip_input":
        num_weights -= config.layout.num_dirs

    def convert(params: tf.Tensor) -> Any:
        canonical = ops.params_to_canonical(config, params)
        of_keras = op_library.raw_ops.cudnn_rnn_tf_params_to_keras(
            params=params,
            num_weights=num_weights,
            num_biases=0 if config.bias_mode == "none" else num_pseudo_layers,
            input_size=config.input_size,
            **config.spec_attrs(),
        )
        return (
            *canonical,
            *of_keras,
            ops.canonical_to_params(config, *canonical),
            ops.keras_to_params(config, *of_keras),
            ops.params_size(config),
        )

    compiled = tf.function(convert, jit_compile=True)(params)
    *_, from_canonical, from_keras, size = compiled
    np.testing.assert_array_equal(from_canonical, params)
    np.testing.assert_array_equal(from_keras, params)
    assert size == config.layout.size
    tf.nest.map_structure(np.testing.assert_array_equal, compiled, convert(params))


@pytest.mark.parametrize("dtype, wrong", [("int32", 9), ("int64", 9), ("int64", 2**32 + 3)])
def test_a_wrong_length_is_an_error(dtype, wrong):
    layer = crnn.CudnnGRU(1, 4)
    run = tf.function(lambda x, n: layer(x, sequence_lengths=n), jit_compile=True)
    lengths = tf.constant([3, wrong], dtype)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"sequence_lengths\[1\] must lie in \[0, 5\], but received {wrong}",
    ):
        run(draw(2, 5, 3), lengths)


def test_a_shape_that_xla_does_not_know_is_an_error_that_says_what_to_write():
    layer = crnn.CudnnLSTM(1, 4)
    run = tf.function(lambda x, rows: layer(tf.boolean_mask(x, rows)), jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="padded sequences with a mask"):
        run(draw(3, 5, 2), tf.constant([True, False, True]))


def test_wrong_shapes_are_errors():
    config = RnnConfig("gru", 1, 4, 3)
    run = tf.function(
        lambda params: op_library.raw_ops.cudnn_rnn_tf_forward(
            input=tf.zeros([2, 3, 3]),
            input_h=tf.zeros([1, 3, 4]),
            input_c=[],
            params=params,
            sequence_lengths=tf.zeros([0], tf.int64),
            seed=[],
            resets=[],
            **config.spec_attrs(),
        ),
        input_signature=[tf.TensorSpec([None])],
        jit_compile=True,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected params of shape"):
        run(tf.zeros([config.layout.size + 1]))


# Layers.


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_masks(time_major, go_backwards):
    options = {"time_major": time_major, "go_backwards": go_backwards}
    layer = crnn.CudnnLSTM(2, 6, direction="bidirectional", return_state=True, **options)
    inputs, mask = draw(3, 7, 4), draw_mask(3, 7)
    if time_major:
        inputs, mask = tf.transpose(inputs, (1, 0, 2)), tf.transpose(mask)
    layer(inputs)
    run = with_gradients(layer)
    check_compiled(lambda inputs, mask: run(inputs, mask=mask), inputs, mask)


@pytest.mark.parametrize("class_name", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("wraps", [False, True], ids=["one_direction", "bidirectional"])
def test_drop_ins(class_name, wraps):
    layer = getattr(drop_ins, class_name)(6, return_sequences=True, recurrent_dropout=0.3)
    layer = drop_ins.Bidirectional(layer) if wraps else layer
    layer(draw(3, 7, 4))
    mask = draw_mask(3, 7)
    check_compiled(with_gradients(layer, mask=mask), draw(3, 7, 4))


def test_contrib():
    model = cudnn_rnn_ops.CudnnLSTM(2, 6, 4)
    params = draw(int(model.params_size()))
    state = draw(2, 3, 6)

    def run(inputs: tf.Tensor, params: tf.Tensor) -> Any:
        return model(inputs, state, state, params, is_training=True)

    check_compiled(run, draw(5, 3, 4), params)
    layer = crnn.contrib.CudnnGRU(1, 6)
    layer(draw(5, 3, 4))
    check_compiled(lambda inputs: layer(inputs), draw(5, 3, 4))


def tokens_model(*layers: keras.layers.Layer, mask_zero: bool = False) -> keras.Model:
    inputs = keras.Input((9,), batch_size=16, dtype="int32")
    values = keras.layers.Embedding(50, 12, mask_zero=mask_zero)(inputs)
    for layer in (*layers, keras.layers.LayerNormalization(), keras.layers.Dense(50)):
        values = layer(values)
    return keras.Model(inputs, values)


MODELS = {
    "dropout": lambda: tokens_model(
        crnn.CudnnLSTM(2, 24, direction="bidirectional", dropout=0.3, seed=5)
    ),
    "mask": lambda: tokens_model(crnn.CudnnGRU(1, 24), mask_zero=True),
    "stateful": lambda: tokens_model(crnn.CudnnLSTM(1, 24, stateful=True)),
    "mixed_bfloat16": lambda: tokens_model(crnn.CudnnLSTM(1, 24, dtype="mixed_bfloat16")),
    "drop_ins": lambda: tokens_model(
        drop_ins.LSTM(24, return_sequences=True),
        drop_ins.Bidirectional(drop_ins.GRU(24, return_sequences=True)),
        mask_zero=True,
    ),
    "recurrent_dropout": lambda: tokens_model(
        drop_ins.LSTM(24, return_sequences=True, recurrent_dropout=0.3, seed=2)
    ),
    "stack": lambda: tokens_model(
        drop_ins.Stack([drop_ins.LSTM(24, return_sequences=True) for _ in range(2)])
    ),
}


def check_fit(name: str, atol: float) -> None:
    """Checks that a model learns the same with XLA as without."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 50, size=(32, 9))
    tokens[::3, 6:] = 0

    def train(jit_compile: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        model = MODELS[name]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=jit_compile)
        assert model.jit_compile == jit_compile
        model.fit(tokens, tokens, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return [*model.get_weights(), model.predict(tokens, batch_size=16, verbose=0)]

    # In bfloat16, sums that XLA rounds in another order differ by more.
    atol = 2e-2 if "bfloat16" in name else atol
    assert_near(train(True), train(False), atol)


@on_cpus_only
@pytest.mark.parametrize("name", MODELS)
def test_fit(name):
    check_fit(name, atol=1e-5)


# What is around the layers.


@pytest.mark.parametrize("class_name", ["CudnnLSTM", "CudnnGRU"])
@pytest.mark.parametrize("batch_size, direction", [(1, "unidirectional"), (3, "bidirectional")])
def test_a_loop_of_single_steps(class_name, batch_size, direction):
    units = 8 if direction == "unidirectional" else 4
    layer = getattr(crnn, class_name)(2, units, direction=direction, return_state=True)
    zeros = [tf.zeros_like(state) for state in layer(draw(batch_size, 1, 8))[1:]]

    def run(inputs: tf.Tensor) -> Any:
        def body(step: tf.Tensor, x: tf.Tensor, states: Any) -> Any:
            x, *states = layer(x, initial_state=states)
            return step + 1, x, states

        return tf.while_loop(lambda step, *_: step < 6, body, (0, inputs, zeros))[1:]

    compiled = tf.function(run, autograph=False, jit_compile=True)
    for seed in range(3):
        layer.kernel.assign(0.3 * draw(*layer.kernel.shape, seed=seed))
        inputs = draw(batch_size, 1, 8, seed=seed)
        assert_near(compiled(inputs), tf.function(run, autograph=False)(inputs))


def test_a_loop_of_single_steps_reads_its_matrix_as_it_is():
    """What takes as long as a step is done once, before the loop; a CPU ignores `algorithm`."""
    layer = crnn.CudnnLSTM(1, 8, return_state=True, algorithm="standard")
    layer(draw(1, 1, 4))

    def run(inputs: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> Any:
            return step + 1, *layer(inputs, initial_state=[h, c])[1:]

        zeros = tf.zeros([1, 1, 8])
        return tf.while_loop(lambda step, *_: step < 6, body, (0, zeros, zeros))[1]

    compiled = tf.function(run, autograph=False, jit_compile=True)
    hlo = compiled.experimental_get_compiler_ir(draw(1, 1, 4))(stage="optimized_hlo")
    body = re.search(r"while_body.*?\n}", hlo, re.DOTALL).group()
    assert " dot(" in body and "custom-call" not in hlo
    # The input and recurrent matrices of all gates side by side, [4 * 8, 4 + 8].
    (joined,) = re.findall(r"f32\[32,12\]\S* concatenate\(", hlo)
    assert joined not in body


def test_map_fn():
    layer = crnn.CudnnGRU(1, 6)
    layer(draw(1, 5, 4))

    def run(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.map_fn(lambda each: layer(each[tf.newaxis])[0], inputs)
        return outputs, tape.gradient(outputs, inputs)

    check_compiled(run, draw(3, 5, 4))


@pytest.mark.parametrize("takes_branch", [False, True])
def test_the_branch_of_a_condition(takes_branch):
    """The branch that is not taken leaves nothing for the gradient."""
    layer = crnn.CudnnLSTM(2, 6, direction="bidirectional")
    layer(draw(3, 5, 4))

    def run(inputs: tf.Tensor, predicate: tf.Tensor) -> Any:
        sources = [inputs, *(variable.value for variable in layer.trainable_variables)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.cond(
                predicate,
                lambda: layer(inputs, training=True),
                lambda: 2 * layer(inputs + 1, training=True, mask=draw_mask(3, 5)),
            )
        return outputs, tape.gradient(outputs, sources)

    check_compiled(run, draw(3, 5, 4), tf.constant(takes_branch))


@pytest.mark.parametrize("shape", [[3, 5, 4], [None, None, 4]], ids=["static", "unknown"])
def test_gradients_of_gradients(shape):
    layer = crnn.CudnnLSTM(1, 6, direction="unidirectional" if shape[0] else "bidirectional")
    layer(draw(3, 5, 4))

    def run(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                loss = tf.reduce_sum(layer(inputs, sequence_lengths=[5, 2, 3]) ** 2)
            first = tf.reduce_sum(inner.gradient(loss, inputs) ** 2)
        return outer.gradient(first, [inputs, *layer.trainable_variables])

    signature = [tf.TensorSpec(shape)]
    compiled = tf.function(run, autograph=False, jit_compile=True, input_signature=signature)
    assert_near(compiled(draw(3, 5, 4)), run(draw(3, 5, 4)), atol=1e-5)


def test_two_gradients_of_one_pass():
    """Each overwrites what the forward pass has left, so XLA copies that."""
    layer = crnn.CudnnLSTM(2, 6, direction="bidirectional")
    layer(draw(3, 5, 4))

    def run(inputs: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
            losses = [tf.reduce_sum(outputs**2), tf.reduce_sum(tf.sin(outputs))]
        sources = [inputs, *layer.trainable_variables]
        return [tape.gradient(loss, sources) for loss in losses]

    check_compiled(run, draw(3, 5, 4))


def test_two_gradients_of_a_compiled_forward_pass():
    """Each is a function of its own, which is given what the forward pass has left."""
    layer = crnn.CudnnLSTM(2, 6, direction="bidirectional")
    inputs = draw(3, 5, 4)
    layer(inputs)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        outputs = tf.function(lambda x: layer(x, training=True), jit_compile=True)(inputs)
    sources = [inputs, *layer.trainable_variables]
    first, second = (tape.gradient(outputs, sources) for _ in range(2))
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True)
    assert_near(first, tape.gradient(outputs, sources), atol=1e-5)


# How programs begin in which a second CPU may take the part of a GPU.
TWO_DEVICES = """
import sys

import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf.ops import seeds

"""

# The layers' masks and seeds are in one program, where a variable of another device than the
# function's would stop XLA.
IN_ANOTHER_PROCESS = """
if "imitated" in sys.argv[1]:
    seeds._has_gpu = lambda: True

with tf.device("CPU:1"):
    layer = crnn.CudnnLSTM(2, 6, dropout=0.4, seed=1)
    inputs = tf.constant(np.random.default_rng(0).standard_normal((3, 5, 4)), tf.float32)
    layer(inputs)
    size = layer.kernel.shape[0]
    layer.kernel.assign(np.sin(np.arange(size)))

    @tf.function(jit_compile=True if "compiled" in sys.argv[1] else None)
    def run(inputs, mask):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(2 * inputs + 1, mask=mask, training=True) * 3
        return tf.reduce_sum(tf.abs(tape.gradient(outputs, inputs)))

    mask = tf.constant([[True, False, True, True, False]] * 3)
    print(*[float(run(inputs, mask)) for _ in range(3)])
"""


def test_auto_clustering_and_other_devices():
    def run(how: str, flags: str = "") -> list[float]:
        environment = {"TF_XLA_FLAGS": flags, "CUDA_VISIBLE_DEVICES": "-1"}
        output = fresh_process.run_program(TWO_DEVICES + IN_ANOTHER_PROCESS, how, **environment)
        return [float(number) for number in output.split()]

    expected = run("as it is")
    assert len(set(expected)) == 3
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
    np.testing.assert_allclose(run("as it is", flags), expected, rtol=1e-5)
    np.testing.assert_allclose(run("compiled"), expected, rtol=1e-5)
    np.testing.assert_allclose(run("compiled, imitated GPU"), expected, rtol=1e-5)


# A checkpoint and a SavedModel have what a compiled function's dropout draws from.
SAVES_SEEDS = """
seeds._has_gpu = lambda: True


class Trained(tf.Module):
    def __init__(self):
        self.layer = crnn.CudnnLSTM(2, 6, dropout=0.4, kernel_initializer="ones", seed=1)
        self.layer.build((3, 5, 4))

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([3, 5, 4])])
    def step(self, inputs):
        return tf.reduce_sum(self.layer(inputs, training=True))


with tf.device("CPU:1"):
    inputs = tf.constant(np.random.default_rng(0).standard_normal((3, 5, 4)), tf.float32)
    trained, restored = Trained(), Trained()
    first = float(trained.step(inputs))
    path = tf.train.Checkpoint(trained=trained).save(sys.argv[1] + "/checkpoint")
    tf.saved_model.save(trained, sys.argv[1])
    second = float(trained.step(inputs))
    reader = tf.train.Checkpoint(trained=restored).restore(path)
    print(first, second)
    loaded = tf.saved_model.load(sys.argv[1])
    print(float(restored.step(inputs)), float(loaded.step(inputs)))
    reader.assert_consumed()
"""


def test_a_compiled_functions_seeds_are_saved(tmp_path):
    output = fresh_process.run_program(
        TWO_DEVICES + SAVES_SEEDS, tmp_path, CUDA_VISIBLE_DEVICES="-1"
    )
    first, second, restored, loaded = map(float, output.split())
    assert first != second
    assert restored == loaded == second
