"""Saveables: `tf.contrib.cudnn_rnn`'s checkpoints, and object-based ones.

The expected tensors and the networks that run on them are written out in NumPy here.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_reference import MODELS

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cudnn_rnn_ops
from cudnn_rnn_tf.config import RnnConfig

v1 = tf.compat.v1

SAVEABLES = {
    "lstm": crnn.CudnnLSTMSaveable,
    "gru": crnn.CudnnGRUSaveable,
    "rnn_tanh": crnn.CudnnRNNTanhSaveable,
    "rnn_relu": crnn.CudnnRNNReluSaveable,
}
CONFIGS = [
    RnnConfig(mode, num_layers, 3, input_size, direction=direction, input_mode=input_mode)
    for mode in SAVEABLES
    for num_layers, input_size, direction, input_mode in (
        (1, 4, "unidirectional", "linear_input"),
        (2, 4, "bidirectional", "linear_input"),
        (2, 3, "unidirectional", "skip_input"),
    )
]
with_configs = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.rnn_mode}-L{c.num_layers}-{c.direction}-{c.input_mode}"
)
BI_LSTM = RnnConfig("lstm", 2, 3, 4, direction="bidirectional")

# Both sides compute sums of some ten products in float64.
TOLERANCE = {"rtol": 0, "atol": 1e-12}


def arguments(config: RnnConfig) -> tuple[Any, ...]:
    """Returns the arguments that models and saveables take for a network."""
    sizes = (config.num_layers, config.num_units, config.input_size)
    return *sizes, config.input_mode, config.direction


def draw_params(config: RnnConfig, seed: int = 0) -> np.ndarray:
    weight_shapes, bias_shapes = reference.canonical_shapes(config)
    size = sum(int(np.prod(shape)) for shape in weight_shapes + bias_shapes)
    return np.random.default_rng(seed).standard_normal(size)


# Contrib's format, and its cells.


def scopes(config: RnnConfig) -> list[list[str]]:
    """Returns the variable scopes of contrib's cells, by layer and direction."""
    cell = {"lstm": "cudnn_compatible_lstm_cell", "gru": "cudnn_compatible_gru_cell"}.get(
        config.rnn_mode, "basic_rnn_cell"
    )
    if config.direction == "unidirectional":
        return [[f"rnn/multi_rnn_cell/cell_{n}/{cell}"] for n in range(config.num_layers)]
    prefix = "stack_bidirectional_rnn/cell_{}/bidirectional_rnn/{}/{}"
    return [
        [prefix.format(n, side, cell) for side in ("fw", "bw")] for n in range(config.num_layers)
    ]


