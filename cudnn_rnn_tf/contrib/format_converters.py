"""Converts opaque buffers to the weights of step-by-step cells, and back.

The classes are those of `tf.contrib.cudnn_rnn`, with the methods that programs override. A saveable
names the class of its converter, so a derived class can convert to other cells than contrib's, such
as `BasicLSTMCell`, which itself adds 1 to the bias of its forget gate.

A cell joins the matrices of both sides. Its one bias is the sum of both sides' biases; when it is
converted back, each side gets one half.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import constants, ops, pseudo_layers
from cudnn_rnn_tf.config import Direction, InputMode, RnnConfig

__all__ = [
    "CudnnParamsFormatConverter",
    "CudnnParamsFormatConverterGRU",
    "CudnnParamsFormatConverterLSTM",
    "CudnnParamsFormatConverterRelu",
    "CudnnParamsFormatConverterTanh",
]


class CudnnParamsFormatConverter:
    """The base class of the converters of the four modes.

    The arguments and errors are those of `cudnn_rnn_ops.CudnnLSTM`. With `is_slot`, the buffer is
    an optimizer's slot, which keeps a number for each weight: the cell's one bias then gets the
    mean of the numbers for both biases, not their sum.
    """

    _rnn_mode: str

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_size: int,
        num_proj: int | None = None,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        is_slot: bool = False,
    ):
        self._config = RnnConfig(
            self._rnn_mode,
            num_layers,
            num_units,
            input_size,
            input_mode,
            direction,
            num_proj=num_proj or 0,
        )
        self._num_layers = num_layers
        self._num_units = num_units
        self._input_size = input_size
        self._num_proj = num_proj
        self._input_mode = input_mode
        self._direction = direction
        self._num_dirs = self._config.layout.num_dirs
        self._is_slot = is_slot

    def opaque_to_tf_canonical(self, opaque_param: tf.Tensor) -> tuple[list[tf.Tensor], ...]:
        """Takes a buffer apart.

        Args:
            opaque_param: [params_size].

        Returns:
            The cells' weights, biases and, with `num_proj`, projections [H, P], layer by layer,
            forward before backward.
        """
        return self._cu_canonical_to_tf_canonical(*self._opaque_to_cu_canonical(opaque_param))

    def tf_canonical_to_opaque(
        self, tf_canonicals: Sequence[tf.Tensor], weights_proj: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        """The inverse of `opaque_to_tf_canonical`.

        Args:
            tf_canonicals: all weights, then all biases.
            weights_proj: the projections; None for none.

        Returns:
            The buffer, [params_size].

        Raises:
            ValueError: if the number of tensors, or a static shape, does not fit.
        """
        return self._cu_canonical_to_opaque(
            *self._tf_canonical_to_cu_canonical(tf_canonicals, weights_proj)
        )

    def _opaque_to_cu_canonical(
        self, opaque_param: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return ops.params_to_canonical(self._config, tf.convert_to_tensor(opaque_param))

    def _cu_canonical_to_opaque(
        self, cu_weights: Sequence[tf.Tensor], cu_biases: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        return ops.canonical_to_params(self._config, cu_weights, cu_biases)

    def _cu_canonical_to_tf_canonical(
        self, cu_weights: Sequence[tf.Tensor], cu_biases: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], ...]:
        num_gates = self._config.layout.num_gates
        next_weights, next_biases = iter(cu_weights), iter(cu_biases)
        weights: list[tf.Tensor] = []
        biases: list[tf.Tensor] = []
        projections: list[tf.Tensor] = []
        for layer in range(self._num_layers):
            for _ in range(self._num_dirs):
                count = num_gates * (2 if self._has_input_side(layer) else 1)
                own = [next(next_weights) for _ in range(count)]
                weights += self._cudnn_to_tf_weights(*own)
                if self._num_proj:
                    projections.append(tf.transpose(next(next_weights)))
                own = [next(next_biases) for _ in range(2 * num_gates)]
                biases += self._cudnn_to_tf_biases(*own)
        return (weights, biases, projections) if self._num_proj else (weights, biases)

    def _tf_canonical_to_cu_canonical(
        self, tf_canonicals: Sequence[tf.Tensor], weights_proj: Sequence[tf.Tensor] | None
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        weight_counts = [len(self._weight_shapes(fan_in)) for fan_in in self._fan_ins()]
        num_weights, num_cells = sum(weight_counts), len(weight_counts)
        num_biases = num_cells * len(self._bias_shapes())
        expected = (num_weights + num_biases, num_cells if self._num_proj else 0)
        received = (len(tf_canonicals), len(weights_proj or []))
        if received != expected:
            raise ValueError(
                f"expected {expected[0]} weights and biases and {expected[1]} projections, but "
                f"received {received[0]} and {received[1]}"
            )
        weights, biases = iter(tf_canonicals[:num_weights]), iter(tf_canonicals[num_weights:])
        cu_weights: list[tf.Tensor] = []
        cu_biases: list[tf.Tensor] = []
        for cell, count in enumerate(weight_counts):
            own = [next(weights) for _ in range(count)]
            cu_weights += self._tf_to_cudnn_weights(cell // self._num_dirs, *own)
            if weights_proj:
                cu_weights.append(tf.transpose(weights_proj[cell]))
            own = [next(biases) for _ in self._bias_shapes()]
            cu_biases += self._tf_to_cudnn_biases(*own)
        return cu_weights, cu_biases

    def _has_input_side(self, layer: int) -> bool:
        return layer > 0 or self._config.input_mode != constants.CUDNN_INPUT_SKIP_MODE

    def _sides(self, gates: Sequence[Any]) -> list[Sequence[Any]]:
        """Splits gates into the input side's, if there are any, and the recurrent side's."""
        count = self._config.layout.num_gates
        return [gates[start : start + count] for start in range(0, len(gates), count)]

    def _both(self, bias: tf.Tensor, recurrent_bias: tf.Tensor) -> tf.Tensor:
        return (bias + recurrent_bias) * (0.5 if self._is_slot else 1.0)

    def _each(self, bias: tf.Tensor) -> tf.Tensor:
        return bias * (1.0 if self._is_slot else 0.5)

    def _split(self, layer: int, rows: tf.Tensor) -> list[tf.Tensor]:
        """Splits a gate's rows [H, fan_in + P] into the input side's, if any, and the recurrent."""
        if not self._has_input_side(layer):
            return [rows]
        width = self._config.layout.output_size
        return [rows[:, :-width], rows[:, -width:]]

    # What follows are a cell's tensors, in order: their names in contrib's checkpoints, and shapes.

    def _fan_ins(self) -> list[int]:
        """Returns for each cell how many inputs it has a matrix for."""
        kernels = [layer.kernel for layer in pseudo_layers.shapes(self._config)]
        return [0 if shape is None else shape[1] for shape in kernels]

    def _weight_shapes(self, fan_in: int) -> dict[str, tuple[int, ...]]:
        layout = self._config.layout
        return {"kernel": (fan_in + layout.output_size, layout.num_gates * self._num_units)}

    def _bias_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"bias": (self._config.layout.num_gates * self._num_units,)}

    # Derived classes override these methods, in programs too.

    def _cudnn_to_tf_weights(self, *cu_weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns a cell's weights, given cuDNN's matrices, the input side's first."""
        raise NotImplementedError

    def _tf_to_cudnn_weights(self, layer: int, *tf_weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The inverse of `_cudnn_to_tf_weights`."""
        raise NotImplementedError

    def _cudnn_to_tf_biases(self, *cu_biases: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns a cell's biases, given those of both sides, the input side's first."""
        raise NotImplementedError

    def _tf_to_cudnn_biases(self, *tf_biases: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The inverse of `_cudnn_to_tf_biases`."""
        raise NotImplementedError


class _JoinedConverter(CudnnParamsFormatConverter):
    """Converts to cells with one kernel [fan_in + P, G * H] and one bias [G * H]."""

    def _cudnn_to_tf_gate_params(self, *gates: Any) -> Sequence[Any]:
        """Returns the gates in the cell's order."""
        return gates

    def _tf_to_cudnn_gate_params(self, *gates: Any) -> Sequence[Any]:
        """Returns the gates in cuDNN's order."""
        return gates

    def _cudnn_to_tf_weights(self, *cu_weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        joined = [tf.concat(gate, 1) for gate in zip(*self._sides(cu_weights), strict=True)]
        return (tf.transpose(tf.concat(self._cudnn_to_tf_gate_params(*joined), 0)),)

    def _tf_to_cudnn_weights(self, layer: int, *tf_weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        (kernel,) = tf_weights
        gates = tf.split(tf.transpose(kernel), self._config.layout.num_gates)
        gates = [self._split(layer, rows) for rows in self._tf_to_cudnn_gate_params(*gates)]
        return tuple(matrix for side in zip(*gates, strict=True) for matrix in side)

    def _cudnn_to_tf_biases(self, *cu_biases: tf.Tensor) -> tuple[tf.Tensor, ...]:
        joined = [self._both(*gate) for gate in zip(*self._sides(cu_biases), strict=True)]
        return (tf.concat(self._cudnn_to_tf_gate_params(*joined), 0),)

    def _tf_to_cudnn_biases(self, *tf_biases: tf.Tensor) -> tuple[tf.Tensor, ...]:
        (bias,) = tf_biases
        gates = tf.split(self._each(bias), self._config.layout.num_gates)
        return tuple(self._tf_to_cudnn_gate_params(*gates)) * 2


class CudnnParamsFormatConverterLSTM(_JoinedConverter):
    """Converts to `CudnnCompatibleLSTMCell`: `kernel` and `bias`, gates in the order i, c, f, o."""

    _rnn_mode = constants.CUDNN_LSTM

    def _cudnn_to_tf_gate_params(self, *gates: Any) -> Sequence[Any]:
        i, f, c, o = gates
        return [i, c, f, o]

    def _tf_to_cudnn_gate_params(self, *gates: Any) -> Sequence[Any]:
        i, c, f, o = gates
        return [i, f, c, o]


class CudnnParamsFormatConverterTanh(_JoinedConverter):
    """Converts to `BasicRNNCell`."""

    _rnn_mode = constants.CUDNN_RNN_TANH


class CudnnParamsFormatConverterRelu(_JoinedConverter):
    """Converts to `BasicRNNCell` with ReLU."""

    _rnn_mode = constants.CUDNN_RNN_RELU


class CudnnParamsFormatConverterGRU(CudnnParamsFormatConverter):
    """Converts to `CudnnCompatibleGRUCell`: r and z joined, the candidate's sides separate."""

    _rnn_mode = constants.CUDNN_GRU

    def _weight_shapes(self, fan_in: int) -> dict[str, tuple[int, ...]]:
        units = self._num_units
        inputs = {"candidate/input_projection/kernel": (fan_in, units)} if fan_in else {}
        return {
            "gates/kernel": (fan_in + units, 2 * units),
            **inputs,
            "candidate/hidden_projection/kernel": (units, units),
        }

    def _bias_shapes(self) -> dict[str, tuple[int, ...]]:
        units = self._num_units
        return {
            "gates/bias": (2 * units,),
            "candidate/input_projection/bias": (units,),
            "candidate/hidden_projection/bias": (units,),
        }

    def _cudnn_to_tf_weights(self, *cu_weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        r, z, candidate = zip(*self._sides(cu_weights), strict=True)
        gates = tf.concat([tf.concat(r, 1), tf.concat(z, 1)], 0)
        return tf.transpose(gates), *(tf.transpose(side) for side in candidate)

    def _tf_to_cudnn_weights(self, layer: int, *tf_weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        gates, *candidate = tf_weights
        r, z = (self._split(layer, rows) for rows in tf.split(tf.transpose(gates), 2))
        sides = zip(r, z, [tf.transpose(side) for side in candidate], strict=True)
        return tuple(matrix for side in sides for matrix in side)

    def _cudnn_to_tf_biases(self, *cu_biases: tf.Tensor) -> tuple[tf.Tensor, ...]:
        r, z, candidate = zip(*self._sides(cu_biases), strict=True)
        return tf.concat([self._both(*r), self._both(*z)], 0), *candidate

    def _tf_to_cudnn_biases(self, *tf_biases: tf.Tensor) -> tuple[tf.Tensor, ...]:
        gates, inputs, recurrent = tf_biases
        r, z = tf.split(self._each(gates), 2)
        return r, z, inputs, r, z, recurrent


CONVERTERS = {
    converter._rnn_mode: converter
    for converter in (
        CudnnParamsFormatConverterLSTM,
        CudnnParamsFormatConverterGRU,
        CudnnParamsFormatConverterTanh,
        CudnnParamsFormatConverterRelu,
    )
}


def converter_of(config: RnnConfig, is_slot: bool = False) -> CudnnParamsFormatConverter:
    """Returns the converter of a network's mode."""
    return CONVERTERS[config.rnn_mode](
        config.num_layers,
        config.num_units,
        config.input_size,
        config.num_proj or None,
        config.input_mode,
        config.direction,
        is_slot,
    )
