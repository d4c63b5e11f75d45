"""Defines the variable that holds a layer's opaque buffer, and how checkpoints store it.

The buffer is one variable, so that one op reads it and an optimizer has one slot for it, but
checkpoints store the matrices and biases in it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import _private_names, ops
from cudnn_rnn_tf.config import RnnConfig


class OpaqueKernel(keras.Variable):
    """A Keras variable of shape [params_size] that is saved as its canonical tensors.

    Object-based checkpoints hold one tensor per gate, layer and direction, under the layout's names
    (`ParamBlock::Name` in kernels/param_layout.cc), wherever in the object graph the variable is
    found (optimizers track it as well). A SavedModel, which is for running, not for reading, holds
    the buffer itself.
    """

    def __init__(
        self, config: RnnConfig, initializer: Callable[..., tf.Tensor], dtype: str, **kwargs: Any
    ):
        self._config = config
        self._is_exported = False
        # This is the stored type: in a Keras autocast scope, `dtype` and `value` have the type of
        # the computation.
        self._stored_dtype = dtype
        super().__init__(
            initializer=initializer, shape=(config.layout.size,), dtype=dtype, **kwargs
        )

    def canonical_tensors(self) -> dict[str, tf.Tensor]:
        """Returns the canonical tensors by name."""
        return ops.params_to_named(self._config, tf.cast(self.value, self._stored_dtype))

    def params_from(self, tensors: Mapping[str, Any]) -> tf.Tensor:
        """Makes the whole buffer from canonical tensors by name.

        Raises:
            ValueError: if one is missing, none of this network's, or of another shape; it is named.
        """
        return ops.named_to_params(self._config, tensors, self._stored_dtype, self.path)

    # TensorFlow calls these methods to save and restore the variable in checkpoints. It saves the
    # variables of a SavedModel by the same method, but its loader makes plain variables of them,
    # which need the buffer itself. An export can be recognized because it first asks for a copy of
    # the variable in its graph.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        is_exported, self._is_exported = self._is_exported, False
        if is_exported:
            return super()._serialize_to_tensors()
        if tf.executing_eagerly() and self._value is not None and not self._value.is_initialized():
            # A layer that a function builds is restored before the function has run. TensorFlow
            # asks for names and types then, and the variable cannot be read yet.
            params = tf.zeros(self._config.layout.size, self._stored_dtype)
            return ops.params_to_named(self._config, params)
        return self.canonical_tensors()

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        params = self.params_from(restored_tensors)
        if self._value is None:
            # Keras builds a subclassed model in a scope in which variables do not have their values
            # yet, and anything that is assigned to them is lost.
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
        # TensorFlow calls this before every save and restore, but not between the two steps of an
        # export. So a failed export has no effect on the next checkpoint.
        self._is_exported = False
        super()._maybe_initialize_trackable()


class _CheckpointCopy(_private_names.Trackable):
    """The object that an asynchronous checkpoint saves: the tensors of a copy of the buffer."""

    def __init__(self, config: RnnConfig, params: tf.Variable):
        self._config = config
        self._params = params

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return ops.params_to_named(self._config, tf.convert_to_tensor(self._params))
