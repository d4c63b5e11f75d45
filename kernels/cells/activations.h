// The activations. F has Relu and OneMinus, as for cells, and
//   Sigmoid(x), Tanh(x).
//   Linear(x, a, b): a * x + b.
//   Abs(x), Min0(x): the magnitude of x, and the smaller one of x and 0.
//   ExpMinus1(x): exp(x) - 1, for x up to 0.
//   Within01(x): x within 0 and 1.
// and, for slopes,
//   Step(y), Inside01(y): 1 where y > 0, or where 0 < y < 1, else 0.
#include "activation_list.h"

// The numbers are those of Activation in rnn_spec.h. Whoever asks for one knows
// what a cell's own activations are.
enum class ActivationNumber { CRNN_ACTIVATIONS(CRNN_VALUE_OF_ACTIVATION) };

template <typename F, typename V>
V Activated(const F& f, int activation, V x) {
  switch (static_cast<ActivationNumber>(activation)) {
    case ActivationNumber::kTanh:
      return f.Tanh(x);
    case ActivationNumber::kSigmoid:
      return f.Sigmoid(x);
    case ActivationNumber::kRelu:
      return f.Relu(x);
    case ActivationNumber::kOwn:
    case ActivationNumber::kLinear:
      break;
    case ActivationNumber::kSoftsign:
      return x / f.Linear(f.Abs(x), 1.0, 1.0);
    case ActivationNumber::kElu:
      return f.Relu(x) + f.ExpMinus1(f.Min0(x));
    case ActivationNumber::kHardSigmoid:
      return f.Within01(f.Linear(x, 1.0 / 6.0, 0.5));
    case ActivationNumber::kKeras2HardSigmoid:
      return f.Within01(f.Linear(x, 0.2, 0.5));
  }
  return x;
}

// The slope where the activation is y.
template <typename F, typename V>
V SlopeAt(const F& f, int activation, V y) {
  switch (static_cast<ActivationNumber>(activation)) {
    case ActivationNumber::kTanh:
      return f.OneMinus(y * y);
    case ActivationNumber::kSigmoid:
      return y * f.OneMinus(y);
    case ActivationNumber::kRelu:
      return f.Step(y);
    case ActivationNumber::kOwn:
    case ActivationNumber::kLinear:
      break;
    case ActivationNumber::kSoftsign:
      return f.OneMinus(f.Abs(y)) * f.OneMinus(f.Abs(y));
    case ActivationNumber::kElu:
      return f.Linear(f.Min0(y), 1.0, 1.0);
    case ActivationNumber::kHardSigmoid:
      return f.Linear(f.Inside01(y), 1.0 / 6.0, 0.0);
    case ActivationNumber::kKeras2HardSigmoid:
      return f.Linear(f.Inside01(y), 0.2, 0.0);
  }
  return f.Linear(y, 0.0, 1.0);
}
