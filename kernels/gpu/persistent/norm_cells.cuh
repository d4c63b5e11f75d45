// Cells that normalise, as kernels compute with them: a thread has some cells,
// and whoever includes this file says how many, kRounds, and of how many units,
// kOwnUnits. How sums over all units of a layer come about is the includer's
// business, too: the persistent kernels' blocks tell each other (norms.cuh),
// and in norm_steps.cu a block has all of them.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORM_CELLS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORM_CELLS_CUH_

#include "cell_functions.cuh"

constexpr int kNorms = CellType::kNorms, kLast = kNorms - 1;

// The result of norm k for a sum.
static Sum Normalised(const Norm<Sum>* norms, const Functions& functions, int k,
                      Sum sum) {
  return norms[k].Of(sum, functions.OfVector(2 * k),
                     functions.OfVector(2 * k + 1));
}

// The numbers of a cell at a step.
struct NormedCell : NormStep<CellType, Sum> {
  Norm<Sum> norms[kNorms];
  Sum inner;

  // Of what the backward pass has loaded.
  void Set(const Norm<Sum> (&loaded)[kNorms], const CellInputs& in,
           const Functions& functions) {
#pragma unroll
    for (int k = 0; k < kNorms; ++k) norms[k] = loaded[k];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) z[slot] = ToFloat(in.gates[slot]);
    h = ToFloat(in.h_before);
    SetInner(functions, ToFloat(in.c_before));
    SetLast(functions);
  }
  // What the backward pass reads. Sums of gates are kept as their distances
  // from their mean, which a half type holds more often, and with more digits.
  Sum Kept(int slot) const {
    return slot < kLast ? z[slot] - norms[slot].mean : z[slot];
  }
  void StoreNorms(long long row, void* to) const {
    Norm<Sum>* const of_row = static_cast<Norm<Sum>*>(to) + row * kNorms;
    for (int k = 0; k < kNorms; ++k) {
      of_row[k] = {k < kLast ? Sum(0) : norms[k].mean, norms[k].scale};
    }
  }
  void SetInner(const Functions& functions, Sum c_before) {
    c = c_before;
#pragma unroll
    for (int k = 0; k < kLast; ++k) {
      y[k] = Normalised(norms, functions, k, z[k]);
    }
    inner = CellType::Inner(functions, *this);
  }
  void SetLast(const Functions& functions) {
    last = Normalised(norms, functions, kLast, inner);
  }
};

// Which of the two times it is in a step that sums over all units are asked.
template <int>
struct Meeting {};

// Computes all of the cells but the next states, from their z and the c before.
// find(numbers, k, meeting) finds the norms from number k on, of [kRounds][n]
// numbers, and sets them in the cells.
template <typename FindNorms>
static void NormaliseCells(const Functions* functions, const Sum* c,
                           const FindNorms& find,
                           NormedCell (&cells)[kRounds]) {
  Sum sums[kRounds][kLast], inner[kRounds][1];
#pragma unroll
  for (int i = 0; i < kRounds * kLast; ++i) {
    sums[i / kLast][i % kLast] = cells[i / kLast].z[i % kLast];
  }
  find(sums, 0, Meeting<0>());
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    cells[round].SetInner(functions[round % kOwnUnits], c[round]);
    inner[round][0] = cells[round].inner;
  }
  find(inner, kLast, Meeting<1>());
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    cells[round].SetLast(functions[round % kOwnUnits]);
  }
}

// What the gradients of cells are computed from, besides the cells.
struct NormedGradients {
  Sum dh[kRounds];
  // The sums of the gradients of the vectors of a thread's units.
  Sum vectors[kOwnUnits][kVectors];

  // Computes the gradients of what is in the slots from those of h and c, which
  // are replaced as cells.h says. Cells that are not active have none.
  // add_up(sums, meeting) replaces [kRounds][n] sums of cells by those over all
  // units, of which there are 1 / `per_unit`.
  template <typename IsActive, typename AddUpUnits>
  void Compute(const Functions* functions, const NormedCell (&cells)[kRounds],
               const IsActive& is_active, Sum per_unit,
               const AddUpUnits& add_up, Sum* carry_h, Sum* carry_c,
               Sum (*of_slots)[kSlots]) {
    // The gradients of results times gamma; and sums over the units of these,
    // and of their products with what is standardized.
    Sum d_of[kRounds][kNorms];
    Sum of_outer[kRounds][4] = {}, of_others[kRounds][2 * kLast - 2] = {};
    const auto meet = [&](int round, int k, Sum sum, Sum d, Sum* sums) {
      const Sum standard = cells[round].norms[k].Standard(sum);
      Sum* const of_vectors = vectors[round % kOwnUnits] + 2 * k;
      of_vectors[0] += d * standard;
      of_vectors[1] += d;
      d *= functions[round % kOwnUnits].OfVector(2 * k);
      d_of[round][k] = d;
      sums[0] = d;
      sums[1] = d * standard;
    };
    const auto through = [&](int round, int k, Sum sum, const Sum* sums) {
      return cells[round].norms[k].Through(
          d_of[round][k], sum, sums[0] * per_unit, sums[1] * per_unit);
    };
    constexpr int kOuter = CellType::kOuterGate;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_active(round)) continue;
      const NormedCell& cell = cells[round];
      Sum dy[kLast];
      const Sum d =
          CellType::OuterBackward(functions[round % kOwnUnits], cell, dh[round],
                                  carry_c[round], carry_h + round, dy);
      meet(round, kLast, cell.inner, d, of_outer[round]);
      meet(round, kOuter, cell.z[kOuter], dy[kOuter], of_outer[round] + 2);
    }
    add_up(of_outer, Meeting<0>());
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_active(round)) continue;
      const NormedCell& cell = cells[round];
      Sum dy[kLast];
      const Sum d = through(round, kLast, cell.inner, of_outer[round]);
      CellType::InnerBackward(functions[round % kOwnUnits], cell, d,
                              carry_c + round, dy, of_slots[round]);
      of_slots[round][kOuter] =
          through(round, kOuter, cell.z[kOuter], of_outer[round] + 2);
#pragma unroll
      for (int k = 0; k < kLast; ++k) {
        if (k == kOuter) continue;
        meet(round, k, cell.z[k], dy[k], of_others[round] + PlaceOf(k));
      }
    }
    add_up(of_others, Meeting<1>());
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_active(round)) continue;
#pragma unroll
      for (int k = 0; k < kLast; ++k) {
        if (k == kOuter) continue;
        of_slots[round][k] =
            through(round, k, cells[round].z[k], of_others[round] + PlaceOf(k));
      }
    }
  }

 private:
  // Of a norm's sums among those of all gates but the outer one.
  static constexpr int PlaceOf(int k) {
    return 2 * (k - (k > CellType::kOuterGate));
  }
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORM_CELLS_CUH_
