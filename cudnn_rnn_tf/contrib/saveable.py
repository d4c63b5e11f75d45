"""Saves opaque buffers that are not inside a Keras layer."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import _private_names, constants, ops
from cudnn_rnn_tf._private_names import SaveableObject, SaveSpec
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import Direction, InputMode, RnnConfig
from cudnn_rnn_tf.contrib import checkpoint_format
from cudnn_rnn_tf.contrib.format_converters import (
    CONVERTERS,
    CudnnParamsFormatConverter,
    CudnnParamsFormatConverterGRU,
    CudnnParamsFormatConverterLSTM,
    CudnnParamsFormatConverterRelu,
    CudnnParamsFormatConverterTanh,
    converter_of,
)

__all__ = [
    "CudnnGRUSaveable",
    "CudnnLSTMSaveable",
    "CudnnOpaqueParamsSaveable",
    "CudnnRNNReluSaveable",
    "CudnnRNNTanhSaveable",
    "RNNParamsSaveable",
    "canonical_var_list",
]


class _BufferSaveable(SaveableObject, _private_names.Trackable):
    """Saves a variable of the buffer's layout: the buffer itself, or an optimizer's slot of it.

    In a Saver's checkpoint, `shapes` maps the names, in the converter's order, to the tensors'
    shapes (None for any); `prefix` and `suffix` stand around the names.
    """

    def __init__(
        self,
        variable: tf.Variable,
        config: RnnConfig,
        shapes: Mapping[str, tuple[int, ...] | None],
        converter: CudnnParamsFormatConverter,
        name: str,
        prefix: str = "",
        suffix: str = "",
    ):
        self._variable = variable
        self._config = config
        self._shapes = shapes
        self._converter = converter
        self._parts: dict[int, tf.Tensor] = {}
        if tf.executing_eagerly():
            # The functions read the variable when it is saved; a tensor that is read now would
            # never change.
            op = variable
            tensors = [functools.partial(self._tensor, index) for index in range(len(shapes))]
        else:
            # A Saver accepts two saveables of one variable only if their operations differ.
            op = tf.identity(variable)
            tensors = self._tensors()
            # A meta graph has the object's name among its saveable ones, and whoever imports it
            # looks for an operation of that name.
            graph = tf.compat.v1.get_default_graph()
            with graph.name_scope(None), graph.control_dependencies(None):
                tf.no_op(name)
        specs = [
            SaveSpec(
                tensor,
                slice_spec="",
                name=f"{prefix}{tensor_name}{suffix}",
                dtype=variable.dtype.base_dtype,
                device=variable.device,
            )
            for tensor_name, tensor in zip(shapes, tensors, strict=True)
        ]
        super().__init__(op, specs, name)

    @property
    def variable(self) -> tf.Variable:
        """The variable that is saved."""
        return self._variable

    def _assign(self, params: tf.Tensor) -> Any:
        if not hasattr(self._variable, "assign") and not _private_names.is_reference(
            self._variable
        ):
            # Savers make the operations for restoring together with those for saving, so an error
            # must not be raised before a restore runs.
            message = f"{self.name} cannot be restored: it was made of a tensor, not of a variable"
            return tf.debugging.Assert(False, [message])
        return tf.compat.v1.assign(self._variable, params)

    def _tensors(self) -> list[tf.Tensor]:
        params = tf.convert_to_tensor(self._variable)
        weights, biases = self._converter.opaque_to_tf_canonical(params)
        return [*weights, *biases]

    def _tensor(self, index: int) -> tf.Tensor:
        return self._tensors()[index]

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any = None) -> Any:
        """Assigns the buffer from the tensors of a Saver's checkpoint."""
        del restored_shapes
        tensors = dict(zip(self._shapes, restored_tensors, strict=True))
        # A Saver of all variables also restores the buffer as such, if the file has it. Another
        # program's buffer may have an unknown layout, so this assignment comes after that one.
        with tf.control_dependencies(_assignments_in_scope(self._variable)):
            canonical = checkpoint_format.checked(self._shapes, tensors)
            return self._assign(self._converter.tf_canonical_to_opaque(canonical))

    def assign_part(self, index: int, tensor: tf.Tensor) -> Any:
        """Assigns one of the tensors of a Saver's checkpoint; the others stay as they are.

        In a graph, the buffer may have no value yet, so it is assigned once all tensors are given.
        """
        tensor = tf.cast(tensor, self._variable.dtype.base_dtype)
        if tf.executing_eagerly():
            tensors = self._tensors()
            tensors[index] = tensor
            return self._assign(self._converter.tf_canonical_to_opaque(tensors))
        self._parts[index] = tensor
        if len(self._parts) < len(self._shapes):
            return tf.no_op()
        parts, self._parts = self._parts, {}
        return self._assign(
            self._converter.tf_canonical_to_opaque([parts[i] for i in range(len(parts))])
        )

    # TensorFlow calls these methods to save and restore the object in object-based checkpoints.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return ops.params_to_named(self._config, tf.convert_to_tensor(self._variable))

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        return self._assign(
            ops.named_to_params(
                self._config, restored_tensors, self._variable.dtype.base_dtype, self.name
            )
        )


