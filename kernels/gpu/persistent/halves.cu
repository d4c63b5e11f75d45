// Kernels that make float16's operands of floats, for products of cuBLAS. What
// is summed up shares a power of two, as powers.cuh says: the numbers of a row
// if sums go over columns, and the numbers of a column if they go over rows.
#include "elementwise.cuh"
#include "scales.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::HalvedNumbers;

constexpr int kAtOnce = HalvedNumbers::kOfThread;
constexpr int kColumns = HalvedNumbers::kColumnsOfTile;

static Word PairOf(float first, float second) {
  return ToHalf(first) | static_cast<Word>(ToHalf(second)) << 16;
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
      reinterpret_cast<Word*>(to)[at / 2] =
          PairOf(scale * values[i], scale * values[i + 1]);
    }
  }
}

// Four neighbouring floats of a row.
struct alignas(16) Quad {
  float of[4];
};

// A row of a matrix, null if it has zeros, and the factor of its numbers.
struct ScaledRow {
  const float* numbers;
  float factor;
};

// A matrix, [rows, width], is divided into tiles. A block, of 256 threads,
// takes tiles of the same columns, of which each thread has four.
static int TilesAcross(int width) { return (width + kColumns - 1) / kColumns; }
static int ColumnOfThread(int width) {
  return static_cast<int>(blockIdx.x) % TilesAcross(width) * kColumns +
         static_cast<int>(threadIdx.x) % 32 * 4;
}

// Calls use(row, quad, factor) for the thread's columns of some rows, until the
// launch has used the whole matrix. The factor is that of row_of(row); zeros
// follow the columns.
template <typename RowOf, typename Use>
static void ForQuads(Index rows, int width, const RowOf& row_of,
                     const Use& use) {
  constexpr int kRows = HalvedNumbers::kRowsOfTile, kWarps = 8;
  __shared__ ScaledRow of_tile[kRows];
  const int across = TilesAcross(width), column = ColumnOfThread(width);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Index at_once = gridDim.x / across * kRows;
  for (Index tile = blockIdx.x / across * kRows; tile < rows; tile += at_once) {
    __syncthreads();  // The rows of the tile before have been read.
    if (warp == 0 && tile + lane < rows) of_tile[lane] = row_of(tile + lane);
    __syncthreads();
    Quad quads[kRows / kWarps] = {};
#pragma unroll
    for (int i = 0; i < kRows / kWarps; ++i) {
      const int row = i * kWarps + warp;
      if (tile + row >= rows || of_tile[row].numbers == nullptr) continue;
      const float* const from = of_tile[row].numbers + column;
      if (column + 4 <= width &&
          reinterpret_cast<Index>(from) % sizeof(Quad) == 0) {
        quads[i] = *reinterpret_cast<const Quad*>(from);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j < width) quads[i].of[j] = from[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kRows / kWarps; ++i) {
      const int row = i * kWarps + warp;
      if (tile + row >= rows || column >= width) continue;
      use(tile + row, quads[i], of_tile[row].factor);
    }
  }
}

// Returns what of(i) says of the thread's columns. It is not used of those
// behind the last one.
template <typename Of>
static Quad OfColumns(int width, const Of& of) {
  Quad quad;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    quad.of[j] = of(min(ColumnOfThread(width) + j, width - 1));
  }
  return quad;
}

// The rows that are halved by columns. They are multiplied by `factors` first,
// unless these are null.
static auto RowsToHalve(const StepRows& from, const float* factors) {
  return [=](Index row) -> ScaledRow {
    return {RowOf(from, row), factors == nullptr ? 1.0f : factors[row]};
  };
}

// Finds the largest magnitude in each column. `largest` holds zeros before.
extern "C" __global__ void find_columns(const StepRows from, Index rows,
                                        int width, const float* factors,
                                        Word* largest) {
  __shared__ Word of_block[kColumns];
  if (threadIdx.x < kColumns) of_block[threadIdx.x] = 0;
  Word mine[4] = {};
  ForQuads(rows, width, RowsToHalve(from, factors),
           [&](Index, const Quad& quad, float factor) {
#pragma unroll
             for (int j = 0; j < 4; ++j) {
               mine[j] = max(mine[j], MagnitudeOf(factor * quad.of[j]));
             }
           });
  __syncthreads();
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) atomicMax(of_block + lane * 4 + j, mine[j]);
  __syncthreads();
  const int column = ColumnOfThread(width) - lane * 4 + threadIdx.x;
  if (threadIdx.x < kColumns && column < width) {
    atomicMax(largest + column, of_block[threadIdx.x]);
  }
}

// Halves the columns then. Rows of `to` begin at multiples of eight bytes.
extern "C" __global__ void halve_columns(const StepRows from, Index rows,
                                         int width, const float* factors,
                                         const Word* largest, Index to_pitch,
                                         Half* to) {
  struct alignas(8) Pairs {
    Word word[2];
  };
  const Quad scale =
      OfColumns(width, [=](int i) { return ScaleOf(PowerOf(largest[i])); });
  to += ColumnOfThread(width);
  ForQuads(rows, width, RowsToHalve(from, factors),
           [&](Index row, const Quad& quad, float factor) {
             const auto number = [&](int j) {
               return scale.of[j] * (factor * quad.of[j]);
             };
             *reinterpret_cast<Pairs*>(to + row * to_pitch) = {
                 PairOf(number(0), number(1)), PairOf(number(2), number(3))};
           });
}

// Divides products, [rows, width], by what their operands were multiplied by.
// One operand has the columns' powers, and the other one the rows', or 1. The
// products' rows are `pitch` numbers apart, and may stand in the results'
// place.
extern "C" __global__ void unscale(Index rows, int width, Index pitch,
                                   const float* of_rows, const Word* of_columns,
                                   const float* products, float* results) {
  const int column = ColumnOfThread(width);
  const Quad power =
      OfColumns(width, [=](int i) { return PowerOf(of_columns[i]); });
  ForQuads(
      rows, width,
      [=](Index row) -> ScaledRow {
        return {products + row * pitch,
                of_rows == nullptr ? 1.0f : of_rows[row]};
      },
      [&](Index row, const Quad& quad, float of_row) {
        Quad unscaled;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          unscaled.of[j] = Unscaled(quad.of[j], power.of[j], of_row);
        }
        float* const to = results + row * width + column;
        if (column + 4 <= width &&
            reinterpret_cast<Index>(to) % sizeof(Quad) == 0) {
          *reinterpret_cast<Quad*>(to) = unscaled;
          return;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (column + j < width) to[j] = unscaled.of[j];
        }
      });
}
