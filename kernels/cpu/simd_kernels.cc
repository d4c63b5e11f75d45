// This file is compiled once per instruction set. The build sets CRNN_SIMD_NAME
// (the namespace) and CRNN_SIMD_BYTES (the vector's width).
#include "kernels/cpu/simd_kernels.h"

#include <type_traits>
#include <utility>

#include "kernels/cpu/norm_loops.h"
#include "kernels/cpu/simd_math.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
namespace {

constexpr int kPanelVectors = 2;
static_assert(sizeof(SimdMatrices::tile) / sizeof(SimdMatrices::Tile) >
                  kPanelVectors,
              "");
constexpr int kTileRows = SimdKernels<float>::kTileRows;
constexpr bool kIsAvx512 = CRNN_SIMD_BYTES == 64;

// Returns the most vectors of a tile with so many rows. A tile needs registers
// for its sums, a row of the panels, and one factor of its rows. 6 rows by 4
// vectors take 29 of AVX-512's 32 registers, and tall tiles of 12 rows by 2
// vectors take 27. 6 rows by 2 vectors take 15 of the 16 that AVX2 and SSE
// have. (Tiles that split pairs of the panel into floats take more.) A sum
// takes a new product every four cycles, in which a core computes eight vectors
// of products, so a tile of one or two rows has vectors until it has eight
// sums. With AVX-512, more than four gain nothing, since reading the panels
// takes as long.
constexpr int MostVectors(int rows) {
  if (kIsAvx512) return rows <= kTileRows ? 4 : 2;
  return rows == 1 ? 8 : rows == 2 ? 4 : rows <= kTileRows ? 2 : 0;
}

// The factor from A that a row of a panel is multiplied with. If the panel has
// pairs but A does not, it consists of two numbers of A.
template <typename Panel, typename A>
struct Factor {
  A number;
  Factor(const A* a, int64_t) : number(*a) {}
};
template <>
struct Factor<BfloatPair, float> {
  float even, odd = 0.0f;
  explicit Factor(const float* a) : even(*a) {}
  Factor(const float* a, int64_t stride) : even(*a), odd(a[stride]) {}
};

// Returns sum + x * b.
template <typename T>
inline Vector<T> AddProduct(Vector<T> sum, Factor<T, T> x, Vector<T> b) {
  return sum + x.number * b;
}
inline Floats AddProduct(Floats sum, Factor<BfloatPair, float> x, Words b) {
  // A bfloat16 number is the upper half of a float.
  sum += x.even * (Floats)(b << 16);
  return sum + x.odd * (Floats)(b & 0xffff0000u);
}
#ifdef __AVX512BF16__
inline Floats AddProduct(Floats sum, Factor<BfloatPair, BfloatPair> x,
                         Words b) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x.number, sizeof(bits));
  const Words pairs = Words{} + bits;
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pairs, (__m512bh)b);
}
#endif

template <typename T, typename A, typename Panel, int rows, int vectors>
void Tile(int64_t depth, const A* const* a, int64_t a_stride,
          const Panel* panel, int64_t panel_size, const T* const* init,
          T* const* c, int64_t col, int64_t cols) {
  Vector<T> sum[rows][vectors] = {};
  const A* row[rows];
  // A panel may be larger than the L1 cache. With much to multiply, fetching
  // its rows ahead costs nothing; with few rows of A, it would take the place
  // of other loads.
  constexpr bool kPrefetchesPanel = kIsAvx512 && rows >= 4;
  constexpr int64_t kNumbers = std::is_same<A, Panel>::value ? 1 : 2;
  constexpr int kRowVectors = vectors < kPanelVectors ? vectors : kPanelVectors;
  constexpr int64_t kPanelRow = kRowVectors * kWidth<T>;
  // Prefetches the places that the sums go to while the sums are computed.
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    row[r] = a[r];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      __builtin_prefetch(c[r] + col + v * kWidth<T>, /*for writing*/ 1);
    }
  }
  const auto add_row = [&](const auto& factor) __attribute__((always_inline)) {
    const auto address = [&](int v) {
      return panel + v / kRowVectors * panel_size + v % kRowVectors * kWidth<T>;
    };
    if constexpr (!kIsAvx512 && vectors > kPanelVectors) {
      // An array of so many vectors would take registers from the sums.
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        const auto b = Whole::Load(address(v));
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
          sum[r][v] = AddProduct(sum[r][v], factor(r), b);
        }
      }
      panel += kPanelRow;
      return;
    }
    decltype(Whole::Load(panel)) b[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      b[v] = Whole::Load(address(v));
      if constexpr (kPrefetchesPanel) {
        __builtin_prefetch(address(v) + 8 * kPanelRow);
      }
    }
    panel += kPanelRow;
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const auto x = factor(r);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        sum[r][v] = AddProduct(sum[r][v], x, b[v]);
      }
    }
  };
  int64_t offset = 0;
  for (int64_t k = 0; k + kNumbers <= depth; k += kNumbers) {
    add_row([&](int r) { return Factor<Panel, A>(row[r] + offset, a_stride); });
    offset += kNumbers * a_stride;
  }
  if constexpr (kNumbers == 2) {
    if (depth % 2 == 1) {
      add_row([&](int r) { return Factor<Panel, A>(row[r] + offset); });
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const int64_t first = col + v * kWidth<T>;
      const Rest rest = {cols - v * kWidth<T>};
      if (rest.count >= kWidth<T>) {
        if (init != nullptr) sum[r][v] += Whole::Load(init[r] + first);
        Whole::Store(c[r] + first, sum[r][v]);
      } else if (rest.count > 0) {
        if (init != nullptr) sum[r][v] += rest.Load(init[r] + first);
        rest.Store(c[r] + first, sum[r][v]);
      }
    }
  }
}

