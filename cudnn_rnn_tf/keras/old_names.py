"""`CuDNNLSTM` and `CuDNNGRU`, which Keras 3 has no more, with the arguments of Keras 2."""

from typing import Any

from cudnn_rnn_tf.keras.layers import GRU, LSTM


def CuDNNLSTM(  # noqa: N802 - Keras's name of a class.
    units: int,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "orthogonal",
    bias_initializer: Any = "zeros",
    unit_forget_bias: bool = True,
    kernel_regularizer: Any = None,
    recurrent_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    recurrent_constraint: Any = None,
    bias_constraint: Any = None,
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    stateful: bool = False,
    **kwargs: Any,
) -> LSTM:
    """Returns an `LSTM`, given the arguments of Keras 2's `CuDNNLSTM`, in their places there.

    `kwargs` are other arguments of `LSTM`.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.CuDNNLSTM(32, return_sequences=True)
        ```
    """
    named = locals()
    return LSTM(**named.pop("kwargs"), **named)


def CuDNNGRU(  # noqa: N802 - Keras's name of a class.
    units: int,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "orthogonal",
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    recurrent_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    recurrent_constraint: Any = None,
    bias_constraint: Any = None,
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    stateful: bool = False,
    **kwargs: Any,
) -> GRU:
    """Returns a `GRU` with `reset_after`, given the arguments of Keras 2's `CuDNNGRU`.

    `kwargs` are other arguments of `GRU`.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.CuDNNGRU(32)
        ```
    """
    named = locals()
    return GRU(**named.pop("kwargs"), **named)
