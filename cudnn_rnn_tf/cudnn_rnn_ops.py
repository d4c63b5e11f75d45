"""The op-level models and functions of `tf.contrib.cudnn_rnn.python.ops.cudnn_rnn_ops`.

Their meaning is unchanged: data are time-major, states are [L * D, B, n], and the parameters are a
tensor or variable that the caller owns. They work eagerly, in `tf.function` and in TensorFlow 1's
graphs.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf.config import HasConfig, RnnConfig
from cudnn_rnn_tf.constants import *  # noqa: F403 - Programs look for them here.
from cudnn_rnn_tf.sequences import from_ragged, to_ragged

# The network, of arguments in the shapes that the ops take.
_ConfigOf = Callable[[tf.Tensor, Sequence[tf.Tensor], tf.Tensor], RnnConfig]


def _run(
    config_of: _ConfigOf,
    inputs: Any,
    states: Sequence[Any],
    params: Any,
    is_training: bool,
    sequence_lengths: Any,
    time_major: bool,
    seed: Any,
    drops_all: bool = False,
    dtype: tf.DType | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    if not isinstance(is_training, bool):
        raise TypeError(f"expected is_training to be a Python bool, but received {is_training!r}")
    if isinstance(sequence_lengths, bool):
        # Up to TensorFlow 1.12, this was the place of the models' is_training.
        raise TypeError(
            f"expected integer sequence_lengths, but received {sequence_lengths!r}: pass "
            "is_training by name"
        )
    if sequence_lengths is not None:
        sequence_lengths = tf.convert_to_tensor(sequence_lengths)
        if not sequence_lengths.dtype.is_integer:
            raise TypeError(
                f"expected integer sequence_lengths, but received {sequence_lengths.dtype.name}"
            )
        if sequence_lengths.dtype != tf.int32:
            sequence_lengths = tf.cast(sequence_lengths, tf.int64)
    is_ragged = isinstance(inputs, tf.RaggedTensor)
    given = inputs if is_ragged else tf.convert_to_tensor(inputs, dtype)
    inputs = given
    states = [tf.convert_to_tensor(state, dtype=inputs.dtype) for state in states]
    batch_axis = 1 if time_major else 0
    is_unbatched = not is_ragged and given.shape.rank == 2
    if is_ragged:
        inputs, sequence_lengths = from_ragged(given, sequence_lengths, time_major)
    elif is_unbatched:
        if sequence_lengths is not None:
            raise ValueError(
                "expected no sequence_lengths with inputs of rank 2, one sequence without a batch, "
                f"but received {sequence_lengths!r}"
            )
        for state in states:
            if state.shape.rank not in (None, 2):
                raise ValueError(
                    "expected states of rank 2 with inputs of rank 2, one sequence without a "
                    f"batch, but received inputs of shape {given.shape} and a state of shape "
                    f"{state.shape}"
                )
        inputs = tf.expand_dims(inputs, batch_axis)
        states = [tf.expand_dims(state, batch_axis) for state in states]
    params = tf.convert_to_tensor(params, dtype=inputs.dtype)
    config = config_of(inputs, states, params)
    if drops_all and is_training:
        params = _without_upper_inputs(config, params)
    outputs, final_states = ops.forward(
        config,
        inputs,
        states,
        params,
        sequence_lengths=sequence_lengths,
        seed=_seed_tensor(seed) if is_training and config.dropout else None,
        time_major=time_major,
        is_training=is_training,
        name=name,
    )
    if is_ragged:
        outputs = to_ragged(outputs, given, time_major)
    if is_unbatched:
        return tuple(tf.squeeze(result, batch_axis) for result in (outputs, *final_states))
    return outputs, *final_states


def _without_upper_inputs(config: RnnConfig, params: tf.Tensor) -> tf.Tensor:
    """The buffer with which each layer is as deaf to the one below as if all of it were dropped.

    The ops know rates below 1. What meets zeros adds nothing, and has no gradient.
    """
    weights, biases = ops.params_to_canonical(config, params)
    gates, num_dirs = config.layout.num_gates, config.layout.num_dirs
    # Of one pseudo-layer above the first: both sides and the projection.
    count = 2 * gates + (1 if config.num_proj else 0)
    first = len(weights) - count * num_dirs * (config.num_layers - 1)
    for index in range(first, len(weights)):
        if (index - first) % count < gates:
            weights[index] = tf.zeros_like(weights[index])
    return ops.canonical_to_params(config, weights, biases)


def _seed_tensor(seed: Any) -> tf.Tensor:
    """The two numbers that one run's dropout masks are a function of.

    An integer seeds a sequence of them, new ones each run, as with TensorFlow 1's random ops; the
    same ones where contrib's environment variable asks for them, which gradient checks do.
    """
    resets = os.environ.get("TF_CUDNN_RESET_RND_GEN_STATE", "").lower() in ("1", "true")
    if resets and (seed is None or isinstance(seed, (int, np.integer))):
        seed = (seed or 0, 0)
    if seed is None or isinstance(seed, (int, np.integer)):
        return tf.compat.v1.random_uniform([2], maxval=tf.int64.max, dtype=tf.int64, seed=seed)
    seed = tf.cast(seed, tf.int64)
    ops.check_shape("seed", seed, (2,))
    return seed


class _CudnnRNN(HasConfig):
    """A network whose parameters the caller holds.

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

    Raises:
        ValueError: if an argument is out of range or does not fit the others.
        TypeError: if an argument is of the wrong type.
    """

    _rnn_mode: str
    # Weights, or biases, of one pseudo-layer.
    _NUM_PARAMS_PER_LAYER: int

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
        direction: str = constants.CUDNN_RNN_UNIDIRECTION,
        dtype: Any = tf.float32,
        dropout: float = 0.0,
        seed: Any = 0,
    ):
        sizes = (num_layers, num_units, input_size)
        self._drops_all = dropout == 1.0
        rate = 0.0 if self._drops_all else dropout
        self._config = RnnConfig(self._rnn_mode, *sizes, input_mode, direction, dropout=rate)
        self._dtype = tf.as_dtype(dtype)
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
        return _params_size(self._config)

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
        return _run(
            lambda *_: self._config,
            input_data,
            states,
            params,
            is_training,
            sequence_lengths,
            time_major,
            seed=self._seed,
            drops_all=self._drops_all,
            dtype=self._dtype,
        )


def _doc(network: str) -> str:
    # Python's -OO leaves out docstrings.
    return (_CudnnRNN.__doc__ or "").replace("A network", network)


class CudnnLSTM(_CudnnRNN):
    __doc__ = f"""{_doc("An LSTM")}
    After `seed`, an LSTM has the argument `num_proj`, the size P of its recurrent projection.
    """
    _rnn_mode = constants.CUDNN_LSTM
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_LSTM_PARAMS_PER_LAYER

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
        direction: str = constants.CUDNN_RNN_UNIDIRECTION,
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

        Args:
            input_data: [T, B, I].
            input_h: the initial hidden states, [L * D, B, P]; P is H without projection.
            input_c: the initial cell states, [L * D, B, H].
            params: the opaque buffer, [params_size].
            sequence_lengths: int32 [B]; None where all sequences fill T.
            time_major: if false, the first two dimensions of sequences and states are exchanged.
            is_training: whether dropout acts, a Python bool.

        Returns:
            output [T, B, D * P], output_h and output_c, shaped as the initial states.
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

        Args:
            input_data: [T, B, I].
            input_h: the initial states, [L * D, B, H].
            params: the opaque buffer, [params_size].
            sequence_lengths: int32 [B]; None where all sequences fill T.
            time_major: if false, the first two dimensions of sequences and states are exchanged.
            is_training: whether dropout acts, a Python bool.

        Returns:
            output [T, B, D * H] and output_h, shaped as the initial states.
        """
        return self._call(input_data, (input_h,), params, sequence_lengths, time_major, is_training)


