"""The op-level models and functions, in the ways that TensorFlow 1 and 2 programs call them."""

import inspect
from typing import Any

import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_reference import FUNCTIONS, MODELS

from cudnn_rnn_tf import cudnn_rnn_ops, ops
from cudnn_rnn_tf.config import RnnConfig

v1 = tf.compat.v1

BATCH_SIZE, MAX_TIME = 3, 5
LENGTHS = np.array([4, 0, 5])
SEED = (1234567890123, -5)

CONFIGS = [
    RnnConfig("lstm", 1, 4, 3),
    RnnConfig("lstm", 2, 4, 3, direction="bidirectional", dropout=0.4),
    RnnConfig("lstm", 2, 5, 3, num_proj=2, dropout=0.3),
    RnnConfig("lstm", 1, 4, 4, input_mode="skip_input", direction="bidirectional"),
    RnnConfig("gru", 2, 4, 3, direction="bidirectional", dropout=0.4),
    RnnConfig("gru", 1, 3, 3, input_mode="skip_input"),
    RnnConfig("rnn_tanh", 3, 4, 2, dropout=0.5),
    RnnConfig("rnn_tanh", 1, 4, 2, direction="bidirectional"),
    RnnConfig("rnn_relu", 2, 4, 2, direction="bidirectional"),
    RnnConfig("rnn_relu", 1, 4, 4, input_mode="skip_input"),
]


def config_id(config: RnnConfig) -> str:
    return f"{config.rnn_mode}-L{config.num_layers}-{config.direction}-{config.input_mode}"


with_configs = pytest.mark.parametrize("config", CONFIGS, ids=config_id)
with_modes = pytest.mark.parametrize("mode", MODELS)


def make_model(config: RnnConfig, dtype: Any = tf.float64, seed: Any = 0) -> Any:
    options = {"num_proj": config.num_proj or None} if config.rnn_mode == "lstm" else {}
    return MODELS[config.rnn_mode](
        num_layers=config.num_layers,
        num_units=config.num_units,
        input_size=config.input_size,
        input_mode=config.input_mode,
        direction=config.direction,
        dtype=dtype,
        dropout=config.dropout,
        seed=seed,
        **options,
    )


def draw(config: RnnConfig, dtype: str = "float64") -> tuple[np.ndarray, list, np.ndarray]:
    """Draws time-major inputs and states, and a buffer."""
    rng = np.random.default_rng(0)
    weight_shapes, bias_shapes = reference.canonical_shapes(config)
    size = sum(int(np.prod(shape)) for shape in weight_shapes + bias_shapes)
    return (
        rng.standard_normal((MAX_TIME, BATCH_SIZE, config.input_size)).astype(dtype),
        [
            rng.standard_normal(shape).astype(dtype)
            for shape in config.state_shapes(BATCH_SIZE, time_major=True)
        ],
        (0.5 * rng.standard_normal(size)).astype(dtype),
    )


def assert_same_bits(values: Any, expected: Any) -> None:
    for value, other in zip(values, expected, strict=True):
        assert np.asarray(value).tobytes() == np.asarray(other).tobytes()


# The interface.


def test_signatures_are_those_of_contrib():
    def names(function: Any) -> list[str]:
        return [name for name in inspect.signature(function).parameters if name != "self"]

    sizes = ["num_layers", "num_units", "input_size"]
    modes = ["input_mode", "direction"]
    run = ["sequence_lengths", "time_major"]
    for mode, model in MODELS.items():
        is_lstm = mode == "lstm"
        states = ["input_h", "input_c"] if is_lstm else ["input_h"]
        assert names(model) == [*sizes, *modes, "dtype", "dropout", "seed"] + (
            ["num_proj"] * is_lstm
        )
        assert names(model.__call__) == ["input_data", *states, "params", *run, "is_training"]
        function = FUNCTIONS[mode]
        assert function.__name__ == f"cudnn_{mode}"
        options = [*run, *modes, "dropout", "seed"]
        if mode == "rnn_relu":
            options = [*modes, "dropout", "seed", *run]
        assert names(function) == [
            *("inputs", *states, "params", "is_training", *options, *["num_proj"] * is_lstm, "name")
        ]
        assert inspect.signature(model.__call__).parameters["is_training"].default is True
        assert inspect.signature(function).parameters["time_major"].default is True
    rest = [*modes, "dropout", "seed", "num_proj", "name"]
    network = ["rnn_mode", *sizes]
    assert names(cudnn_rnn_ops.cudnn_rnn_canonical_to_opaque_params) == [
        *(*network, "weights", "biases", *rest)
    ]
    assert names(cudnn_rnn_ops.cudnn_rnn_opaque_params_to_canonical) == [*network, "params", *rest]
    rest.insert(2, "dtype")
    assert names(cudnn_rnn_ops.cudnn_rnn_opaque_params_size) == [*network, *rest]


