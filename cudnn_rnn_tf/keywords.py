"""The keyword arguments of layers: their types, and errors that say how a misspelt one is spelt."""

import difflib
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

_Layer = TypeVar("_Layer", bound="ChecksKeywords")
# What people call the arguments of a call elsewhere, and what to write.
_INSTEAD_IN_CALLS = {
    **dict.fromkeys(
        ("lengths", "seq_len", "seq_lens", "seq_lengths", "input_lengths"),
        "write sequence_lengths=...",
    ),
    **dict.fromkeys(("hx", "h0", "hidden", "state", "states"), "write initial_state=..."),
}
# Names as far apart as "return_seqs" and "return_sequences" are still taken for the same.
_ALIKE = 0.8


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


class SimpleRNNOptions(RNNOptions, total=False):
    activation: Any
    use_bias: bool
    kernel_initializer: Any
    recurrent_initializer: Any
    bias_initializer: Any
    kernel_regularizer: Any
    recurrent_regularizer: Any
    bias_regularizer: Any
    kernel_constraint: Any
    recurrent_constraint: Any
    bias_constraint: Any
    dropout: float
    recurrent_dropout: float
    seed: Any


class LSTMOptions(SimpleRNNOptions, total=False):
    recurrent_activation: Any
    unit_forget_bias: bool
    use_cudnn: Any


class GRUOptions(SimpleRNNOptions, total=False):
    recurrent_activation: Any
    reset_after: bool
    use_cudnn: Any


class _OfConstructor:
    """Gives a class the signature of its `__init__`, since Python would take that of `__new__`."""

    def __get__(self, layer: object, owner: Any) -> inspect.Signature:
        if layer is not None:
            raise AttributeError("a layer's signature is that of its call")
        constructor = inspect.signature(owner.__init__)
        _, *parameters = constructor.parameters.values()
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
        check(made.__name__, kwargs, names_of(made, "__init__"), cls._instead)
        return super().__new__(cls, *args, **kwargs)

    # To a type checker, the classes with this one say what their calls take.
    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                names = names_of(type(self), "call", "__call__")
                check(f"a call of layer {self.name!r}", kwargs, names, _INSTEAD_IN_CALLS)
                raise


@functools.lru_cache
def names_of(layer: type, *methods: str) -> frozenset[str]:
    """Returns what methods of a class take; it passes on what it does not know to its bases."""
    own = (vars(base)[name] for base in layer.__mro__ for name in methods if name in vars(base))
    return frozenset(name for method in own for name in inspect.signature(method).parameters)


def check(
    owner: str, given: Mapping[str, Any], names: frozenset[str], instead: Mapping[str, str] = {}
) -> None:
    """Raises TypeError if an argument that is none of the names has one that is to be written."""
    for keyword in sorted(given.keys() - names):
        alike = difflib.get_close_matches(keyword, names, 1, cutoff=_ALIKE)
        hint = instead.get(keyword) or (f"did you mean {alike[0]!r}?" if alike else "")
        if hint:
            raise TypeError(f"{owner} has no argument {keyword!r}: {hint}") from None
