"""Wraps the ops in functions that take Python's types. Their gradients are in op_gradients.py."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import _private_names
from cudnn_rnn_tf.config import DTYPES, Algorithm, RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

# `forward` calls this function instead of the op, unless it is None.
_substitute: contextvars.ContextVar[Callable[..., Any] | None] = contextvars.ContextVar(
    "substitute", default=None
)
# The functions that it calls where other packages' exporters trace a model, by format.
substitutes_for_formats: dict[str, Callable[..., Any]] = {}
ALGORITHMS = get_args(Algorithm)


def params_size(config: RnnConfig, name: str | None = None) -> tf.Tensor:
    """Returns the number of elements in the opaque buffer, a scalar int64 tensor."""
    return raw_ops.cudnn_rnn_tf_params_size(name=name, **config.params_attrs())


def canonical_to_params(
    config: RnnConfig,
    weights: Sequence[tf.Tensor],
    biases: Sequence[tf.Tensor],
    name: str | None = None,
) -> tf.Tensor:
    """Packs tensors of the layout's `weight_shapes` and `bias_shapes` into a buffer.

    Raises:
        ValueError: if a list's length or a tensor's static shape is not the layout's.
    """
    layout = config.layout
    for argument, tensors, shapes, names in (
        ("weights", weights, layout.weight_shapes, layout.weight_names),
        ("biases", biases, layout.bias_shapes, layout.bias_names),
    ):
        if len(tensors) != len(shapes):
            raise ValueError(
                f"expected {len(shapes)} {argument} for this configuration, but received "
                f"{len(tensors)}"
            )
        for tensor, shape, tensor_name in zip(tensors, shapes, names, strict=True):
            check_shape(tensor_name, tensor, shape)
    return raw_ops.cudnn_rnn_tf_canonical_to_params(
        weights=list(weights),
        biases=list(biases),
        name=name,
        **config.params_attrs(),
    )


def params_to_canonical(
    config: RnnConfig, params: tf.Tensor, name: str | None = None
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Takes an opaque buffer apart: the inverse of `canonical_to_params`.

    Returns:
        weights and biases, two lists of tensors of the buffer's dtype.

    Raises:
        ValueError: if the buffer's static shape is not [params_size].
    """
    layout = config.layout
    check_shape("params", params, (layout.size,))
    weights, biases = raw_ops.cudnn_rnn_tf_params_to_canonical(
        params=params,
        num_weights=len(layout.weight_shapes),
        num_biases=len(layout.bias_shapes),
        name=name,
        **config.params_attrs(),
    )
    return list(weights), list(biases)


