"""The cells of `tf.nn.rnn_cell`, which TensorFlow still has but does not show under Keras 3."""

from cudnn_rnn_tf._private_names import legacy_rnn_cells as _cells

__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DeviceWrapper",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
]

BasicLSTMCell = _cells.BasicLSTMCell
BasicRNNCell = _cells.BasicRNNCell
DeviceWrapper = _cells.DeviceWrapper
DropoutWrapper = _cells.DropoutWrapper
GRUCell = _cells.GRUCell
LSTMCell = _cells.LSTMCell
LSTMStateTuple = _cells.LSTMStateTuple
MultiRNNCell = _cells.MultiRNNCell
RNNCell = _cells.RNNCell
ResidualWrapper = _cells.ResidualWrapper
