"""The op-level models and functions of `tf.contrib.cudnn_rnn.python.ops.cudnn_rnn_ops`.

Their meaning is unchanged: data are time-major, states are [L * D, B, n], and the parameters are a
tensor or variable that the caller owns. They work eagerly, in `tf.function` and in TensorFlow 1's
graphs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import cudnn_rnn_tf.constants as constants
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import Direction, HasConfig, InputMode, RnnConfig
from cudnn_rnn_tf.constants import *  # noqa: F403 - Programs look for them here.
from cudnn_rnn_tf.contrib import functions as _functions
from cudnn_rnn_tf.contrib.functions import *  # noqa: F403 - It lists its public names.
from cudnn_rnn_tf.contrib.network_calls import params_size, rate_below_1, run

__all__ = ["CudnnGRU", "CudnnLSTM", "CudnnRNNRelu", "CudnnRNNTanh"]
__all__ += constants.__all__
__all__ += _functions.__all__


class _CudnnRNN(HasConfig):
    """The base class of the models, each of which explains its arguments."""

    _rnn_mode: str
    # The number of weights, and also of biases, of one pseudo-layer.
    _NUM_PARAMS_PER_LAYER: int

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dtype: Any = tf.float32,
        dropout: float = 0.0,
        seed: Any = 0,
    ):
        sizes = (num_layers, num_units, input_size)
        self._config = RnnConfig(
            self._rnn_mode, *sizes, input_mode, direction, dropout=rate_below_1(dropout)
        )
        self._dtype = tf.as_dtype(dtype)
        ops.check_dtype("dtype", self._dtype.name)
        self._dropout = dropout
        self._seed = seed

    @property
    def input_mode(self) -> str:
        return self._config.input_mode

    @property
    def input_size(self) -> int:
        return self._config.input_size

    @property
    def rnn_mode(self) -> str:
        return self._config.rnn_mode

    def params_size(self) -> tf.Tensor:
        """The number of elements in the opaque buffer, a scalar int32 tensor."""
        return params_size(self._config)

    @checked
    def canonical_to_params(self, weights: Sequence[Any], biases: Sequence[Any]) -> tf.Tensor:
        """Packs canonical weights and biases into an opaque buffer [params_size].

        Raises:
            ValueError: if a list's length or a shape does not fit the configuration.
        """
        return ops.canonical_to_params(
            self._config,
            [tf.convert_to_tensor(weight, dtype=self._dtype) for weight in weights],
            [tf.convert_to_tensor(bias, dtype=self._dtype) for bias in biases],
        )

    def params_to_canonical(self, params: Any) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Takes an opaque buffer apart into lists of weights and biases.

        Raises:
            ValueError: if the buffer's shape does not fit the configuration.
        """
        return ops.params_to_canonical(
            self._config, tf.convert_to_tensor(params, dtype=self._dtype)
        )

    def _call(
        self,
        input_data: Any,
        states: Sequence[Any],
        params: Any,
        sequence_lengths: Any,
        time_major: bool,
        is_training: bool,
    ) -> tuple[tf.Tensor, ...]:
        return run(
            lambda *_: self._config,
            input_data,
            states,
            params,
            is_training,
            sequence_lengths,
            time_major,
            seed=self._seed,
            dropout=self._dropout,
            dtype=self._dtype,
        )


class CudnnLSTM(_CudnnRNN):
    """The op-level model: a stack of LSTM layers, with the caller's parameters.

    Two layers have the same name and hold their parameters themselves: the Keras layer
    `cudnn_rnn_tf.CudnnLSTM` and TensorFlow 1's `cudnn_rnn_tf.contrib.CudnnLSTM`.

    Args:
        num_layers: layers in the stack, L.
        num_units: units per layer and direction, H.
        input_size: size of the inputs' last dimension, I.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional" (D = 1 or 2).
        dtype: float16, bfloat16, float32 or float64.
        dropout: rate between layers, in [0, 1].
        seed: an integer that seeds a sequence of dropout masks, a new one each run, or an int64
            tensor [2] that says the masks; None for a random sequence.
        num_proj: size P of the recurrent projection, at most H; None for none.

    Raises:
        ValueError: if an argument is out of range or does not fit the others.
        TypeError: if an argument is of the wrong type.

    Example:
        ```python
        model = cudnn_rnn_ops.CudnnLSTM(1, 32, 16)
        params = tf.random.normal([model.params_size()], stddev=0.1)
        h = c = tf.zeros([1, 8, 32])
        output, output_h, output_c = model(tf.zeros([20, 8, 16]), h, c, params)
        ```
    """

    _rnn_mode = constants.CUDNN_LSTM
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_LSTM_PARAMS_PER_LAYER

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dtype: Any = tf.float32,
        dropout: float = 0.0,
        seed: Any = 0,
        num_proj: int | None = None,
    ):
        super().__init__(
            num_layers, num_units, input_size, input_mode, direction, dtype, dropout, seed
        )
        self._config = dataclasses.replace(self._config, num_proj=num_proj or 0)

    @property
    def num_proj(self) -> int | None:
        """The size of the recurrent projection; None for none."""
        return self._config.num_proj or None

    def __call__(
        self,
        input_data: Any,
        input_h: Any,
        input_c: Any,
        params: Any,
        sequence_lengths: Any = None,
        time_major: bool = True,
        is_training: bool = True,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Runs the network.

        The arguments and results are those of the function `cudnn_lstm`, which calls `input_data`
        `inputs`.
        """
        return self._call(
            input_data, (input_h, input_c), params, sequence_lengths, time_major, is_training
        )


class _CudnnRNNNoInputC(_CudnnRNN):
    def __call__(
        self,
        input_data: Any,
        input_h: Any,
        params: Any,
        sequence_lengths: Any = None,
        time_major: bool = True,
        is_training: bool = True,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the network.

        The arguments and results are those of `CudnnLSTM`, without c and projections.
        """
        return self._call(input_data, (input_h,), params, sequence_lengths, time_major, is_training)


class CudnnGRU(_CudnnRNNNoInputC):
    """The op-level model: a stack of GRU layers, with the caller's parameters.

    The arguments and errors are those of `CudnnLSTM`, without `num_proj`.
    """

    _rnn_mode = constants.CUDNN_GRU
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_GRU_PARAMS_PER_LAYER


class CudnnRNNTanh(_CudnnRNNNoInputC):
    """The op-level model: a stack of plain layers with tanh, with the caller's parameters.

    The arguments and errors are those of `CudnnLSTM`, without `num_proj`.
    """

    _rnn_mode = constants.CUDNN_RNN_TANH
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_RNN_TANH_PARAMS_PER_LAYER


class CudnnRNNRelu(_CudnnRNNNoInputC):
    """The op-level model: a stack of plain layers with ReLU, with the caller's parameters.

    The arguments and errors are those of `CudnnLSTM`, without `num_proj`.
    """

    _rnn_mode = constants.CUDNN_RNN_RELU
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_RNN_RELU_PARAMS_PER_LAYER
