"""A drop-in for `tensorflow.contrib.cudnn_rnn`.

`from cudnn_rnn_tf import contrib as cudnn_rnn` takes the place of
`from tensorflow.contrib import cudnn_rnn`, and `cudnn_rnn_tf.contrib.python.layers.cudnn_rnn` and
`cudnn_rnn_tf.contrib.python.ops.cudnn_rnn_ops` that of the modules there. Programs that use
`tf.compat.v1` run in graphs with sessions, with version 2 behavior off or on, and eagerly.
"""

# ruff: noqa: F403 - Each module lists its public names.
import cudnn_rnn_tf.constants as _constants
from cudnn_rnn_tf.constants import *
from cudnn_rnn_tf.contrib import cells as _cells
from cudnn_rnn_tf.contrib import format_converters as _format_converters
from cudnn_rnn_tf.contrib import functions as _functions
from cudnn_rnn_tf.contrib import saveable as _saveable
from cudnn_rnn_tf.contrib.cells import *
from cudnn_rnn_tf.contrib.format_converters import *
from cudnn_rnn_tf.contrib.functions import *
from cudnn_rnn_tf.contrib.python.layers.cudnn_rnn import (
    CudnnGRU,
    CudnnLSTM,
    CudnnRNNRelu,
    CudnnRNNTanh,
)
from cudnn_rnn_tf.contrib.restore import restore_keras_layer
from cudnn_rnn_tf.contrib.rnn import stack_bidirectional_dynamic_rnn
from cudnn_rnn_tf.contrib.saveable import *

__all__ = [
    "CudnnGRU",
    "CudnnLSTM",
    "CudnnRNNRelu",
    "CudnnRNNTanh",
    "restore_keras_layer",
    "stack_bidirectional_dynamic_rnn",
]
__all__ += _cells.__all__
__all__ += _constants.__all__
__all__ += _format_converters.__all__
__all__ += _functions.__all__
__all__ += _saveable.__all__
