"""Keras models that exist, with their recurrent layers run by the fused ops."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.layers import GRU, LSTM, SimpleRNN
from cudnn_rnn_tf.keras.stack import Stack, needs_several_ops

_DROP_INS = {layer.__name__: layer for layer in (LSTM, GRU, SimpleRNN, Bidirectional)}
_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.ConvLSTM2D)


class _Row(NamedTuple):
    """A row of the table that is printed."""

    name: str
    kind: str
    outcome: str


def accelerate(
    model: keras.Model, dry_run: bool = False, stacks: bool = True
) -> keras.Model | None:
    """Returns a copy of a model in which the fused ops run the recurrent layers.

    Every `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `Bidirectional` that they can run becomes the
    layer of that name in `cudnn_rnn_tf.keras`. Several like layers in a row become one
    `cudnn_rnn_tf.keras.Stack` of them, if nothing else reads the sequences between them. A stack
    has the last layer's name and runs in one op; files with it load where this package is
    installed. Dropout layers of one rate between layers of one direction become the op's dropout,
    which draws other masks of the same distribution. The weights stay the same. A table is printed
    that says what became of each recurrent layer, and why.

    Args:
        model: a built model, which is not changed. It may be sequential or functional, with nested
            models and shared layers, or of a class with `get_config`; then the layers that are in
            its config are replaced. Classes and functions of your own must be registered with
            Keras, or be in a `keras.saving.custom_object_scope`.
        dry_run: whether only to print the table.
        stacks: whether layers in a row are to run in one op. Otherwise names and files stay the
            same.

    Returns:
        The copy: compiled, if the model is, with its weights, seeds and optimizer state. States of
        stateful layers are zero. If the model's class overrides `compile` and not
        `compile_from_config`, Keras cannot compile the copy, and warns. None for a dry run.

    Raises:
        TypeError: if `model` is no Keras model, or Keras cannot make one of its objects from its
            config.
        ValueError: if it is not built, or a copy has other weights, as where layers are shared
            between models.

    Example:
        ```python
        model = keras.saving.load_model("model.keras")
        fast = cudnn_rnn_tf.accelerate(model)
        ```
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a Keras model, but received {type(model).__name__}")
    if not model.built:
        raise ValueError(
            f"expected model {model.name!r} to be built: call it on inputs, or build it, first"
        )
    rows: list[_Row] = []
    with keras.saving.custom_object_scope(
        {keras.saving.get_registered_name(type(model)): type(model)}
    ):
        config = _replaced(keras.saving.serialize_keras_object(model), rows, stacks)
        rows += _unseen(model, {row.name for row in rows})
        _print_table(model.name, rows)
        if dry_run:
            return None
        compile_config = config.pop("compile_config", None)
        # The safe mode would refuse lambda layers, but the model is the caller's own.
        fast = keras.saving.deserialize_keras_object(config, safe_mode=False)
        if list(_leaves(fast)) != list(_leaves(model)):
            raise ValueError(
                f"the layers of a copy of model {model.name!r} with stacks come in another order, "
                "in which its weights would not be found: pass stacks=False"
            )
        _assign(fast.variables, model.variables, model.name)
        if model.compiled and compile_config:
            if compile_config.get("jit_compile"):
                # Keras stores what "auto" was resolved to. It must be resolved anew, since XLA has
                # no kernel for the fused ops.
                compile_config["jit_compile"] = "auto"
            fast.compile_from_config(compile_config)
            if fast.compiled and model.optimizer.built:
                fast.optimizer.build(fast.trainable_variables)
                _assign(fast.optimizer.variables, model.optimizer.variables, model.name)
    return fast


def _replaced(config: Any, rows: list[_Row], stacks: bool) -> Any:
    """Returns a config with the drop-ins in it; each recurrent layer adds a row."""
    if isinstance(config, (list, tuple)):
        return type(config)(_replaced(item, rows, stacks) for item in config)
    if not isinstance(config, dict):
        return config
    layer_class = _class_of(config)
    if layer_class is None or not issubclass(layer_class, _RECURRENT):
        first = len(rows)
        config = {key: _replaced(value, rows, stacks) for key, value in config.items()}
        if stacks and config.get("class_name") in ("Sequential", "Functional"):
            config["config"] = _stacked(config["config"], rows, first)
        return config
    name, kind = config["config"].get("name", ""), config["class_name"]
    if layer_class not in (getattr(keras.layers, key) for key in _DROP_INS):
        if layer_class not in _DROP_INS.values():
            rows.append(_Row(name, kind, "left: no fused op runs layers of this class"))
            return config
    replacement = _as_drop_in(config)
    layer = _unbuilt(replacement)
    if layer.runs_fused.not_in_inference:
        rows.append(_Row(name, kind, f"left: {layer.runs_fused.not_in_inference}"))
        return config
    outcome = str(layer.runs_fused)
    if isinstance(layer, Bidirectional) and layer.runs_fused:
        outcome += f", in two ops: {layer.needs_two_ops}" if layer.needs_two_ops else ", in one op"
    rows.append(_Row(name, kind, outcome))
    return replacement


def _unbuilt(config: dict[str, Any]) -> keras.layers.Layer:
    """Returns the layer of a config, without weights, so that its properties can be read."""
    config = {key: value for key, value in config.items() if key != "build_config"}
    return keras.saving.deserialize_keras_object(copy.deepcopy(config), safe_mode=False)


def _stacked(config: dict[str, Any], rows: list[_Row], first: int) -> dict[str, Any]:
    """Returns the config of a model, with stacks in place of layers in a row.

    Args:
        config: of a sequential or functional model, with the drop-ins in it.
        rows: of the table; those of layers that become a stack are changed to say so.
        first: the index of this model's first row.
    """
    runs: list[list[dict[str, Any]]] = []
    for layer in config["layers"]:
        runs.append([layer])
        # A dropout layer belongs to a run if the layer after it does.
        for count in (1, 2):
            below, above = runs[:-count], [each for run in runs[-count:] for each in run]
            if below and len(above) == count and _continues(config, below[-1], above):
                runs[-count - 1 :] = [below[-1] + above]
                break
    layers = []
    for run in runs:
        if len(run) == 1:
            layers += run
            continue
        names = [layer["config"]["name"] for layer in run if not _is_dropout(layer)]
        dropouts = [repr(layer["config"]["name"]) for layer in run if _is_dropout(layer)]
        for index in range(first, len(rows)):
            if rows[index].name in names:
                others = ", ".join(repr(name) for name in names if name != rows[index].name)
                outcome = f"runs fused, in one op with {others}"
                if dropouts:
                    outcome += f", and {', '.join(dropouts)} between them with other masks"
                rows[index] = rows[index]._replace(outcome=outcome)
        stack = keras.saving.serialize_keras_object(
            Stack([_unbuilt(layer) for layer in run], name=names[-1])
        )
        if "inbound_nodes" in run[0]:
            stack |= {"name": names[-1], "inbound_nodes": run[0]["inbound_nodes"]}
        layers.append(stack)
    return {**config, "layers": layers}


def _continues(
    config: dict[str, Any], run: list[dict[str, Any]], above: list[dict[str, Any]]
) -> bool:
    """Returns whether one op can run a run's layers and the layer, or dropout and layer, above."""
    if not (_is_drop_in(run[-1]) and _is_drop_in(above[-1]) and all(map(_is_dropout, above[:-1]))):
        return False
    if "input_layers" in config:
        pairs = zip(above, [run[-1], *above], strict=False)
        if not all(_reads_alone(config, layer, below) for layer, below in pairs):
            return False
        if run[-1]["inbound_nodes"][0]["kwargs"] != above[-1]["inbound_nodes"][0]["kwargs"]:
            return False
    return not needs_several_ops([_unbuilt(each) for each in (*run, *above)])


def _is_dropout(config: dict[str, Any]) -> bool:
    return (config.get("module"), config.get("class_name")) == ("keras.layers", "Dropout")


def _is_drop_in(config: dict[str, Any]) -> bool:
    return config.get("module") == "keras.layers" and config.get("registered_name") in _DROP_INS


def _reads_alone(config: dict[str, Any], layer: dict[str, Any], below: dict[str, Any]) -> bool:
    """Returns whether a layer is called once, on the output of a layer that nothing else reads."""
    nodes = [node for each in (below, layer) for node in each["inbound_nodes"]]
    if len(nodes) != 2 or len(nodes[0]["args"]) != 1:
        return False
    kwargs = [node["kwargs"] for node in nodes]
    if not (kwargs[0].keys() | kwargs[1].keys()) <= {"training", "mask"}:
        return False
    if kwargs[0].get("training") != kwargs[1].get("training"):
        return False
    uses = [name for each in config["layers"] for name in _read(each["inbound_nodes"])]
    uses += tf.nest.flatten(config["output_layers"])
    return list(_read(nodes[1]["args"])) == [below["name"]] and uses.count(below["name"]) == 1


def _read(nodes: Any) -> Iterator[str]:
    """Yields the names of the layers whose outputs are in the configs of calls."""
    if isinstance(nodes, dict):
        if nodes.get("class_name") == "__keras_tensor__":
            yield nodes["config"]["keras_history"][0]
            return
        nodes = nodes.values()
    elif not isinstance(nodes, (list, tuple)):
        return
    for node in nodes:
        yield from _read(node)


def _leaves(model: Any) -> Iterator[str]:
    """Yields the names of a model's layers, nested ones included, in the order of their weights."""
    for layer in model.layers:
        if isinstance(layer, (keras.Model, Stack)):
            yield from _leaves(layer)
        elif layer.weights:
            yield layer.name


def _class_of(config: dict[str, Any]) -> type | None:
    """Returns the class of the layer that a config is for; None if it is for no layer."""
    if not isinstance(config.get("config"), dict):
        return None
    found = keras.saving.get_registered_object(config.get("registered_name"))
    if found is None and config.get("module") == "keras.layers":
        found = getattr(keras.layers, config["class_name"], None)
    return found if isinstance(found, type) else None


def _as_drop_in(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the drop-in's config, given that of a Keras layer; wrapped layers are changed too."""
    config = copy.deepcopy(config)
    for part in (config, config["config"].get("layer"), config["config"].get("backward_layer")):
        if part and part["module"] == "keras.layers" and part["class_name"] in _DROP_INS:
            # Keras looks up this name before the module and the class.
            part["registered_name"] = part["class_name"]
    return config


def _unseen(layer: Any, seen: set[str]) -> Iterator[_Row]:
    """Yields rows for the recurrent layers that a model's config does not have."""
    for part in layer.layers:
        if isinstance(part, _RECURRENT):
            if part.name not in seen:
                reason = f"left: the code of {type(layer).__name__} makes it, not its config"
                yield _Row(part.name, type(part).__name__, reason)
        elif isinstance(part, keras.Model):
            yield from _unseen(part, seen)


def _print_table(model_name: str, rows: list[_Row]) -> None:
    print(f"Recurrent layers of model {model_name!r}:" + ("" if rows else " none"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for row in rows:
        print(f"  {row.name:{widths[0]}}  {row.kind:{widths[1]}}  {row.outcome}")


def _assign(targets: list[Any], sources: list[Any], model_name: str) -> None:
    shapes = [[tuple(variable.shape) for variable in each] for each in (targets, sources)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"expected a copy of model {model_name!r} to have {len(sources)} variables of the same "
            f"shapes, but it has {len(targets)}: are layers shared between models in it?"
        )
    for target, source in zip(targets, sources, strict=True):
        target.assign(source)
