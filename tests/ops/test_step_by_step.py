"""Tests the network in TensorFlow's own operations, with the reference and in its uses."""

import dataclasses

import pytest
import random_configs
import reference_masks
import tensorflow as tf

from cudnn_rnn_tf import pseudo_layers
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import step_by_step

CASES = random_configs.with_resets(random_configs.random_cases(36, seed=61))
CASES += map(random_configs.with_recurrent_dropout, random_configs.random_cases(12, seed=7))
CASES = random_configs.with_cell_sequences(CASES)
CASES += random_configs.with_zoneout(CASES[:16])


def run(case: random_configs.Case, data: random_configs.Data) -> random_configs.Results:
    options = {}
    if case.is_training:
        masks = reference_masks.dropout_masks(
            case.config, data.seed, case.max_time, case.batch_size
        )
        options["masks"] = masks and [[mask] * case.config.layout.num_dirs for mask in masks]
        masks = reference_masks.recurrent_dropout_masks(case.config, data.seed, case.batch_size)
        options["recurrent_masks"] = None if masks is None else tf.constant(masks)
        options["zones"] = reference_masks.zones(
            case.config, data.seed, case.max_time, case.batch_size
        )
    return random_configs.run_forward(
        step_by_step.forward, case, data, unconnected_gradients="zero", **options
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_the_reference(case):
    data, expected = random_configs.draw_smooth_data(case, "float64")
    for name, error in random_configs.errors(run(case, data), expected, "float64").items():
        assert error < random_configs.TOLERANCE["float64"], name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_other_types(dtype):
    """Half types are computed in float32 and rounded once."""
    case = dataclasses.replace(CASES[0], is_training=False)
    data, expected = random_configs.draw_smooth_data(case, dtype)
    results = run(case, data)
    assert results.outputs.dtype == random_configs.numpy_dtype(dtype)
    for name in ("outputs", "h"):
        errors = random_configs.errors(results, expected, dtype)
        assert errors[name] < random_configs.TOLERANCE[dtype]


def test_join_names_a_tensor_of_another_shape():
    config = RnnConfig("lstm", 2, 3, 4, direction="bidirectional")
    layers = pseudo_layers.cut(config, tf.zeros([config.layout.size]))
    layers[3] = layers[3]._replace(kernel=tf.transpose(layers[3].kernel))
    with pytest.raises(ValueError, match=r"layer_1_backward_kernel.*\(12, 6\).*\(6, 12\)"):
        pseudo_layers.join(config, layers)
