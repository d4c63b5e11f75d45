"""Runs a layer's inference on a CPU with NumPy arrays, in calls that go past TensorFlow."""

import functools
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from cudnn_rnn_tf.arguments import check_names, checked
from cudnn_rnn_tf.available_cpus import available_cpus
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.keywords import INSTEAD_IN_CALLS
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN, what_to_pass
from cudnn_rnn_tf.native import _native


class _State(NamedTuple):
    """Everything that another process needs to make the same predictor."""

    config: RnnConfig
    params: np.ndarray
    time_major: bool
    go_backwards: bool
    num_threads: int


_CALL = {"inputs", "initial_state", "sequence_lengths", "resets"}
_INSTEAD = {
    **INSTEAD_IN_CALLS,
    "mask": "write sequence_lengths=..., as masked steps must come last; the layer takes any mask",
}
# A larger number is taken for a mistake: so many threads must not be started.
_MAX_THREADS = 1024


class CpuPredictor:
    """Runs a layer's inference on the CPU: calls the layer's kernels without TensorFlow.

    Apart from the arithmetic, a call takes microseconds, whereas one of a `tf.function` takes
    hundreds. Results are the layer's on the CPU, to the bit. Any number of Python threads may call
    one predictor at the same time, since the interpreter's lock is released meanwhile. A predictor
    can be pickled for other processes.

    Args:
        layer: a built `CudnnLSTM`, `CudnnGRU`, `CudnnRNNTanh` or `CudnnRNNRelu`. Its weights are
            copied, as its compute dtype, so later changes of the layer have no effect. Of its
            options, `time_major` and `go_backwards` apply; `return_sequences`, `return_state` and
            `stateful` do not, since a call always takes and returns all outputs and states.
        num_threads: threads that compute a call, including the calling one; None for as many as
            the process has processors, or fewer if a container limits its processor time, up to
            1024. One thread computes a small call, unless a thread's calls follow each other
            closely. Results do not depend on it. A call that comes while another one uses all
            threads is computed by its own thread alone.

    Raises:
        TypeError: if `layer` is none of these, or `num_threads` no integer.
        ValueError: if the layer is not built or returns cell sequences, or `num_threads` does not
            lie in [1, 1024].
    """

    @functools.partial(checked, instead={"threads": "write num_threads=..."})
    def __init__(self, layer: CudnnRNN, num_threads: int | None = None):
        if not isinstance(layer, CudnnRNN):
            raise TypeError(
                "expected layer to be a CudnnLSTM, CudnnGRU, CudnnRNNTanh or CudnnRNNRelu, but "
                f"received {layer!r}{what_to_pass(layer)}"
            )
        if layer.return_cell_sequences:
            raise ValueError(
                f"expected return_cell_sequences of layer {layer.name!r} to be False: a "
                "CpuPredictor returns outputs and final states only"
            )
        if num_threads is None:
            num_threads = min(available_cpus(), _MAX_THREADS)
        if not 1 <= num_threads <= _MAX_THREADS:
            raise ValueError(
                f"expected num_threads to lie in [1, {_MAX_THREADS}], but received {num_threads}"
            )
        config = layer._built_config()
        params = tf.cast(layer._built_kernel().value, layer.compute_dtype).numpy()
        order = layer.time_major, layer.go_backwards
        self.__setstate__(_State(config, params, *order, int(num_threads)))

    @property
    def num_threads(self) -> int:
        """The number of threads that compute a call, including the calling one."""
        return self._state.num_threads

    def __repr__(self) -> str:
        config = self._state.config
        return (
            f"CpuPredictor({config.rnn_mode}, num_layers={config.num_layers}, "
            f"num_units={config.num_units}, input_size={config.input_size}, "
            f"direction={config.direction!r}, dtype={self._state.params.dtype.name}, "
            f"num_threads={self.num_threads})"
        )

    def __getstate__(self) -> "_State":
        return self._state

    def __setstate__(self, state: "_State") -> None:
        self._state = state
        self._call = _native.PredictorBinding(state.config.layout, *state[1:])

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        sequence_lengths: Any = None,
        resets: Any = None,
        **others: NoReturn,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Runs the network over whole sequences, or over the next part of them.

        `outputs, states = predictor(part, initial_state=states)` goes on where the last part
        ended.

        Args:
            inputs: [B, T, I] ([T, B, I] time-major), an array or what NumPy makes one of. Dense
                arrays of the predictor's dtype are read where they are, others copied.
            initial_state: h [B, L * D, P], for an LSTM a list or tuple of h and c [B, L * D, H]
                (time-major: L * D first). P is `num_proj` where set, else H. Zeros by default.
            sequence_lengths: integers [B], each in [0, T]: steps past a sequence's end are not
                read, outputs there are zero, and the final state is the state at the end.
            resets: boolean [B, T] ([T, B] time-major), true where a new segment of a sequence
                begins, as of the layer.
            **others: none; an error says what to write in their place.

        Returns:
            outputs [B, T, D * P] ([T, B, D * P] time-major), and a tuple of the final states, each
            as its initial state; new arrays of the layer's compute dtype.

        Raises:
            TypeError: if an argument is no array of numbers or not known here, as a mask is,
                `sequence_lengths` not integers, or `resets` not boolean.
            ValueError: if a shape does not fit, or a sequence length is out of range.
        """
        if others:
            check_names("a call of a CpuPredictor", others, _CALL, _INSTEAD)
            raise TypeError(f"a call of a CpuPredictor has no arguments {sorted(others)}")
        return self._call(inputs, initial_state, sequence_lengths, resets)
