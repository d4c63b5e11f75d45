"""Registers the gradients of the ops, except that of `CudnnRnnTf>Backward`: see second_order.py."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.op_library import raw_ops

_SPEC_ATTRS = (
    "rnn_mode",
    "num_layers",
    "num_units",
    "num_proj",
    "input_mode",
    "direction",
    "bias_mode",
)
_CONFIG_ATTRS = _SPEC_ATTRS + ("dropout", "cell_clip", "recurrent_dropout")
_RUN_ATTRS = _CONFIG_ATTRS + ("time_major", "has_sequence_lengths")
_PARAMS_ATTRS = _SPEC_ATTRS + ("input_size",)


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
    return RnnConfig(
        input_size=input_size,
        **_attrs(op, _CONFIG_ATTRS),
    )


@tf.RegisterGradient("CudnnRnnTf>Forward")
def _forward_gradient(
    op: tf.Operation, output_grad: Any, output_h_grad: Any, output_c_grad: Any, _: Any
) -> tuple[Any, ...]:
    # Only the kind of device that ran a forward pass can read what it keeps, so the gradient is
    # placed as that pass is, whatever the scope of `tf.device` in which it is asked for. An op of a
    # graph that has no such scope has "" for its device, but only None leaves other scopes.
    with tf.device(op.outputs[0].device or None):
        return _backward(op, output_grad, output_h_grad, output_c_grad)


def _backward(op: tf.Operation, *output_grads: Any) -> tuple[Any, ...]:
    attrs = _attrs(op, _RUN_ATTRS)
    inputs, seeds = list(op.inputs)[:5], list(op.inputs)[5:]
    outputs = list(op.outputs)
    if not op.get_attr("is_training"):
        # An inference pass keeps nothing for its gradient, so that it is cheap if no gradient
        # follows. If one does, the pass runs again, still without dropout.
        attrs["dropout"] = attrs["recurrent_dropout"] = 0.0
        algorithm = _attrs(op, ["algorithm"])["algorithm"]
        outputs = list(
            raw_ops.cudnn_rnn_tf_forward(
                *inputs,
                seeds,
                is_training=True,
                algorithm="standard" if algorithm == "resident" else algorithm,
                **attrs,
            )
        )
    output, output_h, output_c, reserve_space = outputs
    grads = raw_ops.cudnn_rnn_tf_backward(
        *inputs,
        seeds,
        output,
        output_h,
        output_c,
        *output_grads,
        reserve_space,
        **attrs,
    )
    return *grads, None, *[None for _ in seeds]


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
