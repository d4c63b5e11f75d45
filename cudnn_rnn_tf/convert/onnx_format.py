"""Converts from and to ONNX's operators LSTM, GRU and RNN.

ONNX has one node per layer, with both directions stacked: W [D, G * H, fan_in], R [D, G * H, H]
and B [D, 2 * G * H], the input side's biases first, and peepholes P [D, 3 * H] of the gates i o f.
The gates are in the order i o f c and z r h;
its GRU is "gru" with `linear_before_reset=1` and "gru_reset_before" with 0.
"""

import pathlib
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import google.protobuf.message
import numpy as np
import tensorflow as tf
from typing_extensions import Unpack

from cudnn_rnn_tf import constants, messages
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.convert import network, onnx_graph, onnx_tensors, untrusted
from cudnn_rnn_tf.keywords import CudnnOptions
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN
from cudnn_rnn_tf.pseudo_layers import both_biases, reorder

# By operator: the mode of a node that is not understood, which for an RNN there are two of.
_LIKELY_MODES = {"LSTM": constants.CUDNN_LSTM, "GRU": constants.CUDNN_GRU}
_OPERATORS = {
    constants.CUDNN_LSTM: "LSTM",
    constants.LSTM_PEEPHOLE: "LSTM",
    constants.CUDNN_GRU: "GRU",
    constants.GRU_RESET_BEFORE: "GRU",
}


@overload
def from_onnx(
    model: Any,
    *,
    name: str | None = None,
    return_initial_state: Literal[False] = False,
    **options: Unpack[CudnnOptions],
) -> CudnnRNN: ...


@overload
def from_onnx(
    model: Any,
    *,
    name: str | None = None,
    return_initial_state: Literal[True],
    **options: Unpack[CudnnOptions],
) -> tuple[CudnnRNN, list[np.ndarray] | None]: ...


@checked
def from_onnx(
    model: Any,
    *,
    name: str | None = None,
    return_initial_state: bool = False,
    **options: Unpack[CudnnOptions],
) -> Any:
    """Returns a layer that computes the same as an ONNX model's recurrent network.

    Args:
        model: an `onnx.ModelProto`, or the path of a file of one. Its weights must be constants, or
            computed of constants. Weights in 8 bits, as of ONNX Runtime's DynamicQuantizeLSTM,
            become the numbers that they stand for.
        name: the network's name, where the model has several: that of its first node, or of that
            node's first output where it has none. The names of networks in branches begin with
            that of the node and the branch, as in "If_3/then_branch/LSTM_1". Nodes of one operator
            and size of which each reads what the one below it wrote are one network of several
            layers.
        return_initial_state: whether to return the constants that the network starts from as well.
        **options: to the layer's constructor, such as `return_state=True` or `time_major=True`.

    Returns:
        A built layer of the weights' dtype with the same weights to the bit. Without B the bias
        mode is "none". Initial states and sequence lengths that are inputs of the model are
        arguments of the layer's call. With the direction "reverse", the layer has `go_backwards`
        and returns the outputs of the steps in the order of reading, which is ONNX's in reverse.
        With `return_initial_state`, a tuple of the layer and of what its calls take as
        `initial_state`: arrays [B, L * D, H] of h and an LSTM's c (L * D first with `time_major`),
        where B is 1 if all sequences start alike; None if the network starts from zeros or from
        inputs of the model.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if the model has no such network, or several and no name says which, or there
            is no equivalent here: other activations, `clip`, `input_forget`, initial states that
            are neither constants nor inputs of the model, sequence lengths that are no input of the
            model. Also if the network starts from constants that are not zero and
            `return_initial_state` is false.
        ImportError: if the package onnx is not installed.

    Warns:
        UserWarning: if the weights are quantized.
    """
    networks = _graph_of(model).networks()
    try:
        _, found = network.pick(networks, name, "the ONNX model", "LSTM, GRU or RNN nodes")
    except ValueError as error:
        raise ValueError(f"{error}{_refusals(networks)}") from error
    weights = found.weights()
    states = found.initial_states()
    if states is not None and not return_initial_state:
        raise ValueError(
            "the network starts from constants that are not zero: from_onnx with "
            "return_initial_state=True returns them beside the layer, whose calls take them as "
            "initial_state"
        )
    if found.direction == "reverse":
        options.setdefault("go_backwards", True)
    if found.form == "ONNX, quantized":
        warnings.warn(
            "the network's weights are quantized: the layer gets the numbers that they stand for, "
            "and computes without rounding to 8 bits",
            stacklevel=3,
        )
    num_dirs = len(weights) // found.num_layers
    layer = network.make_layer(found.rnn_mode, weights, num_dirs, options)
    if not return_initial_state:
        return layer
    if states is not None and not layer.time_major:
        states = [np.ascontiguousarray(state.swapaxes(0, 1)) for state in states]
    return layer, states


