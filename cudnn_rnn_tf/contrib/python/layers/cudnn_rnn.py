"""`tensorflow.contrib.cudnn_rnn.python.layers.cudnn_rnn`: the layers of TensorFlow 1.

The Keras layers of the same names are those of `cudnn_rnn_tf.layers`.

They create one variable, `<variable scope>/<name>/opaque_kernel`, by `tf.compat.v1.get_variable`,
so that variable scopes, `reuse` and collections work as they did.
"""

import cudnn_rnn_tf.constants as _constants
from cudnn_rnn_tf import cudnn_rnn_ops
from cudnn_rnn_tf.constants import *  # noqa: F403 - Programs look for them here.
from cudnn_rnn_tf.contrib.rnn_layer import _CudnnRNN
from cudnn_rnn_tf.contrib.saveable import (
    CudnnGRUSaveable,
    CudnnLSTMSaveable,
    CudnnRNNReluSaveable,
    CudnnRNNTanhSaveable,
)

__all__ = ["CudnnGRU", "CudnnLSTM", "CudnnRNNRelu", "CudnnRNNTanh"]
__all__ += _constants.__all__


class CudnnLSTM(_CudnnRNN):
    """The layer of `tf.contrib.cudnn_rnn`: a stack of LSTM layers in one op.

    In a graph, the layer's one saveable is put into the collection
    `tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS`, where `tf.compat.v1.train.Saver` finds it.

    Args:
        num_layers: layers in the stack, L.
        num_units: units per layer and direction, H.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional" (D = 1 or 2).
        dropout: rate between layers, in [0, 1].
        seed: integer seed of the sequence of dropout masks and of the default kernel initializer;
            None for random ones.
        dtype: of the variable and the computation.
        kernel_initializer: called with a canonical weight's shape and dtype, once for each; None
            for Glorot's uniform one.
        bias_initializer: likewise of the biases; None for zeros.
        name: default name of the variable scope that the layer opens, or a
            `tf.compat.v1.VariableScope` that has this name; None for the class's.

    Raises:
        ValueError: if an argument is out of range or does not fit the others.
        TypeError: if an argument is of the wrong type.

    Example:
        ```python
        lstm = cudnn_rnn.CudnnLSTM(2, 32, direction="bidirectional")
        outputs, (h, c) = lstm(tf.zeros([20, 8, 16]))  # [20, 8, 64], and twice [4, 8, 32]
        ```
    """

    rnn_mode = _constants.CUDNN_LSTM
    _num_params_per_layer = _constants.CUDNN_LSTM_PARAMS_PER_LAYER
    _model_class = cudnn_rnn_ops.CudnnLSTM
    _saveable_cls = CudnnLSTMSaveable


class CudnnGRU(_CudnnRNN):
    """The layer of `tf.contrib.cudnn_rnn`: a stack of GRU layers in one op.

    The arguments, the collection and the errors are those of `CudnnLSTM`.

    Example:
        ```python
        gru = cudnn_rnn.CudnnGRU(2, 32, dropout=0.1)
        outputs, (h,) = gru(tf.zeros([20, 8, 16]), training=True)  # [20, 8, 32] and [2, 8, 32]
        ```
    """

    rnn_mode = _constants.CUDNN_GRU
    _num_params_per_layer = _constants.CUDNN_GRU_PARAMS_PER_LAYER
    _model_class = cudnn_rnn_ops.CudnnGRU
    _saveable_cls = CudnnGRUSaveable


class CudnnRNNTanh(_CudnnRNN):
    """The layer of `tf.contrib.cudnn_rnn`: a stack of plain recurrent layers with tanh in one op.

    The arguments, the collection and the errors are those of `CudnnLSTM`.

    Example:
        ```python
        rnn = cudnn_rnn.CudnnRNNTanh(1, 32)
        lengths = [20, 3, 7, 0, 1, 20, 9, 4]
        outputs, (h,) = rnn(tf.zeros([20, 8, 16]), sequence_lengths=lengths)  # h: [1, 8, 32]
        ```
    """

    rnn_mode = _constants.CUDNN_RNN_TANH
    _num_params_per_layer = _constants.CUDNN_RNN_TANH_PARAMS_PER_LAYER
    _model_class = cudnn_rnn_ops.CudnnRNNTanh
    _saveable_cls = CudnnRNNTanhSaveable


class CudnnRNNRelu(_CudnnRNN):
    """The layer of `tf.contrib.cudnn_rnn`: a stack of plain recurrent layers with ReLU in one op.

    The arguments, the collection and the errors are those of `CudnnLSTM`.

    Example:
        ```python
        rnn = cudnn_rnn.CudnnRNNRelu(1, 32)
        outputs, (h,) = rnn(tf.zeros([8, 20, 16]), time_major=False)  # [8, 20, 32], [8, 1, 32]
        ```
    """

    rnn_mode = _constants.CUDNN_RNN_RELU
    _num_params_per_layer = _constants.CUDNN_RNN_RELU_PARAMS_PER_LAYER
    _model_class = cudnn_rnn_ops.CudnnRNNRelu
    _saveable_cls = CudnnRNNReluSaveable
