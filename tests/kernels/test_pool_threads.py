"""Tests how calls of the ops share TensorFlow's threads."""

import fresh_process

# Two long calls take all threads on which a call's work can be shared. TensorFlow starts ops on
# other threads, and there must be more of these than long calls.
SHORT_CALLS_BESIDE_LONG_ONES = """
import threading

import tensorflow as tf

import cudnn_rnn_tf as crnn

tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.threading.set_inter_op_parallelism_threads(4)


def call_of(batch_size, num_steps, num_units):
    layer = crnn.CudnnLSTM(1, num_units)
    inputs = tf.random.normal([batch_size, num_steps, 8])
    call = tf.function(lambda: layer(inputs)[:, -1])
    call()
    return call


short, long = call_of(8, 20, 128), call_of(8, 4000, 512)
threads = [threading.Thread(target=long) for _ in range(2)]
for thread in threads:
    thread.start()
short_calls = 0
while all(thread.is_alive() for thread in threads):
    short()
    short_calls += 1
print(short_calls)
"""


def test_calls_do_not_wait_for_threads_that_other_calls_use():
    # A long call takes hundreds of times as long as a short one.
    short_calls = fresh_process.run_program(SHORT_CALLS_BESIDE_LONG_ONES, CUDA_VISIBLE_DEVICES="-1")
    assert int(short_calls) >= 20
