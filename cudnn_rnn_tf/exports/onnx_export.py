"""Exports whole models to ONNX, with a node LSTM, GRU or RNN for each layer of the fused ops.

The exporter is tf2onnx, by way of Keras. It translates a TensorFlow graph, in which the networks
are ops of this package with a layer each, by the handler that is registered here.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import constants, messages, ops
from cudnn_rnn_tf._private_names import layers_in
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import onnx_format
from cudnn_rnn_tf.exports import targets
from cudnn_rnn_tf.keras.export_copies import (
    export_copy,
    input_signature_of,
    unknown_steps_as_rows,
)
from cudnn_rnn_tf.lengths_and_masks import in_32_bits
from cudnn_rnn_tf.ops import step_by_step
from cudnn_rnn_tf.ops.op_library import raw_ops
from cudnn_rnn_tf.pseudo_layers import PseudoLayer, cut, cut_array, join

_OP = "CudnnRnnTf>Forward"
_LEAST_OPSET = 13


@checked
def export_onnx(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    input_signature: Sequence[Any] | None = None,
    opset: int | None = None,
) -> None:
    """Writes an ONNX model of a whole Keras model, for inference, that ONNX Runtime runs.

    Each recurrent layer that the fused ops run, Keras's own included, becomes a node `LSTM`, `GRU`
    or `RNN`, with masks and lengths as its `sequence_lens`. Networks with what ONNX has no node
    for, such as a projection, become loops. These return NaN for a sequence with NaN in its
    padding, since tf2onnx multiplies padding by zero. It does not matter whether there is a GPU.
    Layers compute in float32 in place of bfloat16, in which ONNX Runtime computes little.
    ONNX Runtime refuses lengths that are out of range.

    Args:
        model: a built Keras model, with layers of this package, of Keras's own or both. It is not
            changed.
        path: the file to write, which ends in .onnx and must not exist.
        input_signature: as of `model.export`: the shapes and types of the inputs, such as
            `[tf.TensorSpec([None, None, 16])]`. None for the model's own inputs.
        opset: the version of ONNX's operators, 13 or newer; None for the exporter's default.

    Raises:
        TypeError: if `model` is no Keras model, `opset` no integer, or `input_signature` holds
            something else.
        ValueError: if it is not built, if `path` ends otherwise, if `opset` is below 13, or if
            something in the model has no equivalent in ONNX.
        FileExistsError: if `path` exists.
        OSError: if it cannot be written.
        ImportError: if the packages onnx or tf2onnx are not installed.
    """
    target = targets.check(path, ".onnx")
    if opset is not None and opset < _LEAST_OPSET:
        raise ValueError(f"expected opset to be {_LEAST_OPSET} or newer, but received {opset}")
    onnx = messages.load_package("onnx", "'cudnn_rnn_tf[onnx]'")
    register_handler()
    with export_copy(model, is_float32=True) as copy:
        signature = input_signature_of(copy, input_signature)

        def write(partial: pathlib.Path) -> None:
            with (
                ops.substituted_forward(forward),
                _tensors_as_constants(copy),
                unknown_steps_as_rows(copy),
            ):
                copy.export(
                    partial,
                    format="onnx",
                    verbose=False,
                    input_signature=signature,
                    opset_version=opset,
                )
            try:
                onnx.checker.check_model(str(partial))
            except onnx.checker.ValidationError as error:
                raise ValueError(
                    f"model {model.name!r} has what the exporter to ONNX does not know: "
                    f"{messages.reason(error)}"
                ) from error
            _check_runs(onnx, onnx.load(partial, load_external_data=False).graph, model.name)

        targets.write_whole(target, write)


def _check_runs(onnx: Any, graph: Any, name: str) -> None:
    """Raises ValueError for what the exporter writes and ONNX Runtime refuses."""
    bfloat16 = onnx.TensorProto.BFLOAT16
    types = [each.data_type for each in graph.initializer]
    types += [each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)]
    types += [each.i for node in graph.node for each in node.attribute if each.name == "to"]
    if bfloat16 in types:
        raise ValueError(
            f"model {name!r} computes in bfloat16 where your own code says so, of which ONNX "
            "Runtime knows little: compute in float32 there"
        )
    captured = [each.name for each in graph.input if ":" in each.name]
    if captured:
        raise ValueError(
            f"model {name!r} reads tensors that are neither inputs nor what a layer holds as an "
            f"attribute, {captured}, which tf2onnx takes for inputs: make NumPy arrays of them"
        )


@contextlib.contextmanager
def _tensors_as_constants(model: keras.Model) -> Iterator[None]:
    """Has tensors that layers hold be constants in a graph.

    Otherwise the graph's function captures them, and tf2onnx takes them for inputs of the model.
    """
    held = [
        (vars(layer), name, value)
        for layer in layers_in(model)
        for name, value in vars(layer).items()
        if isinstance(value, tf.Tensor)
    ]
    for attributes, name, value in held:
        attributes[name] = value.numpy()
    try:
        yield
    finally:
        for attributes, name, value in held:
            attributes[name] = value


def register_handler() -> None:
    """Tells tf2onnx what becomes of this package's op.

    Raises:
        ImportError: if tf2onnx is not installed.
    """
    handler = messages.load_package("tf2onnx.handler", "'cudnn_rnn_tf[onnx]'")
    handler.tf_op.register_handler(_handle, _LEAST_OPSET, [_OP], "", {})


def forward(
    config: RnnConfig,
    inputs: tf.Tensor,
    states: Sequence[tf.Tensor],
    params: tf.Tensor,
    *,
    sequence_lengths: tf.Tensor | None,
    resets: tf.Tensor | None = None,
    time_major: bool,
    is_training: bool,
    return_cell_sequences: bool = False,
) -> tuple[Any, ...]:
    """Runs a network as ops of one layer that are time-major and in float32, as ONNX's nodes are.

    It is a substitute for `ops.forward`. Networks that ONNX has no nodes for become loops.
    """
    if is_training and config.draws_masks:
        raise ValueError(
            "an ONNX model is for inference, but a layer with dropout or zoneout is called with "
            "training=True"
        )
    dtype = inputs.dtype
    others = (config.num_proj, config.cell_clip, config.activation, config.recurrent_activation)
    is_of_nodes = not (any(others) or config.normalizes or return_cell_sequences)
    is_of_nodes &= not config.has_zoneout
    if not is_of_nodes or dtype == tf.float64 or resets is not None:
        return step_by_step.forward(
            config,
            inputs,
            states,
            params,
            sequence_lengths=sequence_lengths,
            resets=resets,
            time_major=time_major,
            return_cell_sequences=return_cell_sequences,
        )

    def read(tensor: tf.Tensor) -> tf.Tensor:
        tensor = tf.cast(tensor, tf.float32)
        return tensor if time_major else tf.transpose(tensor, (1, 0, 2))

    def write(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(tensor if time_major else tf.transpose(tensor, (1, 0, 2)), dtype)

    x = read(inputs)
    num_dirs = config.layout.num_dirs
    initial = [tf.split(read(state), config.num_layers) for state in states]
    weights = cut(config, tf.cast(params, tf.float32))
    finals: list[list[tf.Tensor]] = [[] for _ in states]
    for layer in range(config.num_layers):
        parts = weights[layer * num_dirs :][:num_dirs]
        x, final = _run_layer(
            config, x, [state[layer] for state in initial], parts, sequence_lengths
        )
        for collected, state in zip(finals, final, strict=True):
            collected.append(state)
    outputs = write(x)
    outputs.set_shape(inputs.shape[:2] + outputs.shape[2:])
    return outputs, tuple(write(tf.concat(collected, axis=0)) for collected in finals)


def _run_layer(
    config: RnnConfig,
    x: tf.Tensor,
    states: Sequence[tf.Tensor],
    parts: Sequence[PseudoLayer],
    sequence_lengths: tf.Tensor | None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs one layer as the op for which `_handle` is the handler.

    Returns:
        outputs [T, B, D * H] and the final states [D, B, H].
    """
    units = config.num_units
    if parts[0].kernel is None:
        # Each gate adds the inputs as they are.
        gates = parts[0].recurrent_kernel.shape[0] // units
        same = tf.constant(np.tile(np.eye(units, dtype=np.float32), (gates, 1)))
        parts = [part._replace(kernel=same) for part in parts]
    of_layer = dataclasses.replace(
        config,
        num_layers=1,
        input_size=parts[0].kernel.shape[1],
        input_mode=constants.CUDNN_INPUT_LINEAR_MODE,
        dropout=0.0,
        recurrent_dropout=0.0,
    )
    x = tf.ensure_shape(x, (None, None, of_layer.input_size))
    lengths = tf.constant([], tf.int32)
    if sequence_lengths is not None:
        lengths = in_32_bits(sequence_lengths)
    outputs, h, c, *_ = raw_ops.cudnn_rnn_tf_forward(
        input=x,
        input_h=states[0],
        input_c=states[1] if config.is_lstm else tf.constant([], tf.float32),
        params=join(of_layer, parts),
        sequence_lengths=lengths,
        seed=[],
        time_major=True,
        has_sequence_lengths=sequence_lengths is not None,
        resets=[],
        is_training=False,
        **of_layer.spec_attrs(),
    )
    finals = [h, c] if config.is_lstm else [h]
    if sequence_lengths is not None:
        # ONNX Runtime returns zeros as the final states of a sequence without steps.
        is_read = lengths[tf.newaxis, :, tf.newaxis] > 0
        finals = [tf.where(is_read, *each) for each in zip(finals, states, strict=True)]
    return outputs, finals