@with_configs
def test_properties(config):
    model = make_model(config)
    for name in ("rnn_mode", "num_layers", "num_units", "input_size", "input_mode", "direction"):
        assert getattr(model, name) == getattr(config, name)
    assert model.num_dirs == reference.num_dirs(config)
    assert len(reference.canonical_shapes(config)[1]) == (
        model._NUM_PARAMS_PER_LAYER * config.num_layers * model.num_dirs
    )
    assert getattr(model, "num_proj", None) == (config.num_proj or None)


def test_auto_select_is_resolved():
    for input_size, expected in ((4, "skip_input"), (3, "linear_input")):
        model = cudnn_rnn_ops.CudnnGRU(1, 4, input_size, cudnn_rnn_ops.CUDNN_INPUT_AUTO_MODE)
        assert model.input_mode == expected


# Parameters.


def parameter_arguments(config: RnnConfig) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of the functions that convert parameters."""
    network = [config.rnn_mode, config.num_layers, config.num_units, config.input_size]
    return network, {
        "input_mode": config.input_mode,
        "direction": config.direction,
        "num_proj": config.num_proj or None,
    }


@with_configs
def test_params_size(config):
    expected = draw(config)[2].size
    size = make_model(config).params_size()
    assert size.shape == () and size.dtype == tf.int32
    assert int(size) == expected
    network, options = parameter_arguments(config)
    size = cudnn_rnn_ops.cudnn_rnn_opaque_params_size(
        *network, **options, dtype=tf.float16, dropout=0.5, seed=3
    )
    assert int(size) == expected


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@with_configs
def test_canonical_round_trip(config, dtype):
    params = tf.cast(draw(config)[2], dtype)
    expected_weights, expected_biases = reference.split_params(config, params.numpy())
    model = make_model(config, dtype)
    network, options = parameter_arguments(config)
    for weights, biases in (
        model.params_to_canonical(params),
        cudnn_rnn_ops.cudnn_rnn_opaque_params_to_canonical(*network, params, **options),
    ):
        assert isinstance(weights, list) and isinstance(biases, list)
        assert all(tensor.dtype == dtype for tensor in weights + biases)
        assert_same_bits(weights, expected_weights)
        assert_same_bits(biases, expected_biases)
    for joined in (
        model.canonical_to_params(expected_weights, expected_biases),
        cudnn_rnn_ops.cudnn_rnn_canonical_to_opaque_params(
            *network, expected_weights, expected_biases, **options
        ),
    ):
        assert_same_bits([joined], [params])


# Running.


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("time_major", [True, False], ids=["time_major", "batch_major"])
@with_configs
def test_run_the_network(config, time_major, is_training, lengths):
    """Model and function return what the op does, which test_ops_reference.py is about."""
    inputs, states, params = draw(config)
    if not time_major:
        inputs, *states = (array.swapaxes(0, 1) for array in (inputs, *states))
    outputs, finals = ops.forward(
        config,
        tf.constant(inputs),
        [tf.constant(state) for state in states],
        tf.constant(params),
        sequence_lengths=None if lengths is None else tf.constant(lengths),
        seed=tf.constant(SEED),
        time_major=time_major,
        is_training=is_training,
    )
    options = {"sequence_lengths": lengths, "time_major": time_major}
    model = make_model(config, seed=tf.constant(SEED))
    results = model(inputs, *states, params, is_training=is_training, **options)
    assert isinstance(results, tuple)
    assert_same_bits(results, (outputs, *finals))
    by_function = FUNCTIONS[config.rnn_mode](
        *(inputs, *states, params, is_training),
        **options,
        input_mode=config.input_mode,
        direction=config.direction,
        dropout=config.dropout,
        seed=np.array(SEED),
        **({"num_proj": config.num_proj} if config.num_proj else {}),
    )
    assert isinstance(by_function, tuple)
    assert_same_bits(by_function, results)


def test_defaults():
    """Defaults are time-major data, training, linear input, one direction and no dropout."""
    for mode, model_class in MODELS.items():
        config = RnnConfig(mode, 2, 4, 3)
        inputs, states, params = draw(config, "float32")
        model = model_class(2, 4, 3)
        results = model(inputs, *states, params)
        assert all(result.dtype == tf.float32 for result in results)
        explicit = make_model(config, "float32")(
            inputs, *states, params, is_training=True, sequence_lengths=None, time_major=True
        )
        assert_same_bits(results, explicit)
        assert_same_bits(results, FUNCTIONS[mode](inputs, *states, params, True))


@with_modes
def test_functions_resolve_auto_select(mode):
    config = RnnConfig(mode, 1, 4, 4, input_mode="skip_input")
    inputs, states, params = draw(config)
    results = [
        FUNCTIONS[mode](inputs, *states, params, True, input_mode=input_mode)
        for input_mode in ("auto_select", "skip_input")
    ]
    assert_same_bits(*results)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8])
def test_lengths_of_any_integer_type(dtype):
    config = CONFIGS[0]
    inputs, states, params = draw(config)
    model = make_model(config)
    expected = model(inputs, *states, params, sequence_lengths=LENGTHS.tolist())
    lengths = tf.constant(LENGTHS, dtype)
    assert_same_bits(model(inputs, *states, params, sequence_lengths=lengths), expected)


# Seeds.

DROPOUT_CONFIG = RnnConfig("gru", 2, 8, 3, dropout=0.5)


def outputs_of_runs(seed: Any, count: int = 2) -> list[bytes]:
    inputs, states, params = draw(DROPOUT_CONFIG)
    model = make_model(DROPOUT_CONFIG, seed=seed)
    return [model(inputs, *states, params)[0].numpy().tobytes() for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 7, np.int64(7), None])
def test_integer_seed_gives_new_masks_that_set_seed_repeats(seed):
    tf.random.set_seed(3)
    runs = outputs_of_runs(seed, count=3)
    assert len(set(runs)) == 3
    tf.random.set_seed(3)
    assert outputs_of_runs(seed, count=3) == runs
    for global_seed, other in ((4, seed), (3, 1)):
        tf.random.set_seed(global_seed)
        assert not set(outputs_of_runs(other, count=3)) & set(runs)


def test_tensor_seed_says_the_masks():
    runs = outputs_of_runs(tf.constant(SEED))
    assert runs[0] == runs[1]
    assert runs[0] not in outputs_of_runs(tf.constant([SEED[0] + 1, SEED[1]]))
    assert runs[0] not in outputs_of_runs(tf.constant([SEED[0], SEED[1] + 1]))


def test_no_dropout_outside_training():
    inputs, states, params = draw(DROPOUT_CONFIG)
    without = make_model(RnnConfig("gru", 2, 8, 3))(inputs, *states, params)
    model = make_model(DROPOUT_CONFIG)
    assert_same_bits(model(inputs, *states, params, is_training=False), without)
    # An inference pass takes no seed from the sequence of the training runs.
    with tf.Graph().as_default() as graph:
        model(inputs, *states, params, is_training=False)
    assert not any("Random" in op.type for op in graph.get_operations())


def test_dropout_in_functions_and_graphs():
    """Each run has new masks; a new session or function with the same graph seed repeats them."""
    inputs, states, params = draw(DROPOUT_CONFIG)

    def session_runs() -> list[bytes]:
        with tf.Graph().as_default():
            v1.set_random_seed(5)
            outputs, _ = FUNCTIONS["gru"](inputs, *states, params, True, dropout=0.5, seed=1)
            with v1.Session() as session:
                return [session.run(outputs).tobytes() for _ in range(3)]

    def function_runs() -> list[bytes]:
        tf.random.set_seed(5)
        model = make_model(DROPOUT_CONFIG, seed=1)
        function = tf.function(lambda: model(inputs, *states, params)[0])
        return [function().numpy().tobytes() for _ in range(3)]

    for runs in (session_runs, function_runs):
        first = runs()
        assert len(set(first)) == 3
        assert runs() == first


# Functions and graphs.


@with_modes
def test_names_of_ops(mode):
    config = RnnConfig(mode, 1, 4, 3)
    network, _ = parameter_arguments(config)
    inputs, states, params = draw(config)
    with tf.Graph().as_default() as graph:
        FUNCTIONS[mode](inputs, *states, params, True, name="run")
        cudnn_rnn_ops.cudnn_rnn_opaque_params_size(*network, name="size")
        weights, biases = cudnn_rnn_ops.cudnn_rnn_opaque_params_to_canonical(
            *network, params, name="split"
        )
        cudnn_rnn_ops.cudnn_rnn_canonical_to_opaque_params(*network, weights, biases, name="join")
        types = {name: graph.get_operation_by_name(name).type for name in ("run", "size", "split")}
        assert graph.get_operation_by_name("join").type == "CudnnRnnTf>CanonicalToParams"
    assert types == {
        "run": "CudnnRnnTf>Forward",
        "size": "Cast",  # This makes the size an int32.
        "split": "CudnnRnnTf>ParamsToCanonical",
    }
