"""The cells and functions of `tf.contrib.rnn`, with a `dynamic_rnn` that runs cells fused.

`from cudnn_rnn_tf.contrib import rnn` takes the place of `from tensorflow.contrib import rnn`.
Variables have TensorFlow 1's names.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf._private_names import legacy_rnn_cells
from cudnn_rnn_tf.config import DTYPES, RnnConfig
from cudnn_rnn_tf.contrib import rnn_cell
from cudnn_rnn_tf.contrib.cells import GRUBlockCell, GRUBlockCellV2, LSTMBlockCell

# ruff: noqa: F403, F405 - The module lists its public names.
from cudnn_rnn_tf.contrib.rnn_cell import *
from cudnn_rnn_tf.pseudo_layers import PseudoLayer, join

__all__ = [
    "GRUBlockCell",
    "GRUBlockCellV2",
    "LSTMBlockCell",
    "LSTMBlockFusedCell",
    "TimeReversedFusedRNN",
    "bidirectional_dynamic_rnn",
    "dynamic_rnn",
    "stack_bidirectional_dynamic_rnn",
    "static_bidirectional_rnn",
    "static_rnn",
    "static_state_saving_rnn",
]
__all__ += rnn_cell.__all__

_v1 = tf.compat.v1
static_bidirectional_rnn = _v1.nn.static_bidirectional_rnn
static_rnn = _v1.nn.static_rnn
static_state_saving_rnn = _v1.nn.static_state_saving_rnn


class LSTMBlockFusedCell(legacy_rnn_cells.base_layer.Layer):
    """The LSTM of `tf.contrib.rnn` that runs all steps of time-major sequences in one op.

    Args:
        num_units: units, H.
        forget_bias: added to the bias of the forget gate.
        cell_clip: None; no other value.
        use_peephole: whether the gates see the cell state.
        reuse: as of `tf.compat.v1.variable_scope`.
        dtype: of the variables; None for that of the first inputs.
        name: of the variable scope.

    Call arguments:
        inputs: [T, B, I].
        initial_state: c and h, [B, H] each; None for zeros.
        dtype: of zeros; None for the inputs' type.
        sequence_length: integers [B]; None where all sequences fill T.

    Returns:
        outputs [T, B, H] and the final `LSTMStateTuple`.

    Raises:
        NotImplementedError: if `cell_clip` is given.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: bool | None = None,
        dtype: Any = None,
        name: str = "lstm_fused_cell",
    ):
        if cell_clip is not None:
            raise NotImplementedError(
                f"LSTMBlockFusedCell has no cell_clip, but received {cell_clip!r}; LSTMBlockCell"
                " has one"
            )
        super().__init__(_reuse=reuse, dtype=dtype, name=name)
        self._num_units = num_units
        self._forget_bias = forget_bias
        self._use_peepholes = use_peephole

    @property
    def num_units(self) -> int:
        return self._num_units

    def build(self, input_shape: Any) -> None:
        units = self._num_units
        self._kernel = self.add_weight("kernel", [int(input_shape[2]) + units, 4 * units])
        self._bias = self.add_weight("bias", [4 * units], initializer=_v1.zeros_initializer())
        if self._use_peepholes:
            self._w_i_diag, self._w_f_diag, self._w_o_diag = (
                self.add_weight(name, [units]) for name in ("w_i_diag", "w_f_diag", "w_o_diag")
            )
        self.built = True

    def call(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
    ) -> tuple[tf.Tensor, Any]:
        if initial_state is None:
            zeros = tf.zeros([tf.shape(inputs)[1], self._num_units], dtype or inputs.dtype)
            initial_state = (zeros, zeros)
        lengths = _lengths(inputs, sequence_length, time_major=True)
        return _run_layer(self, inputs, initial_state, lengths, time_major=True)


class TimeReversedFusedRNN:
    """Runs a fused cell, such as a `LSTMBlockFusedCell`, from the end of time-major sequences.

    Args:
        cell: is called with the arguments of this object, on reversed inputs.
    """

    def __init__(self, cell: Any):
        self._cell = cell

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[tf.Tensor, Any]:
        """Runs the cell; the outputs are in the order of the inputs."""
        inputs = _reversed(inputs, sequence_length, time_major=True)
        outputs, state = self._cell(
            inputs,
            initial_state=initial_state,
            dtype=dtype,
            sequence_length=sequence_length,
            scope=scope,
        )
        return _reversed(outputs, sequence_length, time_major=True), state


