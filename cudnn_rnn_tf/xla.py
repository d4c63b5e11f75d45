"""Tells Keras which layers XLA can compile."""

import functools
import logging

import keras

from cudnn_rnn_tf import _private_names
from cudnn_rnn_tf.ops import op_library

logger = logging.getLogger("cudnn_rnn_tf")


class CompiledByXla(keras.layers.Layer):
    """The base class of layers that run this package's ops."""

    @property
    def supports_jit(self) -> bool:
        """Whether Keras is to compile a model with this layer for XLA.

        Keras asks for `jit_compile=True` and, where there is a GPU, for the default, "auto". With
        the latter, models with these layers are not compiled, as with Keras's own recurrent layers
        on a GPU: each new number of time steps would be compiled anew.
        """
        if not self._supports_jit or not self._runs_ops():
            return self._supports_jit
        return _can_compile() and not _private_names.is_resolving_auto_jit_compile()

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self._supports_jit = value

    def _runs_ops(self) -> bool:
        return True


@functools.cache
def _can_compile() -> bool:
    if op_library.no_xla:
        logger.info("layers run without XLA, also with jit_compile=True: %s", op_library.no_xla)
    return not op_library.no_xla
