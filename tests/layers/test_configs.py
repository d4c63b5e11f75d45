"""Each argument of each layer's constructor survives `get_config` and `from_config`."""

import inspect

import keras
import numpy as np
import pytest

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

# A value that is no default, for the arguments that more than one class has.
REGULARIZER, CONSTRAINT = keras.regularizers.L2(0.25), keras.constraints.MaxNorm(3.0)
VALUES = {
    "num_layers": 3,
    "num_units": 5,
    "units": 5,
    "input_mode": "skip_input",
    "direction": "bidirectional",
    "dropout": 0.25,
    "recurrent_dropout": 0.25,
    "recurrent_weight_dropout": 0.25,
    "seed": 17,
    "dtype": "float64",
    "name": "named",
    "trainable": False,
    "num_proj": 2,
    "cell_clip": 1.5,
    "bias_mode": "single_input",
    "algorithm": "standard",
    "activation": "relu",
    "layer_norm_epsilon": 0.01,
    "zoneout": 0.25,
    "cell_zoneout": 0.25,
    "recurrent_activation": "hard_sigmoid",
    "use_cudnn": False,
    "merge_mode": "sum",
    "bias_regularizer": REGULARIZER,
    "kernel_regularizer": REGULARIZER,
    "recurrent_regularizer": REGULARIZER,
    "activity_regularizer": REGULARIZER,
    "bias_constraint": CONSTRAINT,
    "kernel_constraint": CONSTRAINT,
    "recurrent_constraint": CONSTRAINT,
    "bias_initializer": keras.initializers.Constant(0.5),
    "kernel_initializer": keras.initializers.Constant(0.5),
    "recurrent_initializer": keras.initializers.Constant(0.5),
    "peephole_initializer": keras.initializers.Constant(0.5),
}
CLASSES = {
    **{c: {"num_layers": 1, "num_units": 4} for c in (crnn.CudnnLSTM, crnn.CudnnGRU)},
    **{c: {"num_layers": 1, "num_units": 4} for c in (crnn.CudnnRNNTanh, crnn.CudnnRNNRelu)},
    **{c: {"units": 4} for c in (drop_ins.LSTM, drop_ins.GRU, drop_ins.SimpleRNN)},
}
# Keras's own layers do not keep these either, and the drop-ins' files are to be the same.
NOT_KEPT = {
    *{(c, "use_cudnn") for c in (drop_ins.LSTM, drop_ins.GRU)},
    *{(drop_ins.SimpleRNN, name) for name in ("activity_regularizer", "seed")},
}


def arguments_of(cls: type) -> list[str]:
    parameters = inspect.signature(cls.__init__).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    # These are among the other keyword arguments.
    others = ["trainable", "dtype", "name"]
    if issubclass(cls, keras.layers.RNN):
        others.append("zero_output_for_mask")
    return [name for name in dict.fromkeys([*named, *others]) if name != "self"]


CASES = [(cls, name) for cls in CLASSES for name in arguments_of(cls)]


def attribute_of(layer: keras.Layer, name: str) -> object:
    """Returns what an argument has become."""
    if name == "dtype":
        return layer.dtype_policy
    return getattr(layer if hasattr(layer, name) else layer.cell, name)


def comparable(value: object) -> object:
    """Returns something that is equal for equal values, of whatever class."""
    if isinstance(value, keras.dtype_policies.DTypePolicy):
        return value.name
    if isinstance(value, type(keras.activations.relu)):
        return value.__name__
    return keras.saving.serialize_keras_object(value)


@pytest.mark.parametrize("cls, name", CASES, ids=lambda value: getattr(value, "__name__", value))
def test_argument_is_kept(cls, name):
    usual = cls(**CLASSES[cls])
    if (cls, name) in NOT_KEPT:
        stock = getattr(keras.layers, cls.__name__)
        configs = [
            stock(**CLASSES[cls] | {"name": "same"} | changed).get_config()
            for changed in ({}, {name: VALUES[name]})
        ]
        assert configs[0] == configs[1]
        return
    default = inspect.signature(cls.__init__).parameters.get(name)
    value = VALUES[name] if name in VALUES else not attribute_of(usual, name)
    assert default is None or value != default.default
    needed = {"use_layer_norm": True} if name == "layer_norm_epsilon" else {}
    layer = cls(**CLASSES[cls] | needed | {name: value})
    assert name in layer.get_config()
    again = cls.from_config(layer.get_config())
    kept = comparable(attribute_of(again, name))
    assert kept == comparable(attribute_of(layer, name))
    assert kept != comparable(attribute_of(usual, name))
    assert again.get_config() == layer.get_config()


def test_kernels_that_are_gone(tmp_path):
    """A file may name them, and a program may not."""
    with pytest.raises(ValueError, match="expected algorithm to be one of .* 'resident'"):
        crnn.CudnnGRU(1, 5, algorithm="resident")
    model = keras.Sequential([keras.Input((None, 3)), layer := crnn.CudnnGRU(1, 5)])
    layer.algorithm = "resident"
    model.save(tmp_path / "old.keras")
    again = keras.saving.load_model(tmp_path / "old.keras")
    inputs = np.ones((2, 4, 3), "float32")
    layer.algorithm = again.layers[0].algorithm
    assert layer.algorithm == "auto"
    np.testing.assert_array_equal(again(inputs), model(inputs))


@pytest.mark.parametrize("merge_mode", ["sum", "mul", "ave", None])
def test_bidirectional(merge_mode):
    forward = drop_ins.LSTM(4, return_sequences=True, kernel_regularizer=REGULARIZER)
    backward = drop_ins.LSTM(4, return_sequences=True, go_backwards=True, seed=3)
    layer = drop_ins.Bidirectional(forward, merge_mode=merge_mode, backward_layer=backward)
    again = drop_ins.Bidirectional.from_config(layer.get_config())
    assert again.merge_mode == merge_mode
    for half, expected in ((again.forward_layer, forward), (again.backward_layer, backward)):
        # As in Keras, both halves keep zeros where all steps are masked.
        changed = {"name": "", "zero_output_for_mask": True}
        assert {**half.get_config(), **changed} == {**expected.get_config(), **changed}


def test_stack():
    layers = [drop_ins.LSTM(4, return_sequences=True, seed=3), drop_ins.LSTM(4, seed=4)]
    again = drop_ins.Stack.from_config(drop_ins.Stack(layers, name="both").get_config())
    assert again.name == "both"
    assert [layer.get_config() for layer in again.layers] == [part.get_config() for part in layers]
