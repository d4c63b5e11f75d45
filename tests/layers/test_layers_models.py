"""The layers inside models of all kinds."""

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


def test_time_distributed():
    inputs = normal(2, 3, 5, 4)
    layer = randomize(make("lstm", return_sequences=False), (None, None, 4))
    model = keras.Sequential([keras.Input((3, 5, 4)), keras.layers.TimeDistributed(layer)])
    expected = np.stack([layer(inputs[:, index]) for index in range(3)], axis=1)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, **TOLERANCE)
    model.compile("sgd", "mse")
    before = layer.kernel.numpy()
    model.train_on_batch(inputs, normal(2, 3, 3))
    assert np.any(layer.kernel.numpy() != before)


@all_modes
def test_lengths_as_an_input(rnn_mode):
    """A functional model can have the sequences' lengths as an input."""
    inputs, lengths = keras.Input((None, 4)), keras.Input((), dtype="int32")
    layer = make(rnn_mode, 2, 3, return_sequences=False)
    model = keras.Model(
        {"inputs": inputs, "lengths": lengths}, layer(inputs, sequence_lengths=lengths)
    )
    randomize(layer, (None, None, 4))
    data, sizes = normal(6, 5, 4), np.array([5, 1, 0, 3, 2, 5])
    expected = layer_reference.forward(layer, data, None, sizes).states[0][:, -1]
    np.testing.assert_allclose(
        model.predict({"inputs": data, "lengths": sizes}, batch_size=4, verbose=0),
        expected,
        **TOLERANCE,
    )
    garbage = np.where((np.arange(5) < sizes[:, None])[..., None], data, np.nan)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    targets = normal(6, 3)
    losses = model.fit(
        {"inputs": garbage, "lengths": sizes}, targets, batch_size=4, epochs=4, verbose=0
    ).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_lengths_become_a_mask_downstream(time_major, go_backwards):
    """Layers and losses downstream get a mask for the lengths without asking for it."""
    inputs, lengths = normal(3, 5, 4), np.array([5, 0, 3])
    valid = np.arange(5) < lengths[:, np.newaxis]
    if time_major:
        inputs, valid = inputs.swapaxes(0, 1), valid.T
    options = {"time_major": time_major, "go_backwards": go_backwards}
    layer = make("lstm", **options, return_state=True)
    run = tf.function(lambda: layer(inputs, sequence_lengths=lengths)[0]._keras_mask)
    for mask in (layer(inputs, sequence_lengths=lengths)[0]._keras_mask, run()):
        np.testing.assert_array_equal(mask, valid)
    assert not hasattr(layer(inputs)[0], "_keras_mask")
    # A layer above may get the same lengths as well, but not others.
    outputs = make("gru", **options)(inputs, sequence_lengths=lengths)
    above = make("gru", time_major=time_major)
    np.testing.assert_array_equal(above(outputs), above(outputs, sequence_lengths=lengths))
    with pytest.raises(ValueError, match="both sequence_lengths and a mask"):
        above(outputs, sequence_lengths=lengths, mask=valid)


def test_losses_ignore_padding_of_lengths():
    inputs, targets = normal(3, 5, 4), normal(3, 5, 2)
    lengths = np.array([5, 1, 3])
    valid = np.arange(5) < lengths[:, np.newaxis]
    targets[~valid] += 10.0  # Padding would dominate a loss that counted it.
    sequences, sizes = keras.Input((5, 4)), keras.Input((), dtype="int32")
    x = make("gru")(sequences, sequence_lengths=sizes)
    model = keras.Model([sequences, sizes], keras.layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    loss = model.evaluate([inputs, lengths], targets, verbose=0)
    errors = np.square(model.predict([inputs, lengths], verbose=0) - targets).mean(-1)
    np.testing.assert_allclose(loss, errors[valid].mean(), rtol=1e-5)


@all_modes
def test_symbolic_states(rnn_mode):
    """The states of an encoder can be the initial states of a decoder."""
    source, target = keras.Input((None, 4)), keras.Input((None, 2))
    options = {"num_layers": 2, "num_units": 3, "return_state": True}
    encoder, decoder = LAYERS[rnn_mode](**options), LAYERS[rnn_mode](**options)
    outputs, *_ = decoder(target, initial_state=encoder(source)[1:])
    model = keras.Model([source, target], outputs)
    randomize(encoder, (None, None, 4), seed=1)
    randomize(decoder, (None, None, 2), seed=2)
    sources, targets = normal(3, 4, 4), normal(3, 6, 2)
    states = layer_reference.forward(encoder, sources).states
    expected = layer_reference.forward(decoder, targets, states).outputs
    for copy in (model, keras.Model.from_config(model.get_config())):
        copy.set_weights(model.get_weights())
        np.testing.assert_allclose(copy([sources, targets]), expected, **TOLERANCE)


def test_clone_model():
    model = keras.Sequential(
        [keras.Input((5, 4)), make("lstm", 2, 3, num_proj=2, dropout=0.5), make("gru")]
    )
    clone = keras.models.clone_model(model)
    inputs = normal(2, 5, 4)
    assert np.any(clone(inputs) != model(inputs))
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(inputs), model(inputs))
    assert [layer.get_config() for layer in clone.layers] == [
        layer.get_config() for layer in model.layers
    ]


