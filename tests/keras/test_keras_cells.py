"""`keras.layers.RNN` of Keras's own cells, which `cudnn_rnn_tf.keras.RNN` runs fused."""

from typing import Any

import keras
import numpy as np
import pytest
import random_configs
import tensorflow as tf
from random_layers import check_equal, draw_mask, run

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

layers = keras.layers


def draw_cell(random: np.random.Generator, dtype: str) -> keras.layers.Layer:
    name = str(random.choice(["LSTMCell", "GRUCell", "SimpleRNNCell"]))
    options: dict[str, Any] = {
        "use_bias": bool(random.integers(2)),
        "bias_initializer": keras.initializers.RandomNormal(seed=1),
        "kernel_regularizer": random.choice(["l2", None]),
        "dropout": float(random.choice([0.0, 0.0, 0.4])),
        "seed": int(random.integers(100)),
        "dtype": dtype,
    }
    if name == "GRUCell":
        options["reset_after"] = bool(random.integers(2))
    if name == "SimpleRNNCell":
        options["activation"] = str(random.choice(["tanh", "relu"]))
    return getattr(drop_ins, name)(int(random.integers(3, 5)), **options)


def draw_layer(random: np.random.Generator, dtype: str) -> keras.layers.Layer:
    """Draws a layer of one cell, or of several, of which some may be alike."""
    cells: Any = draw_cell(random, dtype)
    if random.random() < 0.7:
        # Keras fails at some masks if there is only one in the list.
        cells = [cells] + [draw_cell(random, dtype) for _ in range(random.integers(1, 4))]
        if random.random() < 0.5:
            cells += [type(cells[0])(3, dtype=dtype) for _ in range(3)]
        cells = layers.StackedRNNCells(cells, dtype=dtype)
    options = {
        "return_sequences": bool(random.integers(2)),
        "return_state": bool(random.integers(2)),
        "unroll": bool(random.random() < 0.3),
        "stateful": bool(random.random() < 0.2),
        "zero_output_for_mask": bool(random.integers(2)),
    }
    if random.random() < 0.3:
        # Keras fails at the mask of a stateful Bidirectional that returns states.
        options |= {"unroll": False}
        options["stateful"] &= not options["return_state"]
        layer = layers.RNN(cells, **options, dtype=dtype)
        return layers.Bidirectional(layer, merge_mode="sum", dtype=dtype)
    # If a layer is unrolled and reads backwards, Keras masks the wrong outputs.
    options["go_backwards"] = not options["unroll"] and bool(random.random() < 0.3)
    return layers.RNN(cells, **options, dtype=dtype)


@pytest.mark.parametrize("seed", random_configs.mostly_slow(range(40), 8, one_of=3))
def test_random_cells_are_keras_cells(seed):
    random = np.random.default_rng(seed)
    dtype = str(random.choice(["float64", "float32"]))
    # In Keras, a copied cell of a SimpleRNN forgets its seed, so the global seed is set.
    keras.utils.set_random_seed(seed)
    stock = draw_layer(random, dtype)
    inputs = tf.constant(random.standard_normal((4, 5, 3)).astype(dtype))
    symbolic = keras.Input(batch_shape=inputs.shape, dtype=dtype)
    layer = crnn.accelerate(keras.Model(symbolic, stock(symbolic))).layers[1]
    kind = "Bidirectional" if isinstance(stock, layers.Bidirectional) else "RNN"
    assert type(layer) is getattr(drop_ins, kind) and layer.runs_fused
    assert [weight.path for weight in layer.weights] == [weight.path for weight in stock.weights]
    mask = draw_mask(random, 4, 5) if random.integers(4) else None
    arguments: dict[str, Any] = {"mask": mask, "training": bool(random.integers(2))}
    in_graph = bool(random.integers(2))
    for _ in range(2):  # The second call finds the states of stateful layers.
        expected = run(stock, inputs, in_graph, **arguments)
        check_equal(run(layer, inputs, in_graph, **arguments), expected, 3)


def test_states_nest_as_keras_nests_them(fused_calls):
    cells = [
        layers.LSTMCell(3),
        layers.LSTMCell(3),
        layers.GRUCell(2),
        layers.GRUCell(2, dropout=0.1),
    ]
    stock = layers.RNN(cells, return_state=True)
    layer = drop_ins.RNN(cells, return_state=True)
    inputs = np.random.default_rng(0).standard_normal((4, 5, 3)).astype("float32")
    states = stock(inputs)[1:]
    assert [len(state) for state in states] == [2, 2, 1, 1]
    expected = stock(inputs, initial_state=states)
    received = layer(inputs, initial_state=states)
    keras.tree.assert_same_structure(received, expected)
    for one, other in zip(tf.nest.flatten(received), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    modes = [(config.rnn_mode, config.num_layers) for config in fused_calls]
    assert modes == [("lstm", 2), ("gru", 1), ("gru", 1)]
    with pytest.raises(ValueError, match="a list of states for each of 4 cells, but received 3"):
        layer(inputs, initial_state=states[:3])


def test_a_file_has_the_layer_and_its_cells(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            layers.Bidirectional(layers.RNN(layers.LSTMCell(4), return_sequences=True)),
            layers.RNN([layers.GRUCell(4), layers.SimpleRNNCell(2)], return_sequences=True),
            layers.RNN(layers.LSTMCell(4), return_sequences=True),
            layers.RNN(layers.LSTMCell(4)),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    inputs = np.random.default_rng(0).standard_normal((4, 5, 3)).astype("float32")
    model.fit(inputs, inputs[:, 0, :1], verbose=0)
    fast = crnn.accelerate(model)
    assert "in one op" in crnn.acceleration_report(fast).layers[0].outcome
    assert isinstance(fast.layers[2], drop_ins.Stack) and len(fast.layers) == 3
    fast.save(tmp_path / "fast.keras")
    loaded = keras.saving.load_model(tmp_path / "fast.keras")
    assert type(loaded.layers[1]) is drop_ins.RNN and loaded.layers[1].runs_fused
    fast.save_weights(tmp_path / "fast.weights.h5")
    unstacked = crnn.accelerate(model, stacks=False)
    unstacked.save_weights(tmp_path / "unstacked.weights.h5")
    stock = crnn.to_stock(loaded)
    assert [type(layer) for layer in stock.layers] == [type(layer) for layer in model.layers]
    model.load_weights(tmp_path / "unstacked.weights.h5")
    for _ in range(2):
        models = (model, fast, unstacked, loaded, stock)
        losses = [each.train_on_batch(inputs, inputs[:, 0, :1]) for each in models]
        np.testing.assert_allclose(losses, [losses[0]] * len(models), rtol=1e-5)


def test_a_list_of_no_cells():
    layer = drop_ins.RNN([], name="top")
    with pytest.raises(ValueError, match="cell of layer 'top' .* received \\[\\]"):
        layer(np.zeros((2, 3, 4), np.float32))
