"""Converts files."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from cudnn_rnn_tf import constants, messages
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import RnnMode
from cudnn_rnn_tf.convert import (
    file_inspection,
    file_kinds,
    frozen_graphs,
    keras_files,
    keras_format,
    named_arrays,
    network,
    onnx_format,
    torch_format,
    variables,
)
from cudnn_rnn_tf.convert.initial_state import InitialState
from cudnn_rnn_tf.exports import target_names, targets
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN


@checked
def convert_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    name: str | None = None,
    rnn_mode: RnnMode | None = None,
    stock_keras: bool = False,
    for_inference: bool = False,
    force: bool = False,
) -> str:
    """Converts the recurrent network in a file to another format.

    A network that starts from constants that are not zero, as ONNX models may have, does so in a
    Keras or an ONNX model that is written, too; no other target can hold it.

    Args:
        source: what `inspect` reads, whatever its name ends in: a file of Keras's, a PyTorch state
            dict, an ONNX model, a checkpoint or SavedModel of Keras's own layers or TensorFlow 1's
            cells, or a frozen graph of the latter.
        target: the file to write, whose name says the format: a state dict (`.pt`, `.pth`,
            `.safetensors`), a Keras model of the one layer (`.keras`), or an ONNX model (`.onnx`).
            It is written completely or not at all.
        name: the network's name within the source, where it has several.
        rnn_mode: what a file of weights alone leaves open: "rnn_tanh" or "rnn_relu" for a plain
            RNN, and for Keras's and TensorFlow 1's "lstm", "lstm_peephole", "lstm_layer_norm",
            "gru" or "gru_reset_before", which says that the activations are tanh and sigmoid.
        stock_keras: whether a Keras model is written with Keras's own layers.
        for_inference: whether to leave out the `dropout` and `recurrent_dropout` of Keras's layers,
            which act in training only; they are always left out of an ONNX model.
        force: whether a target that exists is replaced.

    Returns:
        A line that says what was converted.

    Raises:
        FileExistsError: if the target exists and `force` is false.
        OSError: if a file cannot be read or written.
        ValueError: if a name ends otherwise, or the network cannot be converted.
        ImportError: if a format needs a package that is not installed.
    """
    source = pathlib.Path(source)
    target = targets.check(target, *target_names.CONVERTED, force=force, argument="the target")
    if stock_keras and target.suffix != ".keras":
        raise ValueError(f"stock_keras is for .keras files, but the target is {str(target)!r}")
    try:
        for_inference = for_inference or target.suffix == ".onnx"
        layer, states = _read(source, name, rnn_mode, for_inference)
        if states and (stock_keras or target.suffix in target_names.TORCH):
            raise ValueError(
                "the network starts from constants that are not zero, which the layers of "
                f"{'Keras' if stock_keras else 'PyTorch'} do not hold: write a .keras file of this "
                "package's layers, or a .onnx file"
            )
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:
        # The libraries that read the formats may raise anything for a damaged file. An OSError of
        # HDF5's has no file name; it is about what is in the file.
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise messages.of_file(source, "convert", error) from error
    targets.write_whole(target, lambda path: _write(layer, states, path, stock_keras), force=force)
    where = str(source) if name is None else f"{source}, {name}"
    # Keras's own layers have one bias per gate, except for the GRU with reset_after.
    sums = stock_keras and layer.bias_mode == "double" and layer.rnn_mode != constants.CUDNN_GRU
    note = " (each gate's two biases added)" if sums else ""
    note += ", from initial states that are not zero" if states else ""
    if layer.variable_dtype == "float16":
        note += ", in float16: a layer of dtype='float32' takes what its get_weights() returns"
    if target.suffix == ".keras" and file_kinds.kind_of(source) != "keras":
        # Other libraries' files may not say it.
        order = "time" if layer.time_major else "batch"
        note += f", {order}-major, with return_sequences={layer.return_sequences}"
    return f"{where}: {_describe(layer)} -> {target}{note}"


def _read(
    path: pathlib.Path, name: str | None, rnn_mode: RnnMode | None, for_inference: bool
) -> tuple[CudnnRNN, list[np.ndarray] | None]:
    """Returns the network, and what it starts from if that is not zeros."""
    kind = file_kinds.kind_of(path)
    if kind in ("torch", "safetensors"):
        return torch_format.from_torch(path, name=name, rnn_mode=rnn_mode), None
    is_weights = kind == "hdf5" and keras_files.is_weights(path)
    if is_weights or kind in ("checkpoint", "saved_model", "frozen_graph"):
        if kind == "frozen_graph":
            stored = frozen_graphs.networks_in(path)
        else:
            stored = named_arrays.networks_in(_arrays(path, kind))
        if name is None and not stored:
            for found in file_inspection.inspect_file(path):
                raise ValueError(f"{found.name}: {found.convert.removeprefix('no: ')}")
        return network.pick(stored, name, str(path), "recurrent networks")[1].layer(rnn_mode), None
    if rnn_mode is not None:
        raise ValueError(
            f"rnn_mode is for files of weights alone; {path} says itself what it holds"
        )
    if kind == "onnx":
        return onnx_format.from_onnx(path, name=name, return_initial_state=True)
    layers, states = _recurrent_layers(path)
    _, layer = network.pick(layers, name, str(path), "recurrent layers")
    if states and len(layers) > 1:
        raise ValueError(
            "it has several recurrent layers and an InitialState, and nothing tells for which"
        )
    if not isinstance(layer, CudnnRNN):
        layer = keras_format.from_keras(layer, for_inference=for_inference)
    return layer, states


def _arrays(path: pathlib.Path, kind: str) -> Mapping[str, named_arrays.Array]:
    if kind == "hdf5":
        return keras_files.weights_in(path)
    if kind == "saved_model":
        return variables.of_saved_model(path)
    return variables.variables_in(file_kinds.checkpoint_prefix(path))


def _recurrent_layers(path: pathlib.Path) -> tuple[dict[str, Any], list[np.ndarray] | None]:
    """Returns the recurrent layers of the model in a file of Keras's by name, and its states."""
    try:
        model = keras_files.load_keras_model(path)
    except ValueError:
        # If Keras cannot express other layers of the model, each recurrent one stands alone.
        if not (layers := keras_files.recurrent_layers(path)):
            raise
        return layers, None
    if not isinstance(model, keras.Model):
        raise ValueError(f"it holds no model, but a {type(model).__name__}")
    held = [layer.get_weights() for layer in model.layers if isinstance(layer, InitialState)]
    return dict(keras_format.recurrent_layers(model)), held[0] if held else None


