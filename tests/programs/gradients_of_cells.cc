// Compares the gradients of every cell with finite differences in double, and
// the loops of CPUs with the same arithmetic in double. One more cell stands
// for any that may come: what a cell's file says is all that the loops know.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#define CRNN_SIMD_NAME baseline
#define CRNN_SIMD_BYTES 16
#include "kernels/cpu/cell_loops.h"

namespace cudnn_rnn_tf {
namespace baseline {
namespace {

// A gate says how much of h stays.
struct Toy : CellShape<2> {
  static constexpr bool kReadsH = true;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V*, V* kept) {
    kept[0] = f.Sigmoid(z[0]);
    kept[1] = f.Relu(z[1]);
    *h = f.Between(kept[0], *h, kept[1]);
  }
  template <typename Factor>
  struct Factors {
    Factor stays, rest, slope, h_to_h;
  };
  template <typename F, typename V>
  static Factors<typename F::Factor> Prepare(const F& f, const V* kept,
                                             V h_before, V, V) {
    return {f.Product(h_before - kept[1], kept[0], f.OneMinus(kept[0])),
            f.Product(f.OneMinus(kept[0])), f.ReluSlope(kept[1]),
            f.Product(kept[0])};
  }
  template <typename Factor, typename V>
  static void Backward(const Factors<Factor>& by, V dh, V* carry_h, V*, V* dz) {
    dz[0] = dh * by.stays;
    dz[1] = dh * by.rest * by.slope;
    *carry_h = dh * by.h_to_h;
  }
};

struct InDouble {
  using Factor = double;
  double clip;
  const double* vectors = nullptr;

  double Sigmoid(double x) const { return 1 / (1 + std::exp(-x)); }
  double Tanh(double x) const { return std::tanh(x); }
  double Relu(double x) const { return std::max(x, 0.0); }
  double OneMinus(double x) const { return 1 - x; }
  double Between(double a, double x, double y) const {
    return a * x + (1 - a) * y;
  }
  double Limit(double c) const {
    return clip == 0 ? c : std::clamp(c, -clip, clip);
  }
  template <typename... Numbers>
  double Product(Numbers... x) const {
    return (1.0 * ... * x);
  }
  double ThroughLimit(double c, double factor) const {
    return clip == 0 || std::fabs(c) < clip ? factor : 0;
  }
  double ReluSlope(double y) const { return y > 0; }
  double OfVector(int i) const { return vectors[i]; }
};

void Check(double value, double expected, double tolerance, const char* what) {
  if (std::fabs(value - expected) <= tolerance) return;
  std::printf("%s is %.9g and not %.9g\n", what, value, expected);
  std::exit(1);
}

// The numbers of one unit in a step. A cell that resets before has one unit
// here, so that its candidate's matrix is a number.
template <typename Cell>
struct Unit {
  double z[Cell::kSlots], kept[Cell::kSlots], dz[Cell::kSlots];
  double vectors[Cell::kVectors + 1], d_vectors[Cell::kVectors + 1];
  double h, c, matrix, next_h, next_c, dh, dc;

