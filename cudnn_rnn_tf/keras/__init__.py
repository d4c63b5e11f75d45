"""Drop-ins for `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `Bidirectional`, run by the fused ops.

A program only has to change the import: the classes are subclasses of Keras's, so constructors,
weights, configs and errors stay the same. `layer.runs_fused` says whether the ops run a
layer.
"""

from cudnn_rnn_tf.keras.acceleration import accelerate, to_stock
from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.fusion import Fusion
from cudnn_rnn_tf.keras.layers import GRU, LSTM, SimpleRNN
from cudnn_rnn_tf.keras.report import AccelerationReport, LayerReport, acceleration_report
from cudnn_rnn_tf.keras.stack import Stack

__all__ = [
    "GRU",
    "LSTM",
    "AccelerationReport",
    "Bidirectional",
    "Fusion",
    "LayerReport",
    "SimpleRNN",
    "Stack",
    "accelerate",
    "acceleration_report",
    "to_stock",
]
