"""The base class of TensorFlow 1's layers: their variable, their checkpoints and their call."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf._private_names import legacy_rnn_cells
from cudnn_rnn_tf.config import Direction, HasConfig, InputMode, RnnConfig
from cudnn_rnn_tf.contrib.network_calls import rate_below_1
from cudnn_rnn_tf.contrib.saveable import CudnnOpaqueParamsSaveable
from cudnn_rnn_tf.keywords import ChecksKeywords
from cudnn_rnn_tf.layers import buffer_parts

_v1 = tf.compat.v1


class _CudnnRNN(ChecksKeywords, HasConfig, legacy_rnn_cells.base_layer.Layer):
    """The base class of the four layers, with the name and base class that it has in contrib."""

    rnn_mode: str
    built: bool
    # The number of a pseudo-layer's weights. This name, `_rnn_mode` and `_zero_state` are
    # contrib's.
    _num_params_per_layer: int
    _model_class: Callable[..., Any]
    # Programs may assign a derived class before the layer is built.
    _saveable_cls: type[CudnnOpaqueParamsSaveable]

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dropout: float = 0.0,
        seed: int | None = None,
        dtype: Any = tf.float32,
        kernel_initializer: Callable[..., Any] | None = None,
        bias_initializer: Callable[..., Any] | None = None,
        name: str | tf.compat.v1.VariableScope | None = None,
    ):
        ops.check_dtype("dtype", tf.as_dtype(dtype).name)
        if isinstance(input_mode, int):
            name_then = type(self).__name__
            raise TypeError(
                f"expected input_mode to be a string, but received {input_mode!r}: up to "
                f"TensorFlow 1.2, {name_then} took input_size there, and weights in each call; "
                f"that class is cudnn_rnn_ops.{name_then}"
            )
        super().__init__(name=name, dtype=dtype)
        self._seed = seed
        self._kernel_initializer = kernel_initializer
        self._bias_initializer = bias_initializer
        # RnnConfig checks the arguments before the input size is known. num_units stands in for the
        # input size, since it fits all input modes.
        self._dropout = dropout
        self._config = RnnConfig(
            self.rnn_mode,
            num_layers,
            num_units,
            num_units,
            input_mode,
            direction,
            dropout=rate_below_1(dropout),
        )
        self._input_mode = input_mode
        self._input_size: int | None = None
        self._saveable: CudnnOpaqueParamsSaveable | None = None
        # `kernel` is the same as `_variable`, unless a custom getter of the variable scope returns
        # a function of the variable.
        self.kernel: tf.Tensor | tf.Variable | None = None
        self._variable: tf.Variable | None = None
        self.input_spec = legacy_rnn_cells.input_spec.InputSpec(ndim=3)

    # The configuration.

    # Classes that programs derive use these names of contrib's.

    @property
    def _rnn_mode(self) -> str:
        return self.rnn_mode

    _num_layers, _num_units = HasConfig.num_layers, HasConfig.num_units
    _direction = HasConfig.direction

    @property
    def input_mode(self) -> str:
        """The input mode as given."""
        return self._input_mode

    @property
    def input_size(self) -> int:
        """The size of the inputs' last dimension. ValueError before the layer is built."""
        return self._built_config().input_size

    @property
    def canonical_weight_shapes(self) -> list[tuple[int, ...]]:
        """The canonical weights' shapes. RuntimeError before the layer is built."""
        layers = range(self.num_layers)
        return [shape for layer in layers for shape in self._canonical_weight_shape(layer)]

    @property
    def canonical_bias_shapes(self) -> list[tuple[int, ...]]:
        """The canonical biases' shapes."""
        layers = range(self.num_layers)
        return [shape for layer in layers for shape in self._canonical_bias_shape(layer)]

    @property
    def saveable(self) -> CudnnOpaqueParamsSaveable | None:
        """Saves the variable in contrib's format; None before the layer is built."""
        return self._saveable

    def state_shape(self, batch_size: Any) -> tuple[list[Any], ...]:
        """Returns the time-major shapes of the states: of h, and of an LSTM's c."""
        return tuple(map(list, self._config.state_shapes(batch_size, time_major=True)))

    def _zero_state(self, batch_size: Any) -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros(shape, self._dtype) for shape in self.state_shape(batch_size))

    def _built_config(self) -> RnnConfig:
        if not self.built:
            raise ValueError(
                f"layer {self.name!r} is not built yet: its input size is not known. Call it on "
                "inputs, or call build(input_shape), first"
            )
        return self._config

    # Its variable.

    def build(self, input_shape: Any) -> None:
        """Creates the variable, unless it is there.

        If the layer is built by this call, its names in a Saver's checkpoint begin with the
        variable scope of the call. If it is built when it is first called on inputs, they begin
        with that scope and the layer's own. Both are as in contrib, except that a layer whose names
        of the first kind are taken by another layer uses those of the second kind.

        Args:
            input_shape: of inputs, of rank 3, the last dimension known.

        Raises:
            ValueError: if the shape is another.
        """
        if self.built:
            return
        shape = tf.TensorShape(input_shape)
        input_size = shape.as_list()[-1] if shape.rank == 3 else None
        if input_size is None:
            raise ValueError(
                f"expected the input shape of layer {self.name!r} to have 3 dimensions, the last "
                f"one known, but received {shape}"
            )
        config = dataclasses.replace(
            self._config, input_size=input_size, input_mode=self._input_mode
        )
        self._config, self._input_size = config, input_size
        with self._own_scope() as scope:
            if scope.partitioner is not None:
                tf.get_logger().warning(
                    "The variable of layer %r is one whole: the variable scope's partitioner does "
                    "not apply to it.",
                    self.name,
                )
                scope.set_partitioner(None)
            self.kernel = _v1.get_variable(
                "opaque_kernel", (config.layout.size,), self._dtype, self._initialize
            )
            self._variable = _variable_of(self.kernel, f"{scope.name}/opaque_kernel")
            is_trained = self.trainable and self._variable.trainable
            weights = self._trainable_weights if is_trained else self._non_trainable_weights
            weights.append(self._variable)
        self._model = self._model_class(
            config.num_layers,
            config.num_units,
            config.input_size,
            config.input_mode,
            config.direction,
            self._dtype,
            self._dropout,
            self._seed,
        )
        # The layer may be built within a function or a loop, but its variable must not belong to
        # it.
        with tf.init_scope():
            saveable = self._find_saveable() or self._create_saveable()
            self._saveable = saveable
        self.input_spec = legacy_rnn_cells.input_spec.InputSpec(
            ndim=3, axes={-1: config.input_size}
        )
        self.built = True
        # A checkpoint that was restored before the layer was built may have values for these.
        for name, part in {"_saveable": saveable, **saveable.saved_cells}.items():
            self._handle_deferred_dependencies(name, part)

    def _own_scope(self) -> Any:
        """Returns the layer's variable scope; the first call makes it, within the current scope."""
        self._set_scope(None)
        return _v1.variable_scope(self._scope, auxiliary_name_scope=False)

    def _initialize(self, shape: Sequence[int], dtype: Any = None, **_: Any) -> tf.Tensor:
        del shape  # The variable's shape follows from those of its parts.
        tensors = []
        weight_shapes, bias_shapes = self.canonical_weight_shapes, self.canonical_bias_shapes
        for index, part_shape in enumerate([*weight_shapes, *bias_shapes]):
            is_weight = index < len(weight_shapes)
            given = self._kernel_initializer if is_weight else self._bias_initializer
            if given is not None:
                initializer = buffer_parts.with_own_seed(given, index)
            elif is_weight:
                seed = None if self._seed is None else self._seed + index
                initializer = _v1.glorot_uniform_initializer(seed)
            else:
                initializer = _v1.zeros_initializer()
            tensors.append(tf.convert_to_tensor(initializer(part_shape, dtype=dtype), dtype=dtype))
        return self._canonical_to_opaque(
            tensors[: len(weight_shapes)], tensors[len(weight_shapes) :]
        )

    # Programs override these methods, so their arguments are contrib's.

    def _canonical_weight_shape(self, layer: int) -> list[tuple[int, ...]]:
        """Returns the shapes of one layer's canonical weights; `build` initializes them."""
        if not 0 <= layer < self.num_layers:
            raise ValueError(
                f"expected layer to lie in [0, {self.num_layers}), but received {layer}"
            )
        if self._input_size is None:
            raise RuntimeError(
                f"layer {self.name!r} is not built yet: the shapes of its weights are not known"
            )
        # The first layer may have no input-side weights, so weights are counted from the end.
        shapes = self._config.layout.weight_shapes
        count = self.num_dirs * self._num_params_per_layer
        end = len(shapes) - (self.num_layers - 1 - layer) * count
        return shapes[max(end - count, 0) : end]

    def _canonical_bias_shape(self, layer: int) -> list[tuple[int, ...]]:
        """Returns the shapes of one layer's canonical biases; `build` initializes them."""
        del layer  # All layers have the same shapes.
        return [(self.num_units,)] * (self.num_dirs * self._num_params_per_layer)

    def _canonical_to_opaque(
        self, cu_weights: Sequence[tf.Tensor], cu_biases: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Returns the variable's initial value, given all layers' canonical weights and biases."""
        if self._input_size is None:
            raise RuntimeError(f"layer {self.name!r} is not built yet: its input size is not known")
        return ops.canonical_to_params(self._config, cu_weights, cu_biases)

    def _forward(
        self,
        inputs: tf.Tensor,
        h: tf.Tensor,
        c: tf.Tensor,
        opaque_params: tf.Tensor,
        sequence_lengths: Any,
        time_major: bool,
        training: bool,
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        """Runs the network for `call`.

        Returns:
            The outputs, and the final h and c. If it is no LSTM, c is returned as given, [0].
        """
        states = (h, c)[: len(self._config.state_sizes())]
        outputs, *states = self._model(
            inputs,
            *states,
            opaque_params,
            is_training=training,
            sequence_lengths=sequence_lengths,
            time_major=time_major,
        )
        return outputs, (*states, c)[:2]

    def _find_saveable(self) -> CudnnOpaqueParamsSaveable | None:
        """Returns the saveable of another layer with the same variable (by `reuse`), or None."""
        if tf.executing_eagerly():
            return None
        for item in _v1.get_collection(_v1.GraphKeys.SAVEABLE_OBJECTS):
            if isinstance(item, self._saveable_cls) and item.variable is self._variable:
                return item
        return None

    def _create_saveable(self) -> CudnnOpaqueParamsSaveable:
        if self._saveable is not None:
            raise RuntimeError(f"Cudnn saveable already created for layer {self.name!r}")
        config, variable, own_scope = self._config, self._variable, self._scope
        # `build` has made both before it calls this.
        assert variable is not None and own_scope is not None

        def create(scope: str) -> CudnnOpaqueParamsSaveable:
            return self._saveable_cls(
                variable,
                config.num_layers,
                config.num_units,
                config.input_size,
                config.input_mode,
                config.direction,
                scope=scope,
                name=f"{variable.name.partition(':')[0]}_saveable",
            )

        created = create(_v1.get_variable_scope().name)
        if not tf.executing_eagerly():
            collection = _v1.GraphKeys.SAVEABLE_OBJECTS
            taken = {spec.name for item in _v1.get_collection(collection) for spec in item.specs}
            if not taken.isdisjoint(spec.name for spec in created.specs):
                created = create(own_scope.name)
            _v1.add_to_collection(collection, created)
        return created

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        # TensorFlow calls this to find the objects to save. A checkpoint has the variable through
        # the saveable and, where contrib's checkpoints had cells, cell by cell in contrib's own
        # layout.
        # A SavedModel has the variable as it is, and nothing of what Keras 2 would add.
        children = tf.Module._trackable_children(self, save_type, **kwargs)
        if self._saveable is None:
            return children
        if save_type != "checkpoint":
            return {**children, "_variable": self._variable}
        return {**children, **(self._saveable.saved_cells or {"_saveable": self._saveable})}

    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        # TensorFlow calls this to find the object for a name in a checkpoint. A layer whose
        # checkpoint has cells can also read one that was saved gate by gate, through the saveable.
        found = super()._lookup_dependency(name, *args, **kwargs)
        return self._saveable if name == "_saveable" else found

    # Calling.

    if TYPE_CHECKING:

        def __call__(
            self,
            inputs: Any,
            initial_state: tuple[Any, ...] | None = None,
            sequence_lengths: Any = None,
            time_major: bool = True,
            training: bool = True,
            *,
            scope: Any = None,
        ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
            """Runs the network, as `call` does, at first within `scope` or the layer's own one."""
    else:

        def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = tf.convert_to_tensor(inputs, dtype=self.dtype)
            return super().__call__(inputs, *args, **kwargs)

    def call(
        self,
        inputs: tf.Tensor,
        initial_state: tuple[Any, ...] | None = None,
        sequence_lengths: Any = None,
        time_major: bool = True,
        training: bool = True,
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Runs the network.

        Args:
            inputs: [T, B, I], or [B, T, I] without `time_major`.
            initial_state: a tuple of h and an LSTM's c, of `state_shape` (the first two dimensions
                exchanged without `time_major`); None for zeros.
            sequence_lengths: integer [B]; None where all sequences fill T.
            time_major: the layout of inputs, states and what is returned.
            training: whether dropout acts, a Python bool.

        Returns:
            outputs [T, B, D * H] ([B, T, D * H] without `time_major`), and the final states as a
            tuple.

        Raises:
            TypeError: if `initial_state` is no tuple, or `training` no Python bool.
            ValueError: if a shape does not fit.
        """
        if initial_state is None:
            batch_size = tf.shape(inputs)[1 if time_major else 0]
            shapes = self._config.state_shapes(batch_size, time_major)
            initial_state = tuple(tf.zeros(shape, self._dtype) for shape in shapes)
        elif not isinstance(initial_state, tuple):
            raise TypeError(
                f"expected initial_state of layer {self.name!r} to be a tuple of tensors, but "
                f"received {initial_state!r}"
            )
        expected = len(self._config.state_sizes())
        if len(initial_state) != expected:
            raise ValueError(
                f"expected initial_state of layer {self.name!r} to be a tuple of {expected}, but "
                f"received {len(initial_state)}"
            )
        h, c = (*initial_state, tf.constant([], self._dtype))[:2]
        outputs, states = self._forward(
            inputs, h, c, self.kernel, sequence_lengths, time_major, training
        )
        return outputs, tuple(states[:expected])


def _variable_of(kernel: Any, name: str) -> tf.Variable:
    if hasattr(kernel, "assign"):
        return kernel
    for variable in _v1.global_variables():
        if variable.op.name == name:
            return variable
    raise ValueError(
        f"expected a variable {name} behind what the custom getter of the variable scope returned, "
        f"{kernel!r}, but there is none"
    )