class SavedCell(_private_names.AutoTrackable):
    """A cell as in contrib's object-based checkpoints, with its `kernel` and its `bias`.

    Both are parts of the buffer.

    Args:
        saveable: of the buffer.
        kernel: the place of the kernel in a Saver's checkpoint.
        bias: that of the bias.
    """

    def __init__(self, saveable: _BufferSaveable, kernel: int, bias: int):
        self.kernel = _SavedPart(saveable, kernel)
        self.bias = _SavedPart(saveable, bias)


class _SavedPart(_private_names.Trackable):
    """Saves one tensor of a cell, under the name that a variable's value has in a checkpoint."""

    def __init__(self, saveable: _BufferSaveable, index: int):
        self._saveable = saveable
        self._index = index

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": self._saveable.specs[self._index].tensor}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        return self._saveable.assign_part(self._index, restored_tensors["VARIABLE_VALUE"])


def _assignments_in_scope(variable: tf.Variable) -> list[tf.Operation]:
    """Returns the operations in a graph's current name scope that assign to the variable."""
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
        opaque_params: the variable that holds the buffer, of shape [params_size]. A tensor can be
            saved but not restored.
        num_layers: layers in the stack.
        num_units: units per layer and direction.
        input_size: size of the inputs' last dimension.
        input_mode: "linear_input", "skip_input" or "auto_select".
        direction: "unidirectional" or "bidirectional".
        scope: prefix of the names in a Saver's checkpoint, a string or a
            `tf.compat.v1.VariableScope`; None for none.
        name: name of the object.

    Raises:
        TypeError: if `opaque_params` is no variable and no tensor.
        ValueError: if its shape does not fit the configuration.
    """

    # Programs derive classes with other values of these, to name other cells and convert to them.
    _rnn_mode: str | None = None
    _rnn_cell_name: str
    _format_converter_cls: type[CudnnParamsFormatConverter]

    def __init__(
        self,
        opaque_params: tf.Variable | tf.Tensor,
        num_layers: int,
        num_units: int,
        input_size: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        scope: str | tf.compat.v1.VariableScope | None = None,
        name: str = "cudnn_rnn_saveable",
    ):
        if self._rnn_mode is None:
            raise TypeError(
                f"{type(self).__name__} knows no mode: use CudnnLSTMSaveable, CudnnGRUSaveable, "
                "CudnnRNNTanhSaveable or CudnnRNNReluSaveable"
            )
        # Optimizers know the Keras variable, and not the TensorFlow variable in it.
        self._optimized = opaque_params
        if isinstance(opaque_params, keras.Variable):
            opaque_params = opaque_params.value
        if not (hasattr(opaque_params, "assign") or tf.is_tensor(opaque_params)):
            raise TypeError(
                f"expected opaque_params to be a variable, but received {opaque_params!r}"
            )
        config = RnnConfig(self._rnn_mode, num_layers, num_units, input_size, input_mode, direction)
        ops.check_shape("opaque_params", opaque_params, (config.layout.size,))
        scope = scope.name if isinstance(scope, tf.compat.v1.VariableScope) else scope
        self._num_layers, self._num_units, self._input_size = num_layers, num_units, input_size
        self._input_mode, self._direction = input_mode, direction
        self._scope = scope or None
        self._variables = opaque_params
        self._weight_names, self._bias_names = self._tf_canonical_names()
        self._param_names = self._weight_names + self._bias_names
        # A derived class's converter may give the weights any shapes.
        shapes: list[tuple[int, ...] | None] = [None] * len(self._param_names)
        if self._format_converter_cls is CONVERTERS[self._rnn_mode]:
            shapes = list(checkpoint_format.tensor_shapes(config).values())
        names = [f"{scope}/{each}" if scope else each for each in self._param_names]
        super().__init__(
            opaque_params,
            config,
            dict(zip(names, shapes, strict=True)),
            self.format_converter,
            name,
        )

    @functools.cached_property
    def format_converter(self) -> CudnnParamsFormatConverter:
        """Converts between the buffer and the tensors of a Saver's checkpoint."""
        return self._format_converter_cls(
            self._num_layers,
            self._num_units,
            self._input_size,
            input_mode=self._input_mode,
            direction=self._direction,
        )

    @functools.cached_property
    def saved_cells(self) -> dict[str, _private_names.Trackable]:
        """The objects that a layer has in contrib's object-based checkpoints, by name.

        Contrib wrote such cells only for unidirectional networks whose cells have one kernel and
        one bias. If there is a single cell, the layer also has the cell's parts themselves.
        """
        count = len(self._weight_names)
        if self._direction == constants.CUDNN_RNN_BIDIRECTION or count != self._num_layers:
            return {}
        cells = {f"cell-{i}": SavedCell(self, i, count + i) for i in range(count)}
        if count == 1:
            return {**cells, "kernel": cells["cell-0"].kernel, "bias": cells["cell-0"].bias}
        return cells

    def _tf_canonical_names(self) -> tuple[list[str], list[str]]:
        """Returns the names of the weights and of the biases, without the scope."""
        weights: list[str] = []
        biases: list[str] = []
        for layer in range(self._num_layers):
            for is_fwd in (True, False) if self._direction == "bidirectional" else (True,):
                prefix = self._tf_canonical_name_prefix(layer, is_fwd)
                own: list[str] = []
                self._tf_canonical_names_single_layer(prefix, own, biases)
                if not self.format_converter._has_input_side(layer):
                    own = [each for each in own if not each.endswith("/input_projection/kernel")]
                weights += own
        return weights, biases

    def _tf_canonical_name_prefix(self, layer: int, is_fwd: bool = True) -> str:
        """Returns the variable scope of a cell; programs override this."""
        return checkpoint_format.cell_scope(self._rnn_cell_name, self._direction, layer, is_fwd)

    def _tf_canonical_names_single_layer(
        self, prefix: str, tf_weights_names: list[str], tf_bias_names: list[str]
    ) -> None:
        """Adds the names of one cell's weights and biases; programs override this."""
        # All cells with inputs have these names. A first layer may lack some, which are left out.
        weights = self.format_converter._weight_shapes(fan_in=self._input_size)
        tf_weights_names += [f"{prefix}/{each}" for each in weights]
        tf_bias_names += [f"{prefix}/{each}" for each in self.format_converter._bias_shapes()]

    def slots(self, optimizer: Any) -> dict[str, SaveableObject]:
        """Returns saveables of an optimizer's slots of the buffer, each saved gate by gate, too.

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
            # TensorFlow 1's optimizers name a slot "<scope>/<variable>/<name>".
            prefix, found_name, suffix = slot.name.partition(":")[0].rpartition(f"{own_name}/")
            if not found_name:
                prefix, suffix = "", name
            saveables[name] = _BufferSaveable(
                slot,
                self._config,
                self._shapes,
                converter_of(self._config, is_slot=True),
                f"{self.name}_{name}",
                prefix=prefix,
                suffix=f"/{suffix}",
            )
        return saveables


def _keras_slots(optimizer: keras.optimizers.Optimizer, kernel: Any) -> dict[str, tf.Variable]:
    # Keras names an optimizer's variables after the variables that they belong to.
    prefix = kernel.path.replace("/", "_") + "_"
    return {
        variable.name.removeprefix(prefix): variable.value
        for variable in optimizer.variables
        if variable.name.startswith(prefix)
    }


class CudnnLSTMSaveable(CudnnOpaqueParamsSaveable):
    """Saves an LSTM's buffer; the arguments are those of `CudnnOpaqueParamsSaveable`."""

    _rnn_mode = constants.CUDNN_LSTM
    _rnn_cell_name = checkpoint_format.CELL_NAMES[_rnn_mode]
    _format_converter_cls = CudnnParamsFormatConverterLSTM