def contrib_tensors(config: RnnConfig, params: np.ndarray) -> dict[str, np.ndarray]:
    weights, biases = (iter(part) for part in reference.split_params(config, params))
    gates = reference.NUM_GATES[config.rnn_mode]
    tensors = {}
    for layer, cells in enumerate(scopes(config)):
        for cell in cells:
            skips = layer == 0 and config.input_mode == "skip_input"
            shape = (config.num_units, 0)
            w = [np.empty(shape) if skips else next(weights) for _ in range(gates)]
            r = [next(weights) for _ in range(gates)]
            bias_w, bias_r = ([next(biases) for _ in range(gates)] for _ in range(2))

            def joined(order: tuple[int, ...], w=w, r=r) -> np.ndarray:
                return np.hstack([np.vstack([w[gate].T, r[gate].T]) for gate in order])

            def summed(order: tuple[int, ...], bias_w=bias_w, bias_r=bias_r) -> np.ndarray:
                return np.hstack([bias_w[gate] + bias_r[gate] for gate in order])

            if config.rnn_mode == "gru":
                tensors[f"{cell}/gates/kernel"] = joined((0, 1))
                tensors[f"{cell}/gates/bias"] = summed((0, 1))
                if not skips:
                    tensors[f"{cell}/candidate/input_projection/kernel"] = w[2].T
                tensors[f"{cell}/candidate/input_projection/bias"] = bias_w[2]
                tensors[f"{cell}/candidate/hidden_projection/kernel"] = r[2].T
                tensors[f"{cell}/candidate/hidden_projection/bias"] = bias_r[2]
            else:
                order = (0, 2, 1, 3) if config.rnn_mode == "lstm" else (0,)
                tensors[f"{cell}/kernel"] = joined(order)
                tensors[f"{cell}/bias"] = summed(order)
    return tensors


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def step(config: RnnConfig, tensors: Mapping[str, np.ndarray], cell: str, x, h, c):
    """Runs a step of contrib's cell in scope `cell`; x is added if it has no rows in the kernel."""

    def apply(kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        if kernel.shape[0] == config.num_units:
            return np.tile(x, kernel.shape[1] // config.num_units) + h @ kernel + bias
        return np.hstack([x, h]) @ kernel + bias

    if config.rnn_mode == "gru":
        gates = apply(tensors[f"{cell}/gates/kernel"], tensors[f"{cell}/gates/bias"])
        r, u = np.split(sigmoid(gates), 2, axis=-1)
        projection = tensors.get(f"{cell}/candidate/input_projection/kernel")
        input_side = x if projection is None else x @ projection
        input_side = input_side + tensors[f"{cell}/candidate/input_projection/bias"]
        hidden_side = h @ tensors[f"{cell}/candidate/hidden_projection/kernel"]
        hidden_side = hidden_side + tensors[f"{cell}/candidate/hidden_projection/bias"]
        return (1 - u) * np.tanh(input_side + r * hidden_side) + u * h, c
    total = apply(tensors[f"{cell}/kernel"], tensors[f"{cell}/bias"])
    if config.rnn_mode == "lstm":
        i, new, f, o = np.split(total, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        return sigmoid(o) * np.tanh(c), c
    return np.tanh(total) if config.rnn_mode == "rnn_tanh" else np.maximum(total, 0), c


def run_cells(
    config: RnnConfig, tensors: Mapping[str, np.ndarray], inputs: np.ndarray
) -> np.ndarray:
    """Runs contrib's cells step by step over time-major inputs from zero states."""
    for cells in scopes(config):
        outputs = []
        for cell, order in zip(cells, (1, -1), strict=False):
            h = c = np.zeros((inputs.shape[1], config.num_units))
            steps = []
            for x in inputs[::order]:
                h, c = step(config, tensors, cell, x, h, c)
                steps.append(h)
            outputs.append(np.stack(steps[::order]))
        inputs = np.concatenate(outputs, axis=-1)
    return inputs


INPUTS = {size: np.random.default_rng(9).standard_normal((5, 2, size)) for size in (3, 4)}


def run_model(config: RnnConfig, params: Any) -> tf.Tensor:
    model = MODELS[config.rnn_mode](*arguments(config), dtype=tf.float64)
    inputs = INPUTS[config.input_size]
    states = [tf.zeros(shape, tf.float64) for shape in config.state_shapes(2, time_major=True)]
    return model(inputs, *states, params, is_training=False)[0]


# With `tf.compat.v1.train.Saver`.


def in_graph(
    config: RnnConfig,
    initial: np.ndarray,
    use: Callable[[v1.Session, tf.Variable, Any], Any],
    **options: Any,
) -> Any:
    """Returns what `use` returns in a graph with a buffer and its saveable.

    Programs for contrib make the variable from a size that is a tensor, or of TensorFlow 1's kind.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        params = v1.get_variable(
            "opaque_kernel",
            initializer=v1.placeholder_with_default(initial, None),
            validate_shape=False,
            use_resource=config.direction == "bidirectional",
        )
        saveable = SAVEABLES[config.rnn_mode](params, *arguments(config), **options)
        session.run(v1.global_variables_initializer())
        return use(session, params, saveable)


def save(config: RnnConfig, params: np.ndarray, path: pathlib.Path, **options: Any) -> str:
    def use(session, _, saveable):
        return v1.train.Saver([saveable]).save(session, str(path / "model"))

    return in_graph(config, params, use, **options)


def restore(config: RnnConfig, checkpoint: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the restored buffer and the network's outputs."""

    def use(session, params, saveable):
        v1.train.Saver([saveable]).restore(session, checkpoint)
        return session.run([params, run_model(config, params)])

    return in_graph(config, draw_params(config, seed=1), use, **options)


def write_by_hand(tensors: Mapping[str, np.ndarray], path: pathlib.Path) -> str:
    """Writes a checkpoint of plain variables."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name, tensor in tensors.items():
            v1.get_variable(name, initializer=tensor, use_resource=False)
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(path / "by_hand"))


def contents(checkpoint: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(checkpoint)
    return {name: reader.get_tensor(name) for name, _ in tf.train.list_variables(checkpoint)}


@with_configs
def test_saver_writes_the_tensors_of_contrib(config, tmp_path):
    """It also restores them in another graph."""
    params = draw_params(config)
    checkpoint = save(config, params, tmp_path)
    saved, expected = contents(checkpoint), contrib_tensors(config, params)
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(saved[name], tensor, err_msg=name)

    restored, outputs = restore(config, checkpoint)
    np.testing.assert_allclose(outputs, run_model(config, params), **TOLERANCE)
    expected_weights, expected_biases = reference.split_params(config, params)
    weights, biases = reference.split_params(config, restored)
    for weight, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    # Biases are summed when they are saved, and each side gets one half back. A GRU's candidate
    # keeps two biases.
    gates = reference.NUM_GATES[config.rnn_mode]
    for index, bias in enumerate(biases):
        gate, side = index % gates, index // gates % 2
        expected = expected_biases[index]
        if (config.rnn_mode, gate) != ("gru", 2):
            other = expected_biases[index + gates * (1 - 2 * side)]
            expected = (expected + other) / 2
        np.testing.assert_array_equal(bias, expected)


@with_configs
def test_restores_what_the_cells_wrote(config, tmp_path):
    """A checkpoint of cells, made without this package, gives the same outputs as the cells."""
    tensors = contrib_tensors(config, draw_params(config, seed=2))
    checkpoint = write_by_hand(
        {f"net/{name}": tensor for name, tensor in tensors.items()}, tmp_path
    )
    _, outputs = restore(config, checkpoint, scope="net")
    expected = run_cells(config, tensors, INPUTS[config.input_size])
    np.testing.assert_allclose(outputs, expected, **TOLERANCE)


def test_scope(tmp_path):
    params = draw_params(BI_LSTM)
    plain = contrib_tensors(BI_LSTM, params)

    def save_in_variable_scope(session, params, _):
        with v1.variable_scope("outer"), v1.variable_scope("inner") as scope:
            saveable = crnn.CudnnLSTMSaveable(params, *arguments(BI_LSTM), scope=scope)
        return v1.train.Saver([saveable]).save(session, str(tmp_path / "inner"))

    def assert_scope(prefix: str, checkpoint: str) -> None:
        assert contents(checkpoint).keys() == {prefix + name for name in plain}

    assert_scope("a/b/", save(BI_LSTM, params, tmp_path, scope="a/b"))
    assert_scope("", save(BI_LSTM, params, tmp_path, scope=v1.get_variable_scope()))
    assert_scope("outer/inner/", in_graph(BI_LSTM, params, save_in_variable_scope))


def test_saves_the_values_of_the_moment(tmp_path):
    """Values are those when it is saved, not when the saveable was made, eagerly and in graphs."""
    config = CONFIGS[0]
    expected = contrib_tensors(config, draw_params(config, seed=1))

    def use(session, params, saveable):
        saver = v1.train.Saver([saveable])
        session.run(params.assign(draw_params(config, seed=1)))
        return saver.save(session, str(tmp_path / "graph"))

    params = tf.Variable(draw_params(config))
    saver = v1.train.Saver([crnn.CudnnLSTMSaveable(params, *arguments(config))])
    params.assign(draw_params(config, seed=1))
    eager_checkpoint = saver.save(None, str(tmp_path / "eager"))
    for checkpoint in (in_graph(config, draw_params(config), use), eager_checkpoint):
        saved = contents(checkpoint)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(saved[name], tensor)
    params.assign(draw_params(config))
    saver.restore(None, eager_checkpoint)
    np.testing.assert_allclose(
        run_model(config, params), run_cells(config, expected, INPUTS[4]), **TOLERANCE
    )


def test_layers_kernel(tmp_path):
    """A Keras layer's buffer can be saved in contrib's format, too."""
    layer = crnn.CudnnGRU(2, 3, dtype="float64", bias_initializer="glorot_uniform")
    layer.build((None, None, 4))
    config = RnnConfig("gru", 2, 3, 4)
    saveable = crnn.CudnnGRUSaveable(layer.kernel, *arguments(config))
    saved = contents(v1.train.Saver([saveable]).save(None, str(tmp_path / "layer")))
    inputs = INPUTS[4]
    outputs = layer(np.swapaxes(inputs, 0, 1))
    np.testing.assert_allclose(
        np.swapaxes(outputs, 0, 1), run_cells(config, saved, inputs), **TOLERANCE
    )


@pytest.mark.parametrize("config", CONFIGS[1::3], ids=lambda config: config.rnn_mode)
def test_wrong_shape_names_the_tensor(config, tmp_path):
    tensors = contrib_tensors(config, draw_params(config))
    name = list(tensors)[-2]
    tensors[name] = np.concatenate([tensors[name], tensors[name][:1]])
    checkpoint = write_by_hand(tensors, tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"expected {name} of shape"):
        restore(config, checkpoint)


def test_missing_tensor_is_named(tmp_path):
    tensors = contrib_tensors(BI_LSTM, draw_params(BI_LSTM))
    name = next(iter(tensors))
    del tensors[name]
    with pytest.raises(tf.errors.NotFoundError, match=name):
        restore(BI_LSTM, write_by_hand(tensors, tmp_path))


# With `tf.train.Checkpoint`.


def canonical_tensors(config: RnnConfig, params: np.ndarray) -> list[np.ndarray]:
    weights, biases = reference.split_params(config, params)
    return weights + biases


def make_checkpoint(config: RnnConfig, params: np.ndarray) -> tuple[tf.Variable, Any]:
    variable = tf.Variable(params)
    saveable = SAVEABLES[config.rnn_mode](variable, *arguments(config))
    return variable, tf.train.Checkpoint(rnn=saveable)


@with_configs
def test_object_based_checkpoint(config, tmp_path):
    params = draw_params(config)
    _, source = make_checkpoint(config, params)
    path = source.write(str(tmp_path / "objects"))
    saved = contents(path)
    # There is one tensor per gate, layer, direction and side, and none is the buffer itself.
    assert len(saved) == len(config.canonical_names) + 1  # The other entry is the object graph.
    for name, tensor in zip(config.canonical_names, canonical_tensors(config, params), strict=True):
        np.testing.assert_array_equal(saved[f"rnn/.ATTRIBUTES/{name}"], tensor)

    variable, target = make_checkpoint(config, draw_params(config, seed=1))
    target.read(path).assert_consumed()
    np.testing.assert_array_equal(variable.numpy(), params)


def test_wrong_network_in_object_based_checkpoint(tmp_path):
    _, source = make_checkpoint(CONFIGS[0], draw_params(CONFIGS[0]))
    path = source.write(str(tmp_path / "objects"))
    other = RnnConfig("lstm", 1, 3, 5)
    _, target = make_checkpoint(other, draw_params(other))
    message = r"layer_0_forward_input_gate_kernel of cudnn_rnn_saveable of shape \(3, 5\)"
    with pytest.raises(ValueError, match=message):
        target.read(path)


# Construction.


def test_wrong_arguments():
    network, params = arguments(CONFIGS[0]), draw_params(CONFIGS[0])
    with pytest.raises(TypeError, match="use CudnnLSTMSaveable, CudnnGRUSaveable"):
        crnn.CudnnOpaqueParamsSaveable(tf.Variable(params), *network)
    for no_variable in (params, list(params)):
        with pytest.raises(TypeError, match="expected opaque_params to be a variable"):
            crnn.CudnnLSTMSaveable(no_variable, *network)
    with pytest.raises(ValueError, match="expected opaque_params of shape"):
        crnn.CudnnLSTMSaveable(tf.Variable(params[1:]), *network)
    with pytest.raises(ValueError, match="direction"):
        crnn.CudnnLSTMSaveable(tf.Variable([0.0]), 1, 3, 4, direction="both")


def test_a_tensor_can_be_saved(tmp_path):
    """A tensor cannot be restored, unless it is the value of a variable."""
    config = CONFIGS[0]
    params = draw_params(config)
    for use_resource in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("params", initializer=params, use_resource=use_resource)
            tensor = 2.0 * variable if use_resource else variable._ref()
            saver = v1.train.Saver([crnn.CudnnLSTMSaveable(tensor, *arguments(config))])
            session.run(variable.initializer)
            path = saver.save(session, str(tmp_path / "tensor"))
            factor = 2.0 if use_resource else 1.0
            expected = contrib_tensors(config, factor * params)
            for name, stored in contents(path).items():
                np.testing.assert_allclose(stored, expected[name], **TOLERANCE)
            session.run(variable.assign(tf.zeros_like(variable)))
            if use_resource:
                with pytest.raises(tf.errors.InvalidArgumentError, match="made of a tensor"):
                    saver.restore(session, path)
            else:
                saver.restore(session, path)
                again = contrib_tensors(config, session.run(variable))
                for name, stored in expected.items():
                    np.testing.assert_allclose(again[name], stored, **TOLERANCE)


def test_the_old_saveable_needs_one_variable():
    model = cudnn_rnn_ops.CudnnLSTM(1, 3, 4)
    functions = (model, model.params_to_canonical, model.canonical_to_params)
    with pytest.raises(ValueError, match="param_variables to be one variable"):
        crnn.RNNParamsSaveable(*functions, [])
    with pytest.raises(ValueError, match="expected opaque_params of shape"):
        crnn.RNNParamsSaveable(*functions, [tf.Variable([0.0])])
