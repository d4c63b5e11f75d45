"""A drop-in for `tensorflow.contrib.cudnn_rnn`.

`from cudnn_rnn_tf import contrib as cudnn_rnn` takes the place of
`from tensorflow.contrib import cudnn_rnn`, and `cudnn_rnn_tf.contrib.python.layers.cudnn_rnn` and
`cudnn_rnn_tf.contrib.python.ops.cudnn_rnn_ops` that of the modules there. Programs that use
`tf.compat.v1` run in graphs with sessions, with version 2 behavior off or on, and eagerly.
"""

import cudnn_rnn_tf.constants as _constants
from cudnn_rnn_tf.constants import *  # noqa: F403 - All of them.
from cudnn_rnn_tf.contrib.cells import (
    BasicRNNCell,
    CudnnCompatibleGRUCell,
    CudnnCompatibleLSTMCell,
    GRUBlockCell,
    GRUBlockCellV2,
    LSTMStateTuple,
    MultiRNNCell,
    stack_bidirectional_dynamic_rnn,
)
from cudnn_rnn_tf.contrib.format_converters import (
    CudnnParamsFormatConverter,
    CudnnParamsFormatConverterGRU,
    CudnnParamsFormatConverterLSTM,
    CudnnParamsFormatConverterRelu,
    CudnnParamsFormatConverterTanh,
)
from cudnn_rnn_tf.contrib.python.layers.cudnn_rnn import (
    CudnnGRU,
    CudnnLSTM,
    CudnnRNNRelu,
    CudnnRNNTanh,
)
from cudnn_rnn_tf.contrib.restore import restore_keras_layer
from cudnn_rnn_tf.contrib.saveable import (
    CudnnGRUSaveable,
    CudnnLSTMSaveable,
    CudnnOpaqueParamsSaveable,
    CudnnRNNReluSaveable,
    CudnnRNNTanhSaveable,
    RNNParamsSaveable,
    canonical_var_list,
)
from cudnn_rnn_tf.cudnn_rnn_ops import (
    cudnn_gru,
    cudnn_lstm,
    cudnn_rnn_canonical_to_opaque_params,
    cudnn_rnn_opaque_params_size,
    cudnn_rnn_opaque_params_to_canonical,
    cudnn_rnn_relu,
    cudnn_rnn_tanh,
)

__all__ = [
    "BasicRNNCell",
    "CudnnCompatibleGRUCell",
    "CudnnCompatibleLSTMCell",
    "CudnnGRU",
    "CudnnGRUSaveable",
    "CudnnLSTM",
    "CudnnLSTMSaveable",
    "CudnnOpaqueParamsSaveable",
    "CudnnParamsFormatConverter",
    "CudnnParamsFormatConverterGRU",
    "CudnnParamsFormatConverterLSTM",
    "CudnnParamsFormatConverterRelu",
    "CudnnParamsFormatConverterTanh",
    "CudnnRNNRelu",
    "CudnnRNNReluSaveable",
    "CudnnRNNTanh",
    "CudnnRNNTanhSaveable",
    "GRUBlockCell",
    "GRUBlockCellV2",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNParamsSaveable",
    "canonical_var_list",
    "cudnn_gru",
    "cudnn_lstm",
    "cudnn_rnn_canonical_to_opaque_params",
    "cudnn_rnn_opaque_params_size",
    "cudnn_rnn_opaque_params_to_canonical",
    "cudnn_rnn_relu",
    "cudnn_rnn_tanh",
    "restore_keras_layer",
    "stack_bidirectional_dynamic_rnn",
]
__all__ += _constants.__all__
