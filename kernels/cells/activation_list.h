// Every activation, and what the ops' attributes call it. kOwn stands for the
// kind's own: the sigmoid for gates and tanh or, of RnnRelu, ReLU for the rest.
// kKeras2HardSigmoid is 0.2 x + 0.5 within 0 and 1, and kHardSigmoid, Keras 3's
// and PyTorch's, x / 6 + 0.5.
#define CRNN_ACTIVATIONS(EACH)       \
  EACH(kOwn, "")                     \
  EACH(kTanh, "tanh")                \
  EACH(kSigmoid, "sigmoid")          \
  EACH(kRelu, "relu")                \
  EACH(kLinear, "linear")            \
  EACH(kSoftsign, "softsign")        \
  EACH(kElu, "elu")                  \
  EACH(kHardSigmoid, "hard_sigmoid") \
  EACH(kKeras2HardSigmoid, "keras_2_hard_sigmoid")
#define CRNN_VALUE_OF_ACTIVATION(value, name) value,
#define CRNN_NAME_OF_ACTIVATION(value, name) name,
