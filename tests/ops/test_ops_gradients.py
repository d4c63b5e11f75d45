"""The ops' gradients on tapes, in functions and in graphs.

`test_second_order.py` compares those of random networks with finite differences.
"""

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import backprop

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cudnn_rnn_ops, ops
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

BIDIRECTIONAL = {"direction": "bidirectional"}


def weights_like(tensor: tf.Tensor) -> tf.Tensor:
    """Returns different weights for all elements, so that no two can be confused."""
    weights = tf.sin(tf.range(tf.cast(tf.size(tensor), tf.float64), dtype=tf.float64))
    return tf.reshape(tf.cast(weights, tensor.dtype), tf.shape(tensor))


@dataclasses.dataclass(frozen=True)
class Problem:
    """A network with data for it, time-major, and a scalar made of all it returns."""

    config: RnnConfig
    max_time: int = 4
    batch_size: int = 3
    sequence_lengths: tuple[int, ...] | None = None
    is_training: bool = True
    dtype: str = "float64"

    def arguments(self) -> list[tf.Tensor]:
        """Draws inputs, params, h and an LSTM's c."""
        config, rng = self.config, np.random.default_rng(7)
        shapes = [
            (self.max_time, self.batch_size, config.input_size),
            (config.layout.size,),
            *config.state_shapes(self.batch_size, time_major=True),
        ]
        return [tf.constant(0.6 * rng.standard_normal(shape), self.dtype) for shape in shapes]

    def results(self, inputs: tf.Tensor, params: tf.Tensor, *states: tf.Tensor) -> list[tf.Tensor]:
        lengths = self.sequence_lengths
        outputs, final_states = ops.forward(
            self.config,
            inputs,
            states,
            params,
            sequence_lengths=None if lengths is None else tf.constant(lengths),
            seed=tf.constant([3, 5], tf.int64),
            is_training=self.is_training,
        )
        return [outputs, *final_states]

    def loss(self, *arguments: tf.Tensor) -> tf.Tensor:
        results = self.results(*arguments)
        return tf.add_n([tf.reduce_sum(result * weights_like(result)) for result in results])

    def gradients(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = self.loss(*arguments)
        return tape.gradient(loss, arguments)


PROBLEMS = {
    "lstm_dropout": Problem(RnnConfig("lstm", 2, 3, 2, dropout=0.4, **BIDIRECTIONAL)),
    "gru_dropout_lengths": Problem(
        RnnConfig("gru", 3, 3, 2, dropout=0.4), sequence_lengths=(2, 4, 0)
    ),
    "lstm_inference": Problem(RnnConfig("lstm", 2, 3, 2, dropout=0.4), is_training=False),
}

ALL_MODES = pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])


