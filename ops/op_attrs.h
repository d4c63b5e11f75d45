// The attributes that describe a network, which the ops share. Saved graphs
// hold ops, so attributes may only be added, and only with defaults.
#ifndef CUDNN_RNN_TF_OPS_OP_ATTRS_H_
#define CUDNN_RNN_TF_OPS_OP_ATTRS_H_

#define CRNN_SPEC_ATTRS                                                    \
  Attr(                                                                    \
      "rnn_mode: {'lstm', 'gru', 'rnn_tanh', 'rnn_relu', "                 \
      "'gru_reset_before', 'lstm_peephole', 'lstm_layer_norm', "           \
      "'gru_layer_norm'} = 'lstm'")                                        \
      .Attr("num_layers: int >= 1 = 1")                                    \
      .Attr("num_units: int >= 1")                                         \
      .Attr("num_proj: int >= 0 = 0")                                      \
      .Attr("input_mode: {'linear_input', 'skip_input'} = 'linear_input'") \
      .Attr(                                                               \
          "direction: {'unidirectional', 'bidirectional'} = "              \
          "'unidirectional'")                                              \
      .Attr(                                                               \
          "bias_mode: {'none', 'single_input', 'single_recurrent', "       \
          "'double'} = 'double'")

#define CRNN_RUN_ATTRS                                \
  Attr("dropout: float = 0.0")                        \
      .Attr("cell_clip: float = 0.0")                 \
      .Attr("time_major: bool = true")                \
      .Attr("has_sequence_lengths: bool = false")     \
      .Attr("Tlengths: {int32, int64} = DT_INT32")    \
      .Attr("recurrent_dropout: float = 0.0")         \
      .Attr("activation: string = ''")                \
      .Attr("recurrent_activation: string = ''")      \
      .Attr("layer_norm_epsilon: float = 1e-12")      \
      .Attr("zoneout: float = 0.0")                   \
      .Attr("cell_zoneout: float = 0.0")              \
      .Attr("Tseed: list({int64}) >= 0 = [DT_INT64]") \
      .Attr("Tresets: list({bool}) >= 0 = []")        \
      .Attr("Tcells: list({float64, float32, float16, bfloat16}) >= 0 = []")

#define CRNN_TYPE_ATTR Attr("T: {float64, float32, float16, bfloat16}")

#endif  // CUDNN_RNN_TF_OPS_OP_ATTRS_H_
