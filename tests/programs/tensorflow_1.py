"""A program as TensorFlow 1 programs are: trains with the op, restores with cells, in sessions.

Usage: tensorflow_1.py {on|off} DIRECTORY, the former being TensorFlow's version 2 behavior.
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from cudnn_rnn_tf import contrib as cudnn_rnn

BATCH, MAX_TIME, DEPTH, UNITS = 8, 7, 4, 6


def inputs_and_targets():
    inputs = tf.placeholder(tf.float32, [MAX_TIME, None, DEPTH], name="inputs")
    lengths = tf.placeholder(tf.int32, [None], name="lengths")
    targets = tf.placeholder(tf.float32, [None, 1], name="targets")
    return inputs, lengths, targets


def train(feed, prefix):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        inputs, lengths, targets = inputs_and_targets()
        with tf.variable_scope("model"):
            lstm = cudnn_rnn.CudnnLSTM(
                2, UNITS, direction=cudnn_rnn.CUDNN_RNN_BIDIRECTION, dropout=0.1, seed=7
            )
            outputs, (h, _) = lstm(inputs, sequence_lengths=lengths, training=True)
        with tf.variable_scope("model", reuse=True):
            evaluated, _ = cudnn_rnn.CudnnLSTM(
                2, UNITS, direction=cudnn_rnn.CUDNN_RNN_BIDIRECTION, name="cudnn_lstm"
            )(inputs, sequence_lengths=lengths, training=False)
        weights = tf.get_variable("weights", [UNITS, 1])
        loss = tf.reduce_mean((tf.matmul(h[-1], weights) - targets) ** 2)
        gradients, variables = zip(
            *tf.train.AdamOptimizer(0.05).compute_gradients(loss), strict=True
        )
        assert len(variables) == len(tf.trainable_variables()) == 2
        optimizer = tf.train.AdamOptimizer(0.05)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        step = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        assert len(tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)) == 1
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        feeds = dict(zip((inputs, lengths, targets), feed, strict=True))
        first = session.run(loss, feeds)
        for _ in range(40):
            session.run(step, feeds)
        assert session.run(loss, feeds) < 0.5 * first
        return saver.save(session, prefix), session.run(evaluated, feeds)


def run_cells(feed, checkpoint):
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, lengths, _ = inputs_and_targets()

        def cells():
            return [cudnn_rnn.CudnnCompatibleLSTMCell(UNITS) for _ in range(2)]

        with tf.variable_scope("model/cudnn_lstm"):
            outputs, _, _ = cudnn_rnn.stack_bidirectional_dynamic_rnn(
                cells(),
                cells(),
                inputs,
                dtype=tf.float32,
                sequence_length=lengths,
                time_major=True,
            )
        tf.train.Saver().restore(session, checkpoint)
        return session.run(outputs, {inputs: feed[0], lengths: feed[1]})


def main():
    if sys.argv[1] == "off":
        tf.disable_v2_behavior()
    rng = np.random.default_rng(0)
    feed = (
        rng.standard_normal((MAX_TIME, BATCH, DEPTH)),
        rng.integers(0, MAX_TIME + 1, BATCH),
        rng.standard_normal((BATCH, 1)),
    )
    checkpoint, expected = train(feed, os.path.join(sys.argv[2], "model"))
    np.testing.assert_allclose(run_cells(feed, checkpoint), expected, rtol=0, atol=1e-5)
    print("the cells compute the same")


if __name__ == "__main__":
    main()