  void Forward(InDouble f) {
    f.vectors = vectors;
    double of_step[Cell::kSlots];
    std::copy_n(z, Cell::kSlots, of_step);
    next_h = h;
    next_c = c;
    if (Cell::kResetsBefore) {
      Cell::ResetForward(f, of_step, h, kept);
      of_step[Cell::kGates - 1] += matrix * kept[Cell::kSlots - 1];
    }
    Cell::Forward(f, of_step, &next_h, &next_c, kept);
  }
  void Backward(InDouble f, double of_h, double of_c) {
    f.vectors = vectors;
    dh = 0;
    dc = of_c;
    const auto factors = Cell::Prepare(f, kept, h, next_c, c);
    Cell::Backward(factors, of_h, &dh, &dc, dz);
    Cell::VectorGradients(f, dz, next_c, c, d_vectors);
    if (!Cell::kResetsBefore) return;
    Cell::ResetBackward(f, kept, h, matrix * dz[Cell::kGates - 1], &dh, dz);
  }
};

template <typename Cell>
void CheckCell(double clip) {
  constexpr int kUnits = 7, kSlots = Cell::kSlots, kGates = Cell::kGates;
  constexpr int kVectors = Cell::kVectors;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const InDouble f = {clip};
  for (int draw = 0; draw < 200; ++draw) {
    Unit<Cell> units[kUnits];
    float gates[kSlots][kUnits], bias[kUnits] = {}, h[kUnits], c[kUnits];
    float next_h[kUnits], next_c[kUnits], dh[kUnits], dc[kUnits];
    float vectors[kVectors + 1][kUnits], sums[kVectors + 1][kUnits] = {};
    double of_h[kUnits], of_c[kUnits];
    CellRow<float> row = {};
    row.stride = kUnits;
    row.clip = static_cast<float>(clip);
    row.gates = gates[0];
    row.last_slot = gates[kSlots - 1];
    row.last_bias = bias;
    row.h_before = h;
    row.h = next_h;
    row.c = next_c;
    row.c_before = c;
    row.vectors = vectors[0];
    row.dh = dh;
    row.dc = dc;
    for (int i = 0; i < kUnits; ++i) {
      Unit<Cell>& unit = units[i];
      for (double& z : unit.z) z = normal(random);
      for (int v = 0; v < kVectors; ++v) {
        unit.vectors[v] = normal(random);
        vectors[v][i] = static_cast<float>(unit.vectors[v]);
      }
      unit.h = normal(random);
      unit.c = normal(random);
      unit.matrix = normal(random);
      of_h[i] = normal(random);
      of_c[i] = Cell::kHasC ? normal(random) : 0;
      for (int slot = 0; slot < kSlots; ++slot) {
        gates[slot][i] = static_cast<float>(unit.z[slot]);
      }
      h[i] = static_cast<float>(unit.h);
      c[i] = next_c[i] = static_cast<float>(unit.c);
    }
    if (Cell::kResetsBefore) CellResetForward<float, Cell>(kUnits, row);
    for (int i = 0; i < kUnits; ++i) {
      if (!Cell::kResetsBefore) continue;
      gates[kGates - 1][i] +=
          static_cast<float>(units[i].matrix) * gates[kSlots - 1][i];
    }
    CellForward<float, Cell>(kUnits, row);
    for (int i = 0; i < kUnits; ++i) {
      units[i].Forward(f);
      units[i].Backward(f, of_h[i], of_c[i]);
      Check(next_h[i], units[i].next_h, 2e-6, "h");
      if (Cell::kHasC) Check(next_c[i], units[i].next_c, 2e-6, "c");
      dh[i] = static_cast<float>(of_h[i]);
      dc[i] = static_cast<float>(of_c[i]);
    }
    row.h = nullptr;
    CellBackward<float, Cell>(kUnits, row);
    if (kVectors > 0) CellAddVectors<float, Cell>(kUnits, row, sums[0]);
    float through[kUnits];
    for (int i = 0; i < kUnits; ++i) {
      through[i] = static_cast<float>(units[i].matrix) * gates[kGates - 1][i];
    }
    if (Cell::kResetsBefore) {
      CellResetBackward<float, Cell>(kUnits, row, through);
    }
    for (int i = 0; i < kUnits; ++i) {
      Unit<Cell> unit = units[i];
      // At a corner of a function, there is no gradient.
      const auto is_near = [&](double x, double corner) {
        return std::fabs(std::fabs(x) - corner) < 1e-4;
      };
      bool has_corner =
          clip > 0 && (is_near(unit.c, clip) || is_near(unit.next_c, clip));
      for (const double z : unit.z) has_corner = has_corner || is_near(z, 0);
      if (has_corner) continue;
      const auto slope = [&](double* number) {
        const double was = *number, step = 1e-5;
        double loss[2];
        for (const int side : {0, 1}) {
          *number = side == 0 ? was - step : was + step;
          unit.Forward(f);
          loss[side] = of_h[i] * unit.next_h + of_c[i] * unit.next_c;
        }
        *number = was;
        return (loss[1] - loss[0]) / (2 * step);
      };
      const int inputs = Cell::kResetsBefore ? kGates : kSlots;
      for (int slot = 0; slot < inputs; ++slot) {
        Check(unit.dz[slot], slope(&unit.z[slot]), 1e-8, "a gate's gradient");
        Check(gates[slot][i], unit.dz[slot], 5e-6, "a gate's float gradient");
      }
      if (Cell::kReadsH) {
        Check(unit.dh, slope(&unit.h), 1e-8, "the gradient of h");
        Check(dh[i], unit.dh, 5e-6, "the float gradient of h");
      }
      for (int v = 0; v < kVectors; ++v) {
        Check(unit.d_vectors[v], slope(&unit.vectors[v]), 1e-8, "of a vector");
        Check(sums[v][i], unit.d_vectors[v], 1e-5, "of a vector, float");
      }
      if (Cell::kHasC) {
        Check(unit.dc, slope(&unit.c), 1e-8, "the gradient of c");
        Check(dc[i], unit.dc, 5e-6, "the float gradient of c");
      }
    }
  }
}

template <typename... Cells>
void CheckAll(CellList<Cells...>) {
  for (const double clip : {0.0, 0.4}) (CheckCell<Cells>(clip), ...);
  CheckCell<Toy>(0.0);
  std::printf("well\n");
}

}  // namespace
}  // namespace baseline
}  // namespace cudnn_rnn_tf

int main() {
  cudnn_rnn_tf::baseline::CheckAll(cudnn_rnn_tf::baseline::AllCells());
}
