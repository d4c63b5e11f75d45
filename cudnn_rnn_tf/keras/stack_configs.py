"""Stacks in the configs of sequential and functional models: put in, and taken out again."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf.keras.configs import is_drop_in, unbuilt
from cudnn_rnn_tf.keras.registration import registered_name
from cudnn_rnn_tf.keras.stack import Stack, needs_several_ops

# A call of a stack may have these after the sequences.
_CALL_ARGUMENTS = ("mask", "training")


def lists_layers(class_name: Any) -> bool:
    """Returns whether the config of a model of this class lists the layers, with their names."""
    return class_name in ("Sequential", "Functional")


def is_stack(config: Any) -> bool:
    """Returns whether a config is that of a stack."""
    return isinstance(config, dict) and config.get("registered_name") == registered_name(Stack)


def with_stacks(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of a model, with stacks in place of drop-ins in a row."""
    runs: list[list[dict[str, Any]]] = []
    for layer in config["layers"]:
        runs.append([layer])
        # A dropout layer belongs to a run if the layer after it does.
        for count in (1, 2):
            below, above = runs[:-count], [each for run in runs[-count:] for each in run]
            if below and len(above) == count and _continues(config, below[-1], above):
                runs[-count - 1 :] = [below[-1] + above]
                break
    return {**config, "layers": [run[0] if len(run) == 1 else _as_stack(run) for run in runs]}


def _as_stack(run: list[dict[str, Any]]) -> dict[str, Any]:
    name = run[-1]["config"]["name"]
    stack = keras.saving.serialize_keras_object(Stack([unbuilt(layer) for layer in run], name=name))
    if "inbound_nodes" in run[0]:
        stack |= {"name": name, "inbound_nodes": run[0]["inbound_nodes"]}
    return stack


def _continues(
    config: dict[str, Any], run: list[dict[str, Any]], above: list[dict[str, Any]]
) -> bool:
    """Returns whether one op can run a run's layers and the layer, or dropout and layer, above."""
    if not (is_drop_in(run[-1]) and is_drop_in(above[-1]) and all(map(_is_dropout, above[:-1]))):
        return False
    if "input_layers" in config:
        pairs = zip(above, [run[-1], *above], strict=False)
        if not all(_reads_alone(config, layer, below) for layer, below in pairs):
            return False
        if run[-1]["inbound_nodes"][0]["kwargs"] != above[-1]["inbound_nodes"][0]["kwargs"]:
            return False
    return not needs_several_ops([unbuilt(each) for each in (*run, *above)])


def _is_dropout(config: dict[str, Any]) -> bool:
    return (config.get("module"), config.get("class_name")) == ("keras.layers", "Dropout")


def _reads_alone(config: dict[str, Any], layer: dict[str, Any], below: dict[str, Any]) -> bool:
    """Returns whether a layer is called once, on the output of a layer that nothing else reads."""
    nodes = [node for each in (below, layer) for node in each["inbound_nodes"]]
    if len(nodes) != 2 or len(nodes[0]["args"]) != 1:
        return False
    kwargs = [node["kwargs"] for node in nodes]
    if not (kwargs[0].keys() | kwargs[1].keys()) <= {*_CALL_ARGUMENTS}:
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


def without_stacks(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of a model, with the layers of its stacks in their places."""
    layers: list[dict[str, Any]] = []
    tops: dict[str, str] = {}
    for layer in config["layers"]:
        parts = _parts_of(layer) if is_stack(layer) else [layer]
        if is_stack(layer):
            tops[layer["config"]["name"]] = parts[-1]["config"]["name"]
        layers += parts
    config = {**config, "layers": layers}
    if "input_layers" not in config:
        return config
    config["layers"] = [
        {**layer, "inbound_nodes": _redirected(layer["inbound_nodes"], tops)} for layer in layers
    ]
    return {**config, "output_layers": _redirected(config["output_layers"], tops)}


def as_sequential(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of a sequential model of a stack's layers, given the stack's."""
    inner = config["config"]
    model = keras.Sequential([unbuilt(layer) for layer in inner["layers"]], name=inner["name"])
    return keras.saving.serialize_keras_object(model)


def _parts_of(stack: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the configs of a stack's layers, which are called as the stack is."""
    parts = stack["config"]["layers"]
    if "inbound_nodes" not in stack:
        return parts
    calls = []
    for node in stack["inbound_nodes"]:
        names = ("sequences", *_CALL_ARGUMENTS)
        arguments = dict(zip(names, node["args"], strict=False)) | node["kwargs"]
        calls.append((arguments.pop("sequences"), arguments))
    placed = []
    for part in parts:
        name, layer = part["config"]["name"], unbuilt(part)
        takes = ("training",) if _is_dropout(part) else _CALL_ARGUMENTS
        nodes, outputs = [], []
        for index, (tensor, arguments) in enumerate(calls):
            kwargs = {key: value for key, value in arguments.items() if key in takes}
            nodes.append({"args": [tensor], "kwargs": kwargs})
            output = {
                "shape": layer.compute_output_shape(tensor["config"]["shape"]),
                "dtype": layer.compute_dtype,
                "keras_history": [name, index, 0],
            }
            outputs.append(({"class_name": "__keras_tensor__", "config": output}, arguments))
        placed.append({**part, "name": name, "inbound_nodes": nodes})
        calls = outputs
    return placed


def _redirected(nodes: Any, tops: dict[str, str]) -> Any:
    """Returns configs of calls that read from other layers than before.

    Args:
        nodes: the configs, in which a tensor is a layer's name, a call's index and an output's.
        tops: the new name of each layer.
    """
    if isinstance(nodes, dict):
        return {key: _redirected(value, tops) for key, value in nodes.items()}
    if not isinstance(nodes, (list, tuple)):
        return nodes
    if len(nodes) == 3 and isinstance(nodes[0], str):
        return [tops.get(nodes[0], nodes[0]), *nodes[1:]]
    return type(nodes)(_redirected(node, tops) for node in nodes)
