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


class _BufferSaveable(SaveableObject, tf.__internal__.tracking.Trackable):
    """A variable of the buffer's layout: the buffer itself, or an optimizer's slot of it.

    Args:
        variable: of shape [params_size].
        config: the network.
        scope: prefix of contrib's names.
        name: name of the object.
        is_slot: whether it is an optimizer's slot.
        prefix: what a Saver's checkpoint has before contrib's names.
        suffix: likewise after them.
    """

    def __init__(
        self,
        variable: tf.Variable,
        config: RnnConfig,
        scope: str,
        name: str,
        is_slot: bool = False,
        prefix: str = "",
        suffix: str = "",
    ):
        self._variable = variable
        self._config = config
        self._scope = scope
        self._is_slot = is_slot
        self._contrib_names = list(contrib_format.tensor_shapes(config, scope))
        if tf.executing_eagerly():
            # A tensor that is read now would never change.
            tensors = [
                functools.partial(self._contrib_tensor, tensor_name)
                for tensor_name in self._contrib_names
            ]
        else:
            tensors = self._contrib_tensors().values()
        specs = [
            SaveSpec(
                tensor,
                slice_spec="",
                name=f"{prefix}{tensor_name}{suffix}",
                dtype=variable.dtype.base_dtype,
                device=variable.device,
            )
            for tensor_name, tensor in zip(self._contrib_names, tensors, strict=True)
        ]
        super().__init__(variable, specs, name)

    def _contrib_tensors(self) -> dict[str, tf.Tensor]:
        params = tf.convert_to_tensor(self._variable)
        return contrib_format.from_params(self._config, params, self._scope, self._is_slot)

    def _contrib_tensor(self, tensor_name: str) -> tf.Tensor:
        return self._contrib_tensors()[tensor_name]

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any = None) -> Any:
        """Assigns the buffer from the tensors of a Saver's checkpoint."""
        del restored_shapes
        tensors = dict(zip(self._contrib_names, restored_tensors, strict=True))
        # A Saver of all variables restores the buffer as it stands in the file as well. That may
        # be another program's, whose layout is not known; what is written last stays.
        with tf.control_dependencies(_assignments_in_scope(self._variable)):
            params = contrib_format.to_params(self._config, tensors, self._scope, self._is_slot)
            return self._variable.assign(params)

    # TensorFlow's extension points for what an object-based checkpoint holds of an object.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return ops.params_to_named(self._config, tf.convert_to_tensor(self._variable))

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        return self._variable.assign(
            ops.named_to_params(
                self._config, restored_tensors, self._variable.dtype.base_dtype, self.name
            )
        )


def _assignments_in_scope(variable: tf.Variable) -> list[tf.Operation]:
    """The operations in a graph's current name scope that assign to the variable."""
    if tf.executing_eagerly():
        return []
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    return [
        consumer
        for consumer in variable.op.outputs[0].consumers()
        if consumer.type in ("Assign", "AssignVariableOp")
        and scope
        and consumer.name.startswith(f"{scope}/")
    ]


class CudnnOpaqueParamsSaveable(_BufferSaveable):
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
        # Optimizers know a Keras variable, not the one within.
        self._optimized = opaque_params
        if isinstance(opaque_params, keras.Variable):
            opaque_params = opaque_params.value
        if not hasattr(opaque_params, "assign"):
            raise TypeError(
                f"expected opaque_params to be a variable, but received {opaque_params!r}"
            )
        config = RnnConfig(self._rnn_mode, num_layers, num_units, input_size, input_mode, direction)
        ops.check_shape("opaque_params", opaque_params, (config.layout.size,))
        scope = scope.name if isinstance(scope, tf.compat.v1.VariableScope) else scope or ""
        super().__init__(opaque_params, config, scope, name)

    @property
    def variable(self) -> tf.Variable:
        """The variable that holds the buffer."""
        return self._variable

    def slots(self, optimizer: Any) -> dict[str, SaveableObject]:
        """What an optimizer keeps of the buffer, each saved as the buffer is: gate by gate.

        In a Saver's checkpoint, the names are those that the same optimizer's slots have in a
        program that runs contrib's step-by-step cells: `…_cell/kernel/Adam`.

        Args:
            optimizer: a `tf.compat.v1.train.Optimizer`, after `minimize` or `apply_gradients`, or
                a `keras.optimizers.Optimizer` that is built.

        Returns:
            Saveables by the slots' names ("m" and "v", or Keras's "momentum" and "velocity", of
            Adam), for a Saver's `var_list` or a `tf.train.Checkpoint`; those of the buffer's shape.
        """
        if isinstance(optimizer, keras.optimizers.Optimizer):
            found = _keras_slots(optimizer, self._optimized)
        else:
            found = {
                name: optimizer.get_slot(self._variable, name)
                for name in optimizer.get_slot_names()
            }
        own_name = self._variable.name.partition(":")[0]
        saveables = {}
        for name, slot in found.items():
            if slot is None or not slot.shape.is_compatible_with(self._variable.shape):
                continue
            # A TensorFlow 1 optimizer names a slot "<scope>/<variable>/<name>".
            prefix, found_name, suffix = slot.name.partition(":")[0].rpartition(f"{own_name}/")
            if not found_name:
                prefix, suffix = "", name
            saveables[name] = _BufferSaveable(
                slot,
                self._config,
                self._scope,
                f"{self.name}_{name}",
                is_slot=True,
                prefix=prefix,
                suffix=f"/{suffix}",
            )
        return saveables


def _keras_slots(optimizer: keras.optimizers.Optimizer, kernel: Any) -> dict[str, tf.Variable]:
    # Keras names an optimizer's variables by those that they belong to.
    prefix = kernel.path.replace("/", "_") + "_"
    return {
        variable.name.removeprefix(prefix): variable.value
        for variable in optimizer.variables
        if variable.name.startswith(prefix)
    }


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


def canonical_var_list(optimizers: Sequence[Any] = ()) -> list[Any]:
    """What a `tf.compat.v1.train.Saver` is to save for a checkpoint without opaque buffers.

    All that a Saver without `var_list` saves of the current graph, but for the buffers whose
    saveables are in the collection `tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS`, and for the slots
    that the optimizers keep of them; those slots in the buffers' canonical form instead. That is
    what a program that runs contrib's step-by-step cells saves and restores.

    Args:
        optimizers: those whose slots are to be saved so, after `minimize` or `apply_gradients`.
    """
    keys = tf.compat.v1.GraphKeys
    saveables = list(tf.compat.v1.get_collection(keys.SAVEABLE_OBJECTS))
    buffers = [item for item in saveables if isinstance(item, CudnnOpaqueParamsSaveable)]
    slots = [slot for item in buffers for each in optimizers for slot in item.slots(each).values()]
    replaced = {item.op.ref() for item in [*buffers, *slots]}
    variables = tf.compat.v1.get_collection(keys.GLOBAL_VARIABLES)
    return [v for v in variables if v.ref() not in replaced] + saveables + slots
