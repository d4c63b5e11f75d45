"""Layers that are made by code of a user's, and become drop-ins after that."""

import functools
from typing import Any

import keras

from cudnn_rnn_tf._private_names import layers_in, renew_call_signature
from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.configs import why_left
from cudnn_rnn_tf.keras.layers import GRU, LSTM, RNN, SimpleRNN, logger

_DROP_INS: dict[type, type] = {
    keras.layers.LSTM: LSTM,
    keras.layers.GRU: GRU,
    keras.layers.SimpleRNN: SimpleRNN,
    keras.layers.RNN: RNN,
    keras.layers.Bidirectional: Bidirectional,
}


def fuse_layers(model: keras.Model) -> None:
    """Has the fused ops run those layers in a model that they can run.

    A layer of Keras's own becomes a drop-in. A layer of a user's class stays one of that class.
    """
    for layer in layers_in(model):
        kind: Any = type(layer)
        is_recurrent = kind in _DROP_INS or isinstance(layer, keras.layers.RNN)
        if not is_recurrent or hasattr(kind, "runs_fused") or why_left(layer):
            continue
        # A layer's attributes are those that its drop-in has, too.
        object.__setattr__(layer, "__class__", _DROP_INS.get(kind) or _derived(kind))
        layer.supports_jit = True
        renew_call_signature(layer)
        vars(layer)["_is_changed"] = True
        logger.info("layer %r %s", layer.name, layer.runs_fused)


def is_changed(layer: keras.layers.Layer) -> bool:
    """Returns whether `fuse_layers` has changed a layer, which configs, and files, do not say."""
    return vars(layer).get("_is_changed", False)


@functools.cache
def _derived(kind: Any) -> type:
    """Returns a class derived from a user's, with the loop of the drop-ins."""
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        # It may be the user's own, and stands behind that of the drop-ins otherwise.
        "call": kind.call,
        # Drop-ins have it always, but a user's class may say no.
        "supports_masking": kind.supports_masking,
        # Keras writes a layer's `__class__` to files.
        "__class__": property(lambda _: kind),
    }
    return type(kind.__name__, (RNN, kind), names)
