"""The Keras layers `CudnnLSTM`, `CudnnGRU`, `CudnnRNNTanh` and `CudnnRNNRelu`.

Two other modules have classes of these names: `cudnn_rnn_tf.contrib.python.layers.cudnn_rnn` the
layers of TensorFlow 1, `cudnn_rnn_tf.cudnn_rnn_ops` models whose parameters the caller holds.

Each class explains the arguments of its own; `CudnnRNN` explains those that all of them have.
"""

import inspect
from typing import Any, TypeVar

import keras
from typing_extensions import Unpack

from cudnn_rnn_tf import constants
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import Activation, Direction, InputMode, RnnConfig
from cudnn_rnn_tf.keywords import StackOptions
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN, without_later

_Layer = TypeVar("_Layer", bound=type[CudnnRNN])


def _with_shared_arguments(layer: _Layer) -> _Layer:
    """Appends what `CudnnRNN` says of all layers; notebooks show only a class's own text."""
    if layer.__doc__ and CudnnRNN.__doc__:
        shared = inspect.cleandoc(CudnnRNN.__doc__).partition("\n\n")[2]
        shared = shared.replace("Args:\n", "Arguments that all four layers have:\n", 1)
        layer.__doc__ = f"{inspect.cleandoc(layer.__doc__)}\n\n{shared}"
    return layer


def _for_all(given: dict[str, Any]) -> dict[str, Any]:
    """Returns what all layers take of a constructor's `locals()`."""
    names = given.keys() & inspect.signature(CudnnRNN).parameters.keys() - {"kwargs"}
    return {name: given[name] for name in names} | given["kwargs"]


class _Gated(CudnnRNN):
    """What layers with gates have."""

    _own_arguments: dict[str, Any]

    @property
    def use_layer_norm(self) -> bool:
        return self.rnn_mode in (constants.LSTM_LAYER_NORM, constants.GRU_LAYER_NORM)

    @property
    def layer_norm_epsilon(self) -> float:
        return self._config.layer_norm_epsilon

    def _own_config(self) -> dict[str, Any]:
        epsilon = self._own_arguments["layer_norm_epsilon"]
        if epsilon is None:
            # Gradients of units that are all alike are divided by its root.
            in_half = self.use_layer_norm and self.compute_dtype == "float16"
            epsilon = 1e-3 if in_half else RnnConfig.layer_norm_epsilon
        return {**self._own_arguments, "layer_norm_epsilon": epsilon}

    def get_config(self) -> dict[str, Any]:
        given = self._own_arguments["layer_norm_epsilon"]
        own = {"use_layer_norm": self.use_layer_norm, "layer_norm_epsilon": given}
        return {**super().get_config(), **own}

    @property
    def activation(self) -> Activation:
        return self._config.activation or "tanh"

    @property
    def recurrent_activation(self) -> Activation:
        return self._config.recurrent_activation or "sigmoid"