def _write(
    layer: CudnnRNN, states: list[np.ndarray] | None, path: pathlib.Path, stock_keras: bool
) -> None:
    if path.suffix in target_names.TORCH:
        torch_format.write_state_dict(torch_format.state_dict(layer), path)
    elif path.suffix == ".onnx":
        onnx_format.save_onnx(onnx_format.to_onnx(layer, initial_state=states), path)
    else:
        batch_axis = 1 if layer.time_major else 0
        shape: list[Any] = [None, None, layer.input_size]
        if layer.stateful:
            shape[batch_axis] = layer.states[0].shape[batch_axis]
        inputs = keras.Input(batch_shape=shape, dtype=layer.compute_dtype)
        if states:
            start = InitialState([state.shape for state in states], dtype=layer.dtype_policy)
            model = keras.Model(inputs, layer(inputs, initial_state=start(inputs)))
            start.set_weights(states)
        else:
            layers = keras_format.to_keras(layer) if stock_keras else [layer]
            model = keras.Sequential([inputs, *layers])
        model.save(path)


def _describe(layer: CudnnRNN) -> str:
    parts = [
        layer.rnn_mode,
        f"{layer.num_layers} layer{'s' * (layer.num_layers > 1)}",
        layer.direction,
        f"input size {layer.input_size}",
        f"{layer.num_units} units",
    ]
    if getattr(layer, "num_proj", None):
        parts.append(f"projected to {layer.num_proj}")
    return ", ".join([*parts, layer.variable_dtype, f"{layer.params_size()} parameters"])
