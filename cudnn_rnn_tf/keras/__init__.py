"""Drop-ins for Keras's recurrent layers, run by the fused ops: `LSTM`, `GRU`, `SimpleRNN`, `RNN`.

`Bidirectional` wraps them as Keras's does, and the cells of an `RNN` are Keras's own.

A program only has to change the import: the classes are subclasses of Keras's, so constructors,
weights, configs and errors stay the same. `layer.runs_fused` says whether the ops run a
layer.
"""

from keras.layers import GRUCell, LSTMCell, SimpleRNNCell, StackedRNNCells

from cudnn_rnn_tf.keras.acceleration import accelerate, to_stock
from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.fusion import Fusion
from cudnn_rnn_tf.keras.layers import GRU, LSTM, RNN, SimpleRNN
from cudnn_rnn_tf.keras.old_names import CuDNNGRU, CuDNNLSTM
from cudnn_rnn_tf.keras.report import AccelerationReport, LayerReport, acceleration_report
from cudnn_rnn_tf.keras.stack import Stack

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AccelerationReport",
    "Bidirectional",
    "CuDNNGRU",
    "CuDNNLSTM",
    "Fusion",
    "GRUCell",
    "LSTMCell",
    "LayerReport",
    "SimpleRNN",
    "SimpleRNNCell",
    "Stack",
    "StackedRNNCells",
    "accelerate",
    "acceleration_report",
    "to_stock",
]
