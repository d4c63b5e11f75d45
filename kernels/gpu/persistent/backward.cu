// A kernel that runs all steps of a recurrent layer backward, with the
// recurrent weights in the registers and the shared memory of teams of blocks.
//
// A block has the gates' rows of its units, as in the forward pass. In a step,
// its threads first compute the gradients of its cells' gates. These go to
// memory, for the matrix products that follow this kernel, and to shared
// memory. The block's warps multiply them by the transposed rows, which gives a
// part of the gradient of h for all units. The parts go to the units' owners,
// who add them in a fixed order, so that the result does not depend on which
// part came first.
#define IS_BACKWARD 1
#include "backward_cells.cuh"

// Loads a block's rows of the weights, transposed, and finds their powers.
static void LoadWeights(const Thread& me, const void* rows,
                        const BackwardMemory& memory,
                        const GradientParts& parts, TeamMemory& of_team,
                        const Weights& weights, Weights::Held& held) {
  const auto row_of = [&](int i) { return RowOfWeights(rows, me.band, i); };
  if (kHasPowers) FindRowPowers(me, row_of, of_team, memory.row_powers);
  const auto load = [&](int pair, int i, int half) {
    Chunk chunk = {};
    const int of_slice = parts.FirstUnitOf(i / kItems, me.g / 2) +
                         i % kItems * 4 + me.g % 2 * 2 + half;
    const int unit = me.slice * kSliceUnits + of_slice;
    if ((!kFillsSlice && of_slice >= kSliceUnits) || IsPastLayer(unit)) {
      return chunk;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float values[kOperands];
#pragma unroll
      for (int e = 0; e < kOperands; ++e) {
        const unsigned k = ((pair * 4 + me.t) * 4 + j) * kOperands + e;
        values[e] = IsZeroRow(me.band, k) ? 0.0f : ToFloat(row_of(k)[unit]);
        if (kHasPowers) values[e] *= ScaleOf(memory.row_powers[k]);
      }
      chunk.word[j] = ToOperands(values);
    }
    return chunk;
  };
  LoadAll</*kLoadsChunks=*/false>(load, weights, held);
}

extern "C" __global__ void __launch_bounds__(kThreads,
                                             kSharesMultiprocessor ? 2 : 1)
    backward(const BackwardArguments all) {
  const Thread me;
  const int direction = all.first_direction + blockIdx.y;
  const BackwardMemory memory;
  TeamMemory of_team(all);
  GradientParts parts(me, memory, of_team);
  GateGradients gradients(me, memory, of_team);
  CellStep cell_step(memory, of_team);
  const Weights weights(memory.weights, me.index);
  Weights::Held held;
  LoadWeights(me, all.direction[direction].recurrent_weights, memory, parts,
              of_team, weights, held);
  if (IS_CLUSTER && me.index == 0) {
    InitializeBarriers(memory.barriers, 2 + CellStep::kBarriers);
    memory.ArmBarriers();
    cell_step.Arm();
  }

  int share = 0, first_row = FirstRowOf(0);
  do {
    BackwardCells cells(me, all, direction, first_row, cell_step);
    const int steps = cells.steps;
    cells.LoadInputs(steps - 1);
    gradients.ClearMaxima();
    parts.Join();
    for (int turn = 0; turn < steps; ++turn) {
      const int step = steps - 1 - turn;
      // Work that does not depend on what peers send comes before the wait.
      cells.Prepare(turn);
      if (!kLoadsLate) cells.LoadInputs(step - 1);
      parts.Receive(turn);
      cells.AddParts(parts, turn);
      cells.Compute(turn, step);
      gradients.FindPowers(turn, cells.of_slots());
      gradients.Store(turn, cells.of_slots());
      gradients.Receive(turn);
      // The stores come last, since no block waits for them, if there are
      // registers for that.
      const auto load_and_store = [&] {
        cells.LoadInputs(step - 1);
        cells.Store(step);
      };
      SynchronizeOperands();
      if (kLoadsLate && !IS_CLUSTER) load_and_store();
#pragma unroll
      for (int first = 0; first < kTiles; first += Weights::kAtOnce) {
        Weights::Sums sums;
        weights.Multiply(held, {gradients.Numbers(turn), me.lane, first}, sums,
                         [&] {
                           if (kLoadsLate && IS_CLUSTER && first == 0) {
                             load_and_store();
                           }
                         });
        parts.Send(turn, first, sums,
                   [&](int row) { return gradients.PowerOfSums(turn, row); });
      }
      if (!kLoadsLate) cells.Store(step);
    }
    // These are what the first step gives to the gradients of the first states.
    cells.Prepare(steps);
    parts.Receive(steps);
    cells.AddParts(parts, steps);
    cells.StoreLast();
    parts.EndShare(steps);
    gradients.EndShare(steps);
    cell_step.EndShare(steps);
    first_row = FirstRowOf(++share);
  } while (!IS_CLUSTER && first_row < all.sequences.batch);
  // A block's shared memory must outlive its peers' stores to it.
  if (IS_CLUSTER) SynchronizeCluster();
}