class CudnnGRUSaveable(CudnnOpaqueParamsSaveable):
    """Saves a GRU's buffer; the arguments are those of `CudnnOpaqueParamsSaveable`."""

    _rnn_mode = constants.CUDNN_GRU
    _rnn_cell_name = checkpoint_format.CELL_NAMES[_rnn_mode]
    _format_converter_cls = CudnnParamsFormatConverterGRU


class CudnnRNNTanhSaveable(CudnnOpaqueParamsSaveable):
    """Saves a tanh RNN's buffer; the arguments are those of `CudnnOpaqueParamsSaveable`."""

    _rnn_mode = constants.CUDNN_RNN_TANH
    _rnn_cell_name = checkpoint_format.CELL_NAMES[_rnn_mode]
    _format_converter_cls = CudnnParamsFormatConverterTanh


class CudnnRNNReluSaveable(CudnnOpaqueParamsSaveable):
    """Saves a ReLU RNN's buffer; the arguments are those of `CudnnOpaqueParamsSaveable`."""

    _rnn_mode = constants.CUDNN_RNN_RELU
    _rnn_cell_name = checkpoint_format.CELL_NAMES[_rnn_mode]
    _format_converter_cls = CudnnParamsFormatConverterRelu


_SAVEABLES = {each._rnn_mode: each for each in CudnnOpaqueParamsSaveable.__subclasses__()}


