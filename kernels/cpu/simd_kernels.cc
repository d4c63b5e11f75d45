// This file is compiled once per instruction set. The build sets CRNN_SIMD_NAME
// (the namespace) and CRNN_SIMD_BYTES (the vector's width).
#include "kernels/cpu/simd_kernels.h"

#include <type_traits>

#include "kernels/cpu/norm_loops.h"
#include "kernels/cpu/product_loops.h"
#include "kernels/cpu/simd_math.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
namespace {

template <typename T>
void CopyToPanels(int64_t n, const T* from, T* to, int64_t panel_size) {
  constexpr int64_t kCols = kPanelVectors * kWidth<T>;
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    memory.Store(to + j / kCols * panel_size + j % kCols,
                 memory.Load(from + j));
  });
}

// Transposes a square matrix whose rows are one vector each. Interleaving row i
// with row i + width / 2 rotates the bits of an element's position; after as
// many rounds as a column index has bits, rows and columns have changed places.
template <typename T>
void TransposeSquare(const T* from, int64_t from_stride, T* to,
                     int64_t to_stride) {
  constexpr int kN = kWidth<T>;
  Vector<T> v[kN];
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) {
    v[i] = Whole::Load(from + i * from_stride);
    // The hardware's own prefetching does not follow so many rows at once.
    __builtin_prefetch(from + i * from_stride + 2 * kN);
    __builtin_prefetch(to + (i + kN) * to_stride, /*for writing*/ 1);
  }
#pragma GCC unroll 4
  for (int round = 1; round < kN; round *= 2) {
    Vector<T> next[kN];
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i) {
      next[i] = InterleaveHalf<T>(i % 2, v[i / 2], v[i / 2 + kN / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i) v[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) Whole::Store(to + i * to_stride, v[i]);
}

template <typename T>
void Transpose(int64_t rows, int64_t cols, const T* from, int64_t from_stride,
               T* to, int64_t to_stride) {
  const int64_t square_rows = rows / kWidth<T> * kWidth<T>;
  const int64_t square_cols = cols / kWidth<T> * kWidth<T>;
  // A row of squares is finished before the next begins, so that few rows are
  // read at the same time.
  for (int64_t r = 0; r < square_rows; r += kWidth<T>) {
    for (int64_t c = 0; c < square_cols; c += kWidth<T>) {
      TransposeSquare<T>(from + r * from_stride + c, from_stride,
                         to + c * to_stride + r, to_stride);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < square_rows ? square_cols : 0; c < cols; ++c) {
      __builtin_memcpy(to + c * to_stride + r, from + r * from_stride + c,
                       sizeof(T));
    }
  }
}

// A pair is moved like a float.
void TransposePairs(int64_t rows, int64_t cols, const BfloatPair* from,
                    int64_t from_stride, BfloatPair* to, int64_t to_stride) {
  Transpose<float>(rows, cols, reinterpret_cast<const float*>(from),
                   from_stride, reinterpret_cast<float*>(to), to_stride);
}

template <typename T>
void AddColumnSums(int64_t rows, int64_t n, const T* from, int64_t stride,
                   T* sums) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    Vector<T> sum = {};
    for (int64_t r = 0; r < rows; ++r)
      sum += memory.Load(from + r * stride + j);
    memory.Store(sums + j, memory.Load(sums + j) + sum);
  });
}

// A vector of halves has as many elements as one of floats, so both arrays are
// read and written at the same indices.
template <typename From, typename To, Vector<To> (*convert)(Vector<From>)>
void ConvertArray(int64_t n, const From* from, To* to) {
  ForVectors<float>(n, [&](auto memory, int64_t j) {
    memory.Store(to + j, convert(memory.Load(from + j)));
  });
}
template <Floats (*widen)(Halves), Halves (*round)(Floats)>
constexpr HalfType kHalfType = {ConvertArray<uint16_t, float, widen>,
                                ConvertArray<float, uint16_t, round>};

void RoundPairs(int64_t n, const float* even, const float* odd,
                BfloatPair* to) {
  ForVectors<float>(n, [&](auto memory, int64_t j) {
    memory.Store(to + j, RoundToBfloat16(memory.Load(even + j)) |
                             RoundToBfloat16(memory.Load(odd + j)) << 16);
  });
}

template <typename T>
SimdKernels<T> MakeKernels() {
  constexpr int kMaxTileRows = SimdKernels<T>::kMaxTileRows;
  constexpr std::make_integer_sequence<int, kMaxTileRows> kAllRows{};
  SimdKernels<T> kernels = {};
  SetTiles<T, T, T>(kernels.tile, kAllRows);
  if constexpr (std::is_same<T, float>::value) {
#ifdef __AVX512BF16__
    SetTiles<T, BfloatPair, BfloatPair>(kernels.bfloat16_pair_tile, kAllRows);
#endif
    SetTiles<T, T, BfloatPair>(kernels.bfloat16_tile, kAllRows);
  }
  kernels.vector_cols = kWidth<T>;
  kernels.panel_vectors = kPanelVectors;
  for (int rows = 1; rows <= kMaxTileRows; ++rows) {
    kernels.tile_vectors[rows] = MostVectors(rows);
  }
  // With 16 registers, a higher tile whose panel has pairs would move sums to
  // the stack and back.
  kernels.bfloat16_tile_rows = kIsAvx512 ? kTileRows : 4;
  kernels.dots = Dots<T>;
  kernels.copy_to_panels = CopyToPanels<T>;
  kernels.transpose = Transpose<T>;
  kernels.add_column_sums = AddColumnSums<T>;
  kernels.cells = MakeCellKernels<T, CellFunctions<T>>(AllCells());
  kernels.chosen_cells = MakeCellKernels<T, ChosenFunctions<T>>(AllCells());
  kernels.zoneout_cells =
      MakeCellKernels<T, ChosenFunctions<T>>(ZoneoutCells());
  return kernels;
}

}  // namespace

#define CRNN_STRING_(x) #x
#define CRNN_STRING(x) CRNN_STRING_(x)

// The table is made when it is first asked for and not when the library is
// loaded, because the processor may lack the instructions that this file is
// compiled with.
const SimdTable& Table() {
  static const SimdTable table = {
      CRNN_STRING(CRNN_SIMD_NAME),
      MakeKernels<float>(),
      MakeKernels<double>(),
      {ConvertArray<float, float, Sigmoid>, ConvertArray<float, float, Tanh>},
      kHalfType<FromFloat16, ToFloat16>,
      kHalfType<FromBfloat16, ToBfloat16>,
      {RoundPairs, TransposePairs}};
  return table;
}

}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf
