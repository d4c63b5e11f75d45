"""Counts the operations of a training step of drop-ins and stacks, since each costs a launch."""

import collections

import keras
import pytest
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins


def layers_of(kind: str, count: int, wraps: bool, dtype: str) -> list[keras.layers.Layer]:
    parts = [
        getattr(drop_ins, kind)(4, return_sequences=True, dtype=dtype, name=f"{kind}_{index}")
        for index in range(count)
    ]
    return [drop_ins.Bidirectional(part, dtype=dtype) for part in parts] if wraps else parts


def operations(layers: list[keras.layers.Layer]) -> collections.Counter[str]:
    """The number of operations of each type in a step over masked sequences of any length."""
    values = tf.zeros((2, 5, 3))
    for layer in layers:
        values = layer(values)

    @tf.function(
        input_signature=[tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, None), tf.bool)]
    )
    def step(inputs, mask):
        with tf.GradientTape() as tape:
            outputs = inputs
            for layer in layers:
                outputs = layer(outputs, mask=mask, training=True)
        return tape.gradient(outputs, [w for layer in layers for w in layer.trainable_variables])

    graph = step.get_concrete_function().graph
    found = collections.Counter(op.type for op in graph.get_operations())
    for name in ("Const", "Identity", "NoOp", "Placeholder"):
        found.pop(name, None)
    return found


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_a_stack_does_no_more_than_its_layers(kind, wraps, dtype):
    layers = layers_of(kind, 3, wraps, dtype)
    one_by_one = operations(layers)
    stacked = operations([drop_ins.Stack(layers_of(kind, 3, wraps, dtype))])
    assert not stacked - one_by_one, (stacked - one_by_one, one_by_one)
    assert stacked["CudnnRnnTf>Forward"] == 1 and one_by_one["CudnnRnnTf>Forward"] == 3


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_mixed_precision_casts_all_weights_at_once(kind, wraps):
    """As `CudnnLSTM` does, whose weights are one variable."""
    own = crnn.CudnnLSTM(3, 4, direction="bidirectional", dtype="mixed_bfloat16")
    expected = operations([own])["Cast"]
    assert expected >= 2
    for count in (1, 3):
        stack = drop_ins.Stack(layers_of(kind, count, wraps, "mixed_bfloat16"))
        assert operations([stack])["Cast"] == expected
    (layer,) = layers_of(kind, 1, wraps, "mixed_bfloat16")
    assert operations([layer])["Cast"] == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: crnn.CudnnLSTM(1, 4, return_sequences=False),
        lambda: crnn.CudnnGRU(1, 4, direction="bidirectional", return_sequences=False),
        lambda: drop_ins.LSTM(4),
        lambda: drop_ins.GRU(4),
        lambda: drop_ins.SimpleRNN(4),
        lambda: drop_ins.Bidirectional(drop_ins.LSTM(4)),
    ],
)
def test_last_outputs_are_not_copied(make):
    """A reshape costs nothing, while a slice and its gradient are a launch each."""
    copies = {"ConcatV2", "Unpack", "StridedSliceGrad"}
    assert not copies & operations([make()]).keys()
    layer = crnn.CudnnGRU(1, 4, direction="bidirectional", time_major=True, return_sequences=False)
    assert copies <= operations([layer]).keys()
