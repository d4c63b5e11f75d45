"""The functional ops of `tf.contrib.cudnn_rnn.python.ops.cudnn_rnn_ops`.

Programs find them in `cudnn_rnn_tf.cudnn_rnn_ops`.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import Direction, InputMode, RnnConfig, RnnMode
from cudnn_rnn_tf.contrib.network_calls import config_from, params_size, run

__all__ = [
    "cudnn_gru",
    "cudnn_lstm",
    "cudnn_rnn_canonical_to_opaque_params",
    "cudnn_rnn_opaque_params_size",
    "cudnn_rnn_opaque_params_to_canonical",
    "cudnn_rnn_relu",
    "cudnn_rnn_tanh",
]


def cudnn_lstm(
    inputs: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    is_training: bool,
    sequence_lengths: Any = None,
    time_major: bool = True,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs an LSTM whose sizes are those of the tensors.

    One sequence may come without a batch, as in `torch.nn`: inputs [T, I], with states [L * D, n].
    Sequences of their own lengths may come as a `tf.RaggedTensor` [B, (T), I], for ragged outputs
    [B, (T), D * P]; `time_major` then says the layout of the states.

    Args:
        inputs: [T, B, I].
        input_h: the initial hidden states, [L * D, B, P]; a P other than H means a projection.
        input_c: the initial cell states, [L * D, B, H].
        params: the opaque buffer, [params_size].
        is_training: whether dropout acts, a Python bool.
        sequence_lengths: integers [B]; None where all sequences fill T.
        time_major: if false, the first two dimensions of sequences and states are exchanged.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional".
        dropout: rate between layers, in [0, 1].
        seed: an integer that seeds a sequence of dropout masks, or an int64 tensor [2].
        num_proj: P, where there is a projection; the last dimension of `input_h` must equal it.
            With None, that dimension alone says whether there is a projection, and to what size.
        name: name of the op.

    Returns:
        output [T, B, D * P], output_h and output_c, shaped as the initial states.

    Raises:
        ValueError: if a shape does not fit, or one that fixes the network's size is not static (I
            may be unknown, if the size of `params` is not and `input_mode` is "linear_input").
        TypeError: if `is_training` is no Python bool.

    Example:
        ```python
        size = cudnn_rnn_ops.cudnn_rnn_opaque_params_size("lstm", 1, 32, 16)
        states = tf.zeros([1, 8, 32])
        output, output_h, output_c = cudnn_rnn_ops.cudnn_lstm(
            tf.zeros([20, 8, 16]), states, states, tf.zeros([size]), is_training=False
        )  # [20, 8, 32], and twice [1, 8, 32]
        ```
    """
    if num_proj:
        input_h = tf.convert_to_tensor(input_h)
        if input_h.shape.rank and input_h.shape.as_list()[-1] not in (None, num_proj):
            raise ValueError(
                f"expected the last dimension of input_h to be num_proj, {num_proj}, but received "
                f"shape {input_h.shape}"
            )
    config_of = config_from(constants.CUDNN_LSTM, time_major, input_mode, direction, dropout)
    call = (inputs, (input_h, input_c), params, is_training, sequence_lengths, time_major)
    return run(config_of, *call, seed=seed, dropout=dropout, name=name)


def cudnn_gru(
    inputs: Any,
    input_h: Any,
    params: Any,
    is_training: bool,
    sequence_lengths: Any = None,
    time_major: bool = True,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs a GRU whose sizes are those of the tensors.

    The arguments, results and errors are those of `cudnn_lstm`, without c and projections.
    """
    config_of = config_from(constants.CUDNN_GRU, time_major, input_mode, direction, dropout)
    call = (inputs, (input_h,), params, is_training, sequence_lengths, time_major)
    return run(config_of, *call, seed=seed, dropout=dropout, name=name)


def cudnn_rnn_tanh(
    inputs: Any,
    input_h: Any,
    params: Any,
    is_training: bool,
    sequence_lengths: Any = None,
    time_major: bool = True,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs a tanh RNN whose sizes are those of the tensors.

    The arguments, results and errors are those of `cudnn_lstm`, without c and projections.
    """
    config_of = config_from(constants.CUDNN_RNN_TANH, time_major, input_mode, direction, dropout)
    call = (inputs, (input_h,), params, is_training, sequence_lengths, time_major)
    return run(config_of, *call, seed=seed, dropout=dropout, name=name)


def cudnn_rnn_relu(
    inputs: Any,
    input_h: Any,
    params: Any,
    is_training: bool,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    sequence_lengths: Any = None,
    time_major: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs a ReLU RNN whose sizes are those of the tensors.

    The arguments, results and errors are those of `cudnn_lstm`, without c and projections, in
    contrib's order, which differs.
    """
    config_of = config_from(constants.CUDNN_RNN_RELU, time_major, input_mode, direction, dropout)
    call = (inputs, (input_h,), params, is_training, sequence_lengths, time_major)
    return run(config_of, *call, seed=seed, dropout=dropout, name=name)


def cudnn_rnn_opaque_params_size(
    rnn_mode: RnnMode,
    num_layers: int,
    num_units: int,
    input_size: int,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dtype: Any = tf.float32,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Returns the number of elements in a network's opaque buffer, a scalar int32 tensor.

    The arguments and errors are those of the class `CudnnLSTM`, and `rnn_mode`: "lstm", "gru",
    "rnn_tanh" or "rnn_relu". The size does not depend on `dtype`, `dropout` and `seed`.

    Example:
        ```python
        size = cudnn_rnn_ops.cudnn_rnn_opaque_params_size("gru", 2, 32, 16)  # 11136
        ```
    """
    del dtype, dropout, seed
    config = RnnConfig(
        rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj=num_proj or 0
    )
    return params_size(config, name)


@checked
def cudnn_rnn_canonical_to_opaque_params(
    rnn_mode: RnnMode,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[Any],
    biases: Sequence[Any],
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Packs canonical weights and biases into an opaque buffer [params_size] of their dtype.

    The arguments are those of `cudnn_rnn_opaque_params_size`, and the matrices [H, fan_in] and
    biases [H] in the order of `native.ParamLayout(…).weight_names` and `bias_names`.

    Raises:
        ValueError: if a list's length or a shape does not fit the configuration.

    Example:
        ```python
        params = cudnn_rnn_ops.cudnn_rnn_canonical_to_opaque_params(
            "rnn_tanh", 1, 32, 16, [tf.zeros([32, 16]), tf.zeros([32, 32])], [tf.zeros([32])] * 2
        )  # [1600]
        ```
    """
    del dropout, seed
    config = RnnConfig(
        rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj=num_proj or 0
    )
    return ops.canonical_to_params(
        config,
        [tf.convert_to_tensor(weight) for weight in weights],
        [tf.convert_to_tensor(bias) for bias in biases],
        name=name,
    )


def cudnn_rnn_opaque_params_to_canonical(
    rnn_mode: RnnMode,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: Any,
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Takes an opaque buffer apart: the inverse of `cudnn_rnn_canonical_to_opaque_params`.

    Raises:
        ValueError: if the buffer's shape is not [params_size].

    Example:
        ```python
        weights, biases = cudnn_rnn_ops.cudnn_rnn_opaque_params_to_canonical(
            "rnn_tanh", 1, 32, 16, tf.zeros([1600])
        )  # of the shapes [32, 16] and [32, 32], and twice [32]
        ```
    """
    del dropout, seed
    config = RnnConfig(
        rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj=num_proj or 0
    )
    return ops.params_to_canonical(config, tf.convert_to_tensor(params), name=name)
