"""Tells Keras which layers XLA can compile."""

import functools
import logging

import keras
import tensorflow as tf

from cudnn_rnn_tf import op_library

logger = logging.getLogger("cudnn_rnn_tf")


class CompiledByXla(keras.layers.Layer):
    """The base class of layers that run this package's ops, which XLA can compile on CPUs."""

    @property
    def supports_jit(self) -> bool:
        """Whether XLA can compile a model with this layer, as Keras asks it."""
        return self._supports_jit and (not self._runs_ops() or _can_compile())

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self._supports_jit = value

    def _runs_ops(self) -> bool:
        return True


def why_not() -> str:
    """Returns why XLA cannot compile the ops in this process; "" if it can."""
    if op_library.no_xla:
        return op_library.no_xla
    if tf.config.get_visible_devices("GPU"):
        return "XLA compiles the ops for CPUs only, and TensorFlow sees a GPU"
    return ""


@functools.cache
def _can_compile() -> bool:
    reason = why_not()
    if reason:
        logger.info("layers run without XLA, also with jit_compile=True: %s", reason)
    return not reason