template <typename T>
void CopyToPanels(int64_t n, const T* from, T* to, int64_t panel_size) {
  constexpr int64_t kCols = kPanelVectors * kWidth<T>;
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    memory.Store(to + j / kCols * panel_size + j % kCols,
                 memory.Load(from + j));
  });
}

template <typename T>
struct ShuffleIndex;
template <>
struct ShuffleIndex<float> {
  using Type = Ints;
};
template <>
struct ShuffleIndex<double> {
  typedef int64_t Type __attribute__((vector_size(CRNN_SIMD_BYTES)));
};

// Interleaves the elements of one half of a and of b: the first half if `half`
// is 0, the second if it is 1.
template <typename T>
inline Vector<T> InterleaveHalf(int half, Vector<T> a, Vector<T> b) {
  typename ShuffleIndex<T>::Type index = {};
  for (int i = 0; i < kWidth<T>; ++i) {
    index[i] = (half * kWidth<T> + i) / 2 + i % 2 * kWidth<T>;
  }
  return __builtin_shuffle(a, b, index);
}

// Adds up the elements of each vector. Interleaving vector i with vector
// i + n / 2 halves the number of vectors; after the last round, the sums are in
// order.
template <typename T>
inline Vector<T> SumOfEach(Vector<T> (&v)[kWidth<T>]) {
#pragma GCC unroll 4
  for (int half = kWidth<T> / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      v[i] = InterleaveHalf<T>(0, v[i], v[i + half]) +
             InterleaveHalf<T>(1, v[i], v[i + half]);
    }
  }
  return v[0];
}

// Returns the sums over k of a[k] * column(j)[k], for as many columns j as a
// vector has elements.
template <typename T, typename Column>
inline Vector<T> ProductsWithColumns(int64_t depth, const T* a,
                                     const Column& column) {
  constexpr int kN = kWidth<T>;
  Vector<T> sum[kN] = {};
  const auto add = [&](int64_t k, const auto& load)
                       __attribute__((always_inline)) {
                         const Vector<T> x = load(a + k);
#pragma GCC unroll 16
                         for (int j = 0; j < kN; ++j)
                           sum[j] += x * load(column(j) + k);
                       };
  int64_t k = 0;
  for (; k + kN <= depth; k += kN) add(k, Whole::Load<T>);
  if (k == depth) return SumOfEach<T>(sum);
  if (depth < kN) {
    const Rest rest = {depth};
    add(0, [&](const T* from) { return rest.Load(from); });
  } else {
    // The last whole vector begins with elements that were added before.
    using Bits = typename ShuffleIndex<T>::Type;
    Bits is_new = {};
    for (int i = 0; i < kN; ++i) is_new[i] = depth - kN + i < k ? 0 : -1;
    add(depth - kN, [&](const T* from) {
      return (Vector<T>)((Bits)Whole::Load(from) & is_new);
    });
  }
  return SumOfEach<T>(sum);
}

template <typename T>
void Dots(int64_t depth, const T* a, const T* b, int64_t b_stride, int64_t cols,
          const T* init, T* c) {
  constexpr int kHalf = kWidth<T> / 2;
  if (cols == kWidth<T>) {
    // Two addresses and few multiples of the stride are few enough for
    // registers.
    const T* const halves[] = {b, b + kHalf * b_stride};
    Vector<T> sums = ProductsWithColumns<T>(
        depth, a, [&](int j) __attribute__((always_inline)) {
          return halves[j / kHalf] + j % kHalf * b_stride;
        });
    if (init != nullptr) sums += Whole::Load(init);
    return Whole::Store(c, sums);
  }
  const Rest rest = {cols};
  Vector<T> sums = ProductsWithColumns<T>(depth, a, [&](int j) {
    return b + (j < cols ? j : cols - 1) * b_stride;
  });
  if (init != nullptr) sums += rest.Load(init);
  rest.Store(c, sums);
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

template <int vectors, int rows, typename T, typename A, typename Panel>
void SetTile(typename SimdKernels<T>::template Tiles<A, Panel>& tiles) {
  if constexpr (vectors <= MostVectors(rows)) {
    tiles[rows][vectors] = Tile<T, A, Panel, rows, vectors>;
  }
}

template <typename T, typename A, typename Panel, int... i>
void SetTiles(typename SimdKernels<T>::template Tiles<A, Panel>& tiles,
              std::integer_sequence<int, i...>) {
  (SetTile<1, i + 1, T, A, Panel>(tiles), ...);
  (SetTile<2, i + 1, T, A, Panel>(tiles), ...);
  (SetTile<4, i + 1, T, A, Panel>(tiles), ...);
  (SetTile<8, i + 1, T, A, Panel>(tiles), ...);
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
