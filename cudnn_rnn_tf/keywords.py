"""The keyword arguments of layers: their types, and errors that say how a misspelt one is spelt."""

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from cudnn_rnn_tf.arguments import check_names
from cudnn_rnn_tf.config import Algorithm, BiasMode

_Layer = TypeVar("_Layer", bound="ChecksKeywords")
WEIGHT_OPTIONS = tuple(
    f"{part}_{kind}"
    for kind in ("initializer", "regularizer", "constraint")
    for part in ("kernel", "recurrent", "bias")
)
# What people call the arguments of a call elsewhere, and what to write.
INSTEAD_IN_CALLS = {
    **dict.fromkeys(
        ("lengths", "seq_len", "seq_lens", "seq_lengths", "input_lengths"),
        "write sequence_lengths=...",
    ),
    **dict.fromkeys(("hx", "h0", "hidden", "state", "states"), "write initial_state=..."),
}


class LayerOptions(TypedDict, total=False):
    """What `keras.layers.Layer` takes by name; `name`, `dtype` and what others take are below."""

    activity_regularizer: Any
    autocast: bool
    input_dim: int
    input_shape: Any
    trainable: bool


class NamedLayerOptions(LayerOptions, total=False):
    dtype: Any
    name: str | None


class RNNOptions(NamedLayerOptions, total=False):
    return_sequences: bool
    return_state: bool
    go_backwards: bool
    stateful: bool
    unroll: bool
    zero_output_for_mask: bool


class WeightOptions(TypedDict, total=False):
    kernel_regularizer: Any
    recurrent_regularizer: Any
    bias_regularizer: Any
    kernel_constraint: Any
    recurrent_constraint: Any
    bias_constraint: Any


class CellOptions(NamedLayerOptions, WeightOptions, total=False):
    activation: Any
    use_bias: bool
    kernel_initializer: Any
    recurrent_initializer: Any
    bias_initializer: Any
    dropout: float
    recurrent_dropout: float
    seed: Any


class LSTMCellOptions(CellOptions, total=False):
    recurrent_activation: Any
    unit_forget_bias: bool


class GRUCellOptions(CellOptions, total=False):
    recurrent_activation: Any
    reset_after: bool


class SimpleRNNOptions(RNNOptions, CellOptions, total=False): ...


class LSTMOptions(RNNOptions, LSTMCellOptions, total=False):
    use_cudnn: Any


class GRUOptions(RNNOptions, GRUCellOptions, total=False):
    use_cudnn: Any


class StackOptions(LayerOptions, WeightOptions, total=False):
    """What the layers that hold a stack take by name alone."""

    recurrent_initializer: Any
    bias_mode: BiasMode
    return_sequences: bool
    return_state: bool
    go_backwards: bool
    stateful: bool
    time_major: bool
    algorithm: Algorithm
    recurrent_weight_dropout: float
    zoneout: float


class CudnnOptions(StackOptions, total=False):
    """What they take besides what a network in another format says itself."""

    dropout: float
    seed: int | None
    dtype: Any
    kernel_initializer: Any
    bias_initializer: Any
    return_cell_sequences: bool
    cell_zoneout: float


class _OfConstructor:
    """Gives a class the signature of its `__init__`, since Python would take that of `__new__`."""

    def __get__(self, layer: object, owner: Any) -> inspect.Signature:
        if layer is not None:
            raise AttributeError("a layer's signature is that of its call")
        merged = dict(inspect.signature(owner.__init__).parameters)
        rest = merged.pop("kwargs", None)
        for base in owner.__mro__[1:]:
            # A base takes what is passed on.
            if rest and issubclass(base, ChecksKeywords) and "__init__" in vars(base):
                passed = inspect.signature(vars(base)["__init__"]).parameters
                rest = passed.get("kwargs")
                named = {k: each for k, each in passed.items() if each.kind is each.KEYWORD_ONLY}
                merged = {**named, **merged}
        _, *parameters = sorted(merged.values(), key=lambda each: each.kind)
        parameters += [rest] if rest else []
        return inspect.Signature(parameters)


class ChecksKeywords:
    """A layer that says what to write in place of an argument that it does not take."""

    # Maps arguments of the constructors of other packages' layers to what to write.
    _instead: Mapping[str, str] = {}
    __signature__ = _OfConstructor()

    def __new__(cls: type[_Layer], *args: Any, **kwargs: Any) -> _Layer:
        """Makes a layer; the class says what its arguments, and those of its calls, mean."""
        # Before `__init__`, since Python would complain of missing arguments first.
        made: type = cls
        check_names(made.__name__, kwargs, names_of(made, "__init__"), cls._instead)
        return super().__new__(cls, *args, **kwargs)

    # To a type checker, the classes with this one say what their calls take.
    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                names = names_of(type(self), "call", "__call__")
                check_names(f"a call of layer {self.name!r}", kwargs, names, INSTEAD_IN_CALLS)
                raise


@functools.lru_cache
def names_of(layer: type, *methods: str) -> frozenset[str]:
    """Returns what methods of a class take; it passes on what it does not know to its bases."""
    own = (vars(base)[name] for base in layer.__mro__ for name in methods if name in vars(base))
    return frozenset(name for method in own for name in inspect.signature(method).parameters)
