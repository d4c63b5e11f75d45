// The gates are the reset gate, the update gate and the candidate, whose
// recurrent side the reset gate multiplies.
struct Gru : CellShape<3, 2> {
  static constexpr bool kReadsH = true, kBoundsH = true;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V*, V* kept) {
    kept[0] = f.Gate(z[0]);
    kept[1] = f.Gate(z[1]);
    kept[3] = z[3];
    kept[2] = f.Activate(z[2] + kept[0] * kept[3]);
    *h = f.Between(kept[1], *h, kept[2]);
  }

  template <typename Factor>
  struct Factors {
    Factor reset, update, candidate, recurrent, h_to_h;
  };
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept,
                                             V h_before, V, V) {
    const V rest = f.OneMinus(kept[1]), slope = f.Slope(kept[2]);
    return {
        f.Product(rest, slope, kept[3], f.GateSlope(kept[0])),
        f.Product(h_before - kept[2], f.GateSlope(kept[1])),
        f.Product(rest, slope),
        f.Product(rest, slope, kept[0]),
        f.Product(kept[1]),
    };
  }
  template <typename Factor, typename V>
  static void Backward(const Factors<Factor>& by, V dh, V* carry_h, V*, V* dz) {
    dz[0] = dh * by.reset;
    dz[1] = dh * by.update;
    dz[2] = dh * by.candidate;
    dz[3] = dh * by.recurrent;
    *carry_h = dh * by.h_to_h;
  }
};
