"""Tests of masks, which may leave out any steps, in this package's own layers and ops.

The fuzzer's target `layers` compares random layers and masks; `test_fuzz.py` runs some.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import make, normal, randomize
from random_layers import draw_mask, swapped

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.mask_packing import Packing
from cudnn_rnn_tf.ops.op_library import raw_ops


@pytest.mark.parametrize("go_backwards", [False, True])
def test_a_ragged_mask_may_have_holes(go_backwards):
    layer = make("lstm", go_backwards=go_backwards)
    rows = [normal(4, 3, seed=1), normal(2, 3, seed=2)]
    masks = [[True, False, True, True], [False, True]]
    inputs = tf.RaggedTensor.from_row_lengths(np.concatenate(rows), [4, 2])
    mask = tf.RaggedTensor.from_row_lengths(np.concatenate(masks), [4, 2])
    randomize(layer, (None, None, 3))
    outputs = layer(inputs, mask=mask)
    for row, given, of_row in zip(outputs, rows, masks, strict=True):
        expected = layer(given[np.newaxis], mask=np.array([of_row]))
        np.testing.assert_allclose(row, expected[0], rtol=1e-5, atol=1e-6)


# The shapes of masks.


@pytest.mark.parametrize(
    "layer",
    [
        make("lstm", go_backwards=True),
        crnn.keras.GRU(3, return_sequences=True),
        crnn.keras.Bidirectional(crnn.keras.LSTM(3)),
        crnn.keras.Stack([crnn.keras.LSTM(3, return_sequences=True), crnn.keras.LSTM(3)]),
    ],
)
def test_shapes_of_masks_that_are_refused(layer):
    """The op refuses those that only a running graph knows, as the fuzzer's cases show."""
    inputs = normal(3, 4, 5)
    for shape in ((4,), (3, 1), (3, 4, 5), (2, 4), (3, 3), (), (3, 4, 1, 1)):
        with pytest.raises(ValueError, match="expected the mask of layer") as raised:
            layer(inputs, mask=np.ones(shape, bool))
        assert str(shape) in str(raised.value) and "(3, 4)" in str(raised.value)


# The ops.


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_packing_is_a_selection(dtype, seed):
    random = np.random.default_rng(seed)
    batch, time, width = (int(random.integers(1, most)) for most in (9, 60, 300))
    time_major, go_backwards, repeat = (bool(random.integers(2)) for _ in range(3))
    mask = draw_mask(random, batch, time)
    values = random.integers(-99, 99, (batch, time, width))
    packing = Packing(
        tf.constant(swapped(mask, time_major)),
        tf.cast(swapped(values, time_major), dtype),
        "test",
        time_major=time_major,
        go_backwards=go_backwards,
    )
    np.testing.assert_array_equal(packing.lengths, mask.sum(axis=1))
    packed = swapped(
        tf.cast(packing.pack(tf.cast(swapped(values, time_major), dtype)), "int64"), time_major
    )
    order = slice(None, None, -1) if go_backwards else slice(None)
    for b in range(batch):
        wanted = values[b, order][mask[b, order]]
        np.testing.assert_array_equal(packed[b, : len(wanted)], wanted)
    given = tf.cast(swapped(values, time_major), dtype)
    with tf.GradientTape() as tape:
        tape.watch(given)
        unpacked = packing.unpack(given, repeat_masked=repeat)
    wanted, sources = np.zeros_like(values), -np.ones((batch, time), int)
    for b in range(batch):
        place = -1
        for at, is_read in enumerate(mask[b, order]):
            place += int(is_read)
            if place >= 0 and (is_read or repeat):
                sources[b, at], wanted[b, at] = place, values[b, place]
    np.testing.assert_array_equal(swapped(tf.cast(unpacked, "int64"), time_major), wanted)
    # The sums are whole numbers, which all the types hold.
    grads = random.integers(-3, 3, values.shape)
    expected = np.zeros_like(values)
    for b, at in zip(*np.nonzero(sources >= 0), strict=True):
        expected[b, sources[b, at]] += grads[b, at]
    gradient = tape.gradient(unpacked, given, tf.cast(swapped(grads, time_major), dtype))
    np.testing.assert_array_equal(swapped(tf.cast(gradient, "int64"), time_major), expected)


