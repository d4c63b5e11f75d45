// An LSTM whose gates see c: the input gate and the forget gate that before the
// step, and the output gate that after it. Like any reader of c, they see it
// limited.
struct LstmPeephole : Lstm {
  static constexpr int kVectors = 3;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V* c, V* kept) {
    const V before = f.Limit(*c);
    kept[0] = f.Gate(z[0] + f.OfVector(0) * before);
    kept[1] = f.Gate(z[1] + f.OfVector(1) * before);
    kept[2] = f.Activate(z[2]);
    *c = Next(f, kept, *c);
    kept[3] = f.Gate(z[3] + f.OfVector(2) * f.Limit(*c));
    *h = Output(f, kept, *c);
  }

  // The Factors and Backward are an LSTM's. A gradient of c passes the gates
  // that see it, too.
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept, V, V c,
                                             V c_before) {
    const V active_c = f.Activate(f.Limit(c));
    const V input = kept[2] * f.GateSlope(kept[0]);
    const V forget = f.Limit(c_before) * f.GateSlope(kept[1]);
    const V output = active_c * f.GateSlope(kept[3]);
    return {
        f.ThroughLimit(
            c, f.Product(kept[3] * f.Slope(active_c) + output * f.OfVector(2))),
        f.Product(input),
        f.Product(forget),
        f.Product(kept[0], f.Slope(kept[2])),
        f.Product(output),
        f.ThroughLimit(c_before, f.Product(kept[1] + input * f.OfVector(0) +
                                           forget * f.OfVector(1))),
    };
  }

  template <typename F, typename V>
  static void VectorGradients(const F& f, const V* dz, V c, V c_before, V* to) {
    to[0] = dz[0] * f.Limit(c_before);
    to[1] = dz[1] * f.Limit(c_before);
    to[2] = dz[3] * f.Limit(c);
  }
};