class CudnnGRU(_CudnnRNNNoInputC):
    __doc__ = _doc("A GRU")
    _rnn_mode = constants.CUDNN_GRU
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_GRU_PARAMS_PER_LAYER


class CudnnRNNTanh(_CudnnRNNNoInputC):
    __doc__ = _doc("A tanh RNN")
    _rnn_mode = constants.CUDNN_RNN_TANH
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_RNN_TANH_PARAMS_PER_LAYER


class CudnnRNNRelu(_CudnnRNNNoInputC):
    __doc__ = _doc("A ReLU RNN")
    _rnn_mode = constants.CUDNN_RNN_RELU
    _NUM_PARAMS_PER_LAYER = constants.CUDNN_RNN_RELU_PARAMS_PER_LAYER


# The functional ops.


def _config_from(
    rnn_mode: str, time_major: bool, input_mode: str, direction: str, dropout: float
) -> _ConfigOf:
    """The network whose sizes are the static ones of the arguments."""
    count_axis = 0 if time_major else 1
    rate = 0.0 if dropout == 1.0 else dropout
    needed = {"inputs": (2,), "input_h": (count_axis, 2), "input_c": (2,)}

    def config_of(inputs: tf.Tensor, states: Sequence[tf.Tensor], params: tf.Tensor) -> RnnConfig:
        # The buffer's size says that of the inputs, where they do not.
        from_params = (
            input_mode == constants.CUDNN_INPUT_LINEAR_MODE and params.shape.is_fully_defined()
        )
        shapes = []
        for (argument, axes), tensor in zip(needed.items(), (inputs, *states), strict=False):
            # As a list: where version 2 behavior is off, an item of a shape is no number.
            shape = tensor.shape.as_list() if tensor.shape.rank == 3 else None
            if argument == "inputs" and from_params and tensor.shape.rank in (None, 3):
                shapes.append(shape or [None] * 3)
                continue
            if shape is None or any(shape[axis] is None for axis in axes):
                raise ValueError(
                    f"expected {argument} of rank 3 with static dimensions {axes}, from which the "
                    f"network's sizes are taken, but received shape {tensor.shape}"
                )
            shapes.append(shape)
        count, output_size = shapes[1][count_axis], shapes[1][2]
        num_units = shapes[-1][2]
        num_dirs = 2 if direction == constants.CUDNN_RNN_BIDIRECTION else 1
        if count % num_dirs:
            raise ValueError(
                "expected input_h to hold an even number of states for direction "
                f"{direction!r}, but received {count}"
            )

        def with_input_size(input_size: int) -> RnnConfig:
            return RnnConfig(
                rnn_mode,
                count // num_dirs,
                num_units,
                input_size,
                input_mode,
                direction,
                num_proj=0 if output_size == num_units else output_size,
                dropout=rate,
            )

        if shapes[0][2] is not None:
            return with_input_size(shapes[0][2])
        size = with_input_size(1).layout.size
        rest = params.shape.num_elements() - size
        # What does not divide without a remainder fits no input size, as the op will say.
        return with_input_size(1 + max(rest, 0) // (with_input_size(2).layout.size - size))

    return config_of


def cudnn_lstm(
    inputs: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    is_training: bool,
    sequence_lengths: Any = None,
    time_major: bool = True,
    input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
    direction: str = constants.CUDNN_RNN_UNIDIRECTION,
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
        sequence_lengths: int32 [B]; None where all sequences fill T.
        time_major: if false, the first two dimensions of sequences and states are exchanged.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional".
        dropout: rate between layers.
        seed: an integer that seeds a sequence of dropout masks, or an int64 tensor [2].
        num_proj: P, where there is a projection. The shape of `input_h` says as much; None does
            not ask it to be anything.
        name: name of the op.

    Returns:
        output [T, B, D * P], output_h and output_c, shaped as the initial states.

    Raises:
        ValueError: if a shape does not fit, or one that fixes the network's size is not static (I
            may be unknown, if the size of `params` is not and `input_mode` is "linear_input").
        TypeError: if `is_training` is no Python bool.
    """
    if num_proj:
        input_h = tf.convert_to_tensor(input_h)
        if input_h.shape.rank and input_h.shape.as_list()[-1] not in (None, num_proj):
            raise ValueError(
                f"expected the last dimension of input_h to be num_proj, {num_proj}, but received "
                f"shape {input_h.shape}"
            )
    return _run(
        _config_from(constants.CUDNN_LSTM, time_major, input_mode, direction, dropout),
        inputs,
        (input_h, input_c),
        params,
        is_training,
        sequence_lengths,
        time_major,
        seed,
        drops_all=dropout == 1.0,
        name=name,
    )


def _without_c(rnn_mode: str, network: str) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    def run(
        inputs: Any,
        input_h: Any,
        params: Any,
        is_training: bool,
        sequence_lengths: Any = None,
        time_major: bool = True,
        input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
        direction: str = constants.CUDNN_RNN_UNIDIRECTION,
        dropout: float = 0.0,
        seed: Any = 0,
        name: str | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return _run(
            _config_from(rnn_mode, time_major, input_mode, direction, dropout),
            inputs,
            (input_h,),
            params,
            is_training,
            sequence_lengths,
            time_major,
            seed,
            drops_all=dropout == 1.0,
            name=name,
        )

    run.__name__ = run.__qualname__ = f"cudnn_{rnn_mode}"
    run.__doc__ = f"""Runs {network} whose sizes are those of the tensors.

    Args:
        inputs: [T, B, I].
        input_h: the initial states, [L * D, B, H].

    The other arguments are those of `cudnn_lstm`.

    Returns:
        output [T, B, D * H] and output_h, shaped as the initial states.
    """
    return run


cudnn_gru = _without_c(constants.CUDNN_GRU, "a GRU")
cudnn_rnn_tanh = _without_c(constants.CUDNN_RNN_TANH, "a tanh RNN")
_cudnn_rnn_relu = _without_c(constants.CUDNN_RNN_RELU, "a ReLU RNN")


def cudnn_rnn_relu(
    inputs: Any,
    input_h: Any,
    params: Any,
    is_training: bool,
    input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
    direction: str = constants.CUDNN_RNN_UNIDIRECTION,
    dropout: float = 0.0,
    seed: Any = 0,
    sequence_lengths: Any = None,
    time_major: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs a ReLU RNN: as `cudnn_rnn_tanh`, but with contrib's order of arguments, another one."""
    return _cudnn_rnn_relu(
        inputs,
        input_h,
        params,
        is_training,
        sequence_lengths,
        time_major,
        input_mode,
        direction,
        dropout,
        seed,
        name,
    )


def _params_size(config: RnnConfig, name: str | None = None) -> tf.Tensor:
    """The size as programs know it; contrib's was an int32, too."""
    return tf.cast(ops.params_size(config), tf.int32, name=name)


def cudnn_rnn_opaque_params_size(
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
    direction: str = constants.CUDNN_RNN_UNIDIRECTION,
    dtype: Any = tf.float32,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """The number of elements in a network's opaque buffer, a scalar int32 tensor.

    `dtype`, `dropout` and `seed` are taken for the sake of old programs; the size does not depend
    on them.
    """
    del dtype, dropout, seed
    config = RnnConfig(
        rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj=num_proj or 0
    )
    return _params_size(config, name)


def cudnn_rnn_canonical_to_opaque_params(
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[Any],
    biases: Sequence[Any],
    input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
    direction: str = constants.CUDNN_RNN_UNIDIRECTION,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Packs canonical weights and biases into an opaque buffer; ignores `dropout` and `seed`.

    Raises:
        ValueError: if a list's length or a shape does not fit the configuration.
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
    rnn_mode: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: Any,
    input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
    direction: str = constants.CUDNN_RNN_UNIDIRECTION,
    dropout: float = 0.0,
    seed: int = 0,
    num_proj: int | None = None,
    name: str | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Takes an opaque buffer apart into lists of weights and biases; ignores `dropout` and `seed`.

    Raises:
        ValueError: if the buffer's shape does not fit the configuration.
    """
    del dropout, seed
    config = RnnConfig(
        rnn_mode, num_layers, num_units, input_size, input_mode, direction, num_proj=num_proj or 0
    )
    return ops.params_to_canonical(config, tf.convert_to_tensor(params), name=name)
