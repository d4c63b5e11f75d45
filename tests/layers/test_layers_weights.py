"""Tests the layers' initial weights, and their regularizers and constraints."""

import keras
import layer_reference
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import LAYERS, make, normal, randomize

import cudnn_rnn_tf as crnn

MODES = tuple(LAYERS)
SHAPE = (2, 4, 3)
# Sums of some ten products have six correct digits in float32.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
STACK = {"num_layers": 2, "num_units": 3, "direction": "bidirectional"}


def canonical(layer) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Returns the canonical input-side matrices, the other matrices, and the biases."""
    names = layer_reference.config_of(layer).layout.weight_names
    weights, biases = layer.params_to_canonical()
    kernels, recurrent = [], []
    for name, weight in zip(names, weights, strict=True):
        is_input = "recurrent" not in name and "projection" not in name
        (kernels if is_input else recurrent).append(weight.numpy())
    return kernels, recurrent, [bias.numpy() for bias in biases]


def build(rnn_mode: str, **kwargs):
    layer = LAYERS[rnn_mode](**(STACK | kwargs))
    layer.build(SHAPE)
    return layer


# The following tests are about weights by name.


@pytest.mark.parametrize("rnn_mode", MODES)
def test_named_weights(rnn_mode):
    layer = randomize(LAYERS[rnn_mode](**STACK), SHAPE)
    named = layer.named_weights()
    weights, biases = layer.params_to_canonical()
    assert list(named) == layer_reference.config_of(layer).canonical_names
    for received, expected in zip(named.values(), weights + biases, strict=True):
        np.testing.assert_array_equal(received, expected)
    # First all weights are assigned, and then one.
    other = build(rnn_mode)
    other.assign_named_weights(named)
    np.testing.assert_array_equal(other.kernel, layer.kernel)
    name = next(each for each in named if each.startswith("layer_1_backward") and "bias" in each)
    other.assign_named_weights({name: [7.0, 8.0, 9.0]})
    for each, value in other.named_weights().items():
        np.testing.assert_array_equal(value, [7.0, 8.0, 9.0] if each == name else named[each])


def test_wrong_named_weights():
    layer = make("gru")
    with pytest.raises(ValueError, match="is not built yet"):
        layer.named_weights()
    layer.build((None, None, 4))
    before = layer.kernel.numpy()
    with pytest.raises(ValueError, match="among layer_0_forward_reset_gate_kernel, .* 'kernel'"):
        layer.assign_named_weights({"kernel": 0.0})
    with pytest.raises(ValueError, match=r"layer_0_forward_candidate_bias .*shape \(3,\)"):
        layer.assign_named_weights({"layer_0_forward_candidate_bias": np.zeros(2, "float32")})
    np.testing.assert_array_equal(layer.kernel, before)


# Initializers.


@pytest.mark.parametrize("rnn_mode", MODES)
def test_default_initializers(rnn_mode):
    kernels, recurrent, biases = canonical(build(rnn_mode, num_units=50))
    for weight in kernels + recurrent:
        limit = np.sqrt(6.0 / sum(weight.shape))  # This is Glorot's limit for one gate's matrix.
        assert 0.9 * limit < np.abs(weight).max() <= limit
    assert all(np.all(bias == 0.0) for bias in biases)


def test_peepholes():
    """They begin as the kernel does, or as said, and nothing else treats them."""
    strict = {"kernel_constraint": "non_neg", "recurrent_constraint": "non_neg"}
    strict |= {f"{part}_regularizer": "l2" for part in ("kernel", "recurrent", "bias")}
    for initializer in (None, "ones", "glorot_normal"):
        options = {"kernel_initializer": "ones", "recurrent_initializer": "orthogonal"}
        layer = make("lstm_peephole", 2, 30, peephole_initializer=initializer, **options, **strict)
        layer.build(SHAPE)
        again = type(layer).from_config(layer.get_config())
        again.build(SHAPE)
        for each in (layer, again):
            named = {k: v.numpy() for k, v in each.named_weights().items() if k.endswith("_diag")}
            assert list(named) == [f"layer_{i}_forward_w_{g}_diag" for i in (0, 1) for g in "ifo"]
            if initializer == "glorot_normal":
                assert all(0.02 < vector.std() < 0.4 for vector in named.values())
                assert len({vector.tobytes() for vector in named.values()}) == 6
            else:
                assert all(np.all(vector == 1.0) for vector in named.values())
    # As one row of an orthogonal matrix, a vector has length 1.
    for kernel in ("orthogonal", crnn.AllGates("orthogonal"), crnn.PerGate("orthogonal")):
        other = make("lstm_peephole", 1, 30, kernel_initializer=kernel)
        other.build(SHAPE)
        vectors = [v for k, v in other.named_weights().items() if k.endswith("_diag")]
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert "use_peepholes" not in make("lstm").get_config()
    before = layer.kernel.regularizer(layer.kernel.value)
    layer.assign_named_weights({name: -vector for name, vector in named.items()})
    assert before == layer.kernel.regularizer(layer.kernel.value)
    after = layer.kernel.constraint(layer.kernel.value)
    layer.kernel.assign(after)
    for name, vector in named.items():
        np.testing.assert_array_equal(layer.named_weights()[name], -vector)
    assert layer.named_weights()["layer_0_forward_input_gate_recurrent_kernel"].numpy().min() == 0


@pytest.mark.parametrize("rnn_mode", ["lstm_layer_norm", "gru_layer_norm"])
def test_layer_norm(rnn_mode):
    """What multiplies begins as ones, what is added as zeros; other forms have no equivalent."""
    layer = make(rnn_mode, 2, 8, direction="bidirectional", kernel_constraint="non_neg")
    layer.build(SHAPE)
    named = {k: v.numpy() for k, v in layer.named_weights().items() if k.endswith(("mma", "beta"))}
    gates = ["input_gate", "forget_gate", "cell_candidate", "output_gate", "cell_state"]
    gates = gates if rnn_mode.startswith("lstm") else ["reset_gate", "update_gate", "candidate"]
    assert list(named) == [
        f"layer_{i}_{direction}_{gate}_{part}"
        for i in (0, 1)
        for direction in ("forward", "backward")
        for gate in gates
        for part in ("gamma", "beta")
    ]
    assert all(np.all(value == name.endswith("gamma")) for name, value in named.items())
    # What a whole gate begins with is in its norm: biases that all units share have no effect.
    gate = gates[1]
    layer = make(rnn_mode, 1, 8, bias_initializer=crnn.PerGate(**{gate: "ones"}))
    layer.build(SHAPE)
    added = {k for k, v in layer.named_weights().items() if k.endswith(("beta", "bias")) and v[0]}
    assert added == {f"layer_0_forward_{gate}_beta"}
    again = type(layer).from_config(layer.get_config())
    assert again.use_layer_norm
    assert again.layer_norm_epsilon == 1e-12
    for dtype, given, expected in (
        *(("mixed_float16", None, 1e-3), ("float16", 1e-12, 1e-12), ("bfloat16", None, 1e-12)),
    ):
        half = type(layer)(1, 8, use_layer_norm=True, layer_norm_epsilon=given, dtype=dtype)
        again = type(layer).from_config(half.get_config())
        assert again.layer_norm_epsilon == half.layer_norm_epsilon == expected
    for write in (crnn.convert.to_torch, crnn.convert.to_keras, crnn.convert.to_onnx):
        with pytest.raises(ValueError, match="use_layer_norm=True"):
            write(layer)
    lstm = rnn_mode.startswith("lstm")
    for options in (
        *({"num_proj": 2}, {"cell_clip": 1.0}, {"use_peepholes": True})[: 3 if lstm else 0],
        *[{"reset_after": False}] * (not lstm),
        *({"layer_norm_epsilon": value} for value in (0.0, -1.0, np.nan, np.inf)),
        {"use_layer_norm": False, "layer_norm_epsilon": 0.1},
    ):
        name = next(iter(options.keys() - {"use_layer_norm"}))
        with pytest.raises(ValueError, match=name):
            type(layer)(1, 8, **{"use_layer_norm": True} | options)


@pytest.mark.parametrize("seed", [None, 11, "generator"])
@pytest.mark.parametrize("rnn_mode", MODES)
def test_every_gate_has_its_own_numbers(rnn_mode, seed):
    if seed == "generator":
        seed = keras.random.SeedGenerator(3)
    layer = build(
        rnn_mode,
        kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
        bias_initializer=keras.initializers.RandomNormal(seed=seed),
    )
    first = [part.flat[0] for parts in canonical(layer) for part in parts]
    assert len(set(first)) == len(first)


def test_global_seed_is_followed():
    values = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        layer = build("gru", dropout=0.5)
        values.append((layer.kernel.numpy(), layer.seed_generator.state.numpy()))
    np.testing.assert_array_equal(values[0][0], values[1][0])
    np.testing.assert_array_equal(values[0][1], values[1][1])


def test_recurrent_initializer():
    layer = build("lstm", recurrent_initializer="orthogonal", num_proj=2)
    kernels, recurrent, _ = canonical(layer)
    for weight in recurrent:
        gram = weight.T @ weight if weight.shape[0] > weight.shape[1] else weight @ weight.T
        np.testing.assert_allclose(gram, np.eye(len(gram)), **TOLERANCE)
    gram = kernels[0] @ kernels[0].T
    assert np.abs(gram - np.eye(3)).max() > 0.01


def test_custom_initializers():
    """A function, and a class that cannot be made again from its configuration."""
    shapes = []

    def in_order(shape, dtype=None):
        shapes.append(tuple(shape))
        assert dtype == "float64"
        return np.full(shape, len(shapes), dtype)

    class Constant(keras.initializers.Initializer):
        def __init__(self, value):
            self.value = value

        def __call__(self, shape, dtype=None):
            return tf.fill(shape, tf.cast(self.value, dtype))

    layer = make(
        "gru",
        kernel_initializer=in_order,
        recurrent_initializer=Constant(0.5),
        bias_initializer=Constant(0.25),
        dtype="float64",
    )
    layer.build((2, 4, 5))
    kernels, recurrent, biases = canonical(layer)
    assert shapes == [(5, 3)] * 3  # As in Keras, fan_in comes first.
    assert [weight[0, 0] for weight in kernels] == [1.0, 2.0, 3.0]
    assert all(np.all(weight == 0.5) for weight in recurrent)
    assert all(np.all(bias == 0.25) for bias in biases)


# Regularizers.


@pytest.mark.parametrize("rnn_mode", MODES)
def test_regularizers_of_a_stack(rnn_mode):
    layer = build(
        rnn_mode,
        kernel_regularizer=keras.regularizers.L1(0.1),
        recurrent_regularizer=keras.regularizers.L2(0.2),
        bias_regularizer=keras.regularizers.L1L2(0.3, 0.4),
        **({"num_proj": 2} if rnn_mode == "lstm" else {}),
    )
    randomize(layer, SHAPE)
    kernels, recurrent, biases = canonical(layer)
    expected = (
        0.1 * sum(np.abs(weight).sum() for weight in kernels)
        + 0.2 * sum((weight**2).sum() for weight in recurrent)
        + sum(0.3 * np.abs(bias).sum() + 0.4 * (bias**2).sum() for bias in biases)
    )
    assert len(layer.losses) == 1
    np.testing.assert_allclose(layer.losses[0], expected, rtol=1e-5)


@pytest.mark.parametrize("argument", ["kernel", "recurrent", "bias"])
def test_regularizers_act_alone(argument):
    layer = randomize(make("gru", **{f"{argument}_regularizer": "l1"}), SHAPE)
    parts = canonical(layer)[("kernel", "recurrent", "bias").index(argument)]
    expected = 0.01 * sum(np.abs(part).sum() for part in parts)
    np.testing.assert_allclose(layer.losses[0], expected, rtol=1e-5)
    assert make("gru").losses == []


@pytest.mark.parametrize("rnn_mode", MODES)
def test_regularizers_see_what_those_of_keras_see(rnn_mode):
    """A regularizer that is no sum over elements gets the gates side by side, [fan_in, G * H]."""
    arguments = {
        "kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.1, "columns"),
        "recurrent_regularizer": keras.regularizers.OrthogonalRegularizer(0.2, "rows"),
        "bias_regularizer": "l2",
    }
    bias_mode = "double" if rnn_mode == "gru" else "single_input"
    layer = randomize(make(rnn_mode, bias_mode=bias_mode, **arguments), SHAPE)
    stock = layer_reference.stock_layer(layer, **arguments)
    np.testing.assert_allclose(sum(layer.losses), sum(stock.losses), rtol=1e-5)


def test_regularizer_trains():
    """The loss of weights reaches the gradient: descent on it alone shrinks them."""
    layer = make("rnn_tanh", kernel_regularizer=keras.regularizers.L2(0.5))
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    model.compile(keras.optimizers.SGD(0.1), loss=lambda y, p: 0.0 * p)
    randomize(layer, SHAPE)
    (kernel,), (recurrent,), _ = canonical(layer)
    model.train_on_batch(normal(*SHAPE), np.zeros((2, 4, 3)))
    (new_kernel,), (new_recurrent,), _ = canonical(layer)
    np.testing.assert_allclose(new_kernel, 0.9 * kernel, **TOLERANCE)
    np.testing.assert_array_equal(new_recurrent, recurrent)


# Constraints.


@pytest.mark.parametrize("rnn_mode", MODES)
def test_constraints_act_as_those_of_keras(rnn_mode):
    """They act alike after a step of training; the recurrent kernel's one spans the gates."""
    arguments = {
        "kernel_constraint": keras.constraints.MaxNorm(0.4, axis=0),
        "recurrent_constraint": keras.constraints.UnitNorm(axis=1),
        "bias_constraint": keras.constraints.NonNeg(),
    }
    bias_mode = "double" if rnn_mode == "gru" else "single_input"
    inputs, targets = normal(*SHAPE), normal(2, 4, 3, seed=2)
    layer = make(rnn_mode, bias_mode=bias_mode, **arguments)
    randomize(layer, SHAPE)
    stock = layer_reference.stock_layer(layer, return_sequences=True, **arguments)
    for other in (layer, stock):
        model = keras.Sequential([keras.Input(SHAPE[1:]), other])
        model.compile(keras.optimizers.SGD(0.5), "mse")
        model.train_on_batch(inputs, targets)
    # This is the same Keras layer with the fused layer's new weights.
    expected = layer_reference.stock_layer(layer).get_weights()
    for value, expected_value in zip(stock.get_weights(), expected, strict=True):
        np.testing.assert_allclose(value, expected_value, **TOLERANCE)
    assert np.linalg.norm(expected[0], axis=0).max() == pytest.approx(0.4, rel=1e-5)
    assert expected[2].min() == 0.0


def test_constraint_of_a_stack():
    """The parts of every pseudo-layer return to their own places."""
    layer = randomize(build("lstm", num_proj=2, kernel_constraint="non_neg"), SHAPE)
    before = canonical(layer)
    constrained = layer.kernel.constraint(layer.kernel.value)
    layer.kernel.assign(constrained)
    kernels, *others = canonical(layer)
    for weight, old in zip(kernels, before[0], strict=True):
        np.testing.assert_array_equal(weight, np.maximum(old, 0.0))
    for parts, old_parts in zip(others, before[1:], strict=True):
        for part, old in zip(parts, old_parts, strict=True):
            np.testing.assert_array_equal(part, old)


def test_skip_input_has_no_input_kernel_to_treat():
    layer = make(
        "gru", input_mode="skip_input", kernel_regularizer="l2", kernel_constraint="non_neg"
    )
    randomize(layer, (2, 4, 3))
    np.testing.assert_array_equal(layer.losses[0], 0.0)
    np.testing.assert_array_equal(layer.kernel.constraint(layer.kernel.value), layer.kernel.numpy())
