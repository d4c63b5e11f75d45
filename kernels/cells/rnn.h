// Plain recurrent networks, which have one gate.
struct RnnTanh : CellShape<1> {
  static constexpr bool kBoundsH = true;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V*, V* kept) {
    *h = kept[0] = f.Activate(z[0]);
  }

  template <typename Factor>
  struct Factors {
    Factor gate;
  };
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept, V, V,
                                             V) {
    return {f.Product(f.Slope(kept[0]))};
  }
  template <typename Factor, typename V>
  static void Backward(const Factors<Factor>& by, V dh, V*, V*, V* dz) {
    dz[0] = dh * by.gate;
  }
};

struct RnnRelu : RnnTanh {
  static constexpr bool kBoundsH = false;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V*, V* kept) {
    *h = kept[0] = f.Relu(z[0]);
  }
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept, V, V,
                                             V) {
    return {f.ReluSlope(kept[0])};
  }
};
