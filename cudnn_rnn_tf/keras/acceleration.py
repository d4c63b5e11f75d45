"""Keras models that exist, with their recurrent layers run by the fused ops, and back again."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, overload

import keras

from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.keras import configs, stack_configs
from cudnn_rnn_tf.keras.class_changes import fuse_layers
from cudnn_rnn_tf.keras.copies import copied, has_same_order, take_over
from cudnn_rnn_tf.keras.report import AccelerationReport, acceleration_report


@overload
def accelerate(
    model: keras.Model,
    dry_run: Literal[False] = False,
    stacks: bool = True,
    verbose: bool = False,
) -> keras.Model: ...
@overload
def accelerate(
    model: keras.Model, dry_run: Literal[True], stacks: bool = True, verbose: bool = False
) -> AccelerationReport: ...
@overload
def accelerate(
    model: keras.Model, dry_run: bool, stacks: bool = True, verbose: bool = False
) -> keras.Model | AccelerationReport: ...
@checked
def accelerate(
    model: keras.Model, dry_run: bool = False, stacks: bool = True, verbose: bool = False
) -> keras.Model | AccelerationReport:
    """Returns a copy of a model in which the fused ops run the recurrent layers.

    Every `keras.layers.LSTM`, `GRU`, `SimpleRNN`, `RNN` and `Bidirectional` that they can run
    becomes the layer of that name in `cudnn_rnn_tf.keras`. Layers of classes of your own that are
    derived from these, and inherit `inner_loop`, run fused and keep their classes. Several like
    layers in a row become one `cudnn_rnn_tf.keras.Stack` of them, if nothing else reads the
    sequences between them. A stack has the last layer's name and runs in one op. Dropout layers of
    one rate between layers of one direction become the op's dropout, which draws other masks of the
    same distribution. The weights stay the same, and in the same order; there are no stacks in a
    model in which they would change it. `to_stock` is the inverse. `acceleration_report` says of
    the copy what became of each recurrent layer, and why.

    Args:
        model: a built model, which is not changed. It may be sequential or functional, with nested
            models and shared layers, or of any class that Keras can make from its config. Losses
            and metrics of your own must be registered with Keras, or be in a
            `keras.saving.custom_object_scope`; the functions of layers need not be, lambdas
            included, as the copy's layers hold the same ones.
        dry_run: whether to return the report alone. The copy is made nevertheless, without state.
        stacks: whether layers in a row are to run in one op. Otherwise all layers' names stay.
        verbose: whether to print the report.

    Returns:
        The copy: compiled, if the model is, with its weights, seeds and optimizer state, with the
        same weights frozen, and with what layers hold besides, such as vocabularies, by the methods
        with which Keras saves them. States of stateful layers are zero. If the model's class
        overrides `compile` and not `compile_from_config`, Keras cannot compile the copy, and warns.
        For a dry run, the report.

    Warns:
        UserWarning: if no layer was replaced, or the optimizer begins anew.

    Raises:
        TypeError: if `model` is no Keras model, or Keras cannot make one of its objects from its
            config.
        ValueError: if it is not built, a copy has other weights, as where layers are shared
            between models, or a layer's own method to save or load fails.

    Example:
        ```python
        model = keras.saving.load_model("model.keras")
        fast = cudnn_rnn_tf.accelerate(model)
        print(cudnn_rnn_tf.acceleration_report(fast))
        ```
    """
    check_built(model)
    fast = copied(model, lambda config: accelerated(config, stacks))
    if stacks and not has_same_order(model, fast):
        fast = copied(model, lambda config: accelerated(config, stacks=False))
    fuse_layers(fast)
    report = acceleration_report(fast)
    if verbose:
        print(report)
    if dry_run:
        return report
    if not report.replaces_any:
        warnings.warn(f"accelerate returns a copy with nothing replaced. {report}", stacklevel=3)
    take_over(model, fast)
    return fast


@checked
def to_stock(model: keras.Model) -> keras.Model:
    """Returns a copy of a model with Keras's own recurrent layers: the inverse of `accelerate`.

    Each `LSTM`, `GRU`, `SimpleRNN`, `RNN` and `Bidirectional` of `cudnn_rnn_tf.keras` becomes the
    layer of that name in `keras.layers`, and each `Stack` its layers. Files of the copy load where
    this package is not installed.

    Args:
        model: as for `accelerate`. Layers such as `CudnnLSTM` stay; see `convert.to_keras`.

    Returns:
        The copy, with the state that `accelerate` keeps. The layers of a stack that is not among
        the layers of a sequential or functional model become a `keras.Sequential`.

    Raises:
        TypeError: as by `accelerate`.
        ValueError: as by `accelerate`.

    Warns:
        UserWarning: if the layers of a stack come in another order among the model's weights than
            before, so that the optimizer begins anew.
    """
    check_built(model)
    stock = copied(model, _stock)
    take_over(model, stock)
    return stock


def check_built(model: Any) -> None:
    """Raises TypeError or ValueError if an object is no Keras model, or not built."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected model to be a Keras model, but received {type(model).__name__}")
    if not model.built:
        raise ValueError(
            f"expected model {model.name!r} to be built: call it on inputs, or build it, first"
        )


def accelerated(config: Any, stacks: bool) -> Any:
    """Returns a config with the drop-ins in it, and with stacks of them if that is wanted."""
    if configs.is_stock(config) or configs.is_drop_in(config):
        is_left = configs.why_left(configs.unbuilt(config))
        return config if is_left else configs.to_drop_in(config)
    config = _mapped(config, lambda part: accelerated(part, stacks))
    if stacks and _is_model(config):
        config["config"] = stack_configs.with_stacks(config["config"])
    return config


def _stock(config: Any) -> Any:
    """Returns a config with Keras's own layers in it."""
    if configs.is_stock(config) or configs.is_drop_in(config):
        return configs.to_stock(config)
    if stack_configs.is_stack(config):
        config = stack_configs.as_sequential(config)
    if _is_model(config):
        config = {**config, "config": stack_configs.without_stacks(config["config"])}
    return _mapped(config, _stock)


def _is_model(config: Any) -> bool:
    return isinstance(config, dict) and stack_configs.lists_layers(config.get("class_name"))


def _mapped(config: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a list or a dictionary with the function's results for what is in it."""
    if isinstance(config, (list, tuple)):
        return type(config)(function(item) for item in config)
    if isinstance(config, dict):
        return {key: function(value) for key, value in config.items()}
    return config