@checked
def to_onnx(
    layer: CudnnRNN,
    *,
    with_initial_state: bool = False,
    with_sequence_lengths: bool = False,
    initial_state: Sequence[np.ndarray] | None = None,
) -> Any:
    """Returns an ONNX model that computes the same as a layer.

    Args:
        layer: a built layer.
        with_initial_state: whether the model takes the initial states, as inputs `initial_h` and
            an LSTM's `initial_c`. They are `initial_state` otherwise.
        with_sequence_lengths: whether it takes `sequence_lengths`, int32 [B].
        initial_state: what the model starts from: h and an LSTM's c, as of the layer's call, or
            with 1 in place of B if all sequences start alike. None for zeros.

    Returns:
        An `onnx.ModelProto` with one node per layer of the stack. Its input `inputs` and output
        `outputs`, and the states `h` and `c` with `return_state`, are shaped as the layer's. In the
        single-bias modes the other side's biases are zeros. Dropout, which is for training, is left
        out.

    Raises:
        TypeError: if `layer` is none of this package's layers.
        ValueError: if it is not built, or ONNX has no equivalent: skip input, projection, cell
            clipping, layer normalization, zoneout, `go_backwards`, `stateful`, cell sequences.
            Also if there are initial states twice, or they are not of the layer's shapes.
        ImportError: if the package onnx is not installed.
    """
    onnx = _load_onnx()
    network.check_layer(
        layer,
        "ONNX",
        num_proj=None,
        cell_clip=None,
        use_layer_norm=False,
        go_backwards=False,
        stateful=False,
        return_cell_sequences=False,
        **network.OWN_ACTIVATIONS,
    )
    if initial_state is not None:
        if with_initial_state:
            raise ValueError("expected with_initial_state or initial_state, but received both")
        received = [np.shape(state) for state in initial_state]
        sizes = [shape[1 if layer.time_major else 0] for shape in received if len(shape) == 3]
        expected = list(layer.state_shape(sizes[0] if sizes else None))
        if received != expected:
            raise ValueError(
                f"expected initial_state of layer {layer.name!r} of shapes {expected}, but "
                f"received {received}"
            )
    return _ModelWriter(
        onnx, layer, with_initial_state, with_sequence_lengths, initial_state
    ).write()


def networks_in(model: Any) -> Iterator[tuple[Any, ...]]:
    """Yields what `file_inspection.Network` says of each network in a model."""
    graph = _graph_of(model)
    for function in graph.source.functions:
        for node in function.node:
            if kind := onnx_graph.kind_of(node):
                likely = _LIKELY_MODES.get(kind)
                name = f"{function.name}/{node.name or next(iter(node.output), '')}"
                refusal = (
                    "no: it is in a function of the model: onnx.inliner.inline_local_functions "
                    "puts it into the graph"
                )
                yield name, "ONNX", likely, 1, None, None, None, None, refusal
    for name, found in graph.networks().items():
        kind = found.form
        try:
            bottom = found.weights()[0]
            mode, direction = found.rnn_mode, found.direction
        except ValueError as error:
            likely = _LIKELY_MODES.get(found.kind)
            refusal = f"no: {messages.reason(error)}"
            yield name, kind, likely, found.num_layers, None, None, None, None, refusal
            continue
        yield (
            name,
            kind,
            mode,
            found.num_layers,
            {"forward": "unidirectional"}.get(direction, direction),
            bottom.kernel.shape[1],
            bottom.recurrent_kernel.shape[1],
            bottom.kernel.dtype.name,
            "yes",
        )


def _refusals(networks: Mapping[str, Any]) -> str:
    """Returns, to end an error with, why some networks cannot be had."""
    text = ""
    for name, found in networks.items():
        try:
            found.weights()
        except ValueError as error:
            text += f"; {name!r} cannot be had: {messages.reason(error)}"
    return text


def _graph_of(model: Any) -> onnx_graph.Graph:
    onnx = _load_onnx()
    path = None
    if isinstance(model, (str, pathlib.Path)):
        path = pathlib.Path(model)
        try:
            # Files with tensors are read for those that are wanted, and not before.
            model = onnx.load_from_string(untrusted.read_message(path))
        except google.protobuf.message.DecodeError as error:
            raise ValueError(f"{path} is no ONNX model: {error}") from error
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(
            f"expected an onnx.ModelProto or a path, but received {type(model).__name__}"
        )
    return onnx_graph.Graph(onnx_tensors.Source(onnx, model, path), model.graph)


