"""`CuDNNLSTM` and `CuDNNGRU`, which Keras 3 has no more, with the arguments of Keras 2."""

import inspect
from typing import Any

from cudnn_rnn_tf.keras.layers import GRU, LSTM

_BEFORE = ("units", "kernel_initializer", "recurrent_initializer", "bias_initializer")
_BEHIND = (
    "kernel_regularizer",
    "recurrent_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "recurrent_constraint",
    "bias_constraint",
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
)


def _named(names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns all arguments by their names, given those that have these places in Keras 2."""
    places = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    bound = inspect.Signature([*places, rest]).bind_partial(*args, **kwargs).arguments
    return {**bound.pop("kwargs", {}), **bound}


def CuDNNLSTM(*args: Any, **kwargs: Any) -> LSTM:  # noqa: N802 - Keras's name of a class.
    """Returns an `LSTM`, given the arguments of Keras 2's `CuDNNLSTM`.

    Args:
        *args: `units`, the three initializers, `unit_forget_bias`, the regularizers and constraints
            of kernel, recurrent kernel and bias, `activity_regularizer` before the constraints,
            `return_sequences`, `return_state`, `go_backwards`, `stateful`.
        **kwargs: of these, or of `LSTM`.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.CuDNNLSTM(32, return_sequences=True)
        ```
    """
    return LSTM(**_named((*_BEFORE, "unit_forget_bias", *_BEHIND), args, kwargs))


def CuDNNGRU(*args: Any, **kwargs: Any) -> GRU:  # noqa: N802 - Keras's name of a class.
    """Returns a `GRU` with `reset_after`, given the arguments of Keras 2's `CuDNNGRU`.

    Args:
        *args: those of `CuDNNLSTM` without `unit_forget_bias`.
        **kwargs: of these, or of `GRU`.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.CuDNNGRU(32)
        ```
    """
    return GRU(**_named((*_BEFORE, *_BEHIND), args, kwargs))
