// The inner loops of the CPU backend, compiled once per instruction set.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_

#include <cstdint>

#if defined(__x86_64__) && defined(__linux__) && __has_include(<amxbf16intrin.h>)
#define CRNN_HAS_AMX
#endif

namespace cudnn_rnn_tf {

// Two numbers that are neighbours along the depth of a product.
struct BfloatPair {
  uint16_t even, odd;
};

// The most gates of a cell.
constexpr int kMostGates = 4;

// What a cell's step reads and writes of one row; a cell uses some of it. The
// units of gate g begin at gates + g * stride, those of a slot after the gates
// at last_slot.
template <typename T>
struct CellRow {
  int64_t stride;
  T clip;     // The bound of c, or 0.
  T epsilon;  // Added to variances.
  // Numbers of an Activation; `cells` do not read them.
  int activation, recurrent_activation;
  T *gates, *last_slot;
  const T* last_bias;  // Added to the slot after the gates.
  const T* h_before;
  T *c, *h;
  const T* vectors;  // `stride` numbers apart, of a cell that has some.
  T* zones;          // Shares of zoneout, of h and, `stride` on, of c.
  // Of a backward pass.
  const T* c_before;
  T *dh, *dc;
  // Of a cell with vectors, the sums of their gradients, as far apart as these.
  T* vector_sums;
  // Of a cell that normalises, room for `stride` numbers of each norm, and as
  // many again.
  T* work;
};

// The step of one kind of cell, for n units of a row. Forward passes overwrite
// the inputs of the gates with what a backward pass reads, and backward passes
// overwrite that with the inputs' gradients. Cell states are stored unclipped
// and clipped when they are read; with zoneout, they are stored clipped.
template <typename T>
struct CellKernels {
  // On entry, slots that other gates have no matrix for hold their products
  // without a bias.
  void (*forward)(int64_t n, const CellRow<T>& row);
  // `dc` holds the gradient of the cell state after the step on entry, and that
  // of the cell state before the step on return. Of a cell that reads h, `dh`
  // is replaced by the part of the gradient that reaches the previous h without
  // passing a gate. If `h` is not null, the output before the projection is
  // written to it. The vectors' gradients are added to their sums.
  //
  // Of a cell that normalises, n is the number of all units, and what is kept
  // are the gates' sums.
  void (*backward)(int64_t n, const CellRow<T>& row);
  // Only of cells with a gate whose matrix reads something else than h. The
  // first is the first half of a forward step, and sets what that matrix reads
  // in `last_slot`. The other one is the second half of a backward step:
  // `through` is the gradient of that, and what reaches h_before that way is
  // added to `dh`.
  void (*reset_forward)(int64_t n, const CellRow<T>& row);
  void (*reset_backward)(int64_t n, const CellRow<T>& row, const T* through);
};

// The functions take only plain pointers and numbers. simd_kernels.cc is
// compiled once per instruction set, and an inline function of another header
// would be emitted each time under the same name: the linker might keep one
// with instructions that the processor lacks.
template <typename T>
struct SimdKernels {
  // All instruction sets have tiles of up to kTileRows rows. AVX-512 also has
  // tall tiles, of up to kMaxTileRows rows.
  static constexpr int kTileRows = 6;
  static constexpr int kMaxTileRows = 12;
  static constexpr int kMaxVectors = 8;

  // Computes one tile of a product. For each of its rows r, c[r][col:col+cols]
  // = init[r][col:col+cols] + the sum over k of a[r][k * a_stride] * panel[k].
  // A row of the panel has as many whole vectors as cols needs, and holds zeros
  // beyond cols. init may be c, or null for zeros.
  // A tile with more vectors than a panel covers two or four whole panels,
  // whose beginnings are panel_size elements apart.
  template <typename A, typename Panel>
  using TileKernel = void (*)(int64_t depth, const A* const* a,
                              int64_t a_stride, const Panel* panel,
                              int64_t panel_size, const T* const* init,
                              T* const* c, int64_t col, int64_t cols);
  // Indexed by the tile's number of rows and of vectors. There are tiles of 1,
  // 2, 4 and 8 vectors, up to tile_vectors of their rows; other entries are
  // null.
  template <typename A, typename Panel>
  using Tiles = TileKernel<A, Panel>[kMaxTileRows + 1][kMaxVectors + 1];
  Tiles<T, T> tile;
  // For T = float, panels may hold bfloat16 numbers. Each pair has one number
  // from each of two successive rows of the panel; with an odd depth, the
  // second numbers of the last pairs are zeros.
  Tiles<T, BfloatPair> bfloat16_tile;
  // Here A holds bfloat16 numbers too, with pairs along its rows, and the depth
  // counts pairs. All entries are null unless the processor multiplies pairs.
  Tiles<BfloatPair, BfloatPair> bfloat16_pair_tile;
  int64_t vector_cols;
  int64_t panel_vectors;
  // The most vectors of a tile with so many rows; 0 if there is none.
  int64_t tile_vectors[kMaxTileRows + 1];
  // The most rows of a bfloat16_tile or bfloat16_pair_tile that is not tall. If
  // there are fewer than kTileRows, such tiles are never tall.
  int64_t bfloat16_tile_rows;

