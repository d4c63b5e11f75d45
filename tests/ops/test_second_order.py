"""Gradients, and gradients through gradients: against finite differences and each other."""

import fresh_process
import numpy as np
import pytest
import random_configs
import reference
import reference_masks
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import second_order
from cudnn_rnn_tf.ops.op_library import raw_ops

v1 = tf.compat.v1


class Network:
    """A random network in float64, the gradients of a scalar of its results, and a scalar of those.

    The gradients' scalar is <gradients, vectors> with the vectors fixed, so that its own gradient
    is the product of the vectors with the Hessian.
    """

    def __init__(self, case: random_configs.Case):
        self.case = case
        data, _ = random_configs.draw_smooth_data(case, "float64")
        self.seed = data.seed
        self.arguments = [tf.constant(a) for a in (data.inputs, data.params, *data.states)]
        self.cotangents = [tf.constant(d) for d in (data.d_outputs, *data.d_states, *data.d_cells)]
        rng = np.random.default_rng(case.index)
        self.vectors = [tf.constant(rng.standard_normal(a.shape)) for a in self.arguments]

    def results(self, inputs, params, *states):
        lengths, resets = self.case.sequence_lengths, self.case.resets
        outputs, final, *cells = ops.forward(
            self.case.config,
            inputs,
            states,
            params,
            sequence_lengths=None if lengths is None else tf.constant(lengths),
            resets=None if resets is None else tf.constant(resets),
            seed=tf.constant(self.seed),
            time_major=self.case.time_major,
            is_training=self.case.is_training,
            return_cell_sequences=self.case.has_cell_sequences,
        )
        return [outputs, *final, *cells]

    def loss(self, arguments, cotangents):
        # With squares in the loss, the results' gradients depend on the results.
        return tf.add_n(
            [
                tf.reduce_sum(result * cotangent + 0.5 * result**2)
                for result, cotangent in zip(self.results(*arguments), cotangents, strict=True)
            ]
        )

    def gradients(self, arguments, cotangents):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = self.loss(arguments, cotangents)
        return tape.gradient(loss, arguments)

    def product(self, arguments, cotangents):
        gradients = self.gradients(arguments, cotangents)
        return tf.add_n(
            [tf.reduce_sum(g * v) for g, v in zip(gradients, self.vectors, strict=True)]
        )

    def second(self, arguments, cotangents):
        with tf.GradientTape() as tape:
            tape.watch([*arguments, *cotangents])
            product = self.product(arguments, cotangents)
        return tape.gradient(product, [*arguments, *cotangents])

    def all_second(self):
        return self.second(self.arguments, self.cotangents)


CASES = [
    case
    for case in random_configs.with_cell_sequences(
        random_configs.with_resets(random_configs.random_cases(60, seed=71))
    )
    if case.config.num_units < 42 and case.max_time < 9 and case.batch_size < 9
][:24]
CASES += random_configs.layer_normalized(CASES)[:3]
CASES += random_configs.with_zoneout(CASES)[:3]
assert {case.config.rnn_mode for case in CASES} == reference.NUM_GATES.keys()
# These small cases are for tests that take long to trace.
WITH_DROPOUT, ONE_LAYER, CLIPPED = (
    random_configs.Case(1, config, 4, 3, time_major, True, (4, 0, 2))
    for config, time_major in (
        (RnnConfig("rnn_tanh", 2, 3, 2, dropout=0.4), True),
        (RnnConfig("gru", 1, 3, 2), False),
        (RnnConfig("lstm", 1, 3, 2, num_proj=2, cell_clip=0.5), True),
    )
)


def check_finite_differences(scalar, arguments, gradients) -> None:
    """Compares gradients of a scalar with differences along random directions."""
    # Data may be within delta of a kink; with this delta, none of the cases' data are.
    delta = 1e-6
    rng = np.random.default_rng(5)
    for index, gradient in enumerate(gradients):
        direction = tf.constant(rng.standard_normal(arguments[index].shape))
        values = []
        for step in (delta, -delta):
            moved = [*arguments]
            moved[index] = arguments[index] + step * direction
            values.append(scalar(moved).numpy())
        numeric = (values[0] - values[1]) / (2 * delta)
        exact = tf.reduce_sum(gradient * direction).numpy()
        scale = max(abs(exact), float(tf.norm(gradient) * tf.norm(direction)) * 1e-2)
        # This is the rounding error of values of about 1e2 to 1e3, divided by delta.
        magnitude = 1e-15 * max(map(abs, values)) / delta
        assert abs(numeric - exact) < 1e-6 * scale + 20 * magnitude, index


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_gradients(case):
    network = Network(case)
    arguments, cotangents = network.arguments, network.cotangents
    gradients = network.gradients(arguments, cotangents)
    check_finite_differences(lambda moved: network.loss(moved, cotangents), arguments, gradients)


