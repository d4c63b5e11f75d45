"""Training the layers: gradients, precision, models of all kinds."""

import keras
import layer_reference
import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_reference import LAYERS, make, normal, randomize

MODES = tuple(LAYERS)
all_modes = pytest.mark.parametrize("rnn_mode", MODES)

# Sums of some ten products over a few steps have six correct digits in float32.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
RATE = 0.05


def expected_gradients(layer, inputs, d_outputs, sequence_lengths=None, seed=None):
    """Returns the reference's gradients of sum(outputs * d_outputs)."""
    run = layer_reference.forward(layer, inputs, None, sequence_lengths, seed)
    return reference.backward(run, d_outputs, [np.zeros_like(state) for state in run.states])


def gradient(layer, inputs, d_outputs, **kwargs):
    with tf.GradientTape() as tape:
        outputs = layer(inputs, **kwargs)
    return tape.gradient(outputs, layer.kernel.value, output_gradients=tf.constant(d_outputs))


def weighted_sum(targets, outputs):
    """A loss whose gradient with respect to the outputs is the targets."""
    return keras.ops.sum(targets * outputs)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 3, "direction": "bidirectional", "dropout": 0.4, "seed": 3}],
    ids=["plain", "deep"],
)
@all_modes
def test_step_of_descent(rnn_mode, options, run_eagerly):
    """train_on_batch subtracts the reference's gradient."""
    layer = LAYERS[rnn_mode](**({"num_layers": 1, "num_units": 3} | options))
    model = keras.Sequential([keras.Input((None, 4)), layer])
    model.compile(keras.optimizers.SGD(RATE), weighted_sum, run_eagerly=run_eagerly)
    inputs, targets = normal(2, 5, 4), normal(2, 5, 3 * layer.num_dirs, seed=2)
    randomize(layer, inputs.shape)
    for step in range(2):
        seed = (3, step) if layer.dropout else None
        expected = expected_gradients(layer, inputs, targets, seed=seed).params
        before = layer.kernel.numpy()
        model.train_on_batch(inputs, targets)
        np.testing.assert_allclose(before - layer.kernel.numpy(), RATE * expected, **TOLERANCE)
        assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize(
    "rnn_mode, dtype, run_eagerly",
    [
        ("lstm", "float32", False),
        ("gru", "mixed_float16", True),
        ("rnn_relu", "mixed_bfloat16", False),
    ],
)
def test_fit_learns(rnn_mode, dtype, run_eagerly):
    """A toy task: the mean of a linear map of the steps."""
    keras.utils.set_random_seed(0)
    layer = make(rnn_mode, 2, 8, dtype=dtype, return_sequences=False)
    model = keras.Sequential([keras.Input((6, 3)), layer, keras.layers.Dense(1, dtype=dtype)])
    model.compile(keras.optimizers.Adam(0.03), "mse", run_eagerly=run_eagerly)
    inputs = normal(64, 6, 3)
    targets = inputs.mean(1) @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    before = model.evaluate(inputs, targets, verbose=0)
    history = model.fit(inputs, targets, batch_size=16, epochs=5, verbose=0).history["loss"]
    after = model.evaluate(inputs, targets, verbose=0)
    assert after < 0.4 * before
    assert history[-1] < history[0]
    predictions = model.predict(inputs, verbose=0)
    # `evaluate` returns the error of what `predict` returns; a half type has two to three digits.
    error = np.mean((predictions.astype(np.float64) - targets) ** 2)
    np.testing.assert_allclose(after, error, rtol=0.02 if "mixed" in dtype else 1e-4)
    compute = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}.get(dtype, dtype)
    assert layer(inputs).dtype.name == compute
    assert layer.kernel.dtype == ("float64" if dtype == "float64" else "float32")


# Gradients.


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_one_layer_twice_in_a_model(graph):
    layer = make("lstm", 1, 4, return_state=True)
    left, right = keras.Input((None, 4)), keras.Input((None, 4))
    _, *states = layer(left)
    outputs, *_ = layer(right, initial_state=states)
    model = keras.Model([left, right], outputs)
    first, second, d_outputs = normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 4, seed=2)
    randomize(layer, first.shape)
    assert model.trainable_weights == [layer.kernel]

    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model([first, second]) * d_outputs)
        return tape.gradient(loss, layer.kernel.value)

    # Two calls that follow each other are one call on the concatenated sequence.
    whole = np.concatenate([first, second], axis=1)
    padded = np.concatenate([np.zeros((2, 3, 4)), d_outputs], axis=1)
    np.testing.assert_allclose(
        (tf.function(run) if graph else run)(),
        expected_gradients(layer, whole, padded).params,
        **TOLERANCE,
    )


def test_frozen_layer():
    dense, layer = keras.layers.Dense(4), make("gru", trainable=False)
    model = keras.Sequential([keras.Input((5, 3)), dense, layer])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    inputs, targets = normal(2, 5, 3), normal(2, 5, 3, seed=2)
    frozen, passed = layer.kernel.numpy(), dense.kernel.numpy()
    model.train_on_batch(inputs, targets)
    np.testing.assert_array_equal(layer.kernel.numpy(), frozen)
    assert np.any(dense.kernel.numpy() != passed)
    assert layer.trainable_weights == []
    assert layer.non_trainable_weights == [layer.kernel]
    # The layer is made trainable again.
    layer.trainable = True
    assert layer.trainable_weights == [layer.kernel]
    model.compile(keras.optimizers.SGD(RATE), "mse")
    model.train_on_batch(inputs, targets)
    assert np.any(layer.kernel.numpy() != frozen)


# Dropout's seeds.


def draws(layer, count=3):
    """Returns the outputs of several calls on the same inputs, with dropout."""
    return [layer(tf.ones([2, 8, 4]), training=True).numpy() for _ in range(count)]


def test_seeds_fix_the_masks():
    def layer(seed):
        return randomize(make("rnn_tanh", 2, 8, dropout=0.5, seed=seed), (None, None, 4))

    first = draws(layer(1))
    np.testing.assert_array_equal(first, draws(layer(1)))
    others = [*first, *draws(layer(2)), *draws(layer(None)), *draws(layer(None))]
    assert len({array.tobytes() for array in others}) == len(others)


@pytest.mark.parametrize("training", [False, True])
def test_what_draws_nothing_is_not_split_between_devices(training):
    """An op on the CPU would split a GPU's function in two, which takes longer to call."""
    layer = make("lstm", 2, 3)
    step = tf.function(lambda inputs, mask: layer(inputs, mask=mask, training=training))
    graph = step.get_concrete_function(tf.ones([4, 5, 3]), tf.ones([4, 5], tf.bool)).graph
    assert {op.device for op in graph.get_operations()} == {""}


def test_inference_draws_nothing():
    layer = randomize(make("gru", 2, 8, dropout=0.5, seed=1), (None, None, 4))
    expected = draws(layer)
    layer.seed_generator.state.assign([1, 0])
    layer(tf.ones([2, 8, 4]))
    np.testing.assert_array_equal(draws(layer), expected)
