"""Decides which of Keras's recurrent layers the fused ops run, and runs them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from cudnn_rnn_tf import constants, ops
from cudnn_rnn_tf._private_names import AutocastScope
from cudnn_rnn_tf.config import DTYPES, Activation, BiasMode, RnnConfig
from cudnn_rnn_tf.keras_weights import from_keras_weights
from cudnn_rnn_tf.ops import op_library
from cudnn_rnn_tf.ops.seeds import next_seed
from cudnn_rnn_tf.pseudo_layers import join


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
def keras_2_hard_sigmoid(x: Any) -> Any:
    """Returns what Keras 1 and 2 call hard_sigmoid, of which Keras 3 has another: 0.2 x + 0.5."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


_ACTIVATIONS: dict[Activation, tuple[Any, ...]] = {
    "tanh": (keras.activations.tanh, keras.ops.tanh, tf.tanh),
    "relu": (keras.activations.relu, keras.ops.relu, tf.nn.relu),
    "sigmoid": (keras.activations.sigmoid, keras.ops.sigmoid, tf.sigmoid),
    "linear": (keras.activations.linear,),
    "softsign": (keras.activations.softsign, keras.ops.softsign, tf.nn.softsign),
    "elu": (keras.activations.elu, keras.ops.elu, tf.nn.elu),
    "hard_sigmoid": (keras.activations.hard_sigmoid, keras.ops.hard_sigmoid),
    "keras_2_hard_sigmoid": (keras_2_hard_sigmoid,),
}
CELLS = (keras.layers.LSTMCell, keras.layers.GRUCell, keras.layers.SimpleRNNCell)
# One op runs several cells, of layers or of directions, if they agree in these.
_ALIKE = (
    *("units", "use_bias", "activation", "recurrent_activation", "reset_after"),
    *("dtype_policy", "recurrent_dropout"),
)


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Tells whether the fused ops run a layer; it is true if they always do.

    Attributes:
        not_in_inference: why they do not out of training; "" if they do.
        not_in_training: why they do not in training; "" if they do.
    """

    not_in_inference: str = ""
    not_in_training: str = ""

    def __bool__(self) -> bool:
        return not (self.not_in_inference or self.not_in_training)

    def __repr__(self) -> str:
        if self:
            return "runs fused"
        if self.not_in_inference:
            return f"runs as Keras runs it: {self.not_in_inference}"
        return f"runs fused, but in training as Keras runs it: {self.not_in_training}"

    def reason(self, training: Any) -> str:
        """Returns why a call does not run fused; "" if it does."""
        return self.not_in_training if training else self.not_in_inference


def cells_of(layer: keras.layers.RNN) -> list[Any]:
    """Returns the cells that a layer runs in each step, from bottom to top."""
    is_stack = type(layer.cell) is keras.layers.StackedRNNCells
    return list(layer.cell.cells) if is_stack else [layer.cell]


def fusion_of(layer: keras.layers.RNN) -> Fusion:
    """Returns whether the fused ops run a `keras.layers.RNN`, such as an `LSTM`."""
    cells = cells_of(layer)
    never = next(filter(None, (_why_never(layer, cell) for cell in cells)), "")
    if never:
        return Fusion(never, never)
    in_training = (_recurrent_dropout_reason(layer, cell) for cell in cells)
    return Fusion(not_in_training=next(filter(None, in_training), ""))


def _why_never(layer: keras.layers.RNN, cell: Any) -> str:
    """Returns why the fused ops do not run a cell of a layer, whether in training or not."""
    if type(cell) not in CELLS:
        return f"its cell is a {type(cell).__module__}.{type(cell).__qualname__}"
    if not rnn_mode_of(cell):
        return f"activation={shown(cell.activation)}"
    if not activation_of(getattr(cell, "recurrent_activation", tf.sigmoid)):
        return f"recurrent_activation={shown(cell.recurrent_activation)}"
    if getattr(layer, "use_cudnn", "auto") is False:
        return "use_cudnn=False"
    if cell.compute_dtype not in DTYPES:
        return f"it computes in {cell.compute_dtype}"
    for outer in (layer, layer.cell):
        if outer.compute_dtype != cell.compute_dtype:
            return f"{outer.name!r} computes in {outer.compute_dtype}, its cell in another type"
    if cell.activity_regularizer is not None:
        return f"activity_regularizer of its cell {cell.name!r}"
    return _lack_of_cudnn_reason(cell)


def difference(cell: Any, other: Any) -> str:
    """Returns in what two cells differ that one op would have to run; "" if one op can."""
    if type(cell) is not type(other):
        return "class"
    differing = (n for n in _ALIKE if getattr(cell, n, None) != getattr(other, n, None))
    return next(differing, "")


def runs_of(cells: Sequence[Any]) -> list[list[Any]]:
    """Returns the cells on top of each other in runs, each of which one op runs.

    A cell with dropout, whose masks are the same in all steps, is a run of its own.
    """
    runs: list[list[Any]] = []
    for cell in cells:
        pair = (runs[-1][-1] if runs else cell, cell)
        has_dropout = any(each.dropout or each.recurrent_dropout for each in pair)
        if runs and not has_dropout and not difference(*pair):
            runs[-1].append(cell)
        else:
            runs.append([cell])
    return runs


def _lack_of_cudnn_reason(cell: Any) -> str:
    own = "relu" if rnn_mode_of(cell) == constants.CUDNN_RNN_RELU else "tanh"
    recurrent = getattr(cell, "recurrent_activation", tf.sigmoid)
    if activation_of(cell.activation) != own:
        lack = f"activation={shown(cell.activation)}"
    elif activation_of(recurrent) != "sigmoid":
        lack = f"recurrent_activation={shown(recurrent)}"
    elif rnn_mode_of(cell) == constants.GRU_RESET_BEFORE:
        lack = "reset_after=False"
    else:
        return ""
    obstacle = _obstacle_on_gpus(cell.compute_dtype)
    return f"{lack} {obstacle}" if obstacle else ""


def _recurrent_dropout_reason(layer: keras.layers.RNN, cell: Any) -> str:
    rate = cell.recurrent_dropout
    if rate == 0:
        return ""
    if getattr(layer, "use_cudnn", "auto") is True:
        # Keras raises an error for this, so Keras's layer must run.
        return f"use_cudnn=True with recurrent_dropout={rate}"
    if rate == 1 and isinstance(cell, keras.layers.SimpleRNNCell):
        return f"recurrent_dropout={rate}"
    obstacle = _obstacle_on_gpus(cell.compute_dtype)
    return f"recurrent_dropout={rate} {obstacle}" if obstacle else ""


def _obstacle_on_gpus(dtype: str) -> str:
    """Returns why the GPUs do not run what cuDNN lacks; "" if all do, or if there are none.

    Only the package's own kernels do, which do not compute in bfloat16 on GPUs whose instructions
    lack it.
    """
    gpus = tf.config.get_visible_devices("GPU")
    oldest = (8, 0) if dtype == "bfloat16" else (7, 5)
    if any(_compute_capability(gpu) < oldest for gpu in gpus):
        return f"in {dtype} where a GPU has a compute capability below {oldest[0]}.{oldest[1]}"
    return ""


@functools.cache
def _compute_capability(gpu: Any) -> tuple[int, int]:
    """Returns the compute capability of a GPU, or of the one that the process imitates.

    It is (0, 0) if TensorFlow does not know it.
    """
    if imitated := op_library.imitated_architecture():
        return divmod(imitated, 10)
    return tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))


def _acting_rate(cell: Any, rate: float) -> float:
    """Returns the dropout rate that acts. Keras's gated cells treat a rate of 1 as no dropout."""
    is_gated = not isinstance(cell, keras.layers.SimpleRNNCell)
    return 0.0 if rate == 1 and is_gated else rate


