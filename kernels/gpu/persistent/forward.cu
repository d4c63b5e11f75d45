// A kernel that runs all steps of a recurrent layer forward, with the recurrent
// weights in the registers and the shared memory of teams of blocks.
//
// A block's warps multiply its rows of the weights by h; the sums go through
// shared memory to its threads, which compute the cells, unless these have the
// sums already, as in clusters of warpgroups. A cell's new state goes to every
// block of the team. Between blocks, there is no other barrier in the loop than
// those of the exchange: a block begins a step only after all warps that have
// cells, of all blocks, have sent the states of the step before, and then
// nobody still reads the copy of h that the step's stores overwrite, or the
// sums of the step before.
//
// This holds for warps without cells, too. In clusters of warpgroups, each
// warpgroup has a warp with cells (FillsWarps in step_cost.cc), and a product
// is one operation of its four warps. That warp sends after it has waited for
// the product, so the others have received what the product read, which is read
// no more, and are at most at the end of this step. Elsewhere, the warps of a
// block meet in each step.
#define IS_BACKWARD 0
#include "forward_cells.cuh"

// Loads a block's rows of the weights, whose powers are known.
template <bool kIsAligned, typename RowOf>
static void LoadWeights(const Thread& me, const RowOf& row_of,
                        const ForwardMemory& memory, const BlockSums& sums,
                        const Weights& weights, Weights::Held& held) {
  // A tile's rows g and g + 8 are neighbours among those of the weights or, if
  // lanes hold the cells of neighbouring units, those of two units.
  const auto load = [&](int pair, int i, int half) {
    const int at = !kHoldsCells ? sums.TileOf(i) * 16 + 2 * me.g + half
                   : kHasTileOfSlot
                       ? (me.warp * 16 + 2 * me.g + half) * SLOTS + i
                       : (me.warp * 8 + me.g) * SLOTS + 2 * i + half;
    const int column = ((sums.first_pair() + pair) * 16 + me.t * 4) * kOperands;
    const Item* const row =
        at < kShape.band_rows() && column < kSliceUnits ? row_of(at) : nullptr;
    const float scale =
        kHasPowers && row != nullptr ? ScaleOf(memory.row_powers[at]) : 1.0f;
    Chunk chunk, data[kOperands / kItems];
    LoadOfRow<kIsAligned>(row, me.slice * kSliceUnits + column, 4 * kItems,
                          data);
#pragma unroll
    for (int i = 0; i < kOperands / kItems; ++i) {
      const Operands part(data[i], scale);
      constexpr int kWords = sizeof(part.word) / sizeof(Word);
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        chunk.word[i * kWords + j] = part.word[j];
      }
    }
    return chunk;
  };
  LoadAll</*kLoadsChunks=*/kIsAligned>(load, weights, held);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    forward(const ForwardArguments all) {
  const Thread me;
  const Stage stage = StageOfBlock(all);
  const ForwardDirection& my = all.direction[stage.direction];
  const ForwardMemory memory;
  TeamMemory of_team(all);
  States states(me, memory, of_team);
  BlockSums block_sums(me, memory, of_team);
  CellStep cell_step(memory, of_team);
  const Weights weights(memory.weights, me.index);
  Weights::Held held;
  const void* const rows =
      stage.is_product ? my.input_weights : my.recurrent_weights;
  const auto row_of = [&](int i) { return RowOfWeights(rows, me.band, i); };
  if (kHasPowers) FindRowPowers(me, row_of, of_team, memory.row_powers);
  // Few floats gain less than the longer kernel takes: 3 % with 256 units and
  // 64 sequences.
  constexpr bool kLoadsTogether = kItems == 2 || kPairs * kTiles >= 32;
  if (kLoadsTogether && IsAligned(rows)) {
    LoadWeights<true>(me, row_of, memory, block_sums, weights, held);
  } else {
    LoadWeights<false>(me, row_of, memory, block_sums, weights, held);
  }
  // Multiplies the block's rows of the weights by what a step reads, piece by
  // piece, each after it has been received, and hands on the sums.
  const auto multiply = [&](int step, const auto& receive,
                            Weights::Sums& sums) {
#pragma unroll
    for (int piece = 0; piece < Weights::kPieces; ++piece) {
      receive(piece);
      const char* const numbers =
          states.Numbers(step) + block_sums.first_pair() * 4 * kColumn;
      weights.Multiply(held, {numbers, me.lane, 0, piece}, sums, [] {});
    }
    block_sums.Share(step, sums);
  };

  int share = 0, first_row = stage.first_row;
  do {
    // What a stack's cluster multiplies is the h of the layer below, of whose
    // first step a faster warp may have put numbers here already.
    const int below = stage.direction - stage.is_product;
    states.SetFirst(
        all.sequences, first_row,
        static_cast<const Item*>(all.direction[below].first_h),
        stage.is_product ? nullptr : static_cast<const Item*>(my.first_h),
        all.state_stride);
    if (IS_CLUSTER && me.index == 0) {
      InitializeBarriers(memory.barriers, 2 + CellStep::kBarriers);
      memory.ArmBarriers();
      cell_step.Arm();
    }
    ForwardCells cells(me, all, stage, first_row);
    const int steps = cells.steps;
    if (IS_STACK && stage.is_product) {
      LayerBelow below(my.input, all.sequences, first_row);
      below.Load(0);
      for (int step = 0; step < steps; ++step) {
        below.Store(step, memory, states.Numbers(step));
        below.Load(step + 1);
        SynchronizeBlock();
        Weights::Sums sums;
        multiply(step, [](int) {}, sums);
        block_sums.Receive(step);
        cells.StoreProducts(block_sums, sums, step);
      }
      // Peers may still read the ticket in this block's shared memory.
      SynchronizeCluster();
      return;
    }

    cells.LoadFirstInputs();
    states.Join();
    for (int step = 0; step < steps; ++step) {
      // Work that does not depend on what peers send comes before the wait, if
      // there are registers for that.
      Weights::Sums sums;
      if (!kLoadsLate) {
        cells.TakeInputs(step);
        block_sums.Begin(cells.z(), sums);
        cells.LoadNext(step);
      }
      multiply(step, [&](int piece) { states.Receive(step, piece); }, sums);
      block_sums.Receive(step);
      if (kLoadsLate) {
        cells.TakeInputs(step);
        cells.LoadNext(step);
      }

#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        cells.AddProducts(block_sums, sums, step, round);
      }
      cell_step.Begin(step, me, all.epsilon, cells);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        cells.Compute(cell_step, step, round);
      }
      // Between two cells, this would make a thread compute one cell after the
      // other.
      if (step + 1 < steps) states.Send(step, cells.h);
      states.EndStep(step);
      cells.Store(cell_step, step);
    }
    cells.StoreLast();
    states.EndShare(steps);
    block_sums.EndShare(steps);
    cell_step.EndShare(steps);
    first_row = FirstRowOf(++share);
  } while (!IS_CLUSTER && first_row < all.sequences.batch);
  // A block's shared memory must outlive its peers' stores to it.
  if (IS_CLUSTER) SynchronizeCluster();
}
