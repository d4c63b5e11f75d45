"""Recognizes what programs for other packages pass to the layers."""

import inspect
from typing import Any, TypeVar

import numpy as np

from cudnn_rnn_tf.keywords import ChecksKeywords, names_of

_Layer = TypeVar("_Layer", bound="ChecksForeignArguments")
_DROP_IN = "the layers of cudnn_rnn_tf.keras have it"
_NOTHING = "leave it out"
_ACTIVATION = (
    f"{_NOTHING} for tanh; the class CudnnRNNRelu has ReLU; for other activations, {_DROP_IN}"
)
_DIRECTION = 'write direction="bidirectional"'
# Maps arguments of Keras's or PyTorch's layers to what to write in their place.
_INSTEAD = {
    "units": "write num_layers=1, num_units=…",
    "hidden_size": "write num_units=…",
    "input_size": f"{_NOTHING}, as the inputs say it",
    "activation": _ACTIVATION,
    "nonlinearity": _ACTIVATION,
    "recurrent_activation": _DROP_IN,
    "use_bias": 'write bias_mode="none" for False',
    "bias": 'write bias_mode="none" for False',
    "unit_forget_bias": (
        'write bias_initializer=cudnn_rnn_tf.PerGate(forget_gate="ones") for True; '
        f"{_NOTHING} for False"
    ),
    "recurrent_dropout": _DROP_IN,
    "reset_after": f"{_NOTHING}; the class CudnnGRU has it",
    "unroll": _NOTHING,
    "implementation": _NOTHING,
    "use_cudnn": _NOTHING,
    "zero_output_for_mask": f"{_NOTHING}, as outputs past a sequence's end are zero",
    "merge_mode": f'{_NOTHING}, as direction="bidirectional" concatenates',
    "bidirectional": _DIRECTION,
    "layer": _DIRECTION,
    "backward_layer": _DIRECTION,
    "weights": f"{_NOTHING}, and call set_weights() once the layer is built",
    "device": f'{_NOTHING}, and call the layer under tf.device("CPU") or tf.device("GPU")',
    "batch_first": "write time_major=False for True, which is the default",
    "proj_size": "write num_proj=…",
}

# Stacks of more layers are rare, and of fewer units than layers rarer still.
_MANY_LAYERS = 16


class ChecksForeignArguments(ChecksKeywords):
    """A layer that says what to write in place of arguments of Keras's or PyTorch's layers."""

    _instead = _INSTEAD

    def __new__(cls: type[_Layer], *args: Any, **kwargs: Any) -> _Layer:
        """Makes a layer; the class says what its arguments, and those of its calls, mean."""
        layer = super().__new__(cls, *args, **kwargs)
        made: type = cls
        first = list(inspect.signature(cls.__init__).parameters)[1:3]
        is_known = kwargs.keys() <= names_of(made, "__init__")
        if first == ["num_layers", "num_units"] and args and is_known:
            cls._check_sizes(args[0], *args[1:2], **kwargs)
        return layer

    @classmethod
    def _check_sizes(cls, num_layers: Any, num_units: Any = ..., **_: Any) -> None:
        """Checks sizes of which at least one is not named, as PyTorch's order is the other one."""
        name = cls.__name__
        if num_units is ...:
            raise TypeError(
                f"{name} takes num_layers, then num_units, but received {num_layers!r} alone: "
                f"write {name}(1, {num_layers!r}) for one layer of so many units"
            )
        are_integers = all(isinstance(size, (int, np.integer)) for size in (num_layers, num_units))
        if are_integers and 0 < num_units < num_layers > _MANY_LAYERS:
            raise ValueError(
                f"{name} takes num_layers, then num_units, but received num_layers={num_layers} "
                f"and num_units={num_units}: write {name}({num_units}, {num_layers}) for "
                f"{num_units} layers of {num_layers} units, or {name}(num_layers={num_layers}, "
                f"num_units={num_units}) if so many layers are meant"
            )
