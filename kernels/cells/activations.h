// The activations by their numbers, which are those of Activation in
// rnn_spec.h. F has Relu and OneMinus, as for cells, and
//   Sigmoid(x), Tanh(x).
//   Linear(x, a, b): a * x + b.
//   Abs(x), Min0(x): the magnitude of x, and the smaller one of x and 0.
//   ExpMinus1(x): exp(x) - 1, for x up to 0.
//   Within01(x): x within 0 and 1.
// and, for slopes,
//   Step(y), Inside01(y): 1 where y > 0, or where 0 < y < 1, else 0.
template <typename F, typename V>
V Activated(const F& f, int activation, V x) {
  switch (activation) {
    case 1:
      return f.Tanh(x);
    case 2:
      return f.Sigmoid(x);
    case 3:
      return f.Relu(x);
    case 4:
      return x;
    case 5:
      return x / f.Linear(f.Abs(x), 1.0, 1.0);
    case 6:
      return f.Relu(x) + f.ExpMinus1(f.Min0(x));
    case 7:
      return f.Within01(f.Linear(x, 1.0 / 6.0, 0.5));
    default:
      return f.Within01(f.Linear(x, 0.2, 0.5));
  }
}

// The slope where the activation is y.
template <typename F, typename V>
V SlopeAt(const F& f, int activation, V y) {
  switch (activation) {
    case 1:
      return f.OneMinus(y * y);
    case 2:
      return y * f.OneMinus(y);
    case 3:
      return f.Step(y);
    case 4:
      return f.Linear(y, 0.0, 1.0);
    case 5:
      return f.OneMinus(f.Abs(y)) * f.OneMinus(f.Abs(y));
    case 6:
      return f.Linear(f.Min0(y), 1.0, 1.0);
    case 7:
      return f.Linear(f.Inside01(y), 1.0 / 6.0, 0.0);
    default:
      return f.Linear(f.Inside01(y), 0.2, 0.0);
  }
}