@pytest.mark.parametrize("seed", range(6))
def test_graphs_without_the_ops_pack_alike(seed):
    random = np.random.default_rng(seed)
    layout = {"time_major": bool(seed % 2), "go_backwards": seed % 3 == 0}
    mask, values = draw_mask(random, 5, 7), random.standard_normal((5, 7, 3))
    mask, values = (tf.constant(swapped(array, layout["time_major"])) for array in (mask, values))

    def results() -> list[tf.Tensor]:
        packing = Packing(mask, values, "test", **layout)
        valid = tf.sequence_mask(packing.lengths, 7)
        valid = tf.transpose(valid) if layout["time_major"] else valid
        packed = tf.where(valid[:, :, tf.newaxis], packing.pack(values), 0.0)
        unpacked = [packing.unpack(values, repeat_masked=repeat) for repeat in (False, True)]
        return [packing.lengths, packed, *unpacked]

    expected = results()
    with ops.substituted_forward(lambda *_, **__: None):
        for value, wanted in zip(results(), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("shape", [(3, 1), (3, 2)])
def test_graphs_without_the_ops_refuse_masks_of_another_time(shape):
    def packed(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return Packing(mask, values, "layer 'net'").pack(values)

    signature = [
        tf.TensorSpec((None, None, 2), tf.float32),
        tf.TensorSpec((None, None), tf.bool),
    ]
    with ops.substituted_forward(lambda *_, **__: None):
        run = tf.function(packed, input_signature=signature)
        run(np.ones((3, 4, 2), "float32"), np.ones((1, 4), bool))
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected the mask of layer"):
            run(np.ones((3, 4, 2), "float32"), np.ones(shape, bool))


@pytest.mark.parametrize("op", [raw_ops.cudnn_rnn_tf_pack_steps, raw_ops.cudnn_rnn_tf_unpack_steps])
@pytest.mark.parametrize("repeat", [False, True])
def test_places_of_strangers_read_nothing_else(op, repeat):
    values = tf.ones((2, 3, 4))
    far = tf.constant([[1 << 40, 3, -1 << 62], [-5, 7, -1]], tf.int64)
    near = tf.constant([[-3, -2, -4], [-2, -3, 2]], tf.int64)
    for places in (far, near):
        moved = op(values=values, places=places, steps=places, repeat_masked=repeat)
        assert np.all(np.isin(moved, [0.0, 1.0, 2.0, 3.0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected places and steps of shape"):
        op(values=values, places=far[:1], steps=far)


# Layers on top of each other.


def draw_layer(random: np.random.Generator) -> keras.layers.Layer:
    options = {"return_sequences": True, "recurrent_initializer": "glorot_uniform"}
    toss = lambda: bool(random.integers(2))  # noqa: E731
    made = [
        lambda: crnn.keras.LSTM(3, zero_output_for_mask=toss(), **options),
        lambda: crnn.keras.GRU(3, go_backwards=toss(), **options),
        lambda: crnn.keras.Bidirectional(crnn.keras.SimpleRNN(2, **options)),
        lambda: crnn.keras.Bidirectional(crnn.keras.LSTM(3, **options), merge_mode="sum"),
        lambda: make("gru", 1, 3, go_backwards=toss()),
        lambda: keras.layers.Dense(3, activation="tanh"),
        lambda: keras.layers.LSTM(3, **options),
    ]
    return made[random.integers(len(made))]()


@pytest.mark.parametrize("seed", range(12))
def test_layers_in_a_graph_agree_with_layers_alone(seed):
    """In a graph, a layer may read what the layer below has not unpacked yet."""
    random = np.random.default_rng(seed)
    layers = [draw_layer(random) for _ in range(random.integers(2, 5))]
    mask = draw_mask(random, 5, 7)
    inputs = random.standard_normal((5, 7, 3)).astype("float32")

    def run(inputs: tf.Tensor, mask: tf.Tensor) -> list[tf.Tensor]:
        values = [inputs]
        for layer in layers:
            taken = {} if isinstance(layer, keras.layers.Dense) else {"mask": mask}
            values.append(layer(values[-1], **taken))
        return values

    def gradients(inputs: tf.Tensor, mask: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            values = run(inputs, mask)
            loss = tf.reduce_sum(values[-1] ** 2) + tf.reduce_sum(values[-2] ** 2)
        weights = [weight.value for layer in layers for weight in layer.trainable_variables]
        return [*values, *tape.gradient(loss, [inputs, *weights])]

    run(inputs, mask)
    given = tf.constant(inputs), tf.constant(mask)
    for value, wanted in zip(tf.function(gradients)(*given), gradients(*given), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_inner_layers_of_a_graph_move_no_steps():
    options = {"return_sequences": True, "recurrent_initializer": "glorot_uniform"}
    tokens = keras.Input((7,), dtype="int32")
    values = keras.layers.Embedding(5, 3, mask_zero=True)(tokens)
    for layer in (
        crnn.keras.Bidirectional(crnn.keras.LSTM(3, **options)),
        crnn.keras.LSTM(3, **options),
        make("gru", 1, 3),
    ):
        values = layer(values)
    model = keras.Model(tokens, values)

    @tf.function
    def step(ids: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids, training=True))
        return tape.gradient(loss, [weight.value for weight in model.trainable_variables])

    graph = step.get_concrete_function(tf.zeros((2, 7), tf.int32)).graph
    # TensorFlow drops what is not read: the unpacked outputs of inner layers.
    pruned = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), [output.op.name for output in graph.outputs]
    )
    counts = dict.fromkeys(("ReadMask", "PackSteps", "UnpackSteps", "Forward"), 0)
    for node in pruned.node:
        for kind in counts:
            counts[kind] += node.op == f"CudnnRnnTf>{kind}"
    # The gradient of packing is an unpacking, and the other way round.
    assert counts == {"ReadMask": 1, "PackSteps": 2, "UnpackSteps": 1, "Forward": 3}
