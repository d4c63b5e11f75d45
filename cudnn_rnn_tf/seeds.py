"""Makes the seeds that the ops draw their masks from."""

import keras
import tensorflow as tf


def next_seed(generator: keras.random.SeedGenerator) -> tf.Tensor:
    """Returns a generator's next seed as the ops take it: int64 [2], in host memory.

    Each replica gets a seed of its own.

    Args:
        generator: the generator, whose state advances by one.
    """
    with tf.device("CPU:0"):
        seed = tf.cast(generator.next(), tf.int64)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            # All replicas have the same generator state. The upper half of the seed's first number
            # is free, so the replica's number goes there.
            index = tf.cast(replica.replica_id_in_sync_group, tf.int64)
            seed += tf.stack([index * 2**32, tf.zeros_like(index)])
        return seed
