"""Applies initializers, regularizers, constraints and dropout to the tensors in a buffer."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import ops, pseudo_layers
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.initializers import AllGates, PerGate

# These raise errors for other shapes.
_OF_MATRICES = (keras.initializers.Orthogonal, keras.initializers.Identity)


def stacked_parts(
    config: RnnConfig, params: tf.Tensor
) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Splits the buffer into the tensors that Keras's layers would hold.

    Returns:
        Per pseudo-layer: the input kernels [fan_in, G * H] and the recurrent kernels [P, G * H]
        (and projections [H, P]), and per pseudo-layer and side the biases [G * H]. A cell's vectors
        are not among them.
    """
    layers = pseudo_layers.cut(config, params)
    kernels = [tf.transpose(layer.kernel) for layer in layers if layer.kernel is not None]
    recurrent_kernels = [
        tf.transpose(part)
        for layer in layers
        for part in (layer.recurrent_kernel, layer.projection)
        if part is not None
    ]
    biases = [
        part for layer in layers for part in (layer.bias, layer.recurrent_bias) if part is not None
    ]
    return kernels, recurrent_kernels, biases


def params_from_stacked(
    config: RnnConfig,
    kernels: Sequence[tf.Tensor],
    recurrent_kernels: Sequence[tf.Tensor],
    biases: Sequence[tf.Tensor],
    *,
    params: tf.Tensor,
) -> tf.Tensor:
    """The inverse of `stacked_parts`. What that leaves out comes from `params`."""
    of_inputs, of_states, of_biases = iter(kernels), iter(recurrent_kernels), iter(biases)

    def taken(shape: Any, tensors: Iterator[tf.Tensor]) -> tf.Tensor | None:
        return None if shape is None else next(tensors)

    def transposed(shape: Any, tensors: Iterator[tf.Tensor]) -> tf.Tensor | None:
        return None if shape is None else tf.transpose(next(tensors))

    layers = [
        pseudo_layers.PseudoLayer(
            kernel=transposed(shapes.kernel, of_inputs),
            recurrent_kernel=transposed(shapes.recurrent_kernel, of_states),
            projection=transposed(shapes.projection, of_states),
            bias=taken(shapes.bias, of_biases),
            recurrent_bias=taken(shapes.recurrent_bias, of_biases),
            vectors=before.vectors,
        )
        for shapes, before in zip(
            pseudo_layers.shapes(config), pseudo_layers.cut(config, params), strict=True
        )
    ]
    return pseudo_layers.join(config, layers)


def make_initializer(
    config: RnnConfig,
    kernel_initializer: Callable[..., tf.Tensor],
    recurrent_initializer: Callable[..., tf.Tensor],
    bias_initializer: Callable[..., tf.Tensor],
    vector_initializer: Callable[..., tf.Tensor],
) -> Callable[..., tf.Tensor]:
    """Returns an initializer of the buffer that fills each canonical tensor on its own.

    A kernel's initializer is called with Keras's shape, [fan_in, num_units]. An `AllGates` is
    called once for each side of a pseudo-layer, with [fan_in, G * num_units]. A vector of a cell is
    one row where an initializer makes only matrices. Every tensor has its own random numbers: an
    initializer with a seed is used with that seed plus the tensor's place.

    Raises:
        ValueError: if a `PerGate` names a gate that the network does not have.
    """
    gates = _gates(config)
    for initializer in (kernel_initializer, recurrent_initializer, bias_initializer):
        _check_gates(config, initializer)
    num_weights = len(config.layout.weight_shapes)

    def initialize(shape: Sequence[int], dtype: Any = None, **_: Any) -> tf.Tensor:
        canonical: list[tf.Tensor] = []
        # The matrices that were drawn for all gates of a side at once, by the first gate's index.
        drawn: dict[int, list[tf.Tensor]] = {}
        for index, (name, part_shape) in enumerate(
            zip(config.canonical_names, config.canonical_shapes, strict=True)
        ):
            is_vector = len(part_shape) == 1 and index < num_weights
            if name.endswith("_gamma"):
                initializer = tf.ones
            elif name.endswith("_beta"):
                names_gates = isinstance(bias_initializer, PerGate)
                initializer = bias_initializer if names_gates else tf.zeros
            elif len(part_shape) == 1:
                initializer = vector_initializer if is_vector else bias_initializer
            elif name.endswith(("recurrent_kernel", "projection_kernel")):
                initializer = recurrent_initializer
            else:
                initializer = kernel_initializer
            initializer = _of_gate(config, initializer, name)
            if isinstance(initializer, AllGates) and _gate_of(name) in gates:
                position = gates.index(_gate_of(name))
                first = index - position
                if first not in drawn:
                    *rows, columns = part_shape[::-1]
                    whole_shape = (*rows, len(gates) * columns)
                    whole = with_own_seed(initializer.initializer, first)(whole_shape, dtype=dtype)
                    whole = tf.convert_to_tensor(whole, dtype=dtype)
                    drawn[first] = tf.split(whole, len(gates), axis=-1)
                value = drawn[first][position]
            else:
                inner = getattr(initializer, "initializer", initializer)  # Of `AllGates`.
                is_row = is_vector and isinstance(inner, _OF_MATRICES)
                given_shape = (1, *part_shape) if is_row else part_shape[::-1]
                value = with_own_seed(initializer, index)(given_shape, dtype=dtype)
            value = tf.transpose(tf.convert_to_tensor(value, dtype=dtype))
            canonical.append(tf.reshape(value, part_shape))
        return ops.canonical_to_params(config, canonical[:num_weights], canonical[num_weights:])

    return initialize


