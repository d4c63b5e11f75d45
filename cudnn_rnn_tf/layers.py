"""The Keras layers."""

from typing import Any

import keras

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.rnn_layer import CudnnRNN


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnLSTM(CudnnRNN):
    __doc__ = f"""A stack of LSTM layers in one op.

    i, f, o = σ(W x + R h + b_W + b_R), c̃ = tanh(W_c x + R_c h + b_Wc + b_Rc), c' = f∘c + i∘c̃,
    h' = o∘tanh(c'); with projection h' = W_p (o∘tanh(c')).

    Besides what all layers have:
        num_proj: size P of the recurrent projection, at most `num_units`; None for none.
        cell_clip: bound to which the cell states, the initial ones included, are clipped; None for
            none.
    {(CudnnRNN.__doc__ or "").partition("use on its own.")[2]}"""

    rnn_mode = constants.CUDNN_LSTM

    def __init__(
        self,
        *args: Any,
        num_proj: int | None = None,
        cell_clip: float | None = None,
        **kwargs: Any,
    ):
        self._projection_and_clip = {"num_proj": num_proj or 0, "cell_clip": cell_clip or 0.0}
        super().__init__(*args, **kwargs)

    def _own_config(self) -> dict[str, Any]:
        return self._projection_and_clip

    @property
    def num_proj(self) -> int | None:
        return self._config.num_proj or None

    @property
    def cell_clip(self) -> float | None:
        return self._config.cell_clip or None


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnGRU(CudnnRNN):
    __doc__ = f"""A stack of GRU layers in one op.

    r, z = σ(W x + R h + b_W + b_R), h̃ = tanh(W_h x + r∘(R_h h + b_Rh) + b_Wh),
    h' = (1−z)∘h̃ + z∘h: Keras's GRU with `reset_after=True`, PyTorch's GRU.
    {(CudnnRNN.__doc__ or "").partition("use on its own.")[2]}"""

    rnn_mode = constants.CUDNN_GRU


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnRNNTanh(CudnnRNN):
    __doc__ = f"""A stack of plain recurrent layers with tanh in one op.

    h' = tanh(W x + R h + b_W + b_R).
    {(CudnnRNN.__doc__ or "").partition("use on its own.")[2]}"""

    rnn_mode = constants.CUDNN_RNN_TANH


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnRNNRelu(CudnnRNN):
    __doc__ = f"""A stack of plain recurrent layers with ReLU in one op.

    h' = max(0, W x + R h + b_W + b_R).
    {(CudnnRNN.__doc__ or "").partition("use on its own.")[2]}"""

    rnn_mode = constants.CUDNN_RNN_RELU
