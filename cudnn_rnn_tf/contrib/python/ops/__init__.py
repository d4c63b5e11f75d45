"""The path that modules had in `tensorflow.contrib.cudnn_rnn`."""
