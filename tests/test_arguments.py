"""Errors of public calls name the argument that is wrong, what was expected, and what came."""

import keras
import numpy as np
import pytest

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import contrib, convert, cudnn_rnn_ops, native
from cudnn_rnn_tf import keras as drop_ins

SIZES = ("lstm", 1, 3, 5)
MODEL = keras.Sequential([keras.Input((4, 5)), keras.layers.LSTM(3)])
LAYER = crnn.CudnnLSTM(1, 3)
LAYER.build((None, None, 5))
PREDICTOR = crnn.CpuPredictor(LAYER, 1)
gru, pack = cudnn_rnn_ops.cudnn_gru, cudnn_rnn_ops.cudnn_rnn_canonical_to_opaque_params


@pytest.mark.parametrize(
    ("call", "others", "argument", "value", "expected"),
    [
        (crnn.CudnnLSTM, (1, 3), "return_sequences", "no", "a bool"),
        (crnn.CudnnLSTM, (1, 3), "time_major", np.zeros(3), "a bool"),
        (crnn.CudnnLSTM, (1, 3), "recurrent_weight_dropout", "a", "a number"),
        (crnn.CudnnLSTM, (1, 3), "num_proj", [3], "an integer or None"),
        (crnn.CudnnLSTM, (1, 3), "seed", True, "an integer or None"),
        (crnn.CudnnLSTM, (1, 3), "kernel_initializer", "a", "a Keras initializer"),
        (crnn.CudnnGRU, (1, 3), "reset_after", None, "a bool"),
        (crnn.CudnnGRU, (1, 3), "recurrent_regularizer", "a", "a Keras regularizer"),
        (crnn.CudnnRNNTanh, (1,), "num_units", 1.5, "an integer"),
        (crnn.CudnnRNNTanh, (1, 3), "bias_constraint", "a", "a Keras constraint"),
        (drop_ins.LSTM, (), "units", "a", "an integer"),
        (drop_ins.LSTM, (3,), "bias_initializer", "a", "a Keras initializer"),
        (drop_ins.GRU, (3,), "recurrent_dropout", "a", "a number"),
        (drop_ins.SimpleRNN, (3,), "stateful", "no", "a bool or None"),
        (drop_ins.SimpleRNN, (3,), "activation", "a", "a Keras activation"),
        (drop_ins.Stack, (), "layers", 3, "a sequence"),
        (crnn.CudnnCompatibleLSTMCell, (), "num_units", "a", "an integer"),
        (crnn.CudnnCompatibleGRUCell, (3,), "dropout", "a", "a number"),
        (crnn.TorchUniform, (), "num_units", "a", "an integer"),
        (crnn.PerGate, (), "forget_gate", "a", "a Keras initializer"),
        (crnn.CpuPredictor, (LAYER,), "num_threads", 1.5, "an integer or None"),
        (LAYER.set_weights, (), "weights", "a", "a sequence"),
        (LAYER.assign_named_weights, (), "weights", 3, "a mapping"),
        (LAYER.canonical_to_params, ([],), "biases", None, "a sequence"),
        (crnn.accelerate, (MODEL,), "dry_run", "no", "a bool"),
        (crnn.load_keras_model, (), "path", 3, "a string or a path"),
        (crnn.load_keras_weights, (MODEL,), "by_name", "no", "a bool"),
        (crnn.export_onnx, (MODEL, "m.onnx"), "opset", "a", "an integer or None"),
        (crnn.export_litert, (MODEL, "m.tflite"), "optimizations", "DEFAULT", "a sequence"),
        (crnn.export_portable, (MODEL,), "path", None, "a string or a path"),
        (convert.from_torch, ({},), "return_state", "no", "a bool"),
        (convert.convert_file, ("a.pt",), "target", 3, "a string or a path"),
        (contrib.restore_keras_layer, (LAYER,), "checkpoint", 3, "a string or a path"),
        (crnn.RNNParamsSaveable, (3, None, None), "param_variables", 3, "a sequence"),
        (pack, (*SIZES, []), "biases", 3, "a sequence"),
        (native.ParamLayout, SIZES, "num_proj", "a", "an integer of 64 bits"),
    ],
)
def test_wrong_types(call, others, argument, value, expected):
    with pytest.raises((TypeError, ValueError)) as raised:
        call(*others, **{argument: value})
    message = f"expected {argument} to be {expected}, but received {value!r}"
    assert str(raised.value) == message
    assert type(raised.value) is (ValueError if "Keras" in expected else TypeError)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: drop_ins.Stack([3]), TypeError, "layers to hold Keras layers, but received 3"),
        (lambda: drop_ins.Stack([drop_ins.LSTM(3)])(np.zeros(3)), ValueError, "expected ndim=3"),
        (lambda: crnn.export_onnx(MODEL, "m.onnx", opset=3), ValueError, "opset .* received 3"),
        (lambda: native.ParamLayout(*SIZES, units=3), TypeError, "unknown names: {'units'}"),
        (lambda: native.ParamLayout(*SIZES, input_size=3), TypeError, "twice .* {'input_size'}"),
        (lambda: crnn.RNNParamsSaveable(3, None, None, [0]), TypeError, "cudnn_rnn_ops, .* 3"),
        (lambda: crnn.load_keras_weights(3, "a.h5"), TypeError, "model to be a Keras model"),
        (lambda: crnn.load_keras_weights(MODEL, "."), ValueError, "but '.' is a directory"),
        (lambda: crnn.load_keras_model("."), ValueError, "a file, but '.' is a directory"),
        (lambda: convert.from_torch("."), IsADirectoryError, "a file, but '.' is a directory"),
        (lambda: convert.convert_file(".", "m.pt"), ValueError, "the directory '.' has no Saved"),
        (lambda: contrib.restore_keras_layer(LAYER, "none"), FileNotFoundError, "'none'"),
        (lambda: contrib.restore_keras_layer(LAYER, __file__), ValueError, "test_arguments.py"),
        (lambda: crnn.CpuPredictor(LAYER, threads=2), TypeError, "'threads': write num_threads="),
        (lambda: PREDICTOR(0, mask=0), TypeError, "'mask': write sequence_lengths="),
        (
            lambda: LAYER(np.ones((1, 4, 5)), sequence_lengths=["a", 1]),
            ValueError,
            "lengths of layer",
        ),
        (lambda: gru(0.0, "a", 0, False), TypeError, "input_h to be what a tensor can"),
        (lambda: convert.to_onnx(LAYER, initial_state=[]), ValueError, "initial_state of layer"),
        (lambda: PREDICTOR(0, resetts=0), TypeError, "did you mean 'resets'?"),
    ],
)
def test_wrong_values(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_keras_takes_for_a_bool():
    assert not drop_ins.LSTM(3, return_state=None, use_bias=0, unroll=np.False_).cell.use_bias


def test_more_arguments_than_places():
    with pytest.raises(TypeError, match="units and 15 others at most, but received 20"):
        drop_ins.CuDNNLSTM(3, *[None] * 20)