def test_model_inside_a_model():
    keras.utils.set_random_seed(0)
    inner = keras.Sequential([make("gru", 1, 4), make("rnn_tanh", 1, 4)], name="inner")
    symbolic = keras.Input((None, 4))
    model = keras.Model(symbolic, make("lstm")(inner(inner(symbolic))))
    assert len(model.trainable_weights) == 3
    inputs = normal(2, 5, 4)
    expected = model.layers[-1](inner(inner(inputs)))
    np.testing.assert_allclose(model(inputs), expected, **TOLERANCE)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    targets = 0.3 * normal(2, 5, 3)
    losses = model.fit(inputs, targets, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_subclassed_model():
    class Tagger(keras.Model):
        def __init__(self):
            super().__init__()
            self.rnn = make("gru", 2, 3, direction="bidirectional", dropout=0.3)
            self.head = keras.layers.Dense(1)

        def call(self, inputs, training=None):
            return self.head(self.rnn(inputs, training=training))

    model = Tagger()
    model.compile(keras.optimizers.Adam(0.05), "mse")
    inputs = normal(8, 5, 4)
    losses = model.fit(inputs, inputs[..., :1], epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    # `fit` draws a seed in each step, and `predict` draws none.
    assert model.rnn.seed_generator.state.numpy()[1] == 10
    model.predict(inputs, verbose=0)
    assert model.rnn.seed_generator.state.numpy()[1] == 10


def test_summary():
    layer = make("lstm", 2, 3, direction="bidirectional", num_proj=2, name="net")
    model = keras.Sequential([keras.Input((None, 4)), layer])
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    summary = "\n".join(lines)
    assert "net (CudnnLSTM)" in summary
    assert "(None, None, 4)" in summary
    assert f"Trainable params: {layer.params_size()} " in summary


def test_stateful_model():
    layer = make("gru", stateful=True, return_sequences=False)
    model = keras.Sequential([keras.Input(batch_shape=(2, None, 4)), layer])
    inputs = normal(2, 6, 4)
    model.predict(inputs[:, :4], verbose=0)
    continued = model.predict(inputs[:, 4:], verbose=0)
    layer.reset_state()
    np.testing.assert_allclose(continued, model.predict(inputs, verbose=0), **TOLERANCE)


# TensorFlow 1's graphs.


@all_modes
def test_layer_in_a_graph_with_a_session(rnn_mode):
    inputs, d_outputs = normal(2, 5, 4), normal(2, 5, 3, seed=2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholder = tf.compat.v1.placeholder(tf.float32, (None, None, 4))
        # With zero biases, units of a layer without input would be on the ReLU's kink.
        bias_initializer = keras.initializers.RandomNormal(seed=1)
        layer = make(rnn_mode, 2, 3, bias_initializer=bias_initializer)
        outputs = layer(placeholder)
        variable = layer.kernel.value
        gradient = tf.gradients(outputs, variable, tf.constant(d_outputs))[0]
        step = tf.compat.v1.assign_sub(variable, gradient)
        session.run(tf.compat.v1.global_variables_initializer())
        params, values, gradients = session.run(
            [variable, outputs, gradient], {placeholder: inputs}
        )
        session.run(step, {placeholder: inputs})
        np.testing.assert_allclose(session.run(variable), params - gradients, **TOLERANCE)
    eager = make(rnn_mode, 2, 3)
    eager.build((None, None, 4))
    eager.kernel.assign(params)
    run = layer_reference.forward(eager, inputs)
    np.testing.assert_allclose(values, run.outputs, **TOLERANCE)
    expected = reference.backward(run, d_outputs, [np.zeros_like(state) for state in run.states])
    np.testing.assert_allclose(gradients, expected.params, **TOLERANCE)
