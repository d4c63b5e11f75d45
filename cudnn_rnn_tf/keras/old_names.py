"""`CuDNNLSTM` and `CuDNNGRU`, which Keras 3 has no more, with the arguments of Keras 2."""

from typing import Any

from typing_extensions import Unpack

from cudnn_rnn_tf.keras.layers import GRU, LSTM
from cudnn_rnn_tf.keywords import WEIGHT_OPTIONS, GRUOptions, LSTMOptions

# These are the arguments after `units`, in their order.
_OF_GRU = (*WEIGHT_OPTIONS[:6], "activity_regularizer", *WEIGHT_OPTIONS[6:])
_OF_GRU += ("return_sequences", "return_state", "go_backwards", "stateful")
_OF_LSTM = (*_OF_GRU[:3], "unit_forget_bias", *_OF_GRU[3:])


def _named(names: tuple[str, ...], args: tuple[Any, ...]) -> dict[str, Any]:
    if len(args) > len(names):
        raise TypeError(f"expected units and {len(names)} others at most, but received {len(args)}")
    return dict(zip(names, args, strict=False))


def CuDNNLSTM(  # noqa: N802 - Keras's name of a class.
    units: int, *args: Any, **kwargs: Unpack[LSTMOptions]
) -> LSTM:
    """Returns an `LSTM`, given the arguments of Keras 2's `CuDNNLSTM`, in their places there.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.CuDNNLSTM(32, return_sequences=True)
        ```
    """
    return LSTM(units, **_named(_OF_LSTM, args), **kwargs)


def CuDNNGRU(  # noqa: N802 - Keras's name of a class.
    units: int, *args: Any, **kwargs: Unpack[GRUOptions]
) -> GRU:
    """Returns a `GRU` with `reset_after`, given the arguments of Keras 2's `CuDNNGRU`."""
    return GRU(units, **_named(_OF_GRU, args), **kwargs)
