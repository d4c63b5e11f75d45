"""A TensorFlow 1 program with a bidirectional GRU in float16, its variable kept in float32.

At each step the sum of the numbers one step before and one step after is to be told, for which it
takes both directions. As such programs did, a custom getter keeps variables in float32 and hands
them out in float16, and the loss is scaled so that small gradients are not lost.

    python float16_bidirectional.py

With Keras, this is `keras.mixed_precision.set_global_policy("mixed_float16")` and no more.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

from cudnn_rnn_tf import contrib as cudnn_rnn

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 300, "Training steps.", lower_bound=1)

BATCH_SIZE, MAX_TIME, NUM_UNITS = 32, 12, 32
LOSS_SCALE = 128.0


def float32_storage_getter(getter, name, shape=None, dtype=None, **kwargs):
    """Makes a variable in float32, and returns it cast to the type that was asked for."""
    variable = getter(name, shape, dtype=tf.float32, **kwargs)
    return variable if dtype == tf.float32 else tf.cast(variable, dtype)


def draw_batch(rng):
    """Draws numbers [MAX_TIME, BATCH_SIZE, 1] and sums up the two neighbors of each."""
    numbers = rng.uniform(-1, 1, size=(MAX_TIME, BATCH_SIZE, 1))
    padded = np.pad(numbers, ((1, 1), (0, 0), (0, 0)))
    return numbers, padded[:-2] + padded[2:]


def main(_):
    tf.disable_eager_execution()
    tf.set_random_seed(1)
    inputs = tf.placeholder(tf.float16, [MAX_TIME, None, 1])
    targets = tf.placeholder(tf.float32, [MAX_TIME, None, 1])
    with tf.variable_scope("model", custom_getter=float32_storage_getter):
        gru = cudnn_rnn.CudnnGRU(
            1, NUM_UNITS, direction=cudnn_rnn.CUDNN_RNN_BIDIRECTION, dtype=tf.float16
        )
        outputs, _ = gru(inputs, training=True)
        weights = tf.get_variable("weights", [2 * NUM_UNITS, 1], tf.float16)
    told = tf.tensordot(outputs, weights, 1)
    loss = tf.reduce_mean((tf.cast(told, tf.float32) - targets) ** 2)

    optimizer = tf.train.AdamOptimizer(0.01)
    scaled = optimizer.compute_gradients(loss * LOSS_SCALE)
    step = optimizer.apply_gradients(
        [(gradient / LOSS_SCALE, variable) for gradient, variable in scaled]
    )
    print("computed in", outputs.dtype.name, "with", [v.dtype.base_dtype.name for _, v in scaled])

    rng = np.random.default_rng(0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(1, FLAGS.steps + 1):
            batch = dict(zip((inputs, targets), draw_batch(rng), strict=True))
            value, _ = session.run([loss, step], batch)
            if number % 100 == 0:
                print(f"step {number}: squared error {value:.4f}")
    print(f"last: squared error {value:.4f}")


if __name__ == "__main__":
    app.run(main)
