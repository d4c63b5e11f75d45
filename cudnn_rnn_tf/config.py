"""The configuration of a network, and what follows from it."""

import dataclasses
import functools
import operator
from typing import Any, Literal, get_args

from cudnn_rnn_tf import constants, native
from cudnn_rnn_tf.arguments import check_type

# The types, by NumPy's names, in which the ops run networks.
DTYPES = ("float64", "float32", "float16", "bfloat16")
_OfContrib = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
_Others = Literal["gru_reset_before", "lstm_peephole", "lstm_layer_norm", "gru_layer_norm"]
RnnMode = Literal[_OfContrib, _Others]
InputMode = Literal["linear_input", "skip_input", "auto_select"]
Direction = Literal["unidirectional", "bidirectional"]
BiasMode = Literal["none", "single_input", "single_recurrent", "double"]
_Curve = Literal["tanh", "sigmoid", "relu", "linear", "softsign", "elu"]
Activation = Literal[_Curve, "hard_sigmoid", "keras_2_hard_sigmoid"]
Algorithm = Literal[
    "auto", "standard", "persist_static", "persist_static_small_h", "persistent", "cudnn"
]
_INPUT_MODES = get_args(InputMode)

_OF_ALL_OPS, _OF_PARAMS_OPS, _OF_PASSES = native.spec_fields()


@dataclasses.dataclass(frozen=True)
class RnnConfig:
    """One network: everything that its parameter layout and arithmetic depend on.

    The layers' docstrings say what most fields mean; 0 stands for no `num_proj` and no `cell_clip`.

    Attributes:
        rnn_mode: "lstm", "gru", "gru_reset_before" (whose reset gate multiplies h before the
            recurrent matrix does), "lstm_peephole" (whose gates see c), "lstm_layer_norm",
            "gru_layer_norm", "rnn_tanh" or "rnn_relu".
        input_size: size of the inputs' last dimension, I.
        recurrent_dropout: rate at which numbers of the hidden states are dropped where the
            recurrent matrices read them, in [0, 1). Each gate of each pseudo-layer has a mask of
            its own, [B, P], the same in all steps.
        activation: what the candidate, and an LSTM's c, pass through; "" for the mode's own. At
            borders of a hard sigmoid, the slope is 0.
        recurrent_activation: likewise, what the gates of an LSTM or GRU pass through.

    Raises:
        TypeError: if a number is of the wrong type.
        ValueError: if a value is out of range or does not fit the others.
    """

    rnn_mode: str
    num_layers: int
    num_units: int
    input_size: int
    input_mode: InputMode = "linear_input"
    direction: Direction = "unidirectional"
    bias_mode: BiasMode = "double"
    num_proj: int = 0
    dropout: float = 0.0
    cell_clip: float = 0.0
    recurrent_dropout: float = 0.0
    activation: Activation | Literal[""] = ""
    recurrent_activation: Activation | Literal[""] = ""
    layer_norm_epsilon: float = 1e-12
    zoneout: float = 0.0
    cell_zoneout: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            check_type(field.name, value, field.type)
            if field.type is int and abs(operator.index(value)) >= 2**63:
                raise ValueError(f"expected {field.name} to fit 64 bits, but received {value!r}")
            converters: dict[Any, Any] = {int: operator.index, float: float}
            converted = converters.get(field.type, str)(value)
            object.__setattr__(self, field.name, converted)
        if self.input_mode not in _INPUT_MODES:
            raise ValueError(
                f"expected input_mode to be one of {', '.join(map(repr, _INPUT_MODES))}, but "
                f"received {self.input_mode!r}"
            )
        if self.input_mode == constants.CUDNN_INPUT_AUTO_MODE:
            skip = self.input_size == self.num_units
            object.__setattr__(self, "input_mode", "skip_input" if skip else "linear_input")
        # The names of the mode's own are left out, so that such networks are the same.
        own = ("relu" if self.rnn_mode == constants.CUDNN_RNN_RELU else "tanh", "sigmoid")
        for name, usual in zip(("activation", "recurrent_activation"), own, strict=True):
            if getattr(self, name) == usual:
                object.__setattr__(self, name, "")
        self.layout  # noqa: B018 - Making the layout checks the values.

    def __reduce__(self) -> tuple[Any, ...]:
        # The layout follows from the other values, and cannot be pickled.
        return RnnConfig, dataclasses.astuple(self)

    @functools.cached_property
    def layout(self) -> native.ParamLayout:
        """The layout, which says where every canonical tensor is in the opaque buffer."""
        return native.ParamLayout(**dataclasses.asdict(self))

    @property
    def is_lstm(self) -> bool:
        return self.layout.has_c

    @property
    def has_zoneout(self) -> bool:
        return self.zoneout > 0 or self.cell_zoneout > 0

    @property
    def draws_masks(self) -> bool:
        """Whether training draws random masks."""
        has_dropout = (self.dropout > 0 and self.num_layers > 1) or self.recurrent_dropout > 0
        return has_dropout or self.has_zoneout

    @property
    def normalizes(self) -> bool:
        """Whether the sums are normalized over the units."""
        return self.rnn_mode in (constants.LSTM_LAYER_NORM, constants.GRU_LAYER_NORM)

    @property
    def canonical_names(self) -> list[str]:
        """The canonical tensors' names: the weights', then the biases'."""
        return self.layout.weight_names + self.layout.bias_names

    @property
    def canonical_shapes(self) -> list[tuple[int, ...]]:
        return self.layout.weight_shapes + self.layout.bias_shapes

    def state_sizes(self) -> tuple[int, ...]:
        """The sizes of the states' last dimension: h, and an LSTM's c."""
        return (self.layout.output_size, self.num_units)[: 2 if self.is_lstm else 1]

    def state_shapes(
        self, batch_size: int | None, time_major: bool
    ) -> tuple[tuple[int | None, ...], ...]:
        """The shapes of the states: [L * D, B, n] time-major, [B, L * D, n] batch-major."""
        count = self.num_layers * self.layout.num_dirs
        if time_major:
            return tuple((count, batch_size, size) for size in self.state_sizes())
        return tuple((batch_size, count, size) for size in self.state_sizes())

    def spec_attrs(self) -> dict[str, Any]:
        """Returns the attributes that every op has."""
        return {name: getattr(self, name) for name in _OF_ALL_OPS}

    def params_attrs(self) -> dict[str, Any]:
        """Returns the attributes of ops that convert parameters."""
        return {name: getattr(self, name) for name in _OF_ALL_OPS + _OF_PARAMS_OPS}

    def pass_attrs(self) -> dict[str, Any]:
        """Returns the attributes of ops that run the network."""
        return {name: getattr(self, name) for name in _OF_ALL_OPS + _OF_PASSES}


class HasConfig:
    """Gives layers and models alike the properties of their network."""

    _config: RnnConfig

    @property
    def num_layers(self) -> int:
        return self._config.num_layers

    @property
    def num_units(self) -> int:
        return self._config.num_units

    @property
    def direction(self) -> Direction:
        return self._config.direction

    @property
    def num_dirs(self) -> int:
        return self._config.layout.num_dirs
