"""Weights of TensorFlow 1's checkpoints for the Keras layers."""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import messages
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.contrib import checkpoint_format
from cudnn_rnn_tf.convert import file_inspection
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN


@checked
def restore_keras_layer(
    layer: Any, checkpoint: str | os.PathLike[str], scope: str | None = None
) -> None:
    """Assigns a Keras layer's weights from a checkpoint of `tf.contrib.cudnn_rnn` or its cells.

    Args:
        layer: a `CudnnLSTM`, `CudnnGRU`, `CudnnRNNTanh` or `CudnnRNNRelu` of this package; built
            here, if it is not, for the input size that the checkpoint says.
        checkpoint: the checkpoint's prefix or a directory with checkpoints, of which the latest is
            taken; as a `tf.compat.v1.train.Saver` wrote it.
        scope: what the names of the layer's tensors begin with, without the slash. None to search
            for it: there must be only one.

    Raises:
        TypeError: if `layer` is none of these.
        ValueError: if the checkpoint is damaged, a tensor is missing or does not fit the layer, or,
            without `scope`, if there is not exactly one layer of its kind in the checkpoint.
        FileNotFoundError: if there is no such checkpoint.
    """
    if not isinstance(layer, CudnnRNN):
        raise TypeError(
            "expected layer to be a CudnnLSTM, CudnnGRU, CudnnRNNTanh or CudnnRNNRelu of "
            f"cudnn_rnn_tf, but received {layer!r}"
        )
    try:
        reader = tf.train.load_checkpoint(os.fspath(checkpoint))
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(f"there is no checkpoint {os.fspath(checkpoint)!r}") from error
    except tf.errors.OpError as error:
        raise messages.of_file(checkpoint, "read the checkpoint", error) from error
    shapes = reader.get_variable_to_shape_map()
    config = dataclasses.replace(layer._config, input_mode=layer.input_mode)
    first_kernel = next(iter(checkpoint_format.tensor_shapes(config)))
    if scope is None:
        scope = _only_scope(shapes, first_kernel, layer.name, os.fspath(checkpoint))
    if not layer.built:
        name = f"{scope}/{first_kernel}" if scope else first_kernel
        if name not in shapes:
            raise ValueError(f"expected a tensor {name} in the checkpoint, but there is none")
        # The kernel's rows are those of the input side and those of the recurrent side. In
        # skip_input mode there are only the latter, and the input size is num_units.
        layer.build((None, None, shapes[name][0] - layer.num_units or layer.num_units))
        config = layer._config
    names = checkpoint_format.tensor_shapes(config, scope)
    tensors = {name: reader.get_tensor(name) for name in names if name in shapes}
    tensors = {name: tf.cast(tensor, layer.variable_dtype) for name, tensor in tensors.items()}
    layer._built_kernel().assign(checkpoint_format.to_params(config, tensors, scope))


def _only_scope(names: Iterable[str], first_kernel: str, layer_name: str, checkpoint: str) -> str:
    found = [
        name.removesuffix(first_kernel).removesuffix("/")
        for name in names
        if f"/{name}".endswith(f"/{first_kernel}")
    ]
    if len(found) != 1:
        if found:
            hint = f"in the scopes {sorted(found)}: pass one as scope"
        else:
            networks = [
                f"{each.name!r}: {each.kind}, {each.rnn_mode}, {each.num_layers} layers of "
                f"{each.num_units} units, {each.direction}"
                for each in file_inspection.inspect_file(checkpoint)
            ]
            hint = f"the checkpoint has {'; '.join(networks) or 'no recurrent network'}"
        raise ValueError(
            f"expected one layer with a tensor {first_kernel} in the checkpoint, for layer "
            f"{layer_name!r}, but found {len(found)}; {hint}"
        )
    return found[0]
