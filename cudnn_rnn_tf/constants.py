"""The names of modes, as `tf.contrib.cudnn_rnn` spelled them."""

from typing import Final

__all__ = [
    "CUDNN_GRU",
    "CUDNN_GRU_PARAMS_PER_LAYER",
    "CUDNN_INPUT_AUTO_MODE",
    "CUDNN_INPUT_LINEAR_MODE",
    "CUDNN_INPUT_SKIP_MODE",
    "CUDNN_LSTM",
    "CUDNN_LSTM_PARAMS_PER_LAYER",
    "CUDNN_RNN_BIDIRECTION",
    "CUDNN_RNN_RELU",
    "CUDNN_RNN_RELU_PARAMS_PER_LAYER",
    "CUDNN_RNN_TANH",
    "CUDNN_RNN_TANH_PARAMS_PER_LAYER",
    "CUDNN_RNN_UNIDIRECTION",
    "GRU_LAYER_NORM",
    "GRU_RESET_BEFORE",
    "LSTM_LAYER_NORM",
    "LSTM_PEEPHOLE",
]

CUDNN_LSTM: Final = "lstm"
CUDNN_GRU: Final = "gru"
# The GRU whose reset gate acts before the recurrent product, which cuDNN does not have.
GRU_RESET_BEFORE: Final = "gru_reset_before"
# The LSTM whose gates see the cell state, which cuDNN does not have.
LSTM_PEEPHOLE: Final = "lstm_peephole"
# The LSTM and the GRU whose sums are normalised over the units, which cuDNN does not have.
LSTM_LAYER_NORM: Final = "lstm_layer_norm"
GRU_LAYER_NORM: Final = "gru_layer_norm"
CUDNN_RNN_RELU: Final = "rnn_relu"
CUDNN_RNN_TANH: Final = "rnn_tanh"

CUDNN_RNN_UNIDIRECTION: Final = "unidirectional"
CUDNN_RNN_BIDIRECTION: Final = "bidirectional"

CUDNN_INPUT_LINEAR_MODE: Final = "linear_input"
CUDNN_INPUT_SKIP_MODE: Final = "skip_input"
# This is skip_input if input_size equals num_units, else linear_input.
CUDNN_INPUT_AUTO_MODE: Final = "auto_select"

# The number of weights, and also of biases, of one pseudo-layer with both bias sets.
CUDNN_LSTM_PARAMS_PER_LAYER: Final = 8
CUDNN_GRU_PARAMS_PER_LAYER: Final = 6
CUDNN_RNN_TANH_PARAMS_PER_LAYER: Final = 2
CUDNN_RNN_RELU_PARAMS_PER_LAYER: Final = 2
