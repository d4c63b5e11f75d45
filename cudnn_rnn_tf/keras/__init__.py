"""Drop-ins for `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `Bidirectional`, run by the fused ops.

Change the import and keep the program: constructors, weights, configs, files and errors are Keras's
own, as the classes are subclasses of Keras's. `layer.runs_fused` says whether the ops run a layer.
"""

from cudnn_rnn_tf.keras.acceleration import accelerate
from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.fusion import Fusion
from cudnn_rnn_tf.keras.layers import GRU, LSTM, SimpleRNN
from cudnn_rnn_tf.keras.stack import Stack

__all__ = ["GRU", "LSTM", "Bidirectional", "Fusion", "SimpleRNN", "Stack", "accelerate"]