@checked
def RNNParamsSaveable(  # noqa: N802 - In contrib it was a class.
    cudnn_rnn: Any,
    params_to_canonical: Callable[..., Any],
    canonical_to_params: Callable[..., Any],
    param_variables: Sequence[tf.Variable],
    base_variable_scope: str | None = None,
    name: str = "params_canonical",
) -> CudnnOpaqueParamsSaveable:
    """Saves an op-level model's buffer as TensorFlow did up to version 1.3.

    In a Saver's checkpoint, a unidirectional network's names begin with the scope and
    `multi_rnn_cell`, as they did then. The only biases in it are those of step-by-step cells.

    Args:
        cudnn_rnn: the model.
        params_to_canonical: the model's own method of this name.
        canonical_to_params: likewise.
        param_variables: one variable, with the model's buffer.
        base_variable_scope: prefix of the names; None for none.
        name: name of the object.

    Raises:
        TypeError: if `cudnn_rnn` is no such model, or the variable is none.
        ValueError: if there is not one variable, or its shape does not fit the model.
    """
    del params_to_canonical, canonical_to_params
    if len(param_variables) != 1:
        raise ValueError(
            f"expected param_variables to be one variable, but received {param_variables!r}"
        )

    base: Any = _SAVEABLES.get(getattr(cudnn_rnn, "rnn_mode", None))
    if base is None:
        raise TypeError(
            f"expected cudnn_rnn to be a model of cudnn_rnn_ops, but received {cudnn_rnn!r}"
        )

    class Saveable(base):
        def _tf_canonical_name_prefix(self, layer: int, is_fwd: bool = True) -> str:
            return super()._tf_canonical_name_prefix(layer, is_fwd).removeprefix("rnn/")

    return Saveable(
        param_variables[0],
        cudnn_rnn.num_layers,
        cudnn_rnn.num_units,
        cudnn_rnn.input_size,
        cudnn_rnn.input_mode,
        cudnn_rnn.direction,
        base_variable_scope,
        name,
    )


def canonical_var_list(optimizers: Sequence[Any] = ()) -> list[Any]:
    """Lists what a `tf.compat.v1.train.Saver` is to save for a checkpoint without opaque buffers.

    The list has everything that a Saver without `var_list` saves of the current graph, with two
    exceptions. It lacks the buffers whose saveables are in the collection
    `tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS`, and it has the optimizers' slots of these buffers in
    their canonical form. A program that runs contrib's step-by-step cells saves and restores these.

    Args:
        optimizers: those whose slots are to be saved so, after `minimize` or `apply_gradients`.
    """
    keys = tf.compat.v1.GraphKeys
    saveables = list(tf.compat.v1.get_collection(keys.SAVEABLE_OBJECTS))
    buffers = [item for item in saveables if isinstance(item, CudnnOpaqueParamsSaveable)]
    slots = [slot for item in buffers for each in optimizers for slot in item.slots(each).values()]
    replaced = {item.variable.ref() for item in [*buffers, *slots]}
    variables = tf.compat.v1.get_collection(keys.GLOBAL_VARIABLES)
    return [v for v in variables if v.ref() not in replaced] + saveables + slots