def save_onnx(model: Any, path: pathlib.Path) -> None:
    _load_onnx().save(model, str(path))


class Node(NamedTuple):
    """What makes a node of a layer's weights: its operator, attributes, and W, R, B, P by name."""

    op_type: str
    attributes: dict[str, Any]
    arrays: dict[str, np.ndarray]


def node_of(rnn_mode: str, weights: Sequence[network.PseudoLayer]) -> Node:
    """Returns the node of one layer, given the weights of its directions."""
    op_type = _OPERATORS.get(rnn_mode, "RNN")
    order = onnx_graph.ORDERS[op_type]
    arrays = {
        "W": np.stack([reorder(part.kernel, order) for part in weights]),
        "R": np.stack([reorder(part.recurrent_kernel, order) for part in weights]),
    }
    # Either all directions have biases or none has.
    if biases := list(filter(None, map(both_biases, weights))):
        arrays["B"] = np.stack(
            [np.concatenate([reorder(side, order) for side in sides]) for sides in biases]
        )
    if rnn_mode == constants.LSTM_PEEPHOLE:
        arrays["P"] = np.stack([part.vectors[[0, 2, 1]].ravel() for part in weights])
    attributes: dict[str, Any] = {}
    if len(weights) == 2:
        attributes["direction"] = "bidirectional"
    if op_type == "GRU":
        attributes["linear_before_reset"] = int(rnn_mode == constants.CUDNN_GRU)
    if rnn_mode == constants.CUDNN_RNN_RELU:
        attributes["activations"] = ["Relu"] * len(weights)
    return Node(op_type, attributes, arrays)


def _load_onnx() -> types.ModuleType:
    return messages.load_package("onnx", "'cudnn_rnn_tf[onnx]'")


