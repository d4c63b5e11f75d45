// A cell with zoneout (Krueger et al., "Zoneout: Regularizing RNNs by Randomly
// Preserving Hidden Activations", 2017): of h and c, shares that F names stay
// what they were before the step. In training, a share is 0 or 1. As in the
// paper, the new h is made of the new c, of which nothing has stayed.
template <typename Cell>
struct Zoneout : Cell {
  static constexpr bool kReadsH = true, kZones = true;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V* c, V* kept) {
    V new_h = *h, new_c = *c;
    Cell::Forward(f, z, &new_h, &new_c, kept);
    *h = Mixed(f, 0, *h, new_h);
    if constexpr (Cell::kHasC) {
      *c = Mixed(f, 1, f.Limit(*c), f.Limit(new_c));
    }
  }
  // Unlike F's Between, this is exact where all stays, or nothing, of numbers
  // that are finite.
  template <typename F, typename V>
  static V Mixed(const F& f, int state, V before, V now) {
    return f.Zone(state) * before + f.OneMinus(f.Zone(state)) * now;
  }

  template <typename Inner, typename Factor>
  struct Factors {
    Inner inner;
    Factor h_to_h, h_to_cell, c_to_c, c_to_cell;
  };
  template <typename F, typename V>
  static auto Prepare(const F& f, const V* kept, V h_before, V c, V c_before) {
    using Factor = typename F::Factor;
    Factor c_to_c = {}, c_to_cell = {};
    if constexpr (Cell::kHasC) {
      c = Cell::Next(f, kept, c_before);
      c_to_c = f.ThroughLimit(c_before, f.Product(f.Zone(1)));
      c_to_cell = f.ThroughLimit(c, f.Product(f.OneMinus(f.Zone(1))));
    }
    auto inner = Cell::Prepare(f, kept, h_before, c, c_before);
    return Factors<decltype(inner), Factor>{inner, f.Product(f.Zone(0)),
                                            f.Product(f.OneMinus(f.Zone(0))),
                                            c_to_c, c_to_cell};
  }
  template <typename Inner, typename Factor, typename V>
  static void Backward(const Factors<Inner, Factor>& by, V dh, V* carry_h,
                       V* dc, V* dz) {
    V by_cell = {}, c_stays = {};
    if constexpr (Cell::kHasC) {
      c_stays = *dc * by.c_to_c;
      *dc = *dc * by.c_to_cell;
    }
    Cell::Backward(by.inner, dh * by.h_to_cell, &by_cell, dc, dz);
    *carry_h = dh * by.h_to_h + by_cell;
    if constexpr (Cell::kHasC) *dc = *dc + c_stays;
  }
};

// The cell to run for one that is given. Those that normalise have no zoneout.
template <typename Cell, bool normalizes = (Cell::kNorms > 0)>
struct WithZoneout {
  using Type = Zoneout<Cell>;
};
template <typename Cell>
struct WithZoneout<Cell, true> {
  using Type = Cell;
};
