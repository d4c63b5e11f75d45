"""Cells in plain TensorFlow with the arithmetic of the fused layers.

They are for a step-by-step loop in `keras.layers.RNN`, such as a decoder that feeds its outputs
back. `set_canonical` copies the weights of a fused layer.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.keras_weights import to_keras_weights
from cudnn_rnn_tf.pseudo_layers import PseudoLayer


def _set_canonical(
    cell: Any, rnn_mode: str, num_gates: int, weights: Sequence[Any], biases: Sequence[Any]
) -> None:
    count = 2 * num_gates
    for argument, tensors, expected in (
        ("weights", weights, count),
        ("biases", biases, count if cell.use_bias else 0),
    ):
        if len(tensors) != expected:
            raise ValueError(
                f"expected {expected} canonical {argument} of one pseudo-layer for "
                f"{type(cell).__name__}, but received {len(tensors)}"
            )
    sides = [
        np.concatenate([keras.ops.convert_to_numpy(gate) for gate in gates])
        for tensors in ((weights, biases) if cell.use_bias else (weights,))
        for gates in (tensors[:num_gates], tensors[num_gates:])
    ]
    cell.set_weights(to_keras_weights(rnn_mode, PseudoLayer(*sides)))


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnCompatibleLSTMCell(keras.layers.LSTMCell):
    """An LSTM cell with the arithmetic of `CudnnLSTM`: Keras's, without its unit forget bias.

    Args:
        num_units: units, H.
        **kwargs: to `keras.layers.LSTMCell`.
    """

    def __init__(self, num_units: int, **kwargs: Any):
        kwargs.setdefault("unit_forget_bias", False)
        super().__init__(num_units, **kwargs)

    def set_canonical(self, weights: Sequence[Any], biases: Sequence[Any]) -> None:
        """Takes over one pseudo-layer of a fused LSTM; the cell must be built.

        Args:
            weights: its 8 canonical weights.
            biases: its 8 canonical biases, of which the two sides are summed; none for a cell with
                `use_bias=False`.

        Raises:
            ValueError: if a list's length or a shape does not fit.
        """
        _set_canonical(self, constants.CUDNN_LSTM, 4, weights, biases)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["num_units"] = config.pop("units")
        return config


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnCompatibleGRUCell(keras.layers.GRUCell):
    """A GRU cell with the arithmetic of `CudnnGRU`: Keras's with `reset_after=True`.

    Args:
        num_units: units, H.
        **kwargs: to `keras.layers.GRUCell`.
    """

    def __init__(self, num_units: int, **kwargs: Any):
        if not kwargs.setdefault("reset_after", True):
            raise ValueError(
                "expected reset_after=True for CudnnCompatibleGRUCell, whose reset gate acts after "
                "the recurrent product, but received reset_after=False"
            )
        super().__init__(num_units, **kwargs)

    def set_canonical(self, weights: Sequence[Any], biases: Sequence[Any]) -> None:
        """Takes over one pseudo-layer of a fused GRU; the cell must be built.

        Args:
            weights: its 6 canonical weights.
            biases: its 6 canonical biases; none for a cell with `use_bias=False`.

        Raises:
            ValueError: if a list's length or a shape does not fit.
        """
        _set_canonical(self, constants.CUDNN_GRU, 3, weights, biases)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["num_units"] = config.pop("units")
        return config