class _ModelWriter:
    """Builds the ONNX nodes of one of our layers."""

    def __init__(
        self,
        onnx: types.ModuleType,
        layer: CudnnRNN,
        with_initial_state: bool,
        with_sequence_lengths: bool,
        initial_state: Sequence[np.ndarray] | None,
    ):
        self._onnx = onnx
        self._layer = layer
        self._states = ("h", "c")[: len(layer.state_shape(None))]
        self._with_initial_state = with_initial_state
        self._with_sequence_lengths = with_sequence_lengths
        self._initial_state = initial_state
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._dtype = onnx.helper.np_dtype_to_tensor_dtype(
            np.dtype(tf.as_dtype(layer.variable_dtype).as_numpy_dtype)
        )

    def write(self) -> Any:
        layer, helper = self._layer, self._onnx.helper
        batch_axis = 1 if layer.time_major else 0
        lead = ("T", "B") if layer.time_major else ("B", "T")
        inputs = [self._value("inputs", *lead, layer.input_size)]
        if self._with_sequence_lengths:
            inputs.append(
                helper.make_tensor_value_info(
                    "sequence_lengths", self._onnx.TensorProto.INT32, ("B",)
                )
            )
        initial = self._split_initial_states(inputs)
        if self._with_sequence_lengths and initial[0]:
            zero = self._constant("no_steps", np.array(0, np.int32))
            axes = self._constant("but_batch", np.array([0, 2]))
            self._add("Greater", ["sequence_lengths", zero], "is_read")
            self._add("Unsqueeze", ["is_read", axes], "is_state_read")
        x = self._in_order("inputs", "inputs_time_major")
        final: list[list[str]] = [[] for _ in self._states]
        for index, names in enumerate(initial):
            x = self._add_layer(index, x, names, final)
        features = layer.num_dirs * layer.num_units
        if layer.return_sequences:
            self._in_order(x, "outputs", always=True)
            outputs = [self._value("outputs", *lead, features)]
        else:
            self._add("Transpose", [final[0][-1]], "last_h", perm=(1, 0, 2))
            self._reshape("last_h", "outputs", (0, -1))
            outputs = [self._value("outputs", "B", features)]
        if layer.return_state:
            for name, collected in zip(self._states, final, strict=True):
                self._add("Concat", collected, f"{name}_of_layers", axis=0)
                self._in_order(f"{name}_of_layers", name, always=True)
                shape: list[Any] = list(layer.state_shape(None)[0])
                shape[batch_axis] = "B"
                outputs.append(self._value(name, *shape))
        graph = helper.make_graph(self._nodes, layer.name, inputs, outputs, self._initializers)
        # Most programs know this old version, but its operators do not take bfloat16.
        opset = helper.make_opsetid("", 22 if layer.variable_dtype == "bfloat16" else 14)
        model = helper.make_model(
            graph,
            opset_imports=[opset],
            ir_version=helper.find_min_ir_version_for([opset]),
            producer_name="cudnn_rnn_tf",
        )
        self._onnx.checker.check_model(model)
        return model

    def _split_initial_states(self, inputs: list[Any]) -> list[list[str]]:
        """Returns the names of each layer's initial states; empty for zeros."""
        layer, count = self._layer, self._layer.num_layers
        names = [[f"initial_{state}_{index}" for state in self._states] for index in range(count)]
        if not self._with_initial_state and self._initial_state is None:
            return [[] for _ in names]
        self._constant("directions", np.full(count, layer.num_dirs, np.int64))
        for place, state in enumerate(self._states):
            if self._initial_state is None:
                shape: list[Any] = list(layer.state_shape(None)[place])
                shape[1 if layer.time_major else 0] = "B"
                inputs.append(self._value(f"initial_{state}", *shape))
                source = self._in_order(f"initial_{state}", f"initial_{state}_of_layers")
            else:
                source = self._constant_state(f"initial_{state}", self._initial_state[place])
            self._add("Split", [source, "directions"], *(of[place] for of in names), axis=0)
        return names

    def _constant_state(self, name: str, value: np.ndarray) -> str:
        """Returns the name of a state [L * D, B, H] that is a constant."""
        kind = np.dtype(tf.as_dtype(self._layer.variable_dtype).as_numpy_dtype)
        state = self._in_order(self._constant(name, value.astype(kind)), f"{name}_of_layers")
        if value.shape[1 if self._layer.time_major else 0] != 1:
            return state
        self._add("Shape", ["inputs"], f"{name}_input_shape")
        axis = self._constant(f"{name}_axis", np.array([1 if self._layer.time_major else 0]))
        batch_size = self._add("Gather", [f"{name}_input_shape", axis], f"{name}_batch_size")
        same = self._constant(f"{name}_same", np.array([1]))
        shape = self._add("Concat", [same, batch_size, same], f"{name}_shape", axis=0)
        return self._add("Expand", [state, shape], f"{name}_of_batch")

    def _add_layer(self, index: int, x: str, initial: list[str], final: list[list[str]]) -> str:
        """Adds one layer's nodes; returns the name of its outputs [T, B, D * H]."""
        layer, prefix = self._layer, f"layer_{index}"
        weights = network.pseudo_layers(layer)[index * layer.num_dirs :][: layer.num_dirs]
        node = node_of(layer.rnn_mode, weights)

        def constant(name: str) -> str:
            return self._constant(f"{prefix}_{name}", node.arrays[name])

        inputs = [
            x,
            *(constant(name) if name in node.arrays else "" for name in "WRB"),
            "sequence_lengths" if self._with_sequence_lengths else "",
            *(initial or [""] * len(self._states)),
            *([constant("P")] if "P" in node.arrays else []),
        ]
        names = [f"{prefix}_{state}" for state in self._states]
        for collected, name in zip(final, names, strict=True):
            collected.append(name)
        # ONNX Runtime returns zeros as the final states of a sequence without steps.
        loses_states = self._with_sequence_lengths and initial
        ends = [f"{name}_if_read" for name in names] if loses_states else names
        outputs = [f"{prefix}_Y", *ends]
        self._add(node.op_type, inputs, *outputs, hidden_size=layer.num_units, **node.attributes)
        if loses_states:
            for end, first, name in zip(ends, initial, names, strict=True):
                self._add("Where", ["is_state_read", end, first], name)
        self._add("Transpose", [f"{prefix}_Y"], f"{prefix}_by_row", perm=(0, 2, 1, 3))
        return self._reshape(f"{prefix}_by_row", f"{prefix}_outputs", (0, 0, -1))

    def _in_order(self, source: str, name: str, always: bool = False) -> str:
        """Adds a node that changes the layer's order of time (or states) and batch, or none."""
        if not self._layer.time_major:
            return self._add("Transpose", [source], name, perm=(1, 0, 2))
        return self._add("Identity", [source], name) if always else source

    def _reshape(self, source: str, name: str, shape: Sequence[int]) -> str:
        shape_name = self._constant(f"{name}_shape", np.array(shape, np.int64))
        return self._add("Reshape", [source, shape_name], name)

    def _add(
        self,
        op_type: str,
        inputs: Sequence[str],
        *outputs: str,
        name: str | None = None,
        **attrs: Any,
    ) -> str:
        name = name or outputs[0]
        self._nodes.append(self._onnx.helper.make_node(op_type, inputs, outputs, name, **attrs))
        return outputs[0]

    def _constant(self, name: str, value: np.ndarray) -> str:
        self._initializers.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def _value(self, name: str, *shape: Any) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._dtype, shape)