def dynamic_rnn(
    cell: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tf.Tensor, Any]:
    """Runs a cell over sequences, as `tf.compat.v1.nn.dynamic_rnn` does: fused, where it can.

    Fused run `BasicLSTMCell`, `LSTMCell`, `LSTMBlockCell`, `GRUCell`, the `GRUBlockCell`s and
    `BasicRNNCell` with their own activations (`BasicRNNCell` also with ReLU), without clipping, and
    with peepholes or a projection, but not both; `MultiRNNCell` of them; `DropoutWrapper` without
    `state_keep_prob` and `variational_recurrent`, `ResidualWrapper` without a function, and
    `DeviceWrapper`. TensorFlow's loop runs all else, in its own operations alone, such as the
    `CudnnCompatible…` cells. A cell makes its own variables, so that their names are those of the
    loop.

    Args:
        cell: of `cudnn_rnn_tf.contrib.rnn`, or any other.
        inputs: [B, T, I], or [T, B, I] with `time_major`.
        sequence_length: integers [B]; None where all sequences fill T.
        initial_state: as of `cell.state_size`; None for zeros.
        dtype: of the zeros.
        parallel_iterations: for TensorFlow's loop.
        swap_memory: for TensorFlow's loop.
        time_major: the layout of inputs and outputs.
        scope: variable scope in place of "rnn".

    Returns:
        outputs [B, T, H], or [T, B, H], zeros past the end of a sequence, and the final state.

    Raises:
        ValueError: if there is neither an initial state nor a dtype, or as the cell raises it.
    """
    if not tf.nest.is_nested(inputs):
        inputs = tf.convert_to_tensor(inputs)
    if not (_is_covered(cell) and _is_typed(inputs, initial_state, dtype)):
        return _v1.nn.dynamic_rnn(
            cell,
            inputs,
            sequence_length,
            initial_state,
            dtype,
            parallel_iterations,
            swap_memory,
            time_major,
            scope,
        )
    with _v1.variable_scope(scope or "rnn"):
        shape, dynamic = inputs.shape.as_list(), tf.shape(inputs)
        batch_size = dynamic[1] if time_major else dynamic[0]
        batch_size = shape[1 if time_major else 0] or batch_size
        state = initial_state
        if state is None:
            state = cell.get_initial_state(None, batch_size, dtype)
        # A first step makes the variables, in the scopes of wrappers and stacks; nothing reads it.
        cell(tf.zeros([batch_size, shape[2]], inputs.dtype), state)
        lengths = _lengths(inputs, sequence_length, time_major)
        outputs, state = _run(cell, inputs, state, lengths, time_major)
        if lengths is not None:
            # A residual's inputs may be other numbers than zeros there.
            max_time = tf.shape(inputs)[0 if time_major else 1]
            is_read = tf.sequence_mask(lengths, max_time)
            is_read = tf.transpose(is_read) if time_major else is_read
            outputs = tf.where(is_read[:, :, tf.newaxis], outputs, tf.zeros_like(outputs))
        return outputs, state


def _is_typed(inputs: Any, initial_state: Any, dtype: Any) -> bool:
    """Returns whether these are sequences of vectors, and the states of one type with them."""
    if tf.nest.is_nested(inputs) or inputs.shape.rank != 3 or inputs.dtype.name not in DTYPES:
        return False
    if inputs.shape.as_list()[2] is None:
        return False
    states = [] if initial_state is None else tf.nest.flatten(initial_state)
    types = {tf.convert_to_tensor(state).dtype for state in states}
    return types | ({tf.as_dtype(dtype)} if dtype else set()) == {inputs.dtype}


def _is_covered(cell: Any) -> bool:
    kind = type(cell)
    if kind is DropoutWrapper:
        is_plain = _keeps_all(cell._state_keep_prob) and not cell._variational_recurrent
        return is_plain and _is_covered(cell.cell)
    if kind is ResidualWrapper:
        return cell._residual_fn is None and _is_covered(cell.cell)
    if kind is DeviceWrapper:
        return _is_covered(cell.cell)
    if kind is MultiRNNCell:
        return cell._state_is_tuple and all(map(_is_covered, cell._cells))
    if kind in (LSTMCell, LSTMBlockCell) and (
        cell._cell_clip is not None
        or cell._num_unit_shards is not None
        or (cell._num_proj is not None and (cell._use_peepholes or cell._proj_clip is not None))
    ):
        return False
    if kind in (BasicLSTMCell, LSTMCell, LSTMBlockCell):
        return cell._state_is_tuple and _activation(cell) == "tanh"
    if kind is BasicRNNCell:
        return _activation(cell) in ("tanh", "relu")
    is_block = kind in (GRUBlockCell, GRUBlockCellV2)
    return is_block or (kind is GRUCell and _activation(cell) == "tanh")


