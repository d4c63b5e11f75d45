"""Tells Keras which layers XLA can compile."""

import functools
import logging

import keras
import tensorflow as tf

from cudnn_rnn_tf import op_library

logger = logging.getLogger("cudnn_rnn_tf")


class CompiledByXla(keras.layers.Layer):
    """The base class of layers that run this package's ops."""

    @property
    def supports_jit(self) -> bool:
        """Whether Keras is to compile a model with this layer for XLA.

        Keras's `jit_compile="auto"` asks as `jit_compile=True` does, if there is a GPU. On a GPU,
        XLA compiles only some networks, so that there the answer is no.
        """
        return self._supports_jit and (not self._runs_ops() or _can_compile())

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self._supports_jit = value

    def _runs_ops(self) -> bool:
        return True


def why_not() -> str:
    """Returns why models with the ops are not compiled in this process; "" if they are."""
    if op_library.no_xla:
        return op_library.no_xla
    if tf.config.get_visible_devices("GPU"):
        return "there is a GPU, for which XLA compiles only some networks"
    return ""


@functools.cache
def _can_compile() -> bool:
    reason = why_not()
    if reason:
        logger.info("layers run without XLA, also with jit_compile=True: %s", reason)
    return not reason
