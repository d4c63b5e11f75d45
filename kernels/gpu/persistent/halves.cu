// Kernels that make float16's operands of floats, for products of cuBLAS. What
// is summed up shares a power of two, as powers.cuh says: the numbers of a row
// if sums go over columns, and the numbers of a column if they go over rows.
#include "elementwise.cuh"
#include "scales.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::HalvedNumbers;

constexpr int kAtOnce = HalvedNumbers::kOfThread;

// Stores two neighbouring operands of a row. Rows begin at multiples of four
// bytes.
static void StorePair(Half* to, int at, float first, float second) {
  reinterpret_cast<Word*>(to)[at / 2] =
      ToHalf(first) | static_cast<Word>(ToHalf(second)) << 16;
}

// Halves rows of `width` floats and stores their powers, which are at least
// `least`. A block takes a row. Zeros follow up to `to_width`, which is even.
// Rows of operands may stand where those of floats do, if they are as far apart
// in bytes; without `to`, there are only powers.
extern "C" __global__ void halve_rows(int width, Index from_pitch,
                                      const float* from, float least,
                                      int to_width, Index to_pitch, Half* to,
                                      float* powers) {
  const int chunk = kAtOnce * blockDim.x;
  from += blockIdx.x * from_pitch;
  const auto place = [](int first, int i) {
    return first + static_cast<int>(i / 2 * blockDim.x + threadIdx.x) * 2 +
           i % 2;
  };
  float values[kAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = place(first, i);
      values[i] = at < width ? from[at] : 0.0f;
    }
  };
  Word largest = __float_as_uint(least);
  for (int first = 0; first < width; first += chunk) {
    load(first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      largest = max(largest, MagnitudeOf(values[i]));
    }
  }
  const float power = PowerOf(LargestOfBlock(largest));
  if (threadIdx.x == 0) powers[blockIdx.x] = power;
  if (to == nullptr) return;
  to += blockIdx.x * to_pitch;
  const float scale = ScaleOf(power);
  for (int first = 0; first < to_width; first += chunk) {
    if (to_width > chunk) load(first);
    __syncthreads();  // What stood here was read.
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
      const int at = place(first, i);
      if (at >= to_width) continue;
      StorePair(to, at, scale * values[i], scale * values[i + 1]);
    }
  }
}

// Calls use(row, column, values) with what load(row, column) returns for
// `kWide` columns, for some rows, and then done(column), until the launch has
// used all of [rows, width].
template <int kWide, typename Load, typename Use, typename Done>
static void ForColumns(Index rows, int width, const Load& load, const Use& use,
                       const Done& done) {
  constexpr int kRows = HalvedNumbers::kRowsOfTile, kRowsAtOnce = 8 / kWide;
  const int of_block = blockDim.x * kWide;
  const Index across = (width + of_block - 1) / of_block;
  const Index tiles = across * ((rows + kRows - 1) / kRows);
  for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int column =
        static_cast<int>(tile % across) * of_block + threadIdx.x * kWide;
    if (column >= width) continue;
    const Index end = min(rows, (tile / across + 1) * kRows);
    for (Index row = tile / across * kRows; row < end; row += kRowsAtOnce) {
      float values[kRowsAtOnce][kWide];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce * kWide; ++i) {
        const bool exists = row + i / kWide < end && column + i % kWide < width;
        values[i / kWide][i % kWide] =
            exists ? load(row + i / kWide, column + i % kWide) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (row + i < end) use(row + i, column, values[i]);
      }
    }
    done(column);
  }
}

// Returns a float that is to be halved by columns: 0 past the ends of sequences
// that have lengths, and multiplied by its row's factor if there are any.
static float LoadOfColumn(const Sequences& all, const float* from, Index at,
                          Index row, const float* factors) {
  if (all.lengths != nullptr) {
    const Step step = StepOfRow(all, row);
    if (step.time >= all.lengths[step.b]) return 0.0f;
  }
  return factors == nullptr ? from[at] : from[at] * factors[row];
}

// Finds the largest magnitude in each column of [rows, width], whose rows are
// `pitch` numbers apart. `largest` holds zeros before.
extern "C" __global__ void find_columns(Sequences all, Index rows, int width,
                                        Index pitch,
                                        const float* __restrict__ from,
                                        const float* __restrict__ factors,
                                        Word* largest) {
  Word mine = 0;
  ForColumns<1>(
      rows, width,
      [&](Index row, int column) {
        return LoadOfColumn(all, from, row * pitch + column, row, factors);
      },
      [&](Index, int, const float* value) {
        mine = max(mine, MagnitudeOf(*value));
      },
      [&](int column) {
        atomicMax(largest + column, mine);
        mine = 0;
      });
}

// Halves the columns then.
extern "C" __global__ void halve_columns(
    Sequences all, Index rows, int width, Index pitch,
    const float* __restrict__ from, const float* __restrict__ factors,
    const Word* __restrict__ largest, Index to_pitch, Half* __restrict__ to) {
  ForColumns<2>(
      rows, width,
      [&](Index row, int column) {
        return ScaleOf(PowerOf(largest[column])) *
               LoadOfColumn(all, from, row * pitch + column, row, factors);
      },
      [&](Index row, int column, const float* values) {
        StorePair(to + row * to_pitch, column, values[0], values[1]);
      },
      [](int) {});
}

// Divides products, [rows, width], by what their operands were multiplied by.
// One operand has the columns' powers, and the other one the rows', or 1. The
// products' rows are `pitch` numbers apart, and may stand in the results'
// place.
extern "C" __global__ void unscale(Index rows, int width, Index pitch,
                                   const float* of_rows, const Word* of_columns,
                                   const float* products, float* results) {
  ForColumns<1>(
      rows, width,
      [&](Index row, int column) {
        return Unscaled(products[row * pitch + column],
                        PowerOf(of_columns[column]),
                        of_rows == nullptr ? 1.0f : of_rows[row]);
      },
      [&](Index row, int column, const float* value) {
        results[row * width + column] = *value;
      },
      [](int) {});
}
