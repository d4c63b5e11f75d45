// What the cells of a backward pass compute before its steps and after them.
#define HAS_EXACT_FUNCTIONS
#include "cell_functions.cuh"
#include "elementwise.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::BackwardDirection;

template <typename Cell>
static Sum OutputOf(const Functions& functions, const Sum* kept, Sum c) {
  if constexpr (Cell::kHasC && Cell::kNorms == 0) {
    return Cell::Output(functions, kept, c);
  }
  return 0.0f;  // Of such cells, no h is computed again.
}

// Computes h before its projection, if there is one, from the gates and c of
// each step. Rows of h are `pitch` numbers apart. Past the sequences' ends, it
// is zero. The sequences have no order. A warp takes a row.
extern "C" __global__ void compute_h(const Sequences all, Index rows, int units,
                                     float clip, const Item* __restrict__ gates,
                                     const Item* __restrict__ cells,
                                     Index pitch, Item* __restrict__ to) {
  const Functions functions = {clip};
  for (Index row = FirstIndex() / 32; row < rows; row += IndexStep() / 32) {
    const Step at = StepOfRow(all, row);
    const bool exists = at.time < Sequence(all, at.b).length;
#pragma unroll 4
    for (int unit = threadIdx.x % 32; unit < units; unit += 32) {
      Sum kept[kSlots];
      for (int slot = 0; slot < kSlots; ++slot) {
        kept[slot] = ToFloat(gates[(row * kSlots + slot) * units + unit]);
      }
      const Sum c = ToFloat(cells[row * units + unit]);
      const Sum h = OutputOf<CellType>(functions, kept, c);
      to[row * pitch + unit] = FromFloat(exists ? h : 0.0f);
    }
  }
}

// Computes the sums of parts of the rows, [parts, kVectors, units], after the
// backward pass of a direction. A part has every row whose number leaves the
// same remainder. The sequences have no order.
extern "C" __global__ void sum_vectors(const StepRows cells_before,
                                       const BackwardDirection my, int units,
                                       float clip, int parts, Sum* sums) {
  const Functions functions = {clip};
  const Sequences& all = cells_before.sequences;
  const Index rows = static_cast<Index>(all.batch) * all.steps;
  for (Index i = FirstIndex(); i < parts * units; i += IndexStep()) {
    const int part = static_cast<int>(i) / units;
    const int unit = static_cast<int>(i) % units;
    Sum total[kVectors + 1] = {};
    for (Index row = part; row < rows; row += parts) {
      const Step at = StepOfRow(all, row);
      const Sequence sequence(all, at.b);
      Sum dz[kSlots], of_step[kVectors + 1] = {};
      if (sequence.is_invalid) {
        for (Sum& sum : total) sum = InvalidValue();
      }
      if (at.time >= sequence.length) continue;
      const Item* const gates = static_cast<const Item*>(my.gates);
      for (int slot = 0; slot < kSlots; ++slot) {
        dz[slot] = ToFloat(gates[(row * kSlots + slot) * units + unit]);
      }
      const Item* const before = RowOf(cells_before, row);
      const Item* const cells = static_cast<const Item*>(my.cells);
      CellType::VectorGradients(
          functions, dz, ToFloat(cells[row * units + unit]),
          before == nullptr ? Sum(0) : ToFloat(before[unit]), of_step);
      for (int v = 0; v < kVectors; ++v) total[v] += of_step[v];
    }
    for (int v = 0; v < kVectors; ++v) {
      sums[(static_cast<Index>(part) * kVectors + v) * units + unit] = total[v];
    }
  }
}
