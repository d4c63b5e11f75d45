"""The drop-ins for `keras.layers.RNN`, `LSTM`, `GRU` and `SimpleRNN`."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

import keras
import tensorflow as tf
from typing_extensions import Unpack

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.keras.fusion import (
    CELLS,
    Fusion,
    cells_of,
    dropped_inputs,
    forward,
    fusion_of,
    runs_of,
)
from cudnn_rnn_tf.keras.lengths import TakesLengths
from cudnn_rnn_tf.keywords import (
    ChecksKeywords,
    GRUOptions,
    LSTMOptions,
    RNNOptions,
    SimpleRNNOptions,
)
from cudnn_rnn_tf.mask_packing import packing_of
from cudnn_rnn_tf.resets import in_order_of_reading
from cudnn_rnn_tf.xla import CompiledByXla

logger = logging.getLogger("cudnn_rnn_tf")

_Constructor = TypeVar("_Constructor", bound=Callable[..., None])


class _MaskAndResets(NamedTuple):
    mask: Any
    resets: Any


# With names of its own, a copied, pickled or loaded layer stays a drop-in, while Keras's names are
# left to Keras's classes and to the classes of users.
@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class RNN(ChecksKeywords, TakesLengths, CompiledByXla, keras.layers.RNN):
    """Keras's layer of a cell or of several, all of whose steps ops of this package run.

    The arguments, defaults, weights, configs and errors are those of `keras.layers.RNN`. The ops
    run an `LSTMCell`, `GRUCell` or `SimpleRNNCell` of Keras's own where they would run an `LSTM`,
    `GRU` or `SimpleRNN` with its arguments. Of `StackedRNNCells`, or of a list of cells, one op
    runs as many in a row as agree in class, `units`, `use_bias`, activations, `reset_after` and
    dtype policy, and have no dropout. Keras's loop runs all other cells. `runs_fused` says what
    runs them.

    Example:
        ```python
        cells = [cudnn_rnn_tf.keras.LSTMCell(32), cudnn_rnn_tf.keras.LSTMCell(32)]
        last = cudnn_rnn_tf.keras.RNN(cells)(np.zeros((4, 20, 16)))  # [4, 32]
        ```
    """

    if TYPE_CHECKING:

        def __init__(self, cell: Any, **kwargs: Unpack[RNNOptions]) -> None: ...

    @property
    def runs_fused(self) -> Fusion:
        """Tells whether the fused ops run this layer in inference and in training, or why not."""
        return fusion_of(self)

    def _runs_ops(self) -> bool:
        return not self.runs_fused.not_in_inference

    def build(
        self,
        sequences_shape: Sequence[int | None],
        initial_state_shape: Any = None,
    ) -> None:
        if not (cells := cells_of(self)):
            raise ValueError(f"expected cell of layer {self.name!r} to be cells, but received []")
        for cell in cells:
            if isinstance(cell, CELLS):
                ops.check_dtype(f"dtype of layer {self.name!r}", cell.compute_dtype)
        super().build(sequences_shape, initial_state_shape)
        logger.info("layer %r %s", self.name, self.runs_fused)

    def call(
        self,
        sequences: tf.Tensor,
        initial_state: Any = None,
        mask: Any = None,
        training: Any = False,
        resets: Any = None,
        sequences_mask: Any = None,
    ) -> Any:
        # Keras's `call` knows no resets, with which the sequences' own mask has another name.
        if resets is not None:
            mask = _MaskAndResets(sequences_mask if mask is None else mask, resets)
        return super().call(sequences, initial_state=initial_state, mask=mask, training=training)

    def inner_loop(
        self, sequences: tf.Tensor, initial_state: Any, mask: Any, training: Any = False
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Runs the cell over the sequences, as in `keras.layers.RNN`, which calls this.

        Args:
            sequences: [B, T, I].
            initial_state: of the cell, a list of [B, H]; of several cells, a list for each.
            mask: [B, T], true where a step is to be read; None for all. Or this and resets.
            training: whether dropout acts.

        Returns:
            The last output [B, H] or, with `return_sequences`, all outputs [B, T, H], twice, and
            the final states.
        """
        # Keras's `call`, unlike its `__call__`, may get NumPy arrays.
        sequences = tf.convert_to_tensor(sequences)
        is_cell_dtype = sequences.dtype == tf.as_dtype(self.cell.compute_dtype)
        mask, resets = mask if isinstance(mask, _MaskAndResets) else (mask, None)
        reason = self.runs_fused.reason(training)
        if reason or not is_cell_dtype:
            ops.check_are_real(f"inputs of layer {self.name!r}", sequences.dtype)
            if resets is not None:
                reason = reason or f"its inputs are of type {sequences.dtype.name}"
                raise ValueError(
                    f"expected no resets of layer {self.name!r}, which Keras's loop runs: {reason}"
                )
            return super().inner_loop(sequences, initial_state, mask, training=training)
        if self.stateful:
            kept = ops.kept_states(tf.nest.flatten(initial_state), sequences.shape[0], 0)
            initial_state = tf.nest.pack_sequence_as(initial_state, kept)
        cells = cells_of(self)
        first_states = [initial_state] if cells == [self.cell] else list(initial_state)
        if len(first_states) != len(cells):
            raise ValueError(
                f"expected initial_state to have a list of states for each of {len(cells)} cells, "
                f"but received {len(first_states)}"
            )
        owner = f"layer {self.name!r}"
        packing = packing_of(mask, sequences, owner, go_backwards=self.go_backwards)
        resets = in_order_of_reading(resets, packing, owner, self.go_backwards)
        if packing:
            sequences = packing.pack(sequences)
        elif self.go_backwards:
            sequences = tf.reverse(sequences, [1])
        lengths = packing.lengths if packing else None
        outputs = sequences
        final_states: list[tuple[tf.Tensor, ...]] = []
        for run in runs_of(cells):
            inputs, num_inputs = dropped_inputs(run[0], outputs, training)
            firsts = [tf.nest.flatten(first_states.pop(0)) for _ in run]
            outputs, finals = forward(
                *(run, inputs, firsts, lengths, bool(training), 1, num_inputs), resets=resets
            )
            split = tf.unstack if len(run) > 1 else lambda kind, axis: [tf.squeeze(kind, axis)]
            final_states += zip(*(split(kind, axis=1) for kind in finals), strict=True)
        last = final_states[-1][0]
        states = tf.nest.pack_sequence_as(initial_state, tf.nest.flatten(final_states))
        repeat_masked = not self.zero_output_for_mask
        # Keras reads one of the first two results only, so no other tensor is made for the other.
        if not self.return_sequences:
            last = packing.last_output(last, repeat_masked) if packing else last
            return last, last, states
        if packing:
            outputs = packing.unpack(outputs, repeat_masked)
        return outputs, outputs, states