@ALL_MODES
def test_two_backwards_of_one_forward(rnn_mode):
    """The first pass must not overwrite what the second needs, even if functions reuse buffers."""
    problem = Problem(RnnConfig(rnn_mode, 2, 5, 3), dtype="float32")
    arguments = problem.arguments()

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(arguments)
            loss = problem.loss(*arguments)
            doubled = 2.0 * loss
        return tape.gradient(loss, arguments), tape.gradient(doubled, arguments)

    expected = problem.gradients(arguments)
    function = tf.function(gradients, autograph=False)
    for call in (gradients, *[function] * 3):
        for once, twice, reference in zip(*call(), expected, strict=True):
            np.testing.assert_array_equal(2.0 * once, twice)
            np.testing.assert_allclose(once, reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_of_inputs_that_nobody_reads_is_left_out(name, dtype):
    problem = dataclasses.replace(PROBLEMS[name], dtype=dtype, is_training=True)
    v1, given = tf.compat.v1, problem.arguments()
    with tf.Graph().as_default(), v1.Session() as session:
        # TensorFlow would compute what depends on constants alone beforehand.
        arguments = [v1.placeholder(a.dtype, a.shape) for a in given]
        gradients = tf.gradients(problem.loss(*arguments), arguments)

        def run(fetches: list[tf.Tensor]) -> tuple[list[np.ndarray], set[int]]:
            """Returns the values, and which outputs the op has set."""
            options = v1.RunOptions(trace_level=v1.RunOptions.SOFTWARE_TRACE)
            trace = v1.RunMetadata()
            feeds = {to: array.numpy() for to, array in zip(arguments, given, strict=True)}
            values = session.run(fetches, feeds, options, trace)
            nodes = [node for device in trace.step_stats.dev_stats for node in device.node_stats]
            backward = next(node for node in nodes if node.node_name.endswith("Backward"))
            return values, {output.slot for output in backward.output}

        expected, slots = run(gradients)
        assert 0 in slots
        found, slots = run(gradients[1:])
        assert 0 not in slots
    for value, reference in zip(found, expected[1:], strict=True):
        np.testing.assert_array_equal(value, reference)


def call_raw_op(inputs: tf.Tensor) -> tf.Tensor:
    inputs = tf.transpose(inputs, (1, 0, 2))
    states = [np.zeros((1, inputs.shape[1], 3), "float32")] * 2
    attrs = {"rnn_mode": "lstm", "num_layers": 1, "num_units": 3}
    params = np.ones(4 * 3 * (3 + 3 + 2), "float32")
    return raw_ops.cudnn_rnn_tf_forward(inputs, *states, params, [], [], [], **attrs).output


def call_op_level_model(inputs: tf.Tensor) -> tf.Tensor:
    model = cudnn_rnn_ops.CudnnGRU(2, 3, 3, dropout=0.5)
    params = tf.Variable(tf.ones([int(model.params_size())]))
    inputs = tf.transpose(inputs, (1, 0, 2))
    return model(inputs, tf.zeros([2, inputs.shape[1], 3]), params)[0]


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_tape_makes_no_zeros_for_the_reserve_space(accumulates, monkeypatch):
    """They would need as much memory, and TensorFlow fails to make 2 GiB of them."""
    made, fill = set(), backprop._fast_fill

    def noted_fill(value, shape, dtype):
        made.add(tf.as_dtype(dtype).name)
        return fill(value, shape, dtype)

    monkeypatch.setattr(backprop, "_fast_fill", noted_fill)
    layer = crnn.CudnnLSTM(1, 3)
    calls = [
        call_raw_op,
        call_op_level_model,
        layer,
        lambda inputs: layer(inputs, training=True),
        lambda inputs: drop_ins.LSTM(3)(inputs, training=True),
        lambda inputs: drop_ins.Bidirectional(drop_ins.GRU(3))(inputs, training=True),
    ]
    # With an accumulator, each call takes seconds to trace.
    calls = calls[::3] if accumulates else calls
    # TensorFlow keeps small zeros for later tapes, so each reserve space has a size of its own.
    for batch_size, call in enumerate(calls, 60 + 10 * accumulates):
        inputs = tf.ones([batch_size, 7, 3])
        scope = tf.autodiff.ForwardAccumulator(inputs, inputs)
        with scope if accumulates else contextlib.nullcontext(), tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(call(inputs) ** 2)
        assert tf.reduce_any(tape.gradient(loss, inputs) != 0)
    assert made == {"float32"}


CONVERTED = {
    "lstm_projection": RnnConfig("lstm", 2, 3, 2, num_proj=2, **BIDIRECTIONAL),
    "gru_single_input": RnnConfig("gru", 2, 3, 2, bias_mode="single_input"),
    "rnn_skip_no_bias": RnnConfig("rnn_relu", 2, 3, 3, input_mode="skip_input", bias_mode="none"),
}


@pytest.mark.parametrize("scopes", [("/device:CPU:0", None), (None, "/device:CPU:0")])
def test_a_gradient_is_placed_as_its_forward_pass(scopes):
    """What a forward pass keeps is for its own kind of device, whatever the gradient's scope."""
    forward_scope, gradient_scope = scopes
    config = RnnConfig("gru", 1, 4, 3)
    params = tf.zeros([config.layout.size])

    @tf.function
    def gradient(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            with tf.device(forward_scope):
                outputs, _ = ops.forward(config, inputs, [tf.zeros([1, 2, 4])], params)
        with tf.device(gradient_scope):
            return tape.gradient(outputs, inputs)

    graph = gradient.get_concrete_function(tf.ones([5, 2, 3])).graph
    devices = [op.device for op in graph.get_operations() if op.type.startswith("CudnnRnnTf>")]
    assert devices == [forward_scope or ""] * 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CONVERTED)
def test_conversions_and_their_gradients(name, dtype):
    config = CONVERTED[name]
    size = config.layout.size
    # Whole numbers up to 2^8 are exact in every type.
    params = tf.cast(tf.range(size) % 200, dtype)
    factors = tf.cast(tf.range(size) % 7 - 3, dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(params)
        weights, biases = ops.params_to_canonical(config, params)
        again = ops.canonical_to_params(config, weights, biases)
        scaled = factors * again
    np.testing.assert_array_equal(again, params)
    np.testing.assert_array_equal(tape.gradient(scaled, params), factors)
    gradients = tape.gradient(scaled, weights + biases)
    expected = [tensor for part in ops.params_to_canonical(config, factors) for tensor in part]
    for gradient, factor in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(gradient, factor)


@pytest.mark.parametrize("time_major", [True, False], ids=["time_major", "batch_major"])
@pytest.mark.parametrize("batch_from", ["inputs", "states", "sequence_lengths", "nothing"])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_static_shapes(rnn_mode, batch_from, time_major):
    """In a function, shapes are known as far as the arguments' shapes imply them."""
    projection = {"num_proj": 4} if rnn_mode == "lstm" else {}
    config = RnnConfig(rnn_mode, 2, 5, 3, **BIDIRECTIONAL, **projection)
    known = None if batch_from == "nothing" else 7

    def sequence(batch_size, n):
        return [None, batch_size, n] if time_major else [batch_size, None, n]

    state_shapes = config.state_shapes(7 if batch_from == "states" else None, time_major)
    signature = [
        tf.TensorSpec(sequence(7 if batch_from == "inputs" else None, 3)),
        tf.TensorSpec([7 if batch_from == "sequence_lengths" else None], tf.int32),
        tf.TensorSpec([None]),
        *map(tf.TensorSpec, state_shapes),
    ]
    seen = {}

    @tf.function(input_signature=signature)
    def trace(inputs, lengths, params, *states):
        arguments = [inputs, params, *states]
        for is_training in (True, False):
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                outputs, final = ops.forward(
                    config,
                    inputs,
                    states,
                    params,
                    sequence_lengths=lengths,
                    time_major=time_major,
                    is_training=is_training,
                )
            results = [outputs, *final]
            gradients = tape.gradient(results, arguments)
            seen[is_training] = [tensor.shape.as_list() for tensor in results + gradients]
        return outputs

    trace.get_concrete_function()
    out = 4 if rnn_mode == "lstm" else 5
    final_shapes = [list(shape) for shape in config.state_shapes(known, time_major)]
    expected = [
        sequence(known, 2 * out),
        *final_shapes,
        sequence(known, 3),
        [config.layout.size],
        *final_shapes,
    ]
    assert seen[True] == expected
    assert seen[False] == expected


def test_static_shapes_of_conversions():
    config = CONVERTED["lstm_projection"]
    seen = {}

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def trace(params):
        weights, biases = ops.params_to_canonical(config, params)
        size = ops.params_size(config)
        seen["canonical"] = [tuple(tensor.shape) for tensor in weights + biases]
        seen["params"] = ops.canonical_to_params(config, weights, biases).shape.as_list()
        seen["size"] = (size.shape.as_list(), size.dtype)
        return size

    size = trace(tf.zeros([config.layout.size]))
    assert seen["canonical"] == config.canonical_shapes
    assert seen["params"] == [config.layout.size]
    assert seen["size"] == ([], tf.int64)
    assert size.numpy() == config.layout.size == ops.params_size(config).numpy()


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", PROBLEMS)
def test_functions_and_sessions_are_as_eager(name):
    """Placeholders of a TensorFlow 1 graph have unknown shapes."""
    problem = PROBLEMS[name]
    arguments = problem.arguments()
    eager = [*problem.results(*arguments), *problem.gradients(arguments)]
    function = tf.function(
        lambda *arguments: [*problem.results(*arguments), *problem.gradients(list(arguments))]
    )
    for value, expected in zip(function(*arguments), eager, strict=True):
        np.testing.assert_array_equal(value, expected)
    with tf.Graph().as_default(), tf.device("CPU:0"):
        placeholders = [tf.compat.v1.placeholder(tensor.dtype) for tensor in arguments]
        fetches = problem.results(*placeholders)
        fetches += tf.compat.v1.gradients(problem.loss(*placeholders), placeholders)
        with tf.compat.v1.Session() as session:
            feeds = {p: tensor.numpy() for p, tensor in zip(placeholders, arguments, strict=True)}
            for value, expected in zip(session.run(fetches, feeds), eager, strict=True):
                np.testing.assert_array_equal(value, expected)