@_with_shared_arguments
@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnLSTM(_Gated):
    """The Keras layer: a stack of LSTM layers in one op.

    i, f, o = σ(W x + R h + b_W + b_R), c̃ = tanh(W_c x + R_c h + b_Wc + b_Rc), c' = f∘c + i∘c̃,
    h' = o∘tanh(c'); with projection h' = W_p (o∘tanh(c')). With peepholes, p_i∘c and p_f∘c are
    added to what i and f are the sigmoid of, and p_o∘c' to that of o: TensorFlow 1's `LSTMCell` and
    `LSTMBlockFusedCell` with `use_peephole(s)`, ONNX's LSTM with P. cuDNN does not have them; this
    package's kernels run them on a GPU.

    With layer normalization (Ba et al., "Layer Normalization", 2016), what each gate and c̃ is the
    function of passes N(v) = γ∘(v − mean(v)) / √(var(v) + ε) + β first, over the units, and
    c' = N(f∘c + i∘c̃), each with γ and β of its own: TensorFlow 1's `LayerNormBasicLSTMCell`, which
    has `bias_mode="none"`. Others, such as Addons' and that of the paper, normalize W x and R h
    apart. The persistent kernels run it, on an H100 up to about 1024 units; a GPU runs the steps of
    larger layers one by one.

    Called on inputs [B, T, I], the layer returns outputs [B, T, D * P] of its type; with
    `return_state`, a tuple of them and of the final states h [B, L * D, P] and c [B, L * D, H].
    P is `num_proj`, or H without it; D is the number of directions. The arguments of calls, and
    those of the constructor but for these, are those of `cudnn_rnn_tf.CudnnRNN`.

    Args:
        num_proj: size P of the recurrent projection, at most `num_units`; None for none.
        cell_clip: bound to which the cell states, the initial ones included, are clipped; None for
            none. Peepholes see the clipped ones.
        activation: what c̃ and c' pass through: "tanh", "sigmoid", "relu", "linear", "softsign",
            "elu", "hard_sigmoid" (Keras 3's) or "keras_2_hard_sigmoid". cuDNN has only the default.
        recurrent_activation: likewise, what the gates pass through.
        use_peepholes: whether the gates see the cell state. The vectors [H] are called
            `…_w_i_diag`, `…_w_f_diag` and `…_w_o_diag`, as in TensorFlow 1's checkpoints.
        peephole_initializer: of these vectors, each on its own (a row of an orthogonal matrix);
            None for `kernel_initializer`, as in TensorFlow 1. Regularizers and constraints leave
            them alone.
        use_layer_norm: whether to normalize, without `num_proj`, `cell_clip` and `use_peepholes`.
            The vectors [H] are called `…_input_gate_gamma`, `…_input_gate_beta`, likewise of
            `forget_gate`, `cell_candidate`, `output_gate` and `cell_state`. γ begin as ones, β as
            zeros; TensorFlow 1's `forget_bias` is a `forget_gate_beta`. Regularizers and
            constraints leave them alone.
        layer_norm_epsilon: ε, a normal float32; None for that of TensorFlow 1's cell: 1e-12, or
            1e-3 where the layer computes in float16.
        return_cell_sequences: whether to return c' of all steps as well, the last layer's, as
            [B, T, D * H] ([T, B, D * H] time-major) right after the outputs: in their order, zeros
            where they are zeros, and with gradients.
        cell_zoneout: as `zoneout`, of c: c' = M∘c + (1 − M)∘ĉ with ĉ = f∘c + i∘c̃ and masks of its
            own. As in the paper, ĥ = o∘tanh(ĉ). With `cell_clip`, both are clipped first. Like
            `zoneout`, it takes no `num_proj` and no `use_layer_norm`, and no `use_peepholes`.

    Raises:
        TypeError: if an argument is of the wrong type, or one of another package's layers.
        ValueError: if an argument is out of range or a shape does not fit.

    Example:
        ```python
        layer = cudnn_rnn_tf.CudnnLSTM(2, 32, direction="bidirectional", return_state=True)
        outputs, h, c = layer(np.zeros((8, 20, 16)))  # [8, 20, 64], and twice [8, 4, 32]
        ```
    """

    rnn_mode = constants.CUDNN_LSTM

    @checked
    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dropout: float = 0.0,
        seed: int | None = None,
        dtype: Any = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        name: str | None = None,
        *,
        num_proj: int | None = None,
        cell_clip: float | None = None,
        activation: Activation = "tanh",
        recurrent_activation: Activation = "sigmoid",
        use_peepholes: bool = False,
        peephole_initializer: Any = None,
        use_layer_norm: bool = False,
        layer_norm_epsilon: float | None = None,
        return_cell_sequences: bool = False,
        cell_zoneout: float = 0.0,
        **kwargs: Unpack[StackOptions],
    ):
        self._own_arguments = {
            "num_proj": num_proj or 0,
            "cell_clip": cell_clip or 0.0,
            "cell_zoneout": cell_zoneout,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "layer_norm_epsilon": layer_norm_epsilon,
        }
        if use_peepholes and use_layer_norm:
            raise ValueError("expected use_peepholes or use_layer_norm, but received both")
        if use_peepholes:
            self.rnn_mode = constants.LSTM_PEEPHOLE
        elif use_layer_norm:
            self.rnn_mode = constants.LSTM_LAYER_NORM
        super().__init__(**_for_all(locals()))
        self.peephole_initializer = keras.initializers.get(peephole_initializer)
        self.return_cell_sequences = return_cell_sequences

    @property
    def num_proj(self) -> int | None:
        return self._config.num_proj or None

    @property
    def cell_clip(self) -> float | None:
        return self._config.cell_clip or None

    @property
    def cell_zoneout(self) -> float:
        return self._config.cell_zoneout

    @property
    def use_peepholes(self) -> bool:
        return self.rnn_mode == constants.LSTM_PEEPHOLE

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.peephole_initializer)
        own = {"use_peepholes": self.use_peepholes, "peephole_initializer": initializer}
        own["return_cell_sequences"] = self.return_cell_sequences
        return without_later({**super().get_config(), **own})


