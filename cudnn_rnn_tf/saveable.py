"""Saving opaque buffers that are not inside a Keras layer."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

# The class that `tf.compat.v1.train.Saver` takes custom objects by has no public name.
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

from cudnn_rnn_tf import constants, contrib_format, ops
from cudnn_rnn_tf.config import RnnConfig


class CudnnOpaqueParamsSaveable(SaveableObject, tf.__internal__.tracking.Trackable):
    """Saves and restores an opaque buffer in a canonical format.

    With `tf.compat.v1.train.Saver` (in its `var_list`, or found in the collection
    `tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS`), it writes and reads the names and layouts of
    `tf.contrib.cudnn_rnn`, which its step-by-step cells share. As an attribute of a
    `tf.train.Checkpoint`, it holds one tensor per gate, layer and direction.

    Use the subclass of the network's mode.

    Args:
        opaque_params: the variable that holds the buffer, of shape [params_size].
        num_layers: layers in the stack.
        num_units: units per layer and direction.
        input_size: size of the inputs' last dimension.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional".
        scope: prefix of the names in a Saver's checkpoint, a string or a
            `tf.compat.v1.VariableScope`; None for none.
        name: name of the object.

    Raises:
        TypeError: if `opaque_params` is no variable.
        ValueError: if its shape does not fit the configuration.
    """

    _rnn_mode: str | None = None

    def __init__(
        self,
        opaque_params: tf.Variable,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: str = constants.CUDNN_INPUT_LINEAR_MODE,
        direction: str = constants.CUDNN_RNN_UNIDIRECTION,
        scope: str | tf.compat.v1.VariableScope | None = None,
        name: str = "cudnn_rnn_saveable",
    ):
        if self._rnn_mode is None:
            raise TypeError(
                f"{type(self).__name__} knows no mode: use CudnnLSTMSaveable, CudnnGRUSaveable, "
                "CudnnRNNTanhSaveable or CudnnRNNReluSaveable"
            )
        if isinstance(opaque_params, keras.Variable):
            opaque_params = opaque_params.value
        if not hasattr(opaque_params, "assign"):
            raise TypeError(
                f"expected opaque_params to be a variable, but received {opaque_params!r}"
            )
        self._config = RnnConfig(
            self._rnn_mode, num_layers, num_units, input_size, input_mode, direction
        )
        ops.check_shape("opaque_params", opaque_params, (self._config.layout.size,))
        self._opaque_params = opaque_params
        self._scope = scope.name if isinstance(scope, tf.compat.v1.VariableScope) else scope or ""
        tensors = self._contrib_tensors()
        self._contrib_names = list(tensors)
        specs = [
            SaveSpec(
                # Eagerly, a tensor that is read now would never change.
                functools.partial(self._contrib_tensor, tensor_name)
                if tf.executing_eagerly()
                else tensor,
                slice_spec="",
                name=tensor_name,
                dtype=tensor.dtype,
                device=opaque_params.device,
            )
            for tensor_name, tensor in tensors.items()
        ]
        super().__init__(opaque_params, specs, name)

    def _contrib_tensors(self) -> dict[str, tf.Tensor]:
        params = tf.convert_to_tensor(self._opaque_params)
        return contrib_format.from_params(self._config, params, self._scope)

    def _contrib_tensor(self, tensor_name: str) -> tf.Tensor:
        return self._contrib_tensors()[tensor_name]

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any = None) -> Any:
        """Assigns the buffer from the tensors of a Saver's checkpoint."""
        del restored_shapes
        tensors = dict(zip(self._contrib_names, restored_tensors, strict=True))
        return self._opaque_params.assign(
            contrib_format.to_params(self._config, tensors, self._scope)
        )

    # TensorFlow's extension points for what an object-based checkpoint holds of an object.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return ops.params_to_named(self._config, tf.convert_to_tensor(self._opaque_params))

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        return self._opaque_params.assign(
            ops.named_to_params(
                self._config, restored_tensors, self._opaque_params.dtype.base_dtype, self.name
            )
        )


# The name it had in TensorFlow 1.2.
RNNParamsSaveable = CudnnOpaqueParamsSaveable


def _doc(buffer: str) -> str:
    # Python's -OO leaves out docstrings.
    whole = (CudnnOpaqueParamsSaveable.__doc__ or "").replace("an opaque buffer", buffer)
    return whole.replace("Use the subclass of the network's mode.\n\n    ", "")


class CudnnLSTMSaveable(CudnnOpaqueParamsSaveable):
    __doc__ = _doc("an LSTM's buffer")
    _rnn_mode = constants.CUDNN_LSTM


class CudnnGRUSaveable(CudnnOpaqueParamsSaveable):
    __doc__ = _doc("a GRU's buffer")
    _rnn_mode = constants.CUDNN_GRU


class CudnnRNNTanhSaveable(CudnnOpaqueParamsSaveable):
    __doc__ = _doc("a tanh RNN's buffer")
    _rnn_mode = constants.CUDNN_RNN_TANH


class CudnnRNNReluSaveable(CudnnOpaqueParamsSaveable):
    __doc__ = _doc("a ReLU RNN's buffer")
    _rnn_mode = constants.CUDNN_RNN_RELU