def _handle(context: Any, node: Any, **_: Any) -> None:
    """Puts ONNX's nodes in the place of an op of one layer, time-major and in float32."""
    name = node.name

    def attribute(key: str) -> Any:
        value = node.get_attr_value(key)
        return value.decode() if isinstance(value, bytes) else value

    source, initial_h, initial_c, params, lengths = node.input[:5]
    outputs, final_h, final_c = node.output[:3]
    mode, units = attribute("rnn_mode"), attribute("num_units")
    config = RnnConfig(
        rnn_mode=mode,
        num_layers=1,
        num_units=units,
        input_size=context.get_shape(source)[2],
        direction=attribute("direction"),
        bias_mode=attribute("bias_mode"),
    )
    values = context.get_node_by_output(params).get_tensor_value(as_list=False)
    found = onnx_format.node_of(mode, cut_array(config, values))

    def constant(array: np.ndarray) -> str:
        return context.make_const(f"{name}_constant_{len(context.get_nodes())}", array).output[0]

    inputs = [
        source,
        *(constant(found.arrays[key]) if key in found.arrays else "" for key in "WRB"),
        lengths if attribute("has_sequence_lengths") else "",
        initial_h,
        *([initial_c] if config.is_lstm else []),
        *([constant(found.arrays["P"])] if "P" in found.arrays else []),
    ]
    kind = context.get_dtype(outputs)
    time, batch = context.get_shape(source)[:2]
    num_dirs = config.layout.num_dirs
    shapes = [[time, num_dirs, batch, units], *[[num_dirs, batch, units]] * (1 + config.is_lstm)]
    context.remove_node(node.name)
    names = [f"{name}_Y", final_h, *([final_c] if config.is_lstm else [])]
    context.make_node(
        found.op_type,
        inputs,
        attr={"hidden_size": units, **found.attributes},
        outputs=names,
        name=name,
        shapes=shapes,
        dtypes=[kind] * len(names),
    )
    if num_dirs == 1:
        # tf2onnx would make another reshape, a wrong one, of a transpose that only moves this axis.
        axes = constant(np.array([1], np.int64))
        squeezed = [time, batch, units]
        context.make_node(
            "Squeeze", [names[0], axes], outputs=[outputs], shapes=[squeezed], dtypes=[kind]
        )
        return
    by_row = context.make_node("Transpose", [names[0]], attr={"perm": [0, 2, 1, 3]}).output[0]
    shape = constant(np.array([0, 0, num_dirs * units], np.int64))
    joined = [time, batch, num_dirs * units]
    context.make_node("Reshape", [by_row, shape], outputs=[outputs], shapes=[joined], dtypes=[kind])


def _forward_for_others(*arguments: Any, **options: Any) -> Any:
    """Runs a network where another package's exporter to ONNX traces it."""
    register_handler()
    return forward(*arguments, **options)


ops.substitutes_for_formats["onnx"] = _forward_for_others
