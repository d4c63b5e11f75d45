"""The op-level models and functions of `tf.contrib.cudnn_rnn.python.ops.cudnn_rnn_ops`.

Their meaning is unchanged: data are time-major, states are [L * D, B, n], and the parameters are a
tensor or variable that the caller owns. They work eagerly, in `tf.function` and in TensorFlow 1's
graphs.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.constants import *
from cudnn_rnn_tf.constants import (
    CUDNN_GRU,
    CUDNN_INPUT_LINEAR_MODE,
    CUDNN_LSTM,
    CUDNN_RNN_RELU,
    CUDNN_RNN_TANH,
    CUDNN_RNN_UNIDIRECTION,
)


def _dropout_seed(config: RnnConfig, is_training: bool, seed: Any) -> tf.Tensor | None:
    """The seed input of a call that was given `seed`.

    An integer seeds a sequence of masks, a new one each run, as TensorFlow 1's random ops do with
    their `seed` argument; a tensor [2] is used as it is.
    """
    if not is_training or config.dropout == 0.0:
        return None
    if isinstance(seed, int):
        return tf.compat.v1.random_uniform([2], maxval=tf.int64.max, dtype=tf.int64, seed=seed)
    return tf.cast(seed, tf.int64)


def _run(
    config: RnnConfig,
    inputs: Any,
    states: Sequence[Any],
    params: Any,
    is_training: bool,
    sequence_lengths: Any,
    time_major: bool,
    seed: Any,
    dtype: tf.DType | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    if not isinstance(is_training, bool):
        raise TypeError(f"expected is_training to be a Python bool, but received {is_training!r}")
    inputs = tf.convert_to_tensor(inputs, dtype=dtype)
    if sequence_lengths is not None:
        sequence_lengths = tf.convert_to_tensor(sequence_lengths, dtype=tf.int32)
    outputs, final_states = ops.forward(
        config,
        inputs,
        [tf.convert_to_tensor(state, dtype=inputs.dtype) for state in states],
        tf.convert_to_tensor(params, dtype=inputs.dtype),
        sequence_lengths=sequence_lengths,
        seed=_dropout_seed(config, is_training, seed),
        time_major=time_major,
        is_training=is_training,
        name=name,
    )
    return outputs, *final_states


class _CudnnRNN:
    """A network whose parameters the caller holds.

    Args:
        num_layers: layers in the stack, L.
        num_units: units per layer and direction, H.
        input_size: size of the inputs' last dimension, I.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional" (D = 1 or 2).
        dtype: float16, bfloat16, float32 or float64.
        dropout: rate between layers, in [0, 1).
        seed: seed of the dropout masks.
        num_proj: size of an LSTM's recurrent projection; None for none.

    Raises:
        ValueError: if an argument is out of range or does not fit the others.
        TypeError: if an argument is of the wrong type.
    """

    _rnn_mode: str

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: str = CUDNN_INPUT_LINEAR_MODE,
        direction: str = CUDNN_RNN_UNIDIRECTION,
        dtype: Any = tf.float32,
        dropout: float = 0.0,
        seed: int = 0,
        num_proj: int | None = None,
    ):
        self._config = RnnConfig(
            rnn_mode=self._rnn_mode,
            num_layers=num_layers,
            num_units=num_units,
            input_size=input_size,
            input_mode=input_mode,
            direction=direction,
            num_proj=num_proj or 0,
            dropout=dropout,
        )
        self._dtype = tf.as_dtype(dtype)
        self._seed = seed

    @property
    def input_mode(self) -> str:
        return self._config.input_mode

    @property
    def input_size(self) -> int:
        return self._config.input_size

    @property
    def num_units(self) -> int:
        return self._config.num_units

    @property
    def num_layers(self) -> int:
        return self._config.num_layers

    @property
    def num_dirs(self) -> int:
        return self._config.layout.num_dirs

    @property
    def rnn_mode(self) -> str:
        return self._config.rnn_mode

    @property
    def direction(self) -> str:
        return self._config.direction

    def params_size(self) -> tf.Tensor:
        """The number of elements in the opaque buffer, a scalar int64 tensor."""
        return ops.params_size(self._config)

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
        is_training: bool,
        sequence_lengths: Any,
        time_major: bool,
    ) -> tuple[tf.Tensor, ...]:
        return _run(
            self._config,
            input_data,
            states,
            params,
            is_training,
            sequence_lengths,
            time_major,
            self._seed,
            dtype=self._dtype,
        )


class CudnnLSTM(_CudnnRNN):
    __doc__ = _CudnnRNN.__doc__.replace("A network", "An LSTM")
    _rnn_mode = CUDNN_LSTM

    def __call__(
        self,
        input_data: Any,
        input_h: Any,
        input_c: Any,
        params: Any,
        is_training: bool = True,
        sequence_lengths: Any = None,
        time_major: bool = True,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Runs the network.

        Args:
            input_data: [T, B, I].
            input_h: the initial hidden states, [L * D, B, P].
            input_c: the initial cell states, [L * D, B, H].
            params: the opaque buffer, [params_size].
            is_training: whether dropout acts, a Python bool.
            sequence_lengths: int32 [B]; None where all sequences fill T.
            time_major: if false, the first two dimensions of sequences and states are exchanged.

        Returns:
            output [T, B, D * P], output_h and output_c, shaped as the initial states.
        """
        return self._call(
            input_data, (input_h, input_c), params, is_training, sequence_lengths, time_major
        )


