"""Makes the seeds that the ops draw their masks from."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf


@contextlib.contextmanager
def in_host_memory() -> Iterator[None]:
    """Places seeds in host memory, where the ops read them; a copy from a GPU would wait for it.

    Where there is no GPU, they are placed as all else is, since a function that XLA compiles for
    one device may not use variables of another.
    """
    with tf.device("CPU:0") if tf.config.get_visible_devices("GPU") else contextlib.nullcontext():
        yield


def next_seed(generator: keras.random.SeedGenerator) -> tf.Tensor:
    """Returns a generator's next seed as the ops take it: int64 [2], in host memory.

    Each replica gets a seed of its own.

    Args:
        generator: the generator, whose state advances by one.
    """
    with in_host_memory():
        seed = tf.cast(generator.next(), tf.int64)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            # All replicas have the same generator state. The upper half of the seed's first number
            # is free, so the replica's number goes there.
            index = tf.cast(replica.replica_id_in_sync_group, tf.int64)
            seed += tf.stack([index * 2**32, tf.zeros_like(index)])
        return seed
