"""A TensorFlow 1 program with sequences of different lengths: trains one op, serves cells.

It learns the adding problem: each step of a sequence has a number and a mark, two steps are marked,
and the answer is the sum of their numbers. A bidirectional `CudnnLSTM` learns it in a session. Its
checkpoint is then restored into a graph of `tf.nn.dynamic_rnn` loops over cells, in TensorFlow's
own operations, which must give the same answers.

    python variable_lengths.py [--nov2_behavior]

A program for `tf.contrib.cudnn_rnn` looked the same, except for the first import below, and for the
cells and the function that stacks them, which TensorFlow no longer has.
"""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

from cudnn_rnn_tf import contrib as cudnn_rnn

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 400, "Training steps.", lower_bound=1)
flags.DEFINE_string("checkpoint", None, "Prefix of the checkpoint; by default a temporary file.")
flags.DEFINE_bool("v2_behavior", True, "Whether TensorFlow 2's behavior is on.")

BATCH_SIZE, MAX_TIME = 64, 20
NUM_LAYERS, NUM_UNITS = 2, 24


def draw_batch(rng):
    """Draws inputs [MAX_TIME, BATCH_SIZE, 2], lengths, and the sums of the marked numbers."""
    lengths = rng.integers(4, MAX_TIME + 1, BATCH_SIZE)
    numbers = rng.uniform(size=(MAX_TIME, BATCH_SIZE))
    marks = np.zeros_like(numbers)
    for row, length in enumerate(lengths):
        marks[rng.choice(length, 2, replace=False), row] = 1
    return np.stack([numbers, marks], -1), lengths, np.sum(numbers * marks, axis=0)


def placeholders():
    return (
        tf.placeholder(tf.float32, [MAX_TIME, None, 2], name="inputs"),
        tf.placeholder(tf.int32, [None], name="lengths"),
        tf.placeholder(tf.float32, [None], name="targets"),
    )


def read_out(h_forward, h_backward):
    """Returns the answers, given the top layer's final states, [B, NUM_UNITS] each."""
    with tf.variable_scope("read_out", reuse=tf.AUTO_REUSE):
        weights = tf.get_variable("weights", [2 * NUM_UNITS, 1])
        bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
    return tf.squeeze(tf.matmul(tf.concat([h_forward, h_backward], -1), weights) + bias, -1)


def fused(inputs, lengths, training):
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        lstm = cudnn_rnn.CudnnLSTM(
            NUM_LAYERS,
            NUM_UNITS,
            direction=cudnn_rnn.CUDNN_RNN_BIDIRECTION,
            dropout=0.05,
            name="lstm",
        )
        _, (h, _) = lstm(inputs, sequence_lengths=lengths, training=training)
    return read_out(h[-2], h[-1])


def cells(inputs, lengths):
    def layers():
        return [cudnn_rnn.CudnnCompatibleLSTMCell(NUM_UNITS) for _ in range(NUM_LAYERS)]

    with tf.variable_scope("model/lstm"):
        _, states_forward, states_backward = cudnn_rnn.stack_bidirectional_dynamic_rnn(
            layers(), layers(), inputs, dtype=tf.float32, sequence_length=lengths, time_major=True
        )
    return read_out(states_forward[-1].h, states_backward[-1].h)


def train(rng, checkpoint, test_batch):
    """Returns the checkpoint and the trained network's answers to the test batch."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        inputs, lengths, targets = feeds = placeholders()
        loss = tf.reduce_mean((fused(inputs, lengths, training=True) - targets) ** 2)
        told = fused(inputs, lengths, training=False)
        optimizer = tf.train.AdamOptimizer(0.01)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        step = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        for number in range(1, FLAGS.steps + 1):
            batch = dict(zip(feeds, draw_batch(rng), strict=True))
            value, _ = session.run([loss, step], batch)
            if number % 100 == 0:
                print(f"step {number}: squared error {value:.4f}")
        values = session.run(told, dict(zip(feeds, test_batch, strict=True)))
        return saver.save(session, checkpoint), values


def serve(checkpoint, test_batch):
    """Returns the answers to the test batch that a graph of cells gives."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, lengths, _ = placeholders()
        told = cells(inputs, lengths)
        tf.train.Saver().restore(session, checkpoint)
        return session.run(told, {inputs: test_batch[0], lengths: test_batch[1]})


def main(_):
    if not FLAGS.v2_behavior:
        tf.disable_v2_behavior()
    rng = np.random.default_rng(0)
    test_batch = draw_batch(rng)
    with tempfile.TemporaryDirectory() as folder:
        prefix = FLAGS.checkpoint or os.path.join(folder, "model")
        checkpoint, by_op = train(rng, prefix, test_batch)
        by_cells = serve(checkpoint, test_batch)
    print(f"test: squared error {np.mean((by_op - test_batch[2]) ** 2):.4f}")
    print(f"largest difference between op and cells: {np.abs(by_op - by_cells).max():.1e}")


if __name__ == "__main__":
    app.run(main)