def check_second_gradients(case: random_configs.Case) -> None:
    network = Network(case)
    whole, count = network.arguments + network.cotangents, len(network.arguments)
    check_finite_differences(
        lambda moved: network.product(moved[:count], moved[count:]), whole, network.all_second()
    )


@pytest.mark.parametrize("case", random_configs.mostly_slow(CASES, one_of=2), ids=str)
def test_second_gradients(case):
    check_second_gradients(case)


@pytest.mark.usefixtures("on_cpu")
def test_dropout_masks_are_those_of_the_first_pass():
    """Compares the masks that differentiating finds with the reference's for the same seed."""
    config = RnnConfig("lstm", 3, 5, 2, direction="bidirectional", num_proj=3, dropout=0.3)
    seed = np.array([-7, 2**40 + 3])
    for time_major in (True, False):
        outputs = tf.ones([4, 6, 6] if time_major else [6, 4, 6])
        masks = second_order.dropout_masks(config, outputs, None, tf.constant(seed), time_major)
        expected = reference_masks.dropout_masks(config, seed, 4, 6)
        for of_directions, value in zip(masks, expected, strict=True):
            assert len(of_directions) == 2
            for mask in of_directions:
                np.testing.assert_allclose(mask, value, rtol=1e-7)
            assert 0 < np.mean(value == 0) < 1


def test_other_masks_are_an_error():
    """If the masks could not be recovered, there would be an error and not a wrong result."""
    outputs = np.random.default_rng(0).standard_normal((3, 4))
    mask = np.array([[1], [0], [1]])
    np.testing.assert_array_equal(
        second_order.checked(tf.constant(outputs), tf.constant(outputs)), outputs
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="masks of this device could not be"):
        second_order.checked(tf.constant(outputs * mask), tf.constant(outputs))