def _gate_of(name: str) -> str:
    """Returns the gate in a canonical tensor's name; "" if it names none."""
    # ParamBlock::Name in kernels/param_layout.cc makes the names. This follows "layer_0_forward_".
    gate = name.split("_", 3)[3]
    return re.sub("_?(recurrent_|projection_)?(kernel|bias|beta)$", "", gate)


def _gates(config: RnnConfig) -> list[str]:
    """Returns the names of the gates, in cuDNN's order; [""] for plain RNNs."""
    names = config.layout.weight_names
    return list(
        dict.fromkeys(
            _gate_of(name) for name in names if re.search("(?<!projection)_kernel$", name)
        )
    )


def _check_gates(config: RnnConfig, initializer: Any) -> None:
    known = [gate for gate in _gates(config) if gate]
    for gate in initializer.gates if isinstance(initializer, PerGate) else ():
        if gate not in known:
            names = f"one of {', '.join(known)}" if known else "none, as it has no gates"
            raise ValueError(
                f"expected the gates of PerGate for {config.rnn_mode!r} to be {names}, but "
                f"received {gate!r}"
            )


def _of_gate(config: RnnConfig, initializer: Any, name: str) -> Any:
    """Returns the initializer of one canonical tensor."""
    if not isinstance(initializer, PerGate):
        return initializer
    if name.endswith("_beta"):
        return initializer.gates.get(_gate_of(name), tf.zeros)
    # What all units of a gate have in common is gone where their sums are normalized.
    is_of_norm = name.endswith("_bias") and config.rnn_mode.endswith("_layer_norm")
    if is_of_norm or (name.endswith("recurrent_bias") and config.bias_mode == "double"):
        return initializer.default
    return initializer.gates.get(_gate_of(name), initializer.default)


def with_own_seed(initializer: Callable[..., Any], index: int) -> Callable[..., Any]:
    # A Keras initializer with an integer seed, or none, returns the same numbers each time it is
    # called with the same shape. One with a seed generator does not.
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if not isinstance(config.get("seed", ""), (int, type(None))):
        return initializer
    if config["seed"] is not None:
        config["seed"] += index
    return type(initializer).from_config(config)


class _Regularizer(keras.regularizers.Regularizer):
    """Calls a function. Before 3.15, Keras takes no plain function of a variable."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]):
        self._function = function

    def __call__(self, params: tf.Tensor) -> tf.Tensor:
        return self._function(params)


class _Constraint(keras.constraints.Constraint):
    """Calls a function, for the same reason."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]):
        self._function = function

    def __call__(self, params: tf.Tensor) -> tf.Tensor:
        return self._function(params)


def make_regularizer(
    config: RnnConfig,
    kernel_regularizer: Callable | None,
    recurrent_regularizer: Callable | None,
    bias_regularizer: Callable | None,
) -> keras.regularizers.Regularizer | None:
    """Returns a regularizer that applies Keras's to the buffer's parts; None if there are none."""
    functions = (kernel_regularizer, recurrent_regularizer, bias_regularizer)
    if not any(functions):
        return None

    def regularize(params: tf.Tensor) -> tf.Tensor:
        params = tf.convert_to_tensor(params)
        terms = [
            function(part)
            for function, parts in zip(functions, stacked_parts(config, params), strict=True)
            if function
            for part in parts
        ]
        return tf.add_n(terms) if terms else tf.zeros([], params.dtype)

    return _Regularizer(regularize)


def make_constraint(
    config: RnnConfig,
    kernel_constraint: Callable | None,
    recurrent_constraint: Callable | None,
    bias_constraint: Callable | None,
) -> keras.constraints.Constraint | None:
    """Returns a constraint that applies Keras's to the buffer's parts; None if there are none."""
    functions = (kernel_constraint, recurrent_constraint, bias_constraint)
    if not any(functions):
        return None

    def constrain(params: tf.Tensor) -> tf.Tensor:
        params = tf.convert_to_tensor(params)
        return params_from_stacked(
            config,
            *(
                [tf.convert_to_tensor(function(part)) for part in parts] if function else parts
                for function, parts in zip(functions, stacked_parts(config, params), strict=True)
            ),
            params=params,
        )

    return _Constraint(constrain)


def drop_recurrent_weights(
    config: RnnConfig, params: tf.Tensor, rate: float, seed: tf.Tensor
) -> tf.Tensor:
    """Returns a buffer in which numbers of the recurrent matrices are dropped at a rate."""
    parts = pseudo_layers.cut(config, params)
    for index, part in enumerate(parts):
        shape = part.recurrent_kernel.shape
        # Philox draws the same integers on every device; XLA makes other floats of them.
        options = {"minval": None, "maxval": None, "dtype": tf.int64, "alg": "philox"}
        drawn = tf.random.stateless_uniform(shape, seed + [0, index], **options)
        scaled = part.recurrent_kernel / (1.0 - rate)
        is_dropped = drawn < int(rate * 2**64) - 2**63
        masked = tf.where(is_dropped, tf.zeros_like(scaled), scaled)
        parts[index] = part._replace(recurrent_kernel=masked)
    return pseudo_layers.join(config, parts)
