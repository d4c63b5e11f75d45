"""Step-by-step cells for `tf.compat.v1.nn.dynamic_rnn` that share checkpoints with the layers.

TensorFlow's own cells, and the class that stacked them, were removed together with Keras 2.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from cudnn_rnn_tf import _private_names, constants
from cudnn_rnn_tf.contrib.base_layer import BaseLayer
from cudnn_rnn_tf.contrib.checkpoint_format import CELL_NAMES

__all__ = [
    "BasicRNNCell",
    "CudnnCompatibleGRUCell",
    "CudnnCompatibleLSTMCell",
    "GRUBlockCell",
    "GRUBlockCellV2",
    "LSTMStateTuple",
    "MultiRNNCell",
]


_v1 = tf.compat.v1


class LSTMStateTuple(NamedTuple):
    """An LSTM cell's state: c and h, [B, H] each."""

    c: Any
    h: Any


class _RNNCell(BaseLayer, _private_names.Trackable):
    """The base class of single cells and of stacks of them."""

    @property
    def state_size(self) -> Any:
        """The size of the state, or a tuple of them."""
        raise NotImplementedError

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Returns a state of zeros, shaped and nested as `state_size`."""
        return tf.nest.map_structure(
            lambda size: tf.zeros([batch_size, size], dtype), self.state_size
        )

    def get_initial_state(
        self, inputs: Any = None, batch_size: Any = None, dtype: Any = None
    ) -> Any:
        """Returns a state of zeros.

        Args:
            inputs: [B, I], whose batch size and type the state has; None for those that follow.
            batch_size: B.
            dtype: of the state.

        Raises:
            ValueError: if neither `inputs` nor both others are given.
        """
        if inputs is not None:
            inputs = tf.convert_to_tensor(inputs)
            batch_size, dtype = tf.shape(inputs)[0], inputs.dtype
        if batch_size is None or dtype is None:
            raise ValueError(
                "expected inputs, or batch_size and dtype, but received "
                f"batch_size={batch_size!r} and dtype={dtype!r}"
            )
        return self.zero_state(batch_size, dtype)


class _Cell(_RNNCell):
    """The base class of single cells.

    Args:
        num_units: units, H.
        reuse: as of `tf.compat.v1.variable_scope`.
    """

    name: str

    def __init__(self, num_units: int, reuse: bool | None = None):
        self._num_units = num_units
        self._reuse = reuse
        self._variables: dict[str, tf.Variable] = {}

    @property
    def dtype(self) -> tf.DType | None:
        """The variables' type; None before there are any."""
        return self.variables[0].dtype.base_dtype if self.built else None

    @property
    def output_size(self) -> int:
        return self._num_units

    @property
    def state_size(self) -> Any:
        return self._num_units

    @property
    def variables(self) -> list[tf.Variable]:
        return list(self._variables.values())

    def build(self, inputs_shape: Any) -> None:
        """Creates the variables in float32, unless they are there.

        Args:
            inputs_shape: [B, I], I being known.
        """
        self._build(tf.TensorShape(inputs_shape), tf.float32, None)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[tf.Tensor, Any]:
        """Runs one step.

        Args:
            inputs: [B, I].
            state: as of `state_size`.
            scope: variable scope in place of the cell's own name.

        Returns:
            outputs [B, H] and the new state.
        """
        inputs = tf.convert_to_tensor(inputs)
        self._build(inputs.shape, inputs.dtype, scope)
        return self.call(inputs, state)

    def _build(self, inputs_shape: tf.TensorShape, dtype: tf.DType, scope: Any) -> None:
        if self.built:
            return
        input_size = inputs_shape.as_list()[-1] if inputs_shape.rank else None
        if input_size is None:
            raise ValueError(
                f"expected the last dimension of the inputs of {type(self).__name__} to be known, "
                f"but received shape {inputs_shape}"
            )
        # A scope that is reused has the cell's own name. A new scope gets a name that is still
        # free.
        scope = scope or (self.name if self._reuse else None)
        with _v1.variable_scope(scope, self.name, reuse=self._reuse):
            self._create_variables(input_size, dtype)
        self.built = True
        # A checkpoint that was restored before the cell was built may have values for the
        # variables.
        for name, variable in self._tracked().items():
            self._handle_deferred_dependencies(name, variable)

    def _tracked(self) -> dict[str, tf.Variable]:
        """Returns the variables by their names in object-based checkpoints."""
        return {name.replace("/", "_"): variable for name, variable in self._variables.items()}

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        # TensorFlow calls this to find the objects to save.
        return {**super()._trackable_children(save_type, **kwargs), **self._tracked()}

    def _create(
        self,
        name: str,
        rows: int | None,
        columns: int,
        dtype: tf.DType,
        initializer: Any = None,
    ) -> None:
        """Creates a kernel [rows, columns] or, if `rows` is None, a bias [columns]."""
        shape = [columns] if rows is None else [rows, columns]
        if rows is None and initializer is None:
            initializer = _v1.zeros_initializer()
        self._variables[name] = _v1.get_variable(name, shape, dtype, initializer)

    def _apply(self, name: str, *inputs: tf.Tensor) -> tf.Tensor:
        outer = f"{name}/" if name else ""
        joined = tf.concat(inputs, axis=-1)
        kernel, bias = self._variables[f"{outer}kernel"], self._variables[f"{outer}bias"]
        return tf.matmul(joined, kernel) + bias

    def _create_variables(self, input_size: int, dtype: tf.DType) -> None:
        raise NotImplementedError

    def call(self, inputs: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """Runs one step; the cell must be built."""
        raise NotImplementedError


class CudnnCompatibleLSTMCell(_Cell):
    """`CudnnLSTM`, step by step.

    Args:
        num_units: units, H.
        reuse: as of `tf.compat.v1.variable_scope`.
    """

    name = CELL_NAMES[constants.CUDNN_LSTM]

    @property
    def state_size(self) -> LSTMStateTuple:
        return LSTMStateTuple(self._num_units, self._num_units)

    def _create_variables(self, input_size: int, dtype: tf.DType) -> None:
        self._create("kernel", input_size + self._num_units, 4 * self._num_units, dtype)
        self._create("bias", None, 4 * self._num_units, dtype)

    def call(self, inputs: tf.Tensor, state: Any) -> tuple[tf.Tensor, LSTMStateTuple]:
        c, h = state
        i, g, f, o = tf.split(self._apply("", inputs, h), 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, LSTMStateTuple(c, h)


class CudnnCompatibleGRUCell(_Cell):
    """`CudnnGRU`, step by step.

    Args:
        num_units: units, H.
        reuse: as of `tf.compat.v1.variable_scope`.
        kernel_initializer: of the kernels; None for that of the variable scope. The biases of the
            gates start at one.
    """

    name = CELL_NAMES[constants.CUDNN_GRU]

    def __init__(self, num_units: int, reuse: bool | None = None, kernel_initializer: Any = None):
        super().__init__(num_units, reuse)
        self._kernel_initializer = kernel_initializer

    def _create_variables(self, input_size: int, dtype: tf.DType) -> None:
        units = self._num_units
        for name, rows, columns in (
            ("gates", input_size + units, 2 * units),
            ("candidate/input_projection", input_size, units),
            ("candidate/hidden_projection", units, units),
        ):
            self._create(f"{name}/kernel", rows, columns, dtype, self._kernel_initializer)
            ones = _v1.ones_initializer() if name == "gates" else None
            self._create(f"{name}/bias", None, columns, dtype, ones)

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        r, z = tf.split(tf.sigmoid(self._apply("gates", inputs, state)), 2, axis=-1)
        input_side = self._apply("candidate/input_projection", inputs)
        recurrent_side = self._apply("candidate/hidden_projection", state)
        h = (1.0 - z) * tf.tanh(input_side + r * recurrent_side) + z * state
        return h, h


class GRUBlockCell(_Cell):
    """The GRU cell of `tf.contrib.rnn`, whose reset gate multiplies the state before the product.

    `cudnn_rnn_tf.CudnnGRU` with `reset_after=False` runs the same over whole sequences in one op;
    `cudnn_rnn_tf.convert.convert_file` makes such a layer of a checkpoint of the cell.

    Args:
        num_units: units, H.
        cell_size: the old name of `num_units`.
        reuse: as of `tf.compat.v1.variable_scope`.
        name: of the variable scope.

    Raises:
        ValueError: if neither or both of `num_units` and `cell_size` are given.
    """

    _names = ("w_ru", "b_ru", "w_c", "b_c")

    def __init__(
        self,
        num_units: int | None = None,
        cell_size: int | None = None,
        reuse: bool | None = None,
        name: str = "gru_cell",
    ):
        units = cell_size if num_units is None else num_units
        if units is None or None not in (num_units, cell_size):
            raise ValueError(
                f"expected num_units for {type(self).__name__}, or cell_size, but received "
                f"num_units={num_units!r} and cell_size={cell_size!r}"
            )
        super().__init__(units, reuse)
        self.name = name

    def _create_variables(self, input_size: int, dtype: tf.DType) -> None:
        rows, units = input_size + self._num_units, self._num_units
        of_gates, bias_of_gates, of_candidate, bias_of_candidate = self._names
        self._create(of_gates, rows, 2 * units, dtype)
        self._create(bias_of_gates, None, 2 * units, dtype, _v1.ones_initializer())
        self._create(of_candidate, rows, units, dtype)
        self._create(bias_of_candidate, None, units, dtype)

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_gates, bias_of_gates, of_candidate, bias_of_candidate = self.variables
        gates = tf.matmul(tf.concat([inputs, state], axis=-1), of_gates) + bias_of_gates
        r, z = tf.split(tf.sigmoid(gates), 2, axis=-1)
        candidate = tf.matmul(tf.concat([inputs, r * state], axis=-1), of_candidate)
        h = (1.0 - z) * tf.tanh(candidate + bias_of_candidate) + z * state
        return h, h


class GRUBlockCellV2(GRUBlockCell):
    """`GRUBlockCell` with the names of `GRUCell`'s variables; the arguments are the same."""

    _names = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")


class BasicRNNCell(_Cell):
    """`CudnnRNNTanh` or, with `activation=tf.nn.relu`, `CudnnRNNRelu`, step by step.

    Args:
        num_units: units, H.
        activation: of the output.
        reuse: as of `tf.compat.v1.variable_scope`.
    """

    name = CELL_NAMES[constants.CUDNN_RNN_TANH]

    def __init__(
        self,
        num_units: int,
        activation: Callable[[tf.Tensor], tf.Tensor] = tf.tanh,
        reuse: bool | None = None,
    ):
        super().__init__(num_units, reuse)
        self._activation = activation

    def _create_variables(self, input_size: int, dtype: tf.DType) -> None:
        self._create("kernel", input_size + self._num_units, self._num_units, dtype)
        self._create("bias", None, self._num_units, dtype)

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        h = self._activation(self._apply("", inputs, state))
        return h, h


class MultiRNNCell(_RNNCell):
    """Cells on top of each other.

    Args:
        cells: from the bottom.
        state_is_tuple: whether the state is a tuple of theirs; if not, it is one tensor, theirs
            side by side on the last axis.

    Raises:
        ValueError: if the state is to be one tensor and a cell's is not.
    """

    name = "multi_rnn_cell"

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True):
        self._cells = list(cells)
        self._state_is_tuple = state_is_tuple
        sizes = [cell.state_size for cell in self._cells]
        if not state_is_tuple and any(isinstance(size, (tuple, list)) for size in sizes):
            raise ValueError(
                "expected state_is_tuple to be true, as a cell's state is a tuple itself, but "
                f"received {state_is_tuple!r} with cells of the state sizes {sizes}"
            )

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        # TensorFlow calls this to find the objects to save. The names are those of TensorFlow 1.
        children = super()._trackable_children(save_type, **kwargs)
        for index, cell in enumerate(self._cells):
            if isinstance(cell, _private_names.Trackable):
                children[f"cell-{index}"] = cell
        return children

    @property
    def built(self) -> bool:  # type: ignore[override]  # Stacks do not set it.
        return all(cell.built for cell in self._cells)

    @property
    def output_size(self) -> int:
        return self._cells[-1].output_size

    @property
    def state_size(self) -> Any:
        sizes = tuple(cell.state_size for cell in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def variables(self) -> list[tf.Variable]:
        return [variable for cell in self._cells for variable in cell.variables]

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[tf.Tensor, Any]:
        """Runs one step of all cells; returns the last one's outputs and the new state."""
        with _v1.variable_scope(scope or self.name):
            return self.call(inputs, state)

    def call(self, inputs: Any, state: Any) -> tuple[tf.Tensor, Any]:
        """Runs one step in the current variable scope."""
        if not self._state_is_tuple:
            state = tf.split(state, [cell.state_size for cell in self._cells], axis=-1)
        states = []
        for index, (cell, own_state) in enumerate(zip(self._cells, state, strict=True)):
            with _v1.variable_scope(f"cell_{index}"):
                inputs, own_state = cell(inputs, own_state)
            states.append(own_state)
        return inputs, tuple(states) if self._state_is_tuple else tf.concat(states, axis=-1)