def _keeps_all(keep_prob: Any) -> bool:
    """Returns whether a wrapper's dropout never acts, which nobody knows of a tensor."""
    return isinstance(keep_prob, (int, float)) and keep_prob >= 1


def _activation(cell: Any) -> str:
    """Returns the name of a cell's activation; "" if the ops have no such activation."""
    of_cells, of_keras = legacy_rnn_cells.math_ops, legacy_rnn_cells.activations
    if cell._activation in (tf.tanh, of_cells.tanh, of_keras.tanh):
        return "tanh"
    return "relu" if cell._activation in (tf.nn.relu, of_keras.relu) else ""


def _run(
    cell: Any, inputs: tf.Tensor, state: Any, lengths: tf.Tensor | None, time_major: bool
) -> tuple[tf.Tensor, Any]:
    """Runs a built cell, or what is in it, over sequences; outputs past their ends are not read."""
    if isinstance(cell, MultiRNNCell):
        finals = []
        for part, first in zip(cell._cells, state, strict=True):
            inputs, final = _run(part, inputs, first, lengths, time_major)
            finals.append(final)
        return inputs, tuple(finals)
    if isinstance(cell, DeviceWrapper):
        with tf.device(cell._device):
            return _run(cell.cell, inputs, state, lengths, time_major)
    if isinstance(cell, ResidualWrapper):
        outputs, final = _run(cell.cell, inputs, state, lengths, time_major)
        return inputs + outputs, final
    if isinstance(cell, DropoutWrapper):
        inputs = _dropped(cell, "input", cell._input_keep_prob, inputs)
        outputs, final = _run(cell.cell, inputs, state, lengths, time_major)
        return _dropped(cell, "output", cell._output_keep_prob, outputs), final
    return _run_layer(cell, inputs, state, lengths, time_major)


def _dropped(cell: Any, name: str, keep_prob: Any, sequences: tf.Tensor) -> tf.Tensor:
    """Drops numbers of all steps out, each by itself, as a wrapper does in each step."""
    if _keeps_all(keep_prob):
        return sequences
    return tf.nn.dropout(sequences, 1.0 - keep_prob, seed=cell._gen_seed(name, 0))


def _run_layer(
    cell: Any, inputs: tf.Tensor, state: Any, lengths: tf.Tensor | None, time_major: bool
) -> tuple[tf.Tensor, Any]:
    input_size = inputs.shape.as_list()[2]
    mode, layer = _weights(cell, input_size)
    config = RnnConfig(
        rnn_mode=mode,
        num_layers=1,
        num_units=cell._num_units,
        input_size=input_size,
        bias_mode="single_input",
        num_proj=0 if layer.projection is None else cell.output_size,
    )
    layer_axis = 0 if time_major else 1
    # A TensorFlow 1 LSTM's state is c and h, in this order.
    states = tf.nest.flatten(state)[::-1]
    outputs, finals = ops.forward(
        config,
        inputs,
        [tf.expand_dims(each, layer_axis) for each in states],
        join(config, [layer]),
        sequence_lengths=lengths,
        time_major=time_major,
    )
    finals = tuple(tf.squeeze(each, layer_axis) for each in finals)
    return outputs, LSTMStateTuple(finals[1], finals[0]) if config.is_lstm else finals[0]


def _weights(cell: Any, input_size: int) -> tuple[str, PseudoLayer]:
    """Returns the mode of a cell, and its weights."""
    if isinstance(cell, GRUBlockCell):
        wholes = cell._wholes
    elif isinstance(cell, GRUCell):
        of_gates = (cell._gate_kernel, cell._gate_bias)
        wholes = [*of_gates, cell._candidate_kernel, cell._candidate_bias]
    else:
        wholes = [cell._kernel, cell._bias]
    kernel, bias, *others = map(tf.convert_to_tensor, wholes)
    projection = vectors = None
    if isinstance(cell, BasicRNNCell):
        mode = f"rnn_{_activation(cell)}"
    elif isinstance(cell, (GRUCell, GRUBlockCell)):
        mode = constants.GRU_RESET_BEFORE
        kernel, bias = tf.concat([kernel, others[0]], 1), tf.concat([bias, others[1]], 0)
    else:
        mode = constants.CUDNN_LSTM
        i, j, f, o = tf.split(bias, 4)
        bias = tf.concat([i, f + tf.cast(cell._forget_bias, f.dtype), j, o], axis=0)
        i, j, f, o = tf.split(kernel, 4, axis=1)
        kernel = tf.concat([i, f, j, o], axis=1)
        if getattr(cell, "_use_peepholes", False):
            mode = constants.LSTM_PEEPHOLE
            vectors = tf.stack([cell._w_i_diag, cell._w_f_diag, cell._w_o_diag])
        if getattr(cell, "_num_proj", None):
            projection = tf.transpose(cell._proj_kernel)
    rows = tf.transpose(kernel)
    sides = (rows[:, :input_size], rows[:, input_size:])
    return mode, PseudoLayer(*sides, bias, projection=projection, vectors=vectors)