def keras_to_params(
    config: RnnConfig,
    weights: Sequence[Any],
    biases: Sequence[Any],
    may_keep_params: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Packs the weights of Keras's layers into one opaque buffer, [params_size], of their dtype.

    For each pseudo-layer there is a kernel [fan_in, G * H] and a recurrent kernel [H, G * H], with
    a GRU's gates in Keras's order z r h, and a bias [G * H], or [2, G * H] with the bias mode
    "double", unless there are none. With `may_keep_params`, a CPU may keep the buffer for later
    calls with the same tensors; for reference variables of TensorFlow 1, it must be false.

    Raises:
        ValueError: in a graph, if the number of tensors or a static shape is not the network's.
        tf.errors.InvalidArgumentError: if they are not, when run.
    """
    return raw_ops.cudnn_rnn_tf_keras_to_params(
        weights=list(weights),
        biases=list(biases),
        may_keep_params=may_keep_params,
        name=name,
        **config.params_attrs(),
    )


def params_to_named(config: RnnConfig, params: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the canonical tensors of an opaque buffer by name, as checkpoints hold them."""
    weights, biases = params_to_canonical(config, params)
    return dict(zip(config.canonical_names, weights + biases, strict=True))


def named_to_params(
    config: RnnConfig, tensors: Mapping[str, Any], dtype: tf.DType, owner: str
) -> tf.Tensor:
    """Inverts `params_to_named`, for tensors of any floating-point type that come from a file.

    Raises:
        ValueError: if a tensor is missing, none of this network's, or of another static shape than
            the layout's; it is named, and so is `owner`.
    """
    if surplus := tensors.keys() - set(config.canonical_names):
        raise ValueError(
            f"expected {owner} to have the stored weights {', '.join(sorted(surplus))}, but it has "
            "no place for them: they are another network's"
        )
    canonical = []
    for name, shape in zip(config.canonical_names, config.canonical_shapes, strict=True):
        if name not in tensors:
            raise ValueError(f"stored weight {name} of {owner} is missing")
        tensor = tf.cast(tensors[name], dtype)
        check_shape(f"stored weight {name} of {owner}", tensor, shape)
        canonical.append(tensor)
    num_weights = len(config.layout.weight_shapes)
    return canonical_to_params(config, canonical[:num_weights], canonical[num_weights:])


@tf.autograph.experimental.do_not_convert
def forward(
    config: RnnConfig,
    inputs: tf.Tensor,
    states: Sequence[tf.Tensor],
    params: tf.Tensor,
    *,
    sequence_lengths: tf.Tensor | None = None,
    resets: tf.Tensor | None = None,
    seed: tf.Tensor | None = None,
    time_major: bool = True,
    is_training: bool = True,
    algorithm: Algorithm = "auto",
    may_keep_params: bool = False,
    return_cell_sequences: bool = False,
    name: str | None = None,
) -> tuple[Any, ...]:
    """Runs the network over whole sequences.

    Args:
        config: the network.
        inputs: [T, B, I] time-major, [B, T, I] batch-major.
        states: the initial states, h and an LSTM's c, of `config.state_shapes`.
        params: the opaque buffer, [params_size].
        sequence_lengths: integers [B], each in [0, T]; None where all sequences fill T. On a GPU,
            one that only the GPU knows and that is out of range makes its outputs NaN.
        resets: boolean [T, B], [B, T] batch-major: true where a segment of a sequence begins. No
            state passes between segments: the forward direction starts each from zeros, and the
            backward one at its last step. Initial states are for the first step that a direction
            reads, and a reset there discards the forward direction's. None for no resets.
        seed: int64 [2]; with dropout or recurrent dropout, the masks are a function of it. cuDNN
            has another function than CPUs and the persistent kernels have.
        time_major: the layout of inputs, states and what is returned.
        is_training: whether dropout acts, recurrent dropout included. Gradients work either
            way; out of training they cost one more forward pass.
        algorithm: on a GPU, which algorithm to use, one of `ALGORITHMS`: cuDNN's, of which "cudnn"
            takes one by a rule; this package's own, "persistent"; "auto" for what a rule takes
            for the fastest.
        may_keep_params: whether a CPU may keep the params, rearranged, for later calls with the
            same tensor in inference; for reference variables of TensorFlow 1, it must be false.
        return_cell_sequences: whether to return an LSTM's c of all steps as well.
        name: name of the op.

    Returns:
        outputs [T, B, D * P] ([B, T, D * P] batch-major), the final states as a tuple and, with
        `return_cell_sequences`, the last layer's c after each step, [T, B, D * H] ([B, T, D * H]),
        zeros past a sequence's end.

    Raises:
        ValueError: if the inputs' type or a static shape does not fit, or cell sequences are asked
            of a network without c.
        TypeError: if params or states are not of the inputs' type, or resets not boolean.
        tf.errors.InvalidArgumentError: if a shape or a sequence length does not, when run.
        tf.errors.UnimplementedError: if a GPU cannot run the network, when run. Recurrent dropout
            acts on GPUs without projection. It, resets and cell sequences are for the algorithms
            "auto" and "persistent".
    """
    dtype = inputs.dtype
    check_dtype("the type of inputs", dtype.name)
    if inputs.shape.rank not in (None, 3):
        layout = "[time, batch, input_size]" if time_major else "[batch, time, input_size]"
        raise ValueError(
            f"expected inputs of rank 3, {layout}, but received shape {tuple(inputs.shape)}"
        )
    # `as_list` is needed because, with version 2 behavior off, a shape's items are no numbers.
    sizes = [None] * 3 if inputs.shape.rank is None else inputs.shape.as_list()
    if sizes[2] not in (None, config.input_size):
        raise ValueError(
            f"expected inputs of size {config.input_size} in the last dimension, but received "
            f"shape {tuple(inputs.shape)}"
        )
    batch_size = sizes[1 if time_major else 0]
    check_shape("params", params, (config.layout.size,))
    for argument, tensor in (("params", params), *(("initial states", s) for s in states)):
        if tensor.dtype != dtype:
            raise TypeError(
                f"expected {argument} of the inputs' type, {dtype.name}, but received "
                f"{tensor.dtype.name}"
            )
    if sequence_lengths is not None:
        check_shape("sequence_lengths", sequence_lengths, (batch_size,), " ([batch])")
    if resets is not None:
        if resets.dtype != tf.bool:
            raise TypeError(f"expected resets to be boolean, but received {resets.dtype.name}")
        check_shape("resets", resets, tuple(sizes[:2]))
    check_states(config, states, batch_size, time_major)
    if return_cell_sequences and not config.is_lstm:
        raise ValueError(f"expected no return_cell_sequences: {config.rnn_mode!r} has no c")
    if substitute := _substitute_in_use():
        return substitute(
            config,
            inputs,
            states,
            params,
            sequence_lengths=sequence_lengths,
            resets=resets,
            time_major=time_major,
            is_training=is_training,
            return_cell_sequences=return_cell_sequences,
        )
    if sizes[2] is None:
        # Gradients find the input size in the static shapes of the op's tensors. The op itself
        # checks the real shape.
        inputs = tf.identity(inputs)
        inputs.set_shape((None, None, config.input_size))
    has_sequence_lengths = sequence_lengths is not None
    lengths = _lengths_where_they_are(sequence_lengths)
    output, output_h, output_c, _, cells = raw_ops.cudnn_rnn_tf_forward(
        input=inputs,
        input_h=states[0],
        input_c=states[1] if config.is_lstm else tf.constant([], dtype),
        params=params,
        sequence_lengths=lengths,
        seed=[_seed_in_host_memory(seed)] if is_training and config.draws_masks else [],
        resets=[] if resets is None else [resets],
        Tcells=[dtype] if return_cell_sequences else [],
        time_major=time_major,
        has_sequence_lengths=has_sequence_lengths,
        is_training=is_training,
        algorithm=algorithm,
        may_keep_params=may_keep_params,
        name=name,
        **config.pass_attrs(),
    )
    if not config.is_lstm:
        return output, (output_h,)
    # The op, like cuDNN, returns cell states unclipped and clips them when it reads them, but
    # callers get clipped ones.
    c, *cells = (clip_cell_state(config, each) for each in (output_c, *cells))
    return output, (output_h, c), *cells


@contextlib.contextmanager
def substituted_forward(function: Callable[..., Any]) -> Iterator[None]:
    """Makes `forward`, within the context, check its arguments and call this function.

    The function takes `forward`'s arguments except those that change no result and the seed, and
    returns what `forward` does. Other threads are not affected.
    """
    token = _substitute.set(function)
    try:
        yield
    finally:
        _substitute.reset(token)


def has_substitute() -> bool:
    """Returns whether a graph is being made that must not have this package's ops."""
    return _substitute_in_use() is not None


def _substitute_in_use() -> Callable[..., Any] | None:
    if (function := _substitute.get()) is not None or tf.executing_eagerly():
        return function
    return substitutes_for_formats.get(_private_names.format_of_exporter())


def clip_cell_state(config: RnnConfig, c: tf.Tensor) -> tf.Tensor:
    """Returns an LSTM's cell state, clipped to the configuration's bounds."""
    if not config.cell_clip:
        return c
    # The op's attribute is a float32, so the value is rounded to float32 here too.
    bound = tf.cast(tf.constant(config.cell_clip, tf.float32), c.dtype)
    return tf.clip_by_value(c, -bound, bound)


def _lengths_where_they_are(lengths: Any) -> tf.Tensor:
    """Returns lengths as the op on a GPU takes them: int32 in host memory or int64 in the GPU's.

    Lengths that are known already stay in host memory, so that the op can check them. So do int32
    arguments of functions, which TensorFlow keeps there: a copy to the GPU would begin after all
    that the GPU has to do, and the host would wait for it in each step. Others may have been
    computed on the GPU, which must not be waited for. Lengths that are None become an int64:
    TensorFlow keeps int32 constants of a GPU's functions in host memory and would copy even an
    empty one in each step.
    """
    if lengths is None:
        return tf.constant([], tf.int64)
    lengths = tf.convert_to_tensor(lengths)
    if not tf.executing_eagerly():
        if lengths.dtype == tf.int32 and lengths.op.type == "Placeholder":
            return lengths
        known = tf.get_static_value(lengths)
    else:
        known = lengths.numpy() if lengths.backing_device.endswith("CPU:0") else None
    if known is None:
        return tf.cast(lengths, tf.int64)
    if lengths.dtype == tf.int32:
        return lengths
    known = known.astype(np.int64, copy=False)
    if (known >> 31).any():
        # A cast alone would take the lower half of a length, which may be one that fits.
        known = np.clip(known, tf.int32.min, tf.int32.max)
    return tf.constant(known.astype(np.int32))


def _seed_in_host_memory(seed: tf.Tensor | None) -> tf.Tensor:
    """Returns the seed in host memory, where the op reads it; zeros if it is None.

    A seed on a GPU would have to be copied in each pass, and the copy waits for the GPU.
    """
    if seed is not None:
        is_eager = tf.executing_eagerly() and isinstance(seed, tf.Tensor)
        if not is_eager or seed.backing_device.endswith("CPU:0"):
            return seed
    with tf.device("CPU:0"):
        return tf.constant([0, 0], tf.int64) if seed is None else tf.identity(seed)


def check_states(
    config: RnnConfig, states: Sequence[Any], batch_size: int | None, time_major: bool
) -> None:
    """Raises ValueError if the number of initial states or a static shape is wrong."""
    shapes = config.state_shapes(batch_size, time_major)
    if len(states) != len(shapes):
        raise ValueError(
            f"expected {len(shapes)} initial states for {config.rnn_mode!r}, but received "
            f"{len(states)}"
        )
    # The message names the dimensions, since states of Keras's own layers lack the one of layers.
    first = "layers * directions, batch" if time_major else "batch, layers * directions"
    for argument, state, shape in zip(("initial h", "initial c"), states, shapes, strict=False):
        check_shape(argument, state, shape, f" ([{first}, size])")


def zero_states(
    config: RnnConfig, batch_size: Any, dtype: tf.DType, time_major: bool
) -> list[tf.Tensor]:
    """Returns initial states of zeros; to make one takes the host a tenth of an eager call."""
    sizes = config.state_sizes()
    shapes = dict(zip(sizes, config.state_shapes(batch_size, time_major), strict=True))
    zeros = {size: tf.zeros(shape, dtype) for size, shape in shapes.items()}
    return [zeros[size] for size in sizes]


def kept_states(
    states: Sequence[tf.Tensor], batch_size: int | None, batch_axis: int
) -> list[tf.Tensor]:
    """Returns a stateful layer's states, of unknown batch size where that of the inputs is unknown.

    Outputs would otherwise have the states' batch size. For a last batch that is short, a loss
    would then fail, of its own shapes, before `forward` says what is wrong.
    """
    if batch_size is not None:
        return list(states)
    shapes = [[*state.shape[:batch_axis], None, *state.shape[batch_axis + 1 :]] for state in states]
    return [
        tf.compat.v1.placeholder_with_default(state, shape)
        for state, shape in zip(states, shapes, strict=True)
    ]


def check_dtype(what: str, dtype: str) -> None:
    """Raises ValueError if the ops do not run networks in a type."""
    if dtype not in DTYPES:
        *others, last = DTYPES
        raise ValueError(
            f"expected {what} to be {', '.join(others)} or {last}, but received {dtype}"
        )


def check_are_real(argument: str, dtype: tf.DType) -> None:
    """Raises TypeError unless tensors of this type become a network's inputs without a loss."""
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise TypeError(f"expected {argument} to be real numbers, but received {dtype.name}")


def check_shape(
    argument: str, tensor: tf.Tensor, shape: tuple[int | None, ...], meaning: str = ""
) -> None:
    """Raises ValueError, naming the argument, if a static shape cannot be `shape`."""
    if not tf.TensorShape(shape).is_compatible_with(tensor.shape):
        raise ValueError(
            f"expected {argument} of shape {tuple(shape)}{meaning}, but received "
            f"{tuple(tensor.shape)}"
        )
