"""The cells of `tf.contrib` that TensorFlow has no longer, which share checkpoints with the layers.

They are derived from those that it has, and run step by step in `tf.compat.v1.nn.dynamic_rnn`.
"""

from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import constants
from cudnn_rnn_tf._private_names import legacy_rnn_cells
from cudnn_rnn_tf.contrib.checkpoint_format import CELL_NAMES
from cudnn_rnn_tf.contrib.rnn_cell import BasicRNNCell, LSTMCell, LSTMStateTuple, MultiRNNCell

__all__ = [
    "BasicRNNCell",
    "CudnnCompatibleGRUCell",
    "CudnnCompatibleLSTMCell",
    "GRUBlockCell",
    "GRUBlockCellV2",
    "LSTMStateTuple",
    "MultiRNNCell",
]

_v1 = tf.compat.v1


class _Cell(legacy_rnn_cells.LayerRNNCell):
    """The base class: biases begin at zero, but for those of the gates of GRUs, at one."""

    _kernel_initializer: Any = None

    def __init__(self, num_units: int, reuse: bool | None, name: str):
        super().__init__(_reuse=reuse, name=name)
        self.input_spec = legacy_rnn_cells.input_spec.InputSpec(ndim=2)
        self._num_units = num_units

    @property
    def output_size(self) -> int:
        return self._num_units

    @property
    def state_size(self) -> Any:
        return self._num_units

    def build(self, inputs_shape: Any) -> None:
        """Creates the variables, for inputs [B, I], of which I is known."""
        input_size = tf.TensorShape(inputs_shape).as_list()[-1]
        if input_size is None:
            raise ValueError(
                f"expected the last dimension of the inputs of {type(self).__name__} to be known, "
                f"but received shape {inputs_shape}"
            )
        # Where the variable scope has a partitioner, `variables` has the pieces of these.
        self._wholes = []
        for name, shape in self._shapes(input_size).items():
            initializer = self._kernel_initializer
            if len(shape) == 1:
                ones = shape[0] == 2 * self._num_units
                initializer = _v1.ones_initializer() if ones else _v1.zeros_initializer()
            self._wholes.append(self.add_weight(name, shape, initializer=initializer))
        self.built = True

    def _shapes(self, input_size: int) -> dict[str, list[int]]:
        """Returns the names and shapes of the variables."""
        raise NotImplementedError


class CudnnCompatibleLSTMCell(_Cell):
    """`CudnnLSTM`, step by step.

    Args:
        num_units: units, H.
        reuse: as of `tf.compat.v1.variable_scope`.
    """

    def __init__(self, num_units: int, reuse: bool | None = None):
        super().__init__(num_units, reuse, CELL_NAMES[constants.CUDNN_LSTM])

    @property
    def state_size(self) -> LSTMStateTuple:
        return LSTMStateTuple(self._num_units, self._num_units)

    def _shapes(self, input_size: int) -> dict[str, list[int]]:
        columns = 4 * self._num_units
        return {"kernel": [input_size + self._num_units, columns], "bias": [columns]}

    def call(self, inputs: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        c, h = state
        kernel, bias = self._wholes
        i, g, f, o = tf.split(tf.matmul(tf.concat([inputs, h], 1), kernel) + bias, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, LSTMStateTuple(c, h)


class CudnnCompatibleGRUCell(_Cell):
    """`CudnnGRU`, step by step.

    Args:
        num_units: units, H.
        reuse: as of `tf.compat.v1.variable_scope`.
        kernel_initializer: of the kernels; None for that of the variable scope. The biases of the
            gates start at one.
    """

    def __init__(self, num_units: int, reuse: bool | None = None, kernel_initializer: Any = None):
        super().__init__(num_units, reuse, CELL_NAMES[constants.CUDNN_GRU])
        self._kernel_initializer = kernel_initializer

    def _shapes(self, input_size: int) -> dict[str, list[int]]:
        units = self._num_units
        return {
            "gates/kernel": [input_size + units, 2 * units],
            "gates/bias": [2 * units],
            "candidate/input_projection/kernel": [input_size, units],
            "candidate/input_projection/bias": [units],
            "candidate/hidden_projection/kernel": [units, units],
            "candidate/hidden_projection/bias": [units],
        }

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        gates, gate_bias, kernel, bias, recurrent_kernel, recurrent_bias = self._wholes
        joined = tf.matmul(tf.concat([inputs, state], 1), gates) + gate_bias
        r, z = tf.split(tf.sigmoid(joined), 2, axis=1)
        recurrent_side = tf.matmul(state, recurrent_kernel) + recurrent_bias
        candidate = tf.tanh(tf.matmul(inputs, kernel) + bias + r * recurrent_side)
        h = (1.0 - z) * candidate + z * state
        return h, h


class GRUBlockCell(_Cell):
    """The GRU cell of `tf.contrib.rnn`, whose reset gate multiplies the state before the product.

    `cudnn_rnn_tf.CudnnGRU` with `reset_after=False` runs the same over whole sequences in one op;
    `cudnn_rnn_tf.convert.convert_file` makes such a layer of a checkpoint of the cell.

    Args:
        num_units: units, H.
        cell_size: the old name of `num_units`.
        reuse: as of `tf.compat.v1.variable_scope`.
        name: of the variable scope.

    Raises:
        ValueError: if neither or both of `num_units` and `cell_size` are given.
    """

    _names = ("w_ru", "b_ru", "w_c", "b_c")

    def __init__(
        self,
        num_units: int | None = None,
        cell_size: int | None = None,
        reuse: bool | None = None,
        name: str = "gru_cell",
    ):
        units = cell_size if num_units is None else num_units
        if units is None or None not in (num_units, cell_size):
            raise ValueError(
                f"expected num_units for {type(self).__name__}, or cell_size, but received "
                f"num_units={num_units!r} and cell_size={cell_size!r}"
            )
        super().__init__(units, reuse, name)

    def _shapes(self, input_size: int) -> dict[str, list[int]]:
        rows, units = input_size + self._num_units, self._num_units
        shapes = ([rows, 2 * units], [2 * units], [rows, units], [units])
        return dict(zip(self._names, shapes, strict=True))

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_gates, bias_of_gates, of_candidate, bias_of_candidate = self._wholes
        gates = tf.matmul(tf.concat([inputs, state], 1), of_gates) + bias_of_gates
        r, z = tf.split(tf.sigmoid(gates), 2, axis=1)
        candidate = tf.matmul(tf.concat([inputs, r * state], 1), of_candidate)
        h = (1.0 - z) * tf.tanh(candidate + bias_of_candidate) + z * state
        return h, h


class GRUBlockCellV2(GRUBlockCell):
    """`GRUBlockCell` with the names of `GRUCell`'s variables; the arguments are the same."""

    _names = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")


class LSTMBlockCell(LSTMCell):
    """An `LSTMCell` with the arguments of TensorFlow 1's `LSTMBlockCell`.

    Args:
        num_units: units, H.
        forget_bias: added to the bias of the forget gate.
        cell_clip: bound of the cell state; None for none.
        use_peephole: whether the gates see the cell state.
        dtype: of the variables; None for that of the first inputs.
        reuse: as of `tf.compat.v1.variable_scope`.
        name: of the variable scope.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: bool | None = None,
        name: str = "lstm_cell",
    ):
        super().__init__(
            num_units,
            use_peephole,
            cell_clip,
            forget_bias=forget_bias,
            reuse=reuse,
            dtype=dtype,
            name=name,
        )