def _lengths(inputs: tf.Tensor, sequence_length: Any, time_major: bool) -> tf.Tensor | None:
    """Returns the lengths, of which those beyond T are as good as T, as for TensorFlow's loop."""
    if sequence_length is None:
        return None
    max_time = tf.shape(inputs, tf.int64)[0 if time_major else 1]
    return tf.minimum(tf.cast(sequence_length, tf.int64), max_time)


def _reversed(sequences: Any, sequence_length: Any, time_major: bool) -> tf.Tensor:
    """Returns sequences, each from its end; what is past its end stays there."""
    batch_axis, time_axis = (1, 0) if time_major else (0, 1)
    sequences = tf.convert_to_tensor(sequences)
    lengths = _lengths(sequences, sequence_length, time_major)
    if lengths is None:
        return tf.reverse(sequences, [time_axis])
    return tf.reverse_sequence(sequences, lengths, seq_axis=time_axis, batch_axis=batch_axis)


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[Any, Any]]:
    """Runs a cell from the front and one from the end, as `dynamic_rnn` runs a cell.

    Args:
        cell_fw: for the forward direction.
        cell_bw: for the backward direction.
        inputs: as of `dynamic_rnn`, like all arguments that follow.
        sequence_length: as there.
        initial_state_fw: of `cell_fw`.
        initial_state_bw: of `cell_bw`.
        dtype: as there.
        parallel_iterations: as there.
        swap_memory: as there.
        time_major: as there.
        scope: variable scope in place of "bidirectional_rnn".

    Returns:
        the outputs of both directions, in the order of the inputs, and both final states.
    """
    options = (dtype, parallel_iterations, swap_memory, time_major)
    with _v1.variable_scope(scope or "bidirectional_rnn"):
        with _v1.variable_scope("fw") as inner:
            outputs, final_fw = dynamic_rnn(
                cell_fw, inputs, sequence_length, initial_state_fw, *options, scope=inner
            )
        with _v1.variable_scope("bw") as inner:
            backwards = _reversed(inputs, sequence_length, time_major)
            from_end, final_bw = dynamic_rnn(
                cell_bw, backwards, sequence_length, initial_state_bw, *options, scope=inner
            )
    return (outputs, _reversed(from_end, sequence_length, time_major)), (final_fw, final_bw)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[tf.Tensor, tuple[Any, ...], tuple[Any, ...]]:
    """Runs bidirectional layers on top of each other, as in `tf.contrib.rnn`.

    Args:
        cells_fw: one cell per layer for the forward direction.
        cells_bw: likewise for the backward direction.
        inputs: [B, T, I], or [T, B, I] with `time_major`.
        initial_states_fw: one state per layer; None for zeros.
        initial_states_bw: likewise.
        dtype: of the initial states, where they are not given.
        sequence_length: integer [B]; None where all sequences fill T.
        parallel_iterations: to `bidirectional_dynamic_rnn`.
        time_major: the layout of inputs and outputs.
        scope: variable scope in place of "stack_bidirectional_rnn".
        swap_memory: to `bidirectional_dynamic_rnn`.

    Returns:
        outputs [B, T, 2 H], forward and backward side by side, and per direction a tuple of the
        layers' final states.

    Raises:
        ValueError: if there are not as many cells, or states, for each direction.
    """
    none = [None] * len(cells_fw)
    states = []
    with _v1.variable_scope(scope or "stack_bidirectional_rnn"):
        for index, (cell_fw, cell_bw, state_fw, state_bw) in enumerate(
            zip(
                cells_fw,
                cells_bw,
                initial_states_fw or none,
                initial_states_bw or none,
                strict=True,
            )
        ):
            with _v1.variable_scope(f"cell_{index}"):
                outputs, final = bidirectional_dynamic_rnn(
                    cell_fw,
                    cell_bw,
                    inputs,
                    sequence_length=sequence_length,
                    initial_state_fw=state_fw,
                    initial_state_bw=state_bw,
                    dtype=dtype,
                    parallel_iterations=parallel_iterations,
                    swap_memory=swap_memory,
                    time_major=time_major,
                )
            inputs = tf.concat(outputs, axis=-1)
            states.append(final)
    states_fw, states_bw = zip(*states, strict=True)
    return inputs, states_fw, states_bw
