"""Makes the seeds that the ops draw their masks from."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from cudnn_rnn_tf import _private_names


class _TrackedSeedGenerator(keras.random.SeedGenerator, _private_names.AutoTrackable):
    """A Keras seed generator that object-based checkpoints also save.

    Keras's own is no TensorFlow trackable, so `tf.train.Checkpoint` would lose its state.
    """


class SeedGenerator(_TrackedSeedGenerator):
    """A seed generator whose state is in host memory.

    A function that XLA compiles for a GPU cannot use the host's variables. It draws from a second
    state, in the GPU's memory, which begins as the first one is when the function is traced.
    """

    def __init__(self, seed: int | None = None, name: str | None = None):
        with _in_host_memory():
            super().__init__(seed, name=name)
        self._on_gpu: keras.random.SeedGenerator | None = None

    def on_gpu(self) -> keras.random.SeedGenerator:
        """Returns the generator of the second state."""
        if self._on_gpu is None:
            with tf.init_scope():
                made = _TrackedSeedGenerator(self._initial_seed, name=f"{self.name}_on_gpu")
                made.state.assign(self.state)
            self._on_gpu = made
        return self._on_gpu


def next_seed(generator: keras.random.SeedGenerator) -> tf.Tensor:
    """Returns a generator's next seed as the ops take it: int64 [2].

    It is in host memory, except in a function that XLA compiles. Each replica gets a seed of its
    own.

    Args:
        generator: the generator, whose state advances by one.
    """
    if _has_gpu() and _private_names.is_compiled_by_xla():
        # XLA places the seed itself.
        own = generator.on_gpu() if isinstance(generator, SeedGenerator) else generator
        return _seed_of_replica(own)
    with _in_host_memory():
        return _seed_of_replica(generator)


def _has_gpu() -> bool:
    return bool(tf.config.get_visible_devices("GPU"))


@contextlib.contextmanager
def _in_host_memory() -> Iterator[None]:
    """Places seeds in host memory, where the ops read them; a copy from a GPU would wait for it.

    Where there is no GPU, they are placed as all else is, since a function that XLA compiles for
    one device may not use variables of another.
    """
    with tf.device("CPU:0") if _has_gpu() else contextlib.nullcontext():
        yield


def _seed_of_replica(generator: keras.random.SeedGenerator) -> tf.Tensor:
    seed = tf.cast(generator.next(), tf.int64)
    replica = tf.distribute.get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        # All replicas have the same generator state. The upper half of the seed's first number is
        # free, so the replica's number goes there.
        index = tf.cast(replica.replica_id_in_sync_group, tf.int64)
        seed += tf.stack([index * 2**32, tf.zeros_like(index)])
    return seed
