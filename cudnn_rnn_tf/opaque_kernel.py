"""The variable that holds a layer's opaque buffer, and what a checkpoint holds of it.

The buffer is one variable, so that one op reads it and one optimizer slot follows it; but its
checkpoints see the matrices and biases within.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import _compat, ops
from cudnn_rnn_tf.config import RnnConfig


class OpaqueKernel(keras.Variable):
    """A Keras variable of shape [params_size] that is saved as its canonical tensors.

    Object-based checkpoints hold one tensor per gate, layer and direction, under the layout's
    names, wherever in the object graph the variable is found (optimizers track it as well). A
    SavedModel, which is for running, not for reading, holds the buffer itself.

    Args:
        config: the network.
        initializer: called with `shape` and `dtype`.
        dtype: of the variable.
        **kwargs: to `keras.Variable`.
    """

    def __init__(
        self, config: RnnConfig, initializer: Callable[..., tf.Tensor], dtype: str, **kwargs: Any
    ):
        self._config = config
        self._is_exported = False
        # In a Keras autocast scope, `dtype` and `value` are of the computation's type.
        self._stored_dtype = dtype
        super().__init__(
            initializer=initializer, shape=(config.layout.size,), dtype=dtype, **kwargs
        )

    def canonical_tensors(self) -> dict[str, tf.Tensor]:
        """The canonical tensors by name."""
        return ops.params_to_named(self._config, tf.cast(self.value, self._stored_dtype))

    def params_from(self, tensors: Mapping[str, Any]) -> tf.Tensor:
        """The whole buffer from canonical tensors by name.

        Raises:
            ValueError: if one is missing or its shape is not the layout's; it is named.
        """
        return ops.named_to_params(self._config, tensors, self._stored_dtype, self.path)

    # TensorFlow's extension points for what a checkpoint holds of an object. A SavedModel's
    # variables go through the same one, but its loader makes plain variables, which want the
    # buffer as it is; it announces itself by asking for a copy of the variable in its graph.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        is_exported, self._is_exported = self._is_exported, False
        return super()._serialize_to_tensors() if is_exported else self.canonical_tensors()

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        params = self.params_from(restored_tensors)
        if self._value is None:
            # Keras builds a subclassed model in a scope in which variables wait for their first
            # values, and what is assigned to them is lost.
            self._initializer = lambda *_, **__: params
            return params
        return self._value.assign(params)

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> Any:
        self._is_exported = True
        return super()._export_to_saved_model_graph(*args, **kwargs)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        self.value._copy_trackable_to_cpu(object_map)
        if self not in object_map:
            object_map[self] = _CheckpointCopy(self._config, object_map[self.value])

    def _maybe_initialize_trackable(self) -> None:
        # Called before every save and restore, but not between the two steps of an export: one
        # that failed half-way must not show in the next checkpoint.
        self._is_exported = False
        super()._maybe_initialize_trackable()


class _CheckpointCopy(_compat.Trackable):
    """An asynchronous checkpoint writes this: canonical tensors, from a copy of the buffer."""

    def __init__(self, config: RnnConfig, params: tf.Variable):
        self._config = config
        self._params = params

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return ops.params_to_named(self._config, tf.convert_to_tensor(self._params))