def dropped_inputs(cell: Any, inputs: tf.Tensor, training: Any) -> tuple[tf.Tensor, int]:
    """Returns inputs [B, T, I] after a cell's own dropout, and how many of them lie side by side.

    Keras's cells have one dropout mask for all gates, or one for each gate.
    """
    if not (training and _acting_rate(cell, cell.dropout)):
        return inputs, 1
    masks = tf.nest.flatten(cell.get_dropout_mask(inputs[:, 0]))
    return tf.concat([inputs * each[:, tf.newaxis] for each in masks], axis=-1), len(masks)


def forward(
    cells: Sequence[Any],
    inputs: tf.Tensor,
    initial_states: Sequence[Sequence[tf.Tensor]] | None,
    sequence_lengths: tf.Tensor | None,
    is_training: bool,
    num_dirs: int,
    num_inputs: int = 1,
    dropout: keras.layers.Dropout | None = None,
    resets: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Runs layers on top of each other, of one direction or of two, in one op.

    `cells` are Keras's cells, alike but for their weights: for each layer one, or a forward and a
    backward one (`num_dirs`, D). `inputs` are [B, T, num_inputs * I], of the cells' compute type;
    `num_inputs` is G if each gate of a cell reads inputs of its own, in the order of the cell's
    kernel. `initial_states` are of each cell h and an LSTM's c, [B, H]; None for zeros. In
    training, `dropout` acts on the outputs of each layer but the last, and so does recurrent
    dropout.

    Returns:
        outputs [B, T, D * H], and the final states, h and an LSTM's c, [B, number of cells, H].

    Raises:
        ValueError: if a cell has too few or too many states, or a state's static shape is wrong.
    """
    batch_size = inputs.shape[0] or tf.shape(inputs)[0]
    if initial_states is not None:
        initial_states = [
            _checked_states(cell, states, inputs.shape[0], batch_size)
            for cell, states in zip(cells, initial_states, strict=True)
        ]
    recurrent_rate = rate = 0.0
    seed = None
    if is_training:
        recurrent_rate = _acting_rate(cells[0], cells[0].recurrent_dropout)
        rate = dropout.rate if dropout else 0.0
    if recurrent_rate or rate:
        seed = next_seed((dropout or cells[0]).seed_generator)
    config = RnnConfig(
        rnn_mode=rnn_mode_of(cells[0]),
        num_layers=len(cells) // num_dirs,
        num_units=cells[0].units,
        input_size=cells[0].kernel.shape[0] * num_inputs,
        direction="bidirectional" if num_dirs == 2 else "unidirectional",
        bias_mode=_bias_mode(cells[0]),
        dropout=rate,
        recurrent_dropout=recurrent_rate,
        activation=activation_of(cells[0].activation),
        recurrent_activation=activation_of(getattr(cells[0], "recurrent_activation", tf.sigmoid)),
    )
    if initial_states is None:
        states = ops.zero_states(config, batch_size, inputs.dtype, time_major=False)
    else:
        states = [tf.stack(kind, axis=1) for kind in zip(*initial_states, strict=True)]
    # Casts make new tensors in each call, so keeping what is made of them would be of no use.
    may_keep_params = not is_training and cells[0].variable_dtype == inputs.dtype.name
    return ops.forward(
        config,
        inputs,
        states,
        _params(config, cells, num_inputs, inputs.dtype, may_keep_params),
        sequence_lengths=sequence_lengths,
        resets=resets,
        seed=seed,
        time_major=False,
        is_training=is_training,
        may_keep_params=may_keep_params,
    )


def _checked_states(
    cell: Any, states: Sequence[tf.Tensor], static_size: int | None, batch_size: Any
) -> list[tf.Tensor]:
    """Returns a cell's states, of which one for all sequences is repeated, as Keras's sums do.

    Raises ValueError in Keras's terms, before the states get the op's axis of layers.
    """
    names = "hc" if rnn_mode_of(cell) == constants.CUDNN_LSTM else "h"
    if len(states) != len(names):
        raise ValueError(
            f"expected initial_state to have {' and '.join(names)}, each of shape "
            f"{(static_size, cell.units)} ([batch, units]), but received {len(states)}"
        )
    checked = []
    for name, state in zip(names, states, strict=True):
        is_one = state.shape.rank == 2 and state.shape[0] == 1
        size = 1 if is_one else static_size
        ops.check_shape(f"initial {name}", state, (size, cell.units), " ([batch, units])")
        checked.append(tf.broadcast_to(state, (batch_size, cell.units)) if is_one else state)
    return checked


def _params(
    config: RnnConfig,
    cells: Sequence[Any],
    num_inputs: int,
    dtype: tf.DType,
    may_keep_params: bool,
) -> tf.Tensor:
    """Makes the opaque buffer of the cells' weights, such that gradients reach the weights."""

    def input_kernel(cell: Any) -> tf.Tensor:
        if num_inputs == 1:
            return cell.kernel
        # Each gate reads its own inputs only, so its weights for the other gates' inputs are zero.
        gates = tf.split(tf.convert_to_tensor(cell.kernel), num_inputs, axis=1)
        behind = (num_inputs - 1) * cell.units
        return tf.concat(
            [
                tf.pad(gate, [[0, 0], [before, behind - before]])
                for gate, before in zip(gates, range(0, behind + 1, cell.units), strict=True)
            ],
            axis=0,
        )

    def weights_of(cell: Any) -> list[tf.Tensor]:
        weights = [input_kernel(cell), cell.recurrent_kernel]
        if cell.use_bias:
            weights.append(cell.bias)
        return [tf.cast(weight, cell.variable_dtype) for weight in weights]

    # In mixed precision, one cast of the buffer and one of its gradient take the place of a cast of
    # each weight and of its gradient.
    with AutocastScope(None):
        of_cells = [weights_of(cell) for cell in cells]
    if ops.has_substitute():
        # A portable SavedModel cannot have this package's ops.
        params = join(config, [from_keras_weights(config.rnn_mode, *each) for each in of_cells])
    else:
        params = ops.keras_to_params(
            config,
            weights=[weight for each in of_cells for weight in each[:2]],
            biases=[bias for each in of_cells for bias in each[2:]],
            may_keep_params=may_keep_params,
        )
    return tf.cast(params, dtype)


def rnn_mode_of(cell: Any) -> str:
    """Returns the ops' mode that computes what a cell does; "" if there is none."""
    activation = activation_of(cell.activation)
    if not activation:
        return ""
    if isinstance(cell, keras.layers.LSTMCell):
        return constants.CUDNN_LSTM
    if isinstance(cell, keras.layers.GRUCell):
        return constants.CUDNN_GRU if cell.reset_after else constants.GRU_RESET_BEFORE
    return constants.CUDNN_RNN_RELU if activation == "relu" else constants.CUDNN_RNN_TANH


def _bias_mode(cell: Any) -> BiasMode:
    if not cell.use_bias:
        return "none"
    return "double" if rnn_mode_of(cell) == constants.CUDNN_GRU else "single_input"


def activation_of(function: Any) -> Activation | Literal[""]:
    """Returns the name of a cell's activation; "" if the ops have no such activation."""
    for name, functions in _ACTIVATIONS.items():
        if any(function is each for each in functions):
            return name
    return ""


def shown(value: Any) -> str:
    """Returns what an error's message calls a function or another value."""
    return repr(getattr(value, "__name__", value))