class _CudnnRNNNoInputC(_CudnnRNN):
    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: str = CUDNN_INPUT_LINEAR_MODE,
        direction: str = CUDNN_RNN_UNIDIRECTION,
        dtype: Any = tf.float32,
        dropout: float = 0.0,
        seed: int = 0,
    ):
        super().__init__(
            num_layers, num_units, input_size, input_mode, direction, dtype, dropout, seed
        )

    def __call__(
        self,
        input_data: Any,
        input_h: Any,
        params: Any,
        is_training: bool = True,
        sequence_lengths: Any = None,
        time_major: bool = True,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the network.

        Args:
            input_data: [T, B, I].
            input_h: the initial states, [L * D, B, H].
            params: the opaque buffer, [params_size].
            is_training: whether dropout acts, a Python bool.
            sequence_lengths: int32 [B]; None where all sequences fill T.
            time_major: if false, the first two dimensions of sequences and states are exchanged.

        Returns:
            output [T, B, D * H] and output_h, shaped as the initial states.
        """
        return self._call(input_data, (input_h,), params, is_training, sequence_lengths, time_major)


class CudnnGRU(_CudnnRNNNoInputC):
    __doc__ = _CudnnRNN.__doc__.replace("A network", "A GRU").partition("        num_proj")[0]
    _rnn_mode = CUDNN_GRU


class CudnnRNNTanh(_CudnnRNNNoInputC):
    __doc__ = _CudnnRNN.__doc__.replace("A network", "A tanh RNN").partition("        num_proj")[0]
    _rnn_mode = CUDNN_RNN_TANH


class CudnnRNNRelu(_CudnnRNNNoInputC):
    __doc__ = _CudnnRNN.__doc__.replace("A network", "A ReLU RNN").partition("        num_proj")[0]
    _rnn_mode = CUDNN_RNN_RELU


# The functional ops.


def _config_from_tensors(
    rnn_mode: str,
    inputs: Any,
    states: Sequence[Any],
    time_major: bool,
    input_mode: str,
    direction: str,
    dropout: float,
) -> tuple[RnnConfig, tf.Tensor, list[tf.Tensor]]:
    """The configuration that the tensors' static shapes say."""
    inputs = tf.convert_to_tensor(inputs)
    states = [tf.convert_to_tensor(state, dtype=inputs.dtype) for state in states]
    for argument, tensor in zip(("inputs", "input_h", "input_c"), (inputs, *states), strict=False):
        if tensor.shape.rank != 3:
            raise ValueError(f"expected {argument} of rank 3, but received shape {tensor.shape}")
    num_dirs = 2 if direction == "bidirectional" else 1
    count = states[0].shape[0 if time_major else 1]
    num_units = states[-1].shape[2]
    known = {"inputs' last": inputs.shape[2], "input_h's layer": count, "states' last": num_units}
    for dimension, size in known.items():
        if size is None:
            raise ValueError(f"expected the {dimension} dimension to be static, but it is unknown")
    if count % num_dirs:
        raise ValueError(
            f"expected input_h to hold an even number of states for direction {direction!r}, but "
            f"received {count}"
        )
    output_size = states[0].shape[2]
    config = RnnConfig(
        rnn_mode=rnn_mode,
        num_layers=count // num_dirs,
        num_units=num_units,
        input_size=inputs.shape[2],
        input_mode=input_mode,
        direction=direction,
        num_proj=0 if output_size in (None, num_units) else output_size,
        dropout=dropout,
    )
    return config, inputs, states


def cudnn_lstm(
    inputs: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    is_training: bool,
    sequence_lengths: Any = None,
    time_major: bool = True,
    input_mode: str = CUDNN_INPUT_LINEAR_MODE,
    direction: str = CUDNN_RNN_UNIDIRECTION,
    dropout: float = 0.0,
    seed: Any = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs an LSTM whose sizes are those of the tensors.

    Args:
        inputs: [T, B, I].
        input_h: [L * D, B, P]; a P other than H means a projection.
        input_c: [L * D, B, H].
        params: the opaque buffer.
        is_training: whether dropout acts, a Python bool.
        sequence_lengths: int32 [B]; None where all sequences fill T.
        time_major: if false, the first two dimensions of sequences and states are exchanged.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional".
        dropout: rate between layers.
        seed: an integer that seeds a sequence of masks, or an int64 tensor [2].
        name: name of the op.

    Returns:
        output [T, B, D * P], output_h and output_c.

    Raises:
        ValueError: if a shape does not fit, or one that fixes the network's size is not static.
    """
    config, inputs, states = _config_from_tensors(
        CUDNN_LSTM, inputs, (input_h, input_c), time_major, input_mode, direction, dropout
    )
    return _run(
        config, inputs, states, params, is_training, sequence_lengths, time_major, seed, name=name
    )


def _run_without_c(rnn_mode: str, description: str):
    def run(
        inputs: Any,
        input_h: Any,
        params: Any,
        is_training: bool,
        sequence_lengths: Any = None,
        time_major: bool = True,
        input_mode: str = CUDNN_INPUT_LINEAR_MODE,
        direction: str = CUDNN_RNN_UNIDIRECTION,
        dropout: float = 0.0,
        seed: Any = 0,
        name: str | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        config, inputs, states = _config_from_tensors(
            rnn_mode, inputs, (input_h,), time_major, input_mode, direction, dropout
        )
        return _run(
            config,
            inputs,
            states,
            params,
            is_training,
            sequence_lengths,
            time_major,
            seed,
            name=name,
        )

    run.__name__ = run.__qualname__ = description
    run.__doc__ = (
        f"Runs a network of mode {rnn_mode!r} whose sizes are those of the tensors.\n\n"
        "    As `cudnn_lstm`, without the cell state: `input_h` is [L * D, B, H], and output\n"
        "    [T, B, D * H] and output_h are returned.\n    "
    )
    return run


cudnn_gru = _run_without_c(CUDNN_GRU, "cudnn_gru")
cudnn_rnn_tanh = _run_without_c(CUDNN_RNN_TANH, "cudnn_rnn_tanh")
cudnn_rnn_relu = _run_without_c(CUDNN_RNN_RELU, "cudnn_rnn_relu")


def _config(
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    input_mode: str,
    direction: str,
    num_proj: int | None,
) -> RnnConfig:
    return RnnConfig(
        rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj=num_proj or 0
    )


def cudnn_rnn_opaque_params_size(
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    input_mode: str = CUDNN_INPUT_LINEAR_MODE,
    direction: str = CUDNN_RNN_UNIDIRECTION,
    dtype: Any = tf.float32,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """The number of elements in a network's opaque buffer, a scalar int64 tensor.

    `dtype`, `dropout` and `seed` are taken for the sake of old programs; the size does not depend
    on them.
    """
    del dtype, dropout, seed
    config = _config(rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj)
    return ops.params_size(config, name=name)


def cudnn_rnn_canonical_to_opaque_params(
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[Any],
    biases: Sequence[Any],
    input_mode: str = CUDNN_INPUT_LINEAR_MODE,
    direction: str = CUDNN_RNN_UNIDIRECTION,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Packs canonical weights and biases into an opaque buffer.

    Raises:
        ValueError: if a list's length or a shape does not fit the configuration.
    """
    del dropout, seed
    config = _config(rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj)
    return ops.canonical_to_params(
        config,
        [tf.convert_to_tensor(weight) for weight in weights],
        [tf.convert_to_tensor(bias) for bias in biases],
        name=name,
    )


def cudnn_rnn_opaque_params_to_canonical(
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: Any,
    input_mode: str = CUDNN_INPUT_LINEAR_MODE,
    direction: str = CUDNN_RNN_UNIDIRECTION,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Takes an opaque buffer apart into lists of canonical weights and biases.

    Raises:
        ValueError: if the buffer's shape does not fit the configuration.
    """
    del dropout, seed
    config = _config(rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj)
    return ops.params_to_canonical(config, tf.convert_to_tensor(params), name=name)
