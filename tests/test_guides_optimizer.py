"""The optimizer in the guide to speed computes what Keras's does."""

import keras
import numpy as np
import tensorflow as tf
from test_documentation import snippets

from cudnn_rnn_tf import keras as drop_ins


def weights_after_training(optimizer: keras.optimizers.Optimizer) -> list[np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Embedding(9, 3, mask_zero=True),
            drop_ins.Bidirectional(drop_ins.LSTM(4)),
            keras.layers.Dense(2),
        ]
    )
    model.compile(optimizer, "mse")
    rng = np.random.default_rng(0)
    data = rng.integers(0, 9, (32, 5)), rng.normal(size=(32, 2))
    model.fit(*data, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()


def test_one_op_a_weight():
    (snippet,) = (text for text in snippets("docs/guides/speed.md") if "ResourceApplyAdam" in text)
    names = {"keras": keras, "tf": tf}
    exec(compile(snippet, "docs/guides/speed.md", "exec"), names)
    expected = weights_after_training(keras.optimizers.Adam(0.01, beta_1=0.8, epsilon=1e-3))
    received = weights_after_training(names["Adam"](0.01, beta_1=0.8, epsilon=1e-3))
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
