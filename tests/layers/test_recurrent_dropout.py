"""Tests the masks of recurrent dropout, and how the ops use them."""

import dataclasses

import numpy as np
import pytest
import random_configs
import reference
import tensorflow as tf
import test_second_order
from test_dropout import assert_independent

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import second_order
from cudnn_rnn_tf.ops.op_library import raw_ops

pytestmark = pytest.mark.usefixtures("on_cpu")

SEED = (0x0123456789ABCDEF, -0x7EDCBA9876543210)
CONFIGS = {
    "lstm": RnnConfig("lstm", 2, 5, 3, direction="bidirectional", num_proj=3),
    "gru": RnnConfig("gru", 2, 7, 3),
    "rnn_tanh": RnnConfig("rnn_tanh", 1, 40, 3, direction="bidirectional"),
}
CONFIGS = {
    name: dataclasses.replace(config, recurrent_dropout=0.3) for name, config in CONFIGS.items()
}


def masks_of(config: RnnConfig, batch_size: int, seed: tuple[int, int] = SEED) -> np.ndarray:
    """Returns the masks, [L * D, G, B, P], as a network that passes on ones shows them."""
    seed = tf.constant(seed, tf.int64)
    return second_order.recurrent_dropout_masks(config, batch_size, seed, tf.float64).numpy()


@pytest.mark.parametrize("batch_size", [1, 3, 40])
@pytest.mark.parametrize("name", CONFIGS)
def test_masks_are_the_documented_function(name, batch_size):
    config = CONFIGS[name]
    expected = reference.recurrent_dropout_masks(config, SEED, batch_size)
    np.testing.assert_allclose(masks_of(config, batch_size), expected, rtol=1e-15)


def test_masks_are_independent():
    """Gates, sequences, units, layers and dropout between layers have independent masks."""
    config = RnnConfig("lstm", 2, 64, 1, recurrent_dropout=0.5)
    dropped = masks_of(config, 64) == 0
    pairs = [
        (dropped[0], reference.dropout_mask(SEED, layer, 0.5, dropped[0].shape) == 0)
        for layer in range(2)
    ]
    assert_independent(dropped, pairs)


def test_masks_stay_the_same_in_all_steps():
    """A ReLU network that passes on ones multiplies them by the mask in each step."""
    config = RnnConfig("rnn_relu", 1, 6, 1, bias_mode="none", recurrent_dropout=0.3)
    params = tf.constant(np.concatenate([np.zeros(6), np.eye(6).ravel()]))
    states = [tf.ones((1, 4, 6), tf.float64)]
    inputs = tf.zeros((5, 4, 1), tf.float64)
    outputs, _ = ops.forward(config, inputs, states, params, seed=tf.constant(SEED, tf.int64))
    mask = masks_of(config, 4)[0, 0]
    np.testing.assert_allclose(outputs, [mask**step for step in range(1, 6)], rtol=1e-12)


def test_a_gru_hands_its_state_on_undropped():
    """With an open update gate, h' = h: masks only affect what the matrices read."""
    config = RnnConfig("gru", 1, 5, 1, bias_mode="single_input", recurrent_dropout=0.5)
    weights, biases = (
        [np.zeros(s) for s in shapes] for shapes in reference.canonical_shapes(config)
    )
    biases[1] += 1e3
    h = tf.random.normal((1, 3, 5), dtype=tf.float64, seed=1)
    outputs, _ = ops.forward(
        config,
        tf.zeros((4, 3, 1), tf.float64),
        [h],
        tf.constant(reference.join_params(weights, biases)),
        seed=tf.constant(SEED, tf.int64),
    )
    np.testing.assert_array_equal(outputs, np.repeat(h, 4, axis=0))


CASES = [
    random_configs.with_recurrent_dropout(case) for case in random_configs.random_cases(24, seed=7)
]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.config.num_units < 42][:8], ids=str
)
def test_gradient_of_the_gradient(case):
    test_second_order.check_second_gradients(case)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[:8], ids=str)
def test_out_of_training_it_does_nothing(case, dtype):
    """Results and gradients are the same to the bit as without recurrent dropout."""
    data = random_configs.draw_data(case, dtype)
    results = [
        random_configs.run_ops(
            dataclasses.replace(
                case,
                config=dataclasses.replace(case.config, recurrent_dropout=rate),
                is_training=False,
            ),
            data,
        )
        for rate in (0.0, 0.3)
    ]
    assert random_configs.bits(results[0]) == random_configs.bits(results[1])


def test_graphs_of_older_versions_lack_the_attribute():
    """An op without it has no recurrent dropout."""
    config = RnnConfig("gru", 1, 3, 2)
    with tf.Graph().as_default() as graph, tf.device("CPU:0"):
        inputs = tf.ones((4, 2, 2))
        params = tf.fill([config.layout.size], 0.1)
        outputs, _ = ops.forward(config, inputs, [tf.ones((1, 2, 3))], params)
        definition = graph.as_graph_def()
    for node in definition.node:
        node.attr.pop("recurrent_dropout", None)
    with tf.Graph().as_default():
        (again,) = tf.import_graph_def(definition, return_elements=[outputs.name])
        assert again.op.get_attr("recurrent_dropout") == 0.0
        with tf.compat.v1.Session() as session:
            value = session.run(again)
    expected, _ = ops.forward(
        config, tf.ones((4, 2, 2)), [tf.ones((1, 2, 3))], tf.fill([config.layout.size], 0.1)
    )
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("rate", [1.0, -0.25, float("nan")])
def test_bad_rate(rate):
    message = r"recurrent_dropout must lie in \[0, 1\), but received"
    with pytest.raises(ValueError, match=message):
        RnnConfig("gru", 1, 3, 2, recurrent_dropout=rate)
    config = RnnConfig("gru", 1, 3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        raw_ops.cudnn_rnn_tf_forward(
            input=tf.ones((4, 2, 2)),
            input_h=tf.ones((1, 2, 3)),
            input_c=[],
            params=tf.ones([config.layout.size]),
            sequence_lengths=tf.constant([], tf.int32),
            seed=[],
            resets=[],
            recurrent_dropout=rate,
            **config.spec_attrs(),
        )