@_with_shared_arguments
@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnGRU(_Gated):
    """The Keras layer: a stack of GRU layers in one op.

    r, z = σ(W x + R h + b_W + b_R), h̃ = tanh(W_h x + r∘(R_h h + b_Rh) + b_Wh),
    h' = (1−z)∘h̃ + z∘h: Keras's GRU with `reset_after=True`, PyTorch's GRU. With
    `reset_after=False`, h̃ = tanh(W_h x + R_h (r∘h) + b_Wh + b_Rh): the GRU of Cho et al. (2014),
    Keras 2's and ONNX's default, which cuDNN does not have. A GPU runs its steps one by one.

    With layer normalization, what r, z and h̃ are functions of passes N first, which `CudnnLSTM`
    explains, as well as what a GPU does then: h̃ = tanh(N(W_h x + r∘(R_h h + b_Rh) + b_Wh)).

    Called on inputs [B, T, I], the layer returns outputs [B, T, D * H] of its type; with
    `return_state`, a tuple of them and of the final states [B, L * D, H]. D is the number of
    directions. The arguments of calls, and those of the constructor but for these, are those of
    `cudnn_rnn_tf.CudnnRNN`.

    Args:
        reset_after: whether the reset gate multiplies the product of the recurrent matrix, or h
            before it. The weights have the same shapes and names; if it is False, the candidate's
            two biases simply add up.
        use_layer_norm: whether to normalize, with `reset_after=True`. The vectors [H] are called
            `…_reset_gate_gamma`, `…_reset_gate_beta`, likewise of `update_gate` and `candidate`.
            γ begin as ones, β as zeros. Regularizers and constraints leave them alone.
        layer_norm_epsilon: ε, a normal float32; by default that of `CudnnLSTM`.
        activation: what h̃ passes through: "tanh", "sigmoid", "relu", "linear", "softsign",
            "elu", "hard_sigmoid" (Keras 3's) or "keras_2_hard_sigmoid". cuDNN has only the default.
        recurrent_activation: likewise, what the gates pass through.

    Raises:
        TypeError: if an argument is of the wrong type, or one of another package's layers.
        ValueError: if an argument is out of range or a shape does not fit.

    Example:
        ```python
        layer = cudnn_rnn_tf.CudnnGRU(2, 32, dropout=0.1)
        outputs = layer(np.zeros((8, 20, 16)), sequence_lengths=[20, 3, 7, 0, 1, 20, 9, 4])
        ```
    """

    rnn_mode = constants.CUDNN_GRU

    @checked
    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dropout: float = 0.0,
        seed: int | None = None,
        dtype: Any = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        name: str | None = None,
        *,
        reset_after: bool = True,
        activation: Activation = "tanh",
        recurrent_activation: Activation = "sigmoid",
        use_layer_norm: bool = False,
        layer_norm_epsilon: float | None = None,
        **kwargs: Unpack[StackOptions],
    ):
        if use_layer_norm and not reset_after:
            raise ValueError(
                "use_layer_norm is for reset_after=True, but received reset_after=False"
            )
        if not reset_after:
            self.rnn_mode = constants.GRU_RESET_BEFORE
        elif use_layer_norm:
            self.rnn_mode = constants.GRU_LAYER_NORM
        self._own_arguments = {
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "layer_norm_epsilon": layer_norm_epsilon,
        }
        super().__init__(**_for_all(locals()))

    @property
    def reset_after(self) -> bool:
        return self.rnn_mode != constants.GRU_RESET_BEFORE

    def get_config(self) -> dict[str, Any]:
        return without_later({**super().get_config(), "reset_after": self.reset_after})


@_with_shared_arguments
@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnRNNTanh(CudnnRNN):
    """The Keras layer: a stack of plain recurrent layers with tanh in one op.

    h' = tanh(W x + R h + b_W + b_R).

    Called on inputs [B, T, I], the layer returns outputs [B, T, D * H] of its type; with
    `return_state`, a tuple of them and of the final states [B, L * D, H]. D is the number of
    directions. The arguments and errors are those of `cudnn_rnn_tf.CudnnRNN`.

    Example:
        ```python
        layer = cudnn_rnn_tf.CudnnRNNTanh(1, 32, return_sequences=False)
        outputs = layer(np.zeros((8, 20, 16)))  # [8, 32]
        ```
    """

    rnn_mode = constants.CUDNN_RNN_TANH


@_with_shared_arguments
@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class CudnnRNNRelu(CudnnRNN):
    """The Keras layer: a stack of plain recurrent layers with ReLU in one op.

    h' = max(0, W x + R h + b_W + b_R).

    Called on inputs [B, T, I], the layer returns outputs [B, T, D * H] of its type; with
    `return_state`, a tuple of them and of the final states [B, L * D, H]. D is the number of
    directions. The arguments and errors are those of `cudnn_rnn_tf.CudnnRNN`.

    Example:
        ```python
        layer = cudnn_rnn_tf.CudnnRNNRelu(1, 32, recurrent_initializer="identity")
        outputs = layer(np.zeros((8, 20, 16)))  # [8, 20, 32]
        ```
    """

    rnn_mode = constants.CUDNN_RNN_RELU
