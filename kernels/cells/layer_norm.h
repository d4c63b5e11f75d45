// Cells whose sums are normalised over the units (Ba et al., "Layer
// Normalization", 2016): those of all gates but a GRU's candidate, and then the
// one that Inner computes from these. An engine computes means and variances,
// and calls what a cell has here around them. Outer replaces h and c.
//
// Of the gradients dy of y, OuterBackward sets that of kOuterGate, and
// InnerBackward the others and the gradients dz of what is not normalised.

// What a unit of a cell has at a step: the sums of its slots, the normalised
// ones of the gates, the normalised result of Inner, and the states before.
template <typename Cell, typename V>
struct NormStep {
  V z[Cell::kSlots], y[Cell::kNorms - 1], last, h, c;
};

// A norm of a sequence at a step, whose mean and 1 / sqrt(variance + epsilon)
// are of type S.
template <typename S>
struct Norm {
  S mean, scale;

  template <typename V>
  V Standard(V x) const {
    return (x - mean) * scale;
  }
  template <typename V>
  V Of(V x, V gamma, V beta) const {
    return Standard(x) * gamma + beta;
  }
  // Returns the gradient of x. `d` is that of the result times gamma; the means
  // over all units are those of d and of d * Standard(x).
  template <typename V>
  V Through(V d, V x, S mean_of_d, S mean_of_products) const {
    return scale * (d - mean_of_d - Standard(x) * mean_of_products);
  }
};

// The normalised c is handed on, as in TensorFlow 1's LayerNormBasicLSTMCell.
struct LstmLayerNorm : CellShape<4> {
  static constexpr bool kHasC = true, kBoundsH = true;
  static constexpr int kNorms = 5, kVectors = 2 * kNorms, kOuterGate = 3;

  template <typename F, typename Step>
  static auto Inner(const F& f, const Step& at) {
    return f.Gate(at.y[1]) * at.c + f.Gate(at.y[0]) * f.Activate(at.y[2]);
  }
  template <typename F, typename Step, typename V>
  static void Outer(const F& f, const Step& at, V* h, V* c) {
    *c = at.last;
    *h = f.Gate(at.y[3]) * f.Activate(at.last);
  }

  // Returns the gradient of `last`.
  template <typename F, typename Step, typename V>
  static V OuterBackward(const F& f, const Step& at, V dh, V dc, V*, V* dy) {
    const V output = f.Gate(at.y[3]), active = f.Activate(at.last);
    dy[3] = dh * active * f.GateSlope(output);
    return dc + dh * output * f.Slope(active);
  }
  // Takes the gradient of Inner's result, and sets that of the previous c.
  template <typename F, typename Step, typename V>
  static void InnerBackward(const F& f, const Step& at, V d, V* dc, V* dy, V*) {
    const V input = f.Gate(at.y[0]), forget = f.Gate(at.y[1]);
    const V candidate = f.Activate(at.y[2]);
    dy[0] = d * candidate * f.GateSlope(input);
    dy[1] = d * at.c * f.GateSlope(forget);
    dy[2] = d * input * f.Slope(candidate);
    *dc = d * forget;
  }
};

struct GruLayerNorm : CellShape<3, 2> {
  static constexpr bool kReadsH = true, kBoundsH = true;
  static constexpr int kNorms = 3, kVectors = 2 * kNorms, kOuterGate = 1;

  template <typename F, typename Step>
  static auto Inner(const F& f, const Step& at) {
    return at.z[2] + f.Gate(at.y[0]) * at.z[3];
  }
  template <typename F, typename Step, typename V>
  static void Outer(const F& f, const Step& at, V* h, V*) {
    *h = f.Between(f.Gate(at.y[1]), *h, f.Activate(at.last));
  }

  template <typename F, typename Step, typename V>
  static V OuterBackward(const F& f, const Step& at, V dh, V, V* carry_h,
                         V* dy) {
    const V update = f.Gate(at.y[1]), candidate = f.Activate(at.last);
    dy[1] = dh * (at.h - candidate) * f.GateSlope(update);
    *carry_h = dh * update;
    return dh * f.OneMinus(update) * f.Slope(candidate);
  }
  template <typename F, typename Step, typename V>
  static void InnerBackward(const F& f, const Step& at, V d, V*, V* dy, V* dz) {
    const V reset = f.Gate(at.y[0]);
    dy[0] = d * at.z[3] * f.GateSlope(reset);
    dz[2] = d;
    dz[3] = d * reset;
  }
};
