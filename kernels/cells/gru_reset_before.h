// A GRU whose reset gate multiplies h before the candidate's recurrent matrix
// does.
struct GruResetBefore : CellShape<3, 2, /*resets_before=*/true> {
  static constexpr bool kReadsH = true, kBoundsH = true;

  template <typename F, typename V>
  static void ResetForward(const F& f, const V* z, V h, V* kept) {
    kept[0] = f.Gate(z[0]);
    kept[3] = kept[0] * h;
  }
  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V*, V* kept) {
    kept[1] = f.Gate(z[1]);
    kept[2] = f.Activate(z[2]);
    *h = f.Between(kept[1], *h, kept[2]);
  }

  template <typename Factor>
  struct Factors {
    Factor update, candidate, h_to_h;
  };
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept,
                                             V h_before, V, V) {
    return {
        f.Product(h_before - kept[2], f.GateSlope(kept[1])),
        f.Product(f.OneMinus(kept[1]), f.Slope(kept[2])),
        f.Product(kept[1]),
    };
  }
  template <typename Factor, typename V>
  static void Backward(const Factors<Factor>& by, V dh, V* carry_h, V*, V* dz) {
    dz[1] = dh * by.update;
    dz[2] = dh * by.candidate;
    *carry_h = dh * by.h_to_h;
  }
  // `through` is the gradient of slot 3, and `dh` that of the h which it was
  // made of.
  template <typename F, typename V>
  static void ResetBackward(const F& f, V reset, V h, V through, V* dh, V* dz) {
    *dh = *dh + through * reset;
    *dz = through * h * f.GateSlope(reset);
  }
};
