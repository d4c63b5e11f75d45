"""The configs of Keras's recurrent layers and of their drop-ins, each made of the other."""

from collections.abc import Callable
from typing import Any

import keras

from cudnn_rnn_tf.keras.bidirectional import Bidirectional, directions_of
from cudnn_rnn_tf.keras.fusion import fusion_of
from cudnn_rnn_tf.keras.layers import GRU, LSTM, RNN, SimpleRNN
from cudnn_rnn_tf.keras.registration import registered_name

_DROP_INS = {layer.__name__: layer for layer in (LSTM, GRU, SimpleRNN, RNN, Bidirectional)}
_STOCK_MODULE = "keras.layers"
# What a class of a user's may inherit.
_KINDS = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN, keras.layers.RNN)
_LOOPS = [layer.inner_loop for layer in _KINDS]
CALLS = [layer.call for layer in (*_KINDS, RNN)]


def is_stock(config: Any) -> bool:
    """Returns whether a config is that of a layer of Keras's own which has a drop-in.

    Keras registers no names for its own classes, so a user's class of the same name is none.
    """
    return (
        isinstance(config, dict)
        and config.get("class_name") in _DROP_INS
        and config.get("module") == _STOCK_MODULE
        and config.get("registered_name") is None
    )


def is_drop_in(config: Any) -> bool:
    """Returns whether a config is that of one of the drop-ins."""
    return isinstance(config, dict) and config.get("registered_name") in _registered_names()


def _registered_names() -> list[str]:
    return [registered_name(layer) for layer in _DROP_INS.values()]


def to_drop_in(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the drop-in's config, given that of a stock layer; other configs stay as they are.

    What a wrapper wraps is changed as well.
    """

    def names(class_name: str) -> dict[str, Any]:
        layer = _DROP_INS[class_name]
        return {
            "module": layer.__module__,
            "registered_name": registered_name(layer),
        }

    return _renamed(config, names)


def to_stock(config: dict[str, Any]) -> dict[str, Any]:
    """Inverts `to_drop_in`."""
    return _renamed(config, lambda _: {"module": _STOCK_MODULE, "registered_name": None})


def _renamed(config: dict[str, Any], names: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    if not (is_stock(config) or is_drop_in(config)):
        return config
    wrapped = {
        key: _renamed(config["config"][key], names)
        for key in ("layer", "backward_layer")
        if config["config"].get(key)
    }
    # Built by their own configs, before the layer is, cells and directions would have other paths.
    inner = without_builds({**config["config"], **wrapped})
    return {**config, **names(config["class_name"]), "config": inner}


def without_builds(config: Any) -> Any:
    """Returns a copy of a config of which a layer without weights is made."""
    if isinstance(config, dict):
        return {
            key: without_builds(value) for key, value in config.items() if key != "build_config"
        }
    return [without_builds(each) for each in config] if isinstance(config, list) else config


def unbuilt(config: dict[str, Any]) -> keras.layers.Layer:
    """Returns the layer of a config, without weights, so that its properties can be read."""
    return keras.saving.deserialize_keras_object(without_builds(config), safe_mode=False)


def why_left(layer: keras.layers.Layer) -> str:
    """Returns why no drop-in replaces a layer of Keras's own in a model; "" if one does."""
    for part in directions_of(layer):
        if not isinstance(part, keras.layers.RNN):
            return f"no fused op runs layers of class {type(part).__name__}"
        if not hasattr(part, "runs_fused") and type(part).inner_loop not in _LOOPS:
            return f"{type(part).__name__} has an inner_loop of its own"
        reason = fusion_of(part).not_in_inference
        if reason:
            return reason
        reads_backwards = part.go_backwards and part.return_sequences and part.zero_output_for_mask
        if part.unroll and reads_backwards:
            return (
                f"unroll=True of {part.name!r}, which reads backwards, has Keras zero the outputs "
                "of other steps than those that a mask says"
            )
    return ""
