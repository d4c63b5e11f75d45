"""`tensorflow.contrib.cudnn_rnn.python.ops.cudnn_rnn_ops`: op-level models, saveables and cells.

Its models and functions are those of `cudnn_rnn_tf.cudnn_rnn_ops`; it has all other names of the
old module besides.
"""

from collections.abc import Callable
from typing import Any, get_args

import tensorflow as tf

import cudnn_rnn_tf.contrib.format_converters as _format_converters
import cudnn_rnn_tf.contrib.saveable as _saveable
import cudnn_rnn_tf.cudnn_rnn_ops as _models
from cudnn_rnn_tf.config import Direction, InputMode, RnnConfig
from cudnn_rnn_tf.contrib.cells import CudnnCompatibleGRUCell, CudnnCompatibleLSTMCell
from cudnn_rnn_tf.contrib.format_converters import *  # noqa: F403 - It lists its public names.
from cudnn_rnn_tf.contrib.functions import cudnn_gru, cudnn_lstm, cudnn_rnn_relu, cudnn_rnn_tanh
from cudnn_rnn_tf.contrib.saveable import *  # noqa: F403 - It lists its public names.
from cudnn_rnn_tf.cudnn_rnn_ops import *  # noqa: F403 - It lists its public names.

_FUNCTIONS: dict[str, Callable[..., tuple[tf.Tensor, tf.Tensor]]] = {
    "gru": cudnn_gru,
    "rnn_tanh": cudnn_rnn_tanh,
    "rnn_relu": cudnn_rnn_relu,
}


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
    options = {
        "sequence_lengths": sequence_lengths,
        "time_major": time_major,
        "input_mode": input_mode,
        "direction": direction,
        "dropout": dropout,
        "seed": seed,
        "name": name,
    }
    if rnn_mode == "lstm":
        return cudnn_lstm(
            inputs, input_h, input_c, params, is_training, num_proj=num_proj, **options
        )
    if rnn_mode not in _FUNCTIONS:
        known = ", ".join(map(repr, ("lstm", *_FUNCTIONS)))
        raise ValueError(f"expected rnn_mode to be one of {known}, but received {rnn_mode!r}")
    outputs, h = _FUNCTIONS[rnn_mode](inputs, input_h, params, is_training, **options)
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
