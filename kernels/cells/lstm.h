// The gates are the input gate, the forget gate, the candidate and the output
// gate. Where c is read, it is limited, but it is handed on as it is.
struct Lstm : CellShape<4> {
  static constexpr bool kHasC = true, kBoundsH = true;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V* c, V* kept) {
    kept[0] = f.Gate(z[0]);
    kept[1] = f.Gate(z[1]);
    kept[2] = f.Activate(z[2]);
    kept[3] = f.Gate(z[3]);
    *c = Next(f, kept, *c);
    *h = Output(f, kept, *c);
  }
  // The c after a step.
  template <typename F, typename V>
  static V Next(const F& f, const V* kept, V c) {
    return kept[1] * f.Limit(c) + kept[0] * kept[2];
  }
  // The h of a step, which some backward passes compute again.
  template <typename F, typename V>
  static V Output(const F& f, const V* kept, V c) {
    return kept[3] * f.Activate(f.Limit(c));
  }

  template <typename Factor>
  struct Factors {
    Factor h_to_c, input, forget, candidate, output, c_to_c;
  };
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept, V, V c,
                                             V c_before) {
    const V active_c = f.Activate(f.Limit(c));
    return {
        f.ThroughLimit(c, f.Product(kept[3], f.Slope(active_c))),
        f.Product(kept[2], f.GateSlope(kept[0])),
        f.Product(f.Limit(c_before), f.GateSlope(kept[1])),
        f.Product(kept[0], f.Slope(kept[2])),
        f.Product(active_c, f.GateSlope(kept[3])),
        f.ThroughLimit(c_before, f.Product(kept[1])),
    };
  }
  template <typename Factor, typename V>
  static void Backward(const Factors<Factor>& by, V dh, V*, V* dc, V* dz) {
    const V d = *dc + dh * by.h_to_c;
    dz[0] = d * by.input;
    dz[1] = d * by.forget;
    dz[2] = d * by.candidate;
    dz[3] = dh * by.output;
    *dc = d * by.c_to_c;
  }
};
