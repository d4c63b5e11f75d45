"""Cells in plain TensorFlow with the arithmetic of the fused layers.

They are for a step-by-step loop in `keras.layers.RNN`, such as a decoder that feeds its outputs
back. `set_canonical` copies the weights of a fused layer.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from typing_extensions import Unpack

from cudnn_rnn_tf import constants, keywords
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.keras_weights import to_keras_weights
from cudnn_rnn_tf.pseudo_layers import PseudoLayer


class _Compatible(keras.layers.Layer):
    """Gives a cell of Keras's the weights of a fused layer, and `num_units` in its config."""

    use_bias: bool
    _rnn_mode: str
    _num_gates: int

    @checked
    def set_canonical(self, weights: Sequence[Any], biases: Sequence[Any]) -> None:
        """Takes over one pseudo-layer of a fused layer of the kind; the cell must be built.

        Args:
            weights: its canonical weights: 8 of an LSTM, 6 of a GRU.
            biases: as many canonical biases, of which an LSTM's two sides are summed; none for a
                cell with `use_bias=False`.

        Raises:
            TypeError: if one of them is no sequence.
            ValueError: if a list's length or a shape does not fit.
        """
        count = 2 * self._num_gates
        for argument, tensors, expected in (
            ("weights", weights, count),
            ("biases", biases, count if self.use_bias else 0),
        ):
            if len(tensors) != expected:
                raise ValueError(
                    f"expected {expected} canonical {argument} of one pseudo-layer for "
                    f"{type(self).__name__}, but received {len(tensors)}"
                )
        sides = [
            np.concatenate([keras.ops.convert_to_numpy(gate) for gate in gates])
            for tensors in ((weights, biases) if self.use_bias else (weights,))
            for gates in (tensors[: self._num_gates], tensors[self._num_gates :])
        ]
        self.set_weights(to_keras_weights(self._rnn_mode, PseudoLayer(*sides)))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["num_units"] = config.pop("units")
        return config


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnCompatibleLSTMCell(_Compatible, keras.layers.LSTMCell):
    """An LSTM cell with the arithmetic of `CudnnLSTM`: Keras's, without its unit forget bias.

    Args:
        num_units: units, H.
        **kwargs: to `keras.layers.LSTMCell`.
    """

    _rnn_mode, _num_gates = constants.CUDNN_LSTM, 4

    @checked
    def __init__(self, num_units: int, **kwargs: Unpack[keywords.LSTMCellOptions]):
        kwargs.setdefault("unit_forget_bias", False)
        super().__init__(num_units, **kwargs)


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnCompatibleGRUCell(_Compatible, keras.layers.GRUCell):
    """A GRU cell with the arithmetic of `CudnnGRU`: Keras's with `reset_after=True`.

    Args:
        num_units: units, H.
        **kwargs: to `keras.layers.GRUCell`.
    """

    _rnn_mode, _num_gates = constants.CUDNN_GRU, 3

    @checked
    def __init__(self, num_units: int, **kwargs: Unpack[keywords.GRUCellOptions]):
        if not kwargs.setdefault("reset_after", True):
            raise ValueError(
                "expected reset_after=True for CudnnCompatibleGRUCell, whose reset gate acts after "
                "the recurrent product, but received reset_after=False"
            )
        super().__init__(num_units, **kwargs)
