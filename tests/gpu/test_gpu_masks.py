"""Tests of the kernels for masks that take a GPU: large tensors, and the same bits in each run."""

import numpy as np
import pytest
import tensorflow as tf

from cudnn_rnn_tf.mask_packing import Packing
from cudnn_rnn_tf.ops.op_library import raw_ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU"),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_long_sums_have_the_same_bits(dtype):
    random = np.random.default_rng(0)
    mask = np.arange(500) < random.integers(1, 20, (8, 1))
    values = tf.constant(random.standard_normal((8, 500, 130)), dtype)
    packing = Packing(tf.constant(mask), values, "test")

    def gradient() -> np.ndarray:
        with tf.GradientTape() as tape:
            tape.watch(values)
            unpacked = packing.unpack(values, repeat_masked=True)
        return np.asarray(tf.cast(tape.gradient(unpacked, values, values), "float64"))

    first = gradient()
    for _ in range(20):
        np.testing.assert_array_equal(gradient(), first)
    exact = np.asarray(tf.cast(values, "float64"))
    for b, length in enumerate(mask.sum(axis=1)):
        summed = exact[b, length - 1 :].sum(axis=0)
        rounding = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
        error = np.abs(first[b, length - 1] - summed).max() / np.abs(summed).max()
        assert error < rounding
        np.testing.assert_array_equal(first[b, : length - 1], exact[b, : length - 1])


@pytest.mark.slow
def test_widths_and_offsets_beyond_32_bits():
    """Three rows of 2^31 + 1 numbers, whose ends are known, take 13 GB."""
    width, marks = (1 << 31) + 1, 5

    def ends(*values: int) -> tf.Tensor:
        """Makes rows that end with `marks` times a value each; what is before is arbitrary."""
        parts = []
        for value in values:
            parts.append(tf.raw_ops.Empty(shape=[width - marks], dtype=tf.float16))
            parts.append(tf.fill([marks], tf.cast(value, tf.float16)))
        return tf.reshape(tf.concat(parts, axis=0), [1, len(values), width])

    def found(rows: tf.Tensor) -> list[list[float]]:
        flat = tf.reshape(rows, [-1])
        return [
            flat[(row + 1) * width - marks : (row + 1) * width].numpy().tolist()
            for row in range(rows.shape[1])
        ]

    three = {"places": [[0, -2, 1]], "steps": [[0, 2, -1]]}
    places = {name: tf.constant(value, tf.int64) for name, value in three.items()}
    try:
        values = ends(1, 2, 3)
        assert found(values) == [[1.0] * marks, [2.0] * marks, [3.0] * marks]
        packed = raw_ops.cudnn_rnn_tf_pack_steps(values=values, **places)
        assert found(packed) == [[1.0] * marks, [3.0] * marks, [0.0] * marks]
        del packed
        # This adds up the first two rows.
        added = raw_ops.cudnn_rnn_tf_pack_steps(values=values, repeat_masked=True, **places)
        assert found(added) == [[3.0] * marks, [3.0] * marks, [0.0] * marks]
        del added
        unpacked = raw_ops.cudnn_rnn_tf_unpack_steps(values=values, repeat_masked=True, **places)
        assert found(unpacked) == [[1.0] * marks, [1.0] * marks, [2.0] * marks]
    except tf.errors.ResourceExhaustedError:
        pytest.skip("the GPU has too little memory")
