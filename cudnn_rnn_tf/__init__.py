"""Fast LSTM, GRU and plain recurrent layers for TensorFlow 2 and Keras 3, on GPUs and CPUs.

`cudnn_rnn_tf.keras` has drop-ins for Keras's layers, and `accelerate` puts them into a model.
`CudnnLSTM`, `CudnnGRU`, `CudnnRNNTanh` and `CudnnRNNRelu` are Keras layers;
`cudnn_rnn_ops` holds the op-level models of `tf.contrib.cudnn_rnn`. Importing the package
registers the ops, which a SavedModel that uses them needs.
"""

import typing as _typing

from cudnn_rnn_tf import native
from cudnn_rnn_tf.commands import command_line as _command_line

try:
    with _command_line.before_tensorflow():
        import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as error:
    # If TensorFlow is missing, cudnn_rnn_tf.native still works.
    _missing = str(error)
    # An editor would take these for what there is always.
    if not _typing.TYPE_CHECKING:
        __all__ = ["native"]

        def __getattr__(name: str) -> None:
            raise AttributeError(
                f"cudnn_rnn_tf.{name} needs TensorFlow, which cannot be imported ({_missing}); "
                "only cudnn_rnn_tf.native works without it"
            )
else:
    import keras as _keras

    if _keras.backend.backend() != "tensorflow":
        raise ImportError(
            "cudnn_rnn_tf needs Keras's TensorFlow backend, but Keras runs on "
            f"{_keras.backend.backend()!r}: set the environment variable KERAS_BACKEND to "
            "'tensorflow' before Keras is imported"
        )

    from cudnn_rnn_tf import constants as _constants
    from cudnn_rnn_tf import contrib, convert, cudnn_rnn_ops, keras
    from cudnn_rnn_tf.cells import CudnnCompatibleGRUCell, CudnnCompatibleLSTMCell
    from cudnn_rnn_tf.commands.installation_info import __version__, info
    from cudnn_rnn_tf.constants import *  # noqa: F403 - All of them.
    from cudnn_rnn_tf.contrib.saveable import (
        CudnnGRUSaveable,
        CudnnLSTMSaveable,
        CudnnOpaqueParamsSaveable,
        CudnnRNNReluSaveable,
        CudnnRNNTanhSaveable,
        RNNParamsSaveable,
        canonical_var_list,
    )
    from cudnn_rnn_tf.convert import load_keras_model, load_keras_weights
    from cudnn_rnn_tf.cpu_predictor import CpuPredictor
    from cudnn_rnn_tf.exports.litert_export import export_litert
    from cudnn_rnn_tf.exports.onnx_export import export_onnx
    from cudnn_rnn_tf.exports.portable import export_portable
    from cudnn_rnn_tf.initializers import AllGates, PerGate, TorchUniform
    from cudnn_rnn_tf.keras import accelerate, acceleration_report, registration, to_stock
    from cudnn_rnn_tf.layers import CudnnGRU, CudnnLSTM, CudnnRNN, CudnnRNNRelu, CudnnRNNTanh
    from cudnn_rnn_tf.ops import (
        op_gradients,  # noqa: F401 - Registers gradients.
        second_order,  # noqa: F401 - Registers a gradient.
    )
    from cudnn_rnn_tf.ops.op_library import op_library_path

    registration.find_ours()

    __all__ = [
        "AllGates",
        "CpuPredictor",
        "CudnnCompatibleGRUCell",
        "CudnnCompatibleLSTMCell",
        "CudnnGRU",
        "CudnnGRUSaveable",
        "CudnnLSTM",
        "CudnnLSTMSaveable",
        "CudnnOpaqueParamsSaveable",
        "CudnnRNN",
        "CudnnRNNRelu",
        "CudnnRNNReluSaveable",
        "CudnnRNNTanh",
        "CudnnRNNTanhSaveable",
        "PerGate",
        "RNNParamsSaveable",
        "TorchUniform",
        "__version__",
        "accelerate",
        "acceleration_report",
        "canonical_var_list",
        "contrib",
        "convert",
        "cudnn_rnn_ops",
        "export_litert",
        "export_onnx",
        "export_portable",
        "info",
        "keras",
        "load_keras_model",
        "load_keras_weights",
        "native",
        "op_library_path",
        "to_stock",
    ]
    __all__ += _constants.__all__


def __dir__() -> list[str]:
    """Returns the public names, which a prompt then completes."""
    return __all__
