"""`tensorflow.contrib.cudnn_rnn.python.ops.cudnn_rnn_ops`: op-level models, saveables and cells.

Its models and functions are those of `cudnn_rnn_tf.cudnn_rnn_ops`; it has all other names of the
old module besides.
"""

from typing import Any, get_args

import tensorflow as tf

import cudnn_rnn_tf.contrib.format_converters as _format_converters
import cudnn_rnn_tf.contrib.saveable as _saveable
import cudnn_rnn_tf.cudnn_rnn_ops as _models
from cudnn_rnn_tf import constants
from cudnn_rnn_tf.config import Direction, InputMode, RnnConfig
from cudnn_rnn_tf.contrib.cells import CudnnCompatibleGRUCell, CudnnCompatibleLSTMCell
from cudnn_rnn_tf.contrib.format_converters import *  # noqa: F403 - It lists its public names.
from cudnn_rnn_tf.contrib.functions import cudnn_lstm
from cudnn_rnn_tf.contrib.network_calls import config_from, run
from cudnn_rnn_tf.contrib.saveable import *  # noqa: F403 - It lists its public names.
from cudnn_rnn_tf.cudnn_rnn_ops import *  # noqa: F403 - It lists its public names.


def _cudnn_rnn(
    inputs: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    is_training: bool,
    rnn_mode: str,
    sequence_lengths: Any = None,
    time_major: bool = True,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Does what `cudnn_lstm` and the others do, by mode; programs call this function of contrib's.

    If the mode has no cell states, `input_c` is not read and the returned ones are empty.

    Raises:
        ValueError: if the mode is unknown, or a shape does not fit.
    """
    if rnn_mode == constants.CUDNN_LSTM:
        data = (inputs, input_h, input_c, params, is_training, sequence_lengths, time_major)
        return cudnn_lstm(*data, input_mode, direction, dropout, seed, num_proj, name)
    known = (constants.CUDNN_GRU, constants.CUDNN_RNN_TANH, constants.CUDNN_RNN_RELU)
    if rnn_mode not in known:
        names = ", ".join(map(repr, (constants.CUDNN_LSTM, *known)))
        raise ValueError(f"expected rnn_mode to be one of {names}, but received {rnn_mode!r}")
    config_of = config_from(rnn_mode, time_major, input_mode, direction, dropout)
    call = (inputs, (input_h,), params, is_training, sequence_lengths, time_major)
    outputs, h = run(config_of, *call, seed=seed, dropout=dropout, name=name)
    return outputs, h, tf.constant([], outputs.dtype)


def check_direction(direction: str) -> None:
    """Raises ValueError if there is no such direction."""
    known = get_args(Direction)
    if direction not in known:
        raise ValueError(f"expected direction to be one of {known}, but received {direction!r}")


def check_input_mode(input_mode: str) -> None:
    """Raises ValueError if there is no such input mode."""
    known = get_args(InputMode)
    if input_mode not in known:
        raise ValueError(f"expected input_mode to be one of {known}, but received {input_mode!r}")


def _get_num_params(rnn_mode: str, num_layers: int, direction: Direction) -> int:
    """Returns how many matrices a network without projection has; it has as many biases."""
    config = RnnConfig(rnn_mode, num_layers, 1, 1, direction=direction)
    return len(config.layout.weight_shapes)


__all__ = [
    "CudnnCompatibleGRUCell",
    "CudnnCompatibleLSTMCell",
    "check_direction",
    "check_input_mode",
]
__all__ += _format_converters.__all__
__all__ += _models.__all__
__all__ += _saveable.__all__