@pytest.mark.parametrize("case", random_configs.mostly_slow([WITH_DROPOUT, CLIPPED]), ids=str)
def test_function_is_as_eager(case):
    network = Network(case)
    for a, b in zip(tf.function(network.all_second)(), network.all_second(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def in_session(case: random_configs.Case) -> list[np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        network = Network(case)
        values = [*network.arguments, *network.cotangents]
        feeds = [v1.placeholder(tf.float64) for _ in values]
        count = len(network.arguments)
        arguments, cotangents = feeds[:count], feeds[count:]
        first = v1.gradients(network.loss(arguments, cotangents), arguments)
        product = tf.add_n(
            [tf.reduce_sum(g * v) for g, v in zip(first, network.vectors, strict=True)]
        )
        second = v1.gradients(product, feeds)
        return session.run(second, dict(zip(feeds, session.run(values), strict=True)))


LEGACY_PROGRAM = """
import numpy as np, sys
import tensorflow as tf
tf.compat.v1.disable_v2_behavior()
import test_second_order as tests
np.savez(sys.argv[1], *tests.in_session(tests.WITH_DROPOUT))
"""


@pytest.mark.slow
def test_session_without_version_2_behavior(tmp_path):
    """Programs for TensorFlow 1 run like this, and their graphs' loops are different."""
    path = tmp_path / "second.npz"
    fresh_process.run_program(LEGACY_PROGRAM, path)
    stored = np.load(path)
    expected = Network(WITH_DROPOUT).all_second()
    for name, b in zip(stored.files, expected, strict=True):
        np.testing.assert_allclose(stored[name], b, rtol=1e-9, atol=1e-12)


def test_forward_mode():
    """Jacobian-vector products of the network and, for a Hessian's, of its gradient are right."""
    network = Network(ONE_LAYER)
    directions = [
        tf.constant(np.random.default_rng(i).standard_normal(a.shape))
        for i, a in enumerate(network.arguments)
    ]
    with tf.autodiff.ForwardAccumulator(network.arguments, directions) as accumulator:
        loss = network.loss(network.arguments, network.cotangents)
        product = network.product(network.arguments, network.cotangents)
    first = network.gradients(network.arguments, network.cotangents)
    second = network.all_second()
    for moved, gradients in ((loss, first), (product, second)):
        expected = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=False))
        np.testing.assert_allclose(accumulator.jvp(moved), expected, rtol=1e-9)


def test_third_order():
    """The third derivative along a line agrees with differences of the second derivative."""
    network = Network(WITH_DROPOUT)
    inputs, *others = network.arguments
    direction = tf.constant(np.random.default_rng(0).standard_normal(inputs.shape))

    def along(step):
        return network.loss([inputs + step * direction, *others], network.cotangents)

    def derivative(function):
        def result(step):
            with tf.GradientTape() as tape:
                tape.watch(step)
                value = function(step)
            return tape.gradient(value, step)

        return result

    second = derivative(derivative(along))
    third = derivative(second)(tf.constant(0.0, tf.float64))
    delta = 1e-5
    numeric = (
        second(tf.constant(delta, tf.float64)) - second(-delta * tf.ones([], tf.float64))
    ) / (2 * delta)
    np.testing.assert_allclose(third, numeric, rtol=1e-6)


LAYERS = {
    "lstm": lambda: crnn.CudnnLSTM(2, 3),
    "gru": lambda: crnn.CudnnGRU(1, 3, time_major=True),
    "bidirectional": lambda: drop_ins.Bidirectional(drop_ins.GRU(3, return_sequences=True)),
}


def hessian(call, inputs, **options):
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            loss = tf.reduce_sum(call(inputs) ** 2)
        gradient = inner.gradient(loss, inputs)
    return outer.jacobian(gradient, inputs, **options)


@pytest.mark.parametrize("name", LAYERS)
def test_vectorized_jacobian_of_a_gradient(name):
    """It is symmetric, and its rows are gradients that are computed one after the other."""
    tf.keras.utils.set_random_seed(0)  # Of some weights, the Hessian is nearly zero.
    inputs = tf.random.normal((2, 4, 3))
    layer = LAYERS[name]()
    found = tf.reshape(hessian(layer, inputs), (24, 24)).numpy()
    expected = hessian(layer, inputs, experimental_use_pfor=False)
    np.testing.assert_allclose(found, tf.reshape(expected, (24, 24)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, found.T, rtol=1e-4, atol=1e-5)
    assert np.abs(found).max() > 1e-2


@pytest.mark.slow
def test_loaded_function(tmp_path):
    """The gradient of a gradient of a SavedModel's function, and of one that holds a gradient."""
    layer = crnn.CudnnLSTM(1, 3)
    inputs = tf.constant(np.random.default_rng(0).standard_normal((2, 4, 3)), tf.float32)
    layer(inputs)

    def gradient_of(function):
        def gradient(inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = tf.reduce_sum(function(inputs) ** 2)
            return tape.gradient(loss, inputs)

        return gradient

    signature = [tf.TensorSpec((None, None, 3), name="inputs")]
    module = tf.Module()
    module.layer, module.variables_of_layer = layer, [layer.kernel.value]
    module.run = tf.function(lambda inputs: layer(inputs), input_signature=signature)
    module.slope = tf.function(gradient_of(layer), input_signature=signature)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    expected = gradient_of(gradient_of(layer))(inputs)
    for found in (
        gradient_of(gradient_of(loaded.run))(inputs),
        gradient_of(loaded.slope)(inputs),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradient_penalty_of_a_layer(dtype):
    """GANs train with such a penalty. Smaller types are compared with float64."""

    def penalty_gradient(dtype):
        layer = crnn.CudnnGRU(2, 4, direction="bidirectional", dtype=dtype)
        layer.build((None, None, 3))
        rng = np.random.default_rng(0)
        layer.kernel.assign(0.5 * rng.standard_normal(layer.params_size()))
        inputs = tf.cast(rng.standard_normal((2, 4, 3)), dtype)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                outputs = layer(inputs)
            slopes = inner.gradient(outputs, inputs)
            penalty = tf.reduce_sum(tf.cast(slopes, tf.float64) ** 2)
        return np.asarray(outer.gradient(penalty, layer.trainable_variables[0].value), np.float64)

    expected = penalty_gradient("float64")
    error = np.linalg.norm(penalty_gradient(dtype) - expected) / np.linalg.norm(expected)
    # The tolerance allows for a few roundings of numbers and of the gradients that they are made
    # of.
    assert error < {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]


def test_unknown_input_size_is_an_error():
    """The op is made by hand, without the static size that `ops.forward` gives it."""
    config = RnnConfig("gru", 1, 3, 2)
    with tf.Graph().as_default():
        inputs = v1.placeholder(tf.float32)
        results = raw_ops.cudnn_rnn_tf_forward(
            inputs,
            tf.zeros([1, 4, 3]),
            tf.zeros([0]),
            tf.zeros([config.layout.size]),
            tf.zeros([0], tf.int32),
            [],
            [],
            rnn_mode="gru",
            num_units=3,
        )
        (first,) = v1.gradients(results[0], inputs)
        with pytest.raises(ValueError, match="expected inputs with a static last dimension"):
            v1.gradients(first, inputs)
