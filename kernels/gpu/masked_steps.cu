// The kernels that kernels/masked_steps.h describes. Arrays of places, steps
// and lengths are [B, T] or [B], of 64 bits.
//
// Whoever compiles defines IS_MASK for read_mask, UNIT_BYTES for move_steps and
// a type for add_steps.
#include "masked_steps_arguments.h"
#if defined(UNIT_BYTES)
#include "unit.cuh"
#elif !defined(IS_MASK)
#include "items.cuh"
#endif

using Index = long long;

// Blocks have 32 x kRows threads. A row is a warp's work, but for long sums.
constexpr int kRows = cudnn_rnn_tf::MaskedRows::kOfBlock;

static Index FirstRow() {
  return static_cast<Index>(blockIdx.x) * kRows + threadIdx.y;
}
static Index RowStep() { return static_cast<Index>(gridDim.x) * kRows; }

struct Rows : cudnn_rnn_tf::MaskedRows {
  Index At(Index b, Index time) const {
    return b * batch_stride + time * time_stride;
  }
  Index OfStep(Index b, Index time) const {
    return At(b, is_reversed ? max_time - 1 - time : time);
  }
};

#if defined(IS_MASK)

extern "C" __global__ void read_mask(const unsigned char* mask, Rows rows,
                                     Index batch, Index* lengths, Index* places,
                                     Index* steps) {
  const int lane = threadIdx.x;
  const Index max_time = rows.max_time;
  for (Index b = FirstRow(); b < batch; b += RowStep()) {
    Index count = 0;
    for (Index first = 0; first < max_time; first += 32) {
      const Index time = first + lane;
      const bool is_read = time < max_time && mask[rows.OfStep(b, time)];
      const unsigned int read = __ballot_sync(~0u, is_read);
      const Index before = count + __popc(read & ((1u << lane) - 1));
      if (time < max_time) {
        places[b * max_time + time] = is_read ? before : -1 - before;
      }
      if (is_read) steps[b * max_time + before] = time;
      count += __popc(read);
    }
    for (Index place = count + lane; place < max_time; place += 32) {
      steps[b * max_time + place] = -1;
    }
    if (lane == 0) lengths[b] = count;
  }
}

#elif defined(UNIT_BYTES)

extern "C" __global__ void move_steps(Rows rows, Index batch, Index width,
                                      bool packs, bool repeats,
                                      const Index* places, const Index* steps,
                                      const Unit* from, Unit* to) {
  const int lane = threadIdx.x;
  for (Index row = FirstRow(); row < batch * rows.max_time; row += RowStep()) {
    const Index b = row / rows.max_time, at = row % rows.max_time;
    Index source = packs ? steps[row] : places[row];
    if (source < 0 && repeats) source = -source - 2;
    if (source >= rows.max_time) source = -1;
    const Unit* const unit_from =
        from + (packs ? rows.OfStep(b, source) : rows.At(b, source)) * width;
    Unit* const unit_to =
        to + (packs ? rows.At(b, at) : rows.OfStep(b, at)) * width;
    for (Index i = lane; i < width; i += 32) {
      unit_to[i] = source < 0 ? Unit{} : unit_from[i];
    }
  }
}

#else

// A lane has these columns of a row, 32 apart, so that a warp's are adjacent.
constexpr int kColumns = Rows::kColumns, kColumnsOfLane = kColumns / 32;

// The rows that were repeated from a place, by their times.
struct Run {
  Index first, end;
  // Padding may be much longer than what is before it, so that one warp would
  // take longer than all others.
  bool IsLong() const { return end - first > kRows; }
};

static Run RunOf(const Rows& rows, const Index* steps, Index row) {
  const Index first = steps[row];
  if (first < 0) return {0, 0};
  const bool is_last =
      row % rows.max_time + 1 == rows.max_time || steps[row + 1] < 0;
  return {first, is_last ? rows.max_time : min(steps[row + 1], rows.max_time)};
}

// Adds up every stride-th row of a run, at the columns of the lane whose first
// one is `column`.
static void AddUp(const Rows& rows, Index b, Run run, int stride, Index column,
                  Index width, const Item* from, Sum* sums) {
#pragma unroll
  for (int k = 0; k < kColumnsOfLane; ++k) sums[k] = 0;
  // These loads need not wait for one another.
#pragma unroll 4
  for (Index time = run.first; time < run.end; time += stride) {
    const Item* const items = from + rows.OfStep(b, time) * width;
#pragma unroll
    for (int k = 0; k < kColumnsOfLane; ++k) {
      const Index i = column + 32 * k;
      if (i < width) sums[k] += ToFloat(items[i]);
    }
  }
}

static void Store(const Sum* sums, Index column, Index width, Item* row) {
#pragma unroll
  for (int k = 0; k < kColumnsOfLane; ++k) {
    const Index i = column + 32 * k;
    if (i < width) row[i] = FromFloat(sums[k]);
  }
}

// Packs the gradients of rows that were repeated, which are added up. A block
// has kColumns columns at a time. The order of a sum depends on its length
// alone.
extern "C" __global__ void __launch_bounds__(32 * kRows)
    add_steps(Rows rows, Index batch, Index width, const Index* steps,
              const Item* from, Item* to) {
  __shared__ Sum parts[kRows][kColumns];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const Index num_rows = batch * rows.max_time;
  const auto row_of = [&](Index row) {
    return to + rows.At(row / rows.max_time, row % rows.max_time) * width;
  };
  for (Index column = kColumns * static_cast<Index>(blockIdx.y) + lane;
       column - lane < width; column += kColumns * gridDim.y) {
    for (Index row = FirstRow(); row - warp < num_rows; row += RowStep()) {
      Sum sums[kColumnsOfLane];
      const Run run = row < num_rows ? RunOf(rows, steps, row) : Run{0, 0};
      if (row < num_rows && !run.IsLong()) {
        AddUp(rows, row / rows.max_time, run, 1, column, width, from, sums);
        Store(sums, column, width, row_of(row));
      }
      if (!__syncthreads_or(run.IsLong())) continue;
      // All warps share each long run.
      for (int turn = 0; turn < kRows && row - warp + turn < num_rows; ++turn) {
        const Index shared_row = row - warp + turn;
        const Run shared = RunOf(rows, steps, shared_row);
        if (!shared.IsLong()) continue;
        AddUp(rows, shared_row / rows.max_time,
              {shared.first + warp, shared.end}, kRows, column, width, from,
              sums);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kColumnsOfLane; ++k) {
          parts[warp][lane + 32 * k] = sums[k];
        }
        __syncthreads();
        if (turn != warp) continue;
#pragma unroll
        for (int k = 0; k < kColumnsOfLane; ++k) {
          sums[k] = 0;
          for (int i = 0; i < kRows; ++i) sums[k] += parts[i][lane + 32 * k];
        }
        Store(sums, column, width, row_of(shared_row));
      }
    }
  }
}

#endif