def _constructor(stock: _Constructor, options: type) -> _Constructor:
    @functools.wraps(stock)
    def construct(self: RNN, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        # Where there is a GPU, Keras says False for the sake of its own op.
        self.supports_jit = True

    hints = {"units": int, **get_type_hints(options)}
    # To Keras, None is as good as False.
    return checked(construct, {k: bool | None if v is bool else v for k, v in hints.items()})  # type: ignore[return-value]


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class LSTM(RNN, keras.layers.LSTM):
    """Keras's LSTM layer, all of whose steps one op of this package runs, on GPUs and CPUs.

    The arguments, defaults, weights, configs and errors are those of `keras.layers.LSTM`. The op
    runs the layer in more cases than Keras's own op for GPUs: masks may leave out any steps, and
    `recurrent_dropout`, `unroll` and `use_bias=False` make no difference. Keras's loop runs it if
    it has an activation that the op lacks, such as selu, or `use_cudnn=False`; in training with
    `recurrent_dropout`, also if a GPU is older than a T4. `runs_fused` says what runs it.

    Call arguments:
        sequences: [B, T, I].
        initial_state: h and c, [B, H] each; by default zeros, or the states of a stateful layer.
        mask: boolean [B, T], true for each step that is to be read; by default the mask that comes
            with the sequences, such as an `Embedding`'s.
        training: whether dropout acts.
        sequence_lengths: integers [B] in place of a mask, which Keras's layer has not: how many
            steps of each sequence are to be read, each in [0, T]. Run eagerly, others are an
            error; in a graph, more than T are as good as T, and less than 0 as good as 0.
        resets: boolean [B, T], true where a new segment of a sequence begins, before which the
            states are zeros; see `cudnn_rnn_tf.CudnnLSTM`. Keras's layer has not got them either,
            and where its loop runs, they are an error.

    Returns:
        The last output [B, H] or, with `return_sequences`, all of them [B, T, H]; with
        `return_state`, a tuple of that and of the final h and c.

    Raises:
        TypeError: if sequence lengths are not integers, or sequences no real numbers.
        ValueError: if lengths are not of shape [B], or there is a mask as well; and as in Keras.
        tf.errors.InvalidArgumentError: if, run eagerly, a sequence length is out of range.

    Example:
        ```python
        layer = cudnn_rnn_tf.keras.LSTM(32, return_state=True)
        last, h, c = layer(np.zeros((4, 20, 16)), sequence_lengths=[20, 3, 7, 1])  # [4, 32] each
        ```
    """

    if TYPE_CHECKING:

        def __init__(self, units: int, *args: Any, **kwargs: Unpack[LSTMOptions]) -> None: ...
    else:
        __init__ = _constructor(keras.layers.LSTM.__init__, LSTMOptions)


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class GRU(RNN, keras.layers.GRU):
    """Keras's GRU layer, all of whose steps one op of this package runs, on GPUs and CPUs.

    The arguments, defaults, weights, configs and errors are those of `keras.layers.GRU`. What is
    said of `LSTM` holds here, too, but there is one state, h. With `reset_after=False`, the op runs
    the layer where no GPU is older than a T4; a GPU runs the steps one by one.

    Example:
        ```python
        mask = np.array([[True, True, False], [False, True, True]])
        last = cudnn_rnn_tf.keras.GRU(32)(np.zeros((2, 3, 16)), mask=mask)  # [2, 32]
        ```
    """

    if TYPE_CHECKING:

        def __init__(self, units: int, *args: Any, **kwargs: Unpack[GRUOptions]) -> None: ...
    else:
        __init__ = _constructor(keras.layers.GRU.__init__, GRUOptions)


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class SimpleRNN(RNN, keras.layers.SimpleRNN):
    """Keras's plain recurrent layer, all of whose steps one op of this package runs.

    The arguments, defaults, weights, configs and errors are those of `keras.layers.SimpleRNN`. What
    is said of `LSTM` holds here, too.

    Example:
        ```python
        last = cudnn_rnn_tf.keras.SimpleRNN(32, activation="relu")(np.zeros((2, 3, 16)))  # [2, 32]
        ```
    """

    if TYPE_CHECKING:

        def __init__(self, units: int, *args: Any, **kwargs: Unpack[SimpleRNNOptions]) -> None: ...
    else:
        __init__ = _constructor(keras.layers.SimpleRNN.__init__, SimpleRNNOptions)