  // For j in [0, cols), with cols <= vector_cols: c[j] = init[j] + the sum over
  // k of a[k] * b[j * b_stride + k]. init may be c, or null for zeros.
  void (*dots)(int64_t depth, const T* a, const T* b, int64_t b_stride,
               int64_t cols, const T* init, T* c);

  // Copies n numbers to a row of neighbouring panels, whose first elements in
  // the row are panel_size numbers apart.
  void (*copy_to_panels)(int64_t n, const T* from, T* to, int64_t panel_size);
  // to[c * to_stride + r] = from[r * from_stride + c], for r in [0, rows) and c
  // in [0, cols).
  void (*transpose)(int64_t rows, int64_t cols, const T* from,
                    int64_t from_stride, T* to, int64_t to_stride);
  // sums[j] += the sum of from[r * stride + j] over r in [0, rows).
  void (*add_column_sums)(int64_t rows, int64_t n, const T* from,
                          int64_t stride, T* sums);

  // Indexed by RnnMode. The first have the cells' own activations, the others
  // those that the rows name. The last have zoneout.
  const CellKernels<T>* cells;
  const CellKernels<T>* chosen_cells;
  const CellKernels<T>* zoneout_cells;
};

// The gates' functions alone, so that tests can check their accuracy.
struct SimdFunctions {
  void (*sigmoid)(int64_t n, const float* x, float* y);
  void (*tanh)(int64_t n, const float* x, float* y);
};

// How the bits of a half type's numbers become floats, and floats become such
// numbers: the nearest ones, of a tie the even one. A NaN stays a NaN and keeps
// its sign.
struct HalfType {
  void (*widen)(int64_t n, const uint16_t* from, float* to);
  void (*round)(int64_t n, const float* from, uint16_t* to);
};

struct SimdPairs {
  // to[i] = the pair of even[i] and odd[i], rounded.
  void (*round)(int64_t n, const float* even, const float* odd, BfloatPair* to);
  // Does what SimdKernels<float>::transpose does.
  void (*transpose)(int64_t rows, int64_t cols, const BfloatPair* from,
                    int64_t from_stride, BfloatPair* to, int64_t to_stride);
};

// Products by registers that hold whole matrices, which bfloat16_rows rows of a
// block of A, equally far apart, are read into at once. All pointers are null
// if the processor has no such registers.
struct SimdMatrices {
  // A thread calls `configure` before it calls `tile`, and then `release`,
  // since other libraries configure the registers in their own ways.
  void (*configure)();
  void (*release)();
  int64_t rows;  // The most rows of a tile.
  // These do what SimdKernels<float>::bfloat16_pair_tile does, for up to so
  // many rows and one panel. They are indexed by the tile's number of vectors,
  // which may be 1 or 2.
  using Tile = void (*)(int64_t rows, int64_t depth, const BfloatPair* a,
                        int64_t a_stride, const BfloatPair* panel,
                        const float* const* init, float* const* c, int64_t col,
                        int64_t cols);
  Tile tile[3];
};

struct SimdTable {
  const char* name;
  SimdKernels<float> float32;
  SimdKernels<double> float64;
  SimdFunctions functions;
  HalfType float16, bfloat16;
  SimdPairs pairs;
  // Tiles that multiply bfloat16 numbers read A and panels up to multiples of
  // this many rows and this much depth.
  int64_t bfloat16_rows = 1, bfloat16_depth = 2;
  SimdMatrices matrices = {};

  // Returns whether this instruction set multiplies bfloat16 numbers, which is
  // faster than multiplying floats.
  bool multiplies_bfloat16() const {
    return float32.bfloat16_pair_tile[1][1] != nullptr;
  }
  // Returns whether it does so by matrix registers.
  bool multiplies_matrices() const { return matrices.tile[1] != nullptr; }
};

// Returns the table for the best instruction set that this processor has, or
// for the one that the environment variable CUDNN_RNN_TF_CPU_ISA names
// ("baseline", "avx2", "avx512", "avx512bf16" or "amx"). A name is ignored if
// the processor cannot run it.
const SimdTable& Simd();

// Returns whether this process can multiply bfloat16 matrices with AMX.
bool HasAmx();

template <typename T>
const SimdKernels<T>& Kernels();
template <>
inline const SimdKernels<float>& Kernels<float>() {
  return Simd().float32;
}
template <>
inline const SimdKernels<double>& Kernels<double>() {
  return Simd().float64;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_
