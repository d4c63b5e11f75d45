// The kernels that kernels/masked_steps.h describes. Arrays of places, steps
// and lengths are [B, T] or [B], of 64 bits.
//
// Whoever compiles move_steps defines UNIT_BYTES, the bytes that a thread moves
// at once. Whoever compiles add_steps defines one of IS_FLOAT64, IS_FLOAT,
// IS_FLOAT16 and IS_BFLOAT16.
#if defined(IS_FLOAT64)
using Item = double;
using Sum = double;
static __device__ double ToFloat(double item) { return item; }
static __device__ double FromFloat(double value) { return value; }
#elif !defined(UNIT_BYTES) && !defined(IS_MASK)
#include "items.cuh"
using Sum = float;
#endif

using Index = long long;

// A row is a warp's work in all of these kernels.
static __device__ Index FirstWarp() {
  return (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
}
static __device__ Index WarpStep() {
  return static_cast<Index>(gridDim.x) * blockDim.x / 32;
}

// The rows of sequences in memory: of `time` in sequence `b`.
struct Rows {
  Index batch_stride, time_stride;
  Index max_time;
  bool is_reversed;

  __device__ Index At(Index b, Index time) const {
    return b * batch_stride + time * time_stride;
  }
  __device__ Index OfStep(Index b, Index time) const {
    return At(b, is_reversed ? max_time - 1 - time : time);
  }
};

#if defined(IS_MASK)

extern "C" __global__ void read_mask(const unsigned char* mask, Rows rows,
                                     Index batch, bool refuses_gaps,
                                     Index* lengths, Index* places,
                                     Index* steps) {
  const int lane = threadIdx.x % 32;
  const Index max_time = rows.max_time;
  for (Index b = FirstWarp(); b < batch; b += WarpStep()) {
    Index count = 0, end = 0;
    for (Index first = 0; first < max_time; first += 32) {
      const Index time = first + lane;
      const bool is_read = time < max_time && mask[rows.OfStep(b, time)];
      const unsigned int read = __ballot_sync(~0u, is_read);
      const Index before = count + __popc(read & ((1u << lane) - 1));
      if (places != nullptr && time < max_time) {
        places[b * max_time + time] = is_read ? before : -1 - before;
      }
      if (steps != nullptr && is_read) steps[b * max_time + before] = time;
      count += __popc(read);
      if (read != 0) end = first + 32 - __clz(read);
    }
    if (steps != nullptr) {
      for (Index place = count + lane; place < max_time; place += 32) {
        steps[b * max_time + place] = -1;
      }
    }
    if (lane == 0) lengths[b] = refuses_gaps && count < end ? -1 : count;
  }
}

#elif defined(UNIT_BYTES)

#if UNIT_BYTES == 16
using Unit = uint4;
#elif UNIT_BYTES == 8
using Unit = uint2;
#elif UNIT_BYTES == 4
using Unit = unsigned int;
#else
using Unit = unsigned short;
#endif

extern "C" __global__ void move_steps(Rows rows, Index batch, Index width,
                                      bool packs, bool repeats,
                                      const Index* places, const Index* steps,
                                      const Unit* from, Unit* to) {
  const int lane = threadIdx.x % 32;
  for (Index row = FirstWarp(); row < batch * rows.max_time;
       row += WarpStep()) {
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

// Packs the gradients of rows that were repeated, which are added up.
extern "C" __global__ void add_steps(Rows rows, Index batch, Index width,
                                     const Index* steps, const Item* from,
                                     Item* to) {
  const int lane = threadIdx.x % 32;
  for (Index row = FirstWarp(); row < batch * rows.max_time;
       row += WarpStep()) {
    const Index b = row / rows.max_time, place = row % rows.max_time;
    const Index first = steps[row];
    Index end = first < 0 ? first : rows.max_time;
    if (first >= 0 && place + 1 < rows.max_time && steps[row + 1] >= 0) {
      end = min(steps[row + 1], rows.max_time);
    }
    for (Index i = lane; i < width; i += 32) {
      Sum sum = 0;
      // Long padding follows few places, and these loads need not wait for one
      // another.
#pragma unroll 8
      for (Index time = first; time < end; ++time) {
        sum += ToFloat(from[rows.OfStep(b, time) * width + i]);
      }
      to[rows.At(b, place) * width + i] = FromFloat(sum);
    }
  }
}

#endif
