"""Registers the gradients of the ops, except that of `CudnnRnnTf>Backward`: see second_order.py."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf import _private_names, native
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

_SPEC_ATTRS, _SIZE_ATTRS, _PASS_ATTRS = map(tuple, native.spec_fields())
_CONFIG_ATTRS = _SPEC_ATTRS + _PASS_ATTRS
_RUN_ATTRS = _CONFIG_ATTRS + ("time_major", "has_sequence_lengths")
_FORWARD_ATTRS = _RUN_ATTRS + ("is_training", "algorithm", "Tcells")
_PARAMS_ATTRS = _SPEC_ATTRS + _SIZE_ATTRS


def _attrs(op: tf.Operation, names: Sequence[str]) -> dict[str, Any]:
    attrs = {name: op.get_attr(name) for name in names}
    return {
        name: tf.compat.as_str(value) if isinstance(value, bytes) else value
        for name, value in attrs.items()
    }


def config_of(op: tf.Operation) -> RnnConfig:
    """Returns the network that a Forward or a Backward op runs.

    Raises:
        ValueError: if the static shape of its inputs does not say their size.
    """
    shape = op.inputs[0].shape
    input_size = None if shape.rank is None else shape.as_list()[2]
    if input_size is None:
        raise ValueError(
            "expected inputs with a static last dimension, of which a gradient of the gradient is "
            f"made, but received shape {shape}"
        )
    return RnnConfig(input_size=input_size, **_attrs(op, _CONFIG_ATTRS))


@tf.RegisterGradient("CudnnRnnTf>Forward")
def _forward_gradient(op: tf.Operation, *output_grads: Any) -> tuple[Any, ...]:
    attrs = _attrs(op, _FORWARD_ATTRS)
    grads = output_grads[:3] + output_grads[4:]
    return _backward(list(op.inputs), list(op.outputs), attrs, grads)


def _backward(
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    attrs: Mapping[str, Any],
    output_grads: Sequence[tf.Tensor],
) -> tuple[Any, ...]:
    """Returns the gradients of a Forward's inputs, of those of all outputs that have some."""
    # Only the kind of device that ran a forward pass can read what it keeps, so the gradient is
    # placed as that pass is, whatever the scope of `tf.device` in which it is asked for. An op of a
    # graph that has no such scope has "" for its device, but only None leaves other scopes.
    with tf.device(outputs[0].device or None):
        run_attrs = {name: attrs[name] for name in _RUN_ATTRS}
        seeds, resets = (
            [each for each in inputs[5:] if each.dtype == dtype] for dtype in (tf.int64, tf.bool)
        )
        if not attrs["is_training"]:
            # An inference pass keeps nothing for its gradient, so that it is cheap if no gradient
            # follows. If one does, the pass runs again, still without dropout and, as it has no
            # seed, with the expected values of zoneout.
            seeds = []
            run_attrs["dropout"] = run_attrs["recurrent_dropout"] = 0.0
            outputs = raw_ops.cudnn_rnn_tf_forward(
                *inputs[:5],
                seeds,
                resets,
                is_training=True,
                algorithm=attrs["algorithm"],
                Tcells=attrs["Tcells"],
                **run_attrs,
            )
        grads = raw_ops.cudnn_rnn_tf_backward(
            *inputs[:5],
            seeds,
            *outputs[:3],
            *output_grads[:3],
            outputs[3],
            resets,
            output_grads[3:],
            **run_attrs,
        )
    return *grads, *[None for _ in inputs[4:]]


def _recorded_without_reserve_space(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the op Forward with its own way to a tape where it runs outside of a graph.

    A tape makes zeros in place of the gradient of each output that nothing has read. They are as
    large as the reserve space, and from 2 GiB on TensorFlow fails to make them. So a tape is told
    of an operation that lacks this output.
    """
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (tf.executing_eagerly() and _private_names.could_possibly_record()):
            return forward(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        attrs = bound.arguments
        *tensors, lengths = [attrs[name] for name in list(attrs)[:5]]
        dtype = next((each.dtype for each in tensors if hasattr(each, "dtype")), None)
        # A variable is read here, where the tape sees it.
        inputs = [tf.convert_to_tensor(each, dtype_hint=dtype) for each in tensors]
        inputs.append(tf.convert_to_tensor(lengths, dtype_hint=tf.int32))
        lists = {
            name: [tf.convert_to_tensor(each, dtype_hint=dtype) for each in attrs[name]]
            for name, dtype in (("seed", tf.int64), ("resets", tf.bool))
        }
        attrs.update(zip(attrs, inputs, strict=False), **lists)
        if _private_names.pack_tangents(inputs).tangents:
            # An accumulator goes by the op itself. Tapes take what they are told of last.
            outputs = forward(**attrs)
        else:
            with _private_names.stop_recording():
                outputs = forward(**attrs)
        inputs += lists["seed"] + lists["resets"]
        _private_names.record_operation_backprop_only(
            "CudnnRnnTf>Forward",
            [*outputs[:3], *outputs[4]],
            inputs,
            lambda *grads: _backward(inputs, outputs, attrs, grads),
        )
        return outputs

    return call


raw_ops.cudnn_rnn_tf_forward = _recorded_without_reserve_space(raw_ops.cudnn_rnn_tf_forward)


def _register_conversions(
    to_params: str, pack: Callable[..., Any], from_params: str, unpack: Callable[..., Any]
) -> None:
    """Registers the gradients of two ops that move numbers: each moves the other's gradients."""

    @tf.RegisterGradient(f"CudnnRnnTf>{to_params}")
    def _to_params_gradient(op: tf.Operation, params_grad: tf.Tensor) -> tuple[Any, ...]:
        weights, biases = unpack(
            params_grad,
            num_weights=op.get_attr("num_weights"),
            num_biases=op.get_attr("num_biases"),
            **_attrs(op, _PARAMS_ATTRS),
        )
        return *weights, *biases

    @tf.RegisterGradient(f"CudnnRnnTf>{from_params}")
    def _from_params_gradient(op: tf.Operation, *grads: tf.Tensor) -> tf.Tensor:
        num_weights = op.get_attr("num_weights")
        return pack(
            weights=grads[:num_weights], biases=grads[num_weights:], **_attrs(op, _PARAMS_ATTRS)
        )


_register_conversions(
    "CanonicalToParams",
    raw_ops.cudnn_rnn_tf_canonical_to_params,
    "ParamsToCanonical",
    raw_ops.cudnn_rnn_tf_params_to_canonical,
)
_register_conversions(
    "KerasToParams",
    raw_ops.cudnn_rnn_tf_keras_to_params,
    "ParamsToKeras",
    raw_ops.cudnn_rnn_tf_params_to_keras,
)


def _register_moves(name: str, inverse: Callable[..., Any]) -> None:
    """Registers the gradient of an op that moves steps: its inverse moves the gradients back."""

    @tf.RegisterGradient(f"CudnnRnnTf>{name}")
    def _move_gradient(op: tf.Operation, moved_grad: tf.Tensor) -> tuple[Any, ...]:
        attrs = _attrs(op, ("time_major", "go_backwards", "repeat_masked"))
        return inverse(moved_grad, *op.inputs[1:], **attrs), None, None


_register_moves("PackSteps", raw_ops.cudnn_rnn_tf_unpack_steps)
_register_moves("UnpackSteps", raw_ops.cudnn_rnn_tf_pack_steps)
