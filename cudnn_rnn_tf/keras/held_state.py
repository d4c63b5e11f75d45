"""What a layer holds besides its variables, such as a vocabulary or tensors made of its weights."""

import tempfile
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf._private_names import layers_in

_HOOKS = ("save_own_variables", "load_own_variables")
_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)


def hand_over(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Gives a layer what another one of its class holds, by the hooks with which Keras saves it.

    The variables are to be assigned afterwards, since the hooks may save others than there are: a
    layer with LoRA saves the sum of its matrices as one. Layers within these get nothing.

    Raises:
        ValueError: if a hook of a user's class fails.
    """
    if old.__class__ is not new.__class__:
        return
    try:
        if isinstance(old, _LOOKUPS):
            _hand_over_vocabulary(old, new)
        elif not isinstance(old, keras.layers.TextVectorization):  # All is in its lookup layer.
            _call_hooks(old, new)
    except Exception as error:  # A class of a user's may raise anything.
        raise ValueError(
            f"cannot copy what layer {old.name!r}, a {type(old).__name__}, holds besides its "
            f"variables, by {', '.join(_HOOKS)}, save_assets and load_assets: {error}"
        ) from error
    for name, value in vars(old).items():
        # Keras does not count a variable of TensorFlow's among a layer's.
        if isinstance(value, tf.Variable) and isinstance(vars(new).get(name), tf.Variable):
            vars(new)[name].assign(value)


def refresh(layer: keras.layers.Layer) -> None:
    """Has a layer, and those in it, derive what they hold besides their variables from these.

    Raises:
        ValueError: if a hook of a user's class fails.
    """
    for part in layers_in(layer):
        if _has_hooks(part):
            values = [(each, keras.ops.convert_to_numpy(each)) for each in part.variables]
            hand_over(part, part)
            for variable, value in values:
                variable.assign(value)


def _has_hooks(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer's hooks do more than to move its variables."""
    is_keras_own = type(layer).__module__.startswith("keras.")
    if is_keras_own and not hasattr(layer, "finalize_state") and not layer.quantization_mode:
        return False
    return any(
        getattr(type(layer), hook) is not getattr(keras.layers.Layer, hook) for hook in _HOOKS
    )


def _call_hooks(old: Any, new: Any) -> None:
    if _has_hooks(old):
        store: dict[str, Any] = {}
        old.save_own_variables(store)
        new.load_own_variables({k: keras.ops.convert_to_numpy(v) for k, v in store.items()})
    if hasattr(old, "save_assets") and hasattr(new, "load_assets"):
        with tempfile.TemporaryDirectory() as directory:
            old.save_assets(directory)
            new.load_assets(directory)


def _hand_over_vocabulary(old: Any, new: Any) -> None:
    """Does what the lookup layers' hooks do, which spoil words that have line breaks in them."""
    is_there = old is new or old.input_vocabulary is not None
    if is_there or not old.get_vocabulary(include_special_tokens=False):
        return
    words = old.get_vocabulary()
    weights = None
    if old.output_mode == "tf_idf":
        weights = old.idf_weights_const.numpy()[: len(words)]  # Without the padding.
    new.set_vocabulary(words, weights)
