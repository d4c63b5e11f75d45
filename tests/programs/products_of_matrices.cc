// Checks matrix products of the code for AVX-512 with BF16 and for AMX, whose
// instructions are faked. Products are compared with sums in double precision.
// Each row must also be the same to the bit if it is computed alone, one panel
// at a time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/cpu/product.h"
#include "kernels/cpu/transposed_products.h"

// simd_kernels.cc is compiled for AVX-512 with BF16. The matrix registers have
// a source file of their own, which needs another name.
#undef CRNN_SIMD_NAME
#define CRNN_SIMD_NAME amx
#include "kernels/cpu/amx_kernels.cc"

namespace cudnn_rnn_tf {
namespace {

const SimdTable* table = nullptr;

}  // namespace

const SimdTable& Simd() { return *table; }

namespace {

std::mt19937 generator(11);

int64_t Draw(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(generator() % (most - least + 1));
}

template <typename T>
std::vector<T> DrawNumbers(int64_t n) {
  std::vector<T> numbers(n);
  for (T& number : numbers) {
    number = static_cast<T>(Draw(-1000, 1000)) / static_cast<T>(997);
  }
  return numbers;
}

void RunOnThisThread(Schedule* schedule) {
  schedule->Run({1, [](int64_t, const auto& body) { body(0); }});
}

// The shape of a product, and how it is computed.
struct Case {
  int64_t rows, cols, depth;
  bool is_double, bfloat16, rounds_both, has_rounded_a, is_transposed;
  enum { kNone, kOther, kSame } init;
};

void Check(bool holds, const char* what, const Case& one) {
  if (holds) return;
  std::printf(
      "%s: %s, rows %lld, cols %lld, depth %lld, double %d, bfloat16 %d, "
      "rounds_both %d, has_rounded_a %d, transposed %d, init %d\n",
      Simd().name, what, static_cast<long long>(one.rows),
      static_cast<long long>(one.cols), static_cast<long long>(one.depth),
      one.is_double, one.bfloat16, one.rounds_both, one.has_rounded_a,
      one.is_transposed, one.init);
  std::exit(1);
}

// Returns a bound of the error of a sum of products of numbers up to 1.
template <typename T>
double Bound(int64_t depth, bool bfloat16) {
  if (bfloat16) return 0.02 * std::sqrt(depth) + 0.02;
  return 32 * std::sqrt(depth) * std::numeric_limits<T>::epsilon();
}

template <typename T>
bool IsNear(T value, double expected, double bound) {
  return std::abs(static_cast<double>(value) - expected) <= bound;
}

template <typename T>
void CheckProduct() {
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  Case one = {};
  one.rows = Draw(0, 3) > 0 ? Draw(1, 40) : Draw(1, 200);
  one.cols = Draw(0, 1) ? Draw(1, 200) : Draw(1, 6) * 32;
  one.depth = Draw(0, 3) > 0 ? Draw(1, 80) : Draw(500, 1100);
  one.is_double = !kIsFloat;
  one.bfloat16 = kIsFloat && Draw(0, 1);
  one.rounds_both = one.bfloat16 && Simd().multiplies_bfloat16() && Draw(0, 1);
  one.is_transposed = Draw(0, 1);
  one.init = static_cast<decltype(Case::init)>(Draw(0, 2));
  one.has_rounded_a = one.rounds_both && Draw(0, 1);
  const auto [rows, cols, depth] = std::tuple(one.rows, one.cols, one.depth);

  const std::vector<T> a = DrawNumbers<T>(rows * depth);
  const std::vector<T> b = DrawNumbers<T>(depth * cols);
  const auto element_of_b = [&, depth = depth, cols = cols](int64_t k,
                                                            int64_t col) {
    return b[one.is_transposed ? col * depth + k : k * cols + col];
  };
  const std::vector<T> other = DrawNumbers<T>(rows * cols);

  Product<T> product;
  product.rows = rows;
  const StoredRows<T> not_rounded({a.data()}, depth);
  product.a = not_rounded;
  product.rounds_both = one.rounds_both;
  std::vector<uint16_t> rounded;
  std::vector<int64_t> index;
  if constexpr (kIsFloat) {
    if (one.has_rounded_a) {
      const bool has_index = Draw(0, 1);
      const int64_t stride = has_index ? depth : PaddedDepth(depth);
      rounded.resize(has_index ? rows * depth : PaddedRows(rows) * stride);
      for (int64_t row = 0; row < rows; ++row) {
        index.push_back(has_index ? rows - 1 - row : row);
        Simd().bfloat16.round(depth, a.data() + row * depth,
                              rounded.data() + index[row] * stride);
      }
      product.a = {{rounded.data(), &Simd().bfloat16},
                   stride,
                   has_index ? index.data() : nullptr};
    }
  }
  ArenaMemory memory;
  const typename RightMatrix<T>::Source source = {
      {{b.data()}, one.is_transposed ? depth : cols}, one.is_transposed};
  const auto pack = [&, depth = depth, cols = cols](Arena arena,
                                                    Schedule schedule) {
    product.b = {depth, cols, one.bfloat16, source, &arena, &schedule};
    if (arena.only_counts()) memory.Grow(arena.used());
  };
  pack(Arena(nullptr), Schedule(1));
  pack(Arena(memory.data()), Schedule::Immediate());

  const auto set_sums = [&, cols = cols](std::vector<T>* sums, Product<T>* to) {
    *sums = other;
    to->c = Rows<T>{sums->data(), cols};
    if (one.init == Case::kOther) to->init = {other.data(), cols};
    if (one.init == Case::kSame) to->init = Rows<T>{sums->data(), cols};
  };
  // All at once, in the tasks of several threads.
  std::vector<T> sums;
  Product<T> whole = product;
  set_sums(&sums, &whole);
  Schedule schedule(Draw(1, 9));
  whole.AddTo(&schedule);
  RunOnThisThread(&schedule);
  // One row and one panel at a time.
  std::vector<T> alone;
  Product<T> part = product;
  set_sums(&alone, &part);
  for (int64_t row = 0; row < rows; ++row) {
    Product<T> of_row = part;
    of_row.rows = 1;
    of_row.a = not_rounded.From(row);
    if (part.init.data != nullptr) of_row.init = part.init.From(row);
    of_row.c = part.c.From(row);
    for (int64_t panel = 0; panel < product.b.panels(); ++panel) {
      of_row.RunPanels(panel, panel + 1);
    }
  }
  Check(std::memcmp(sums.data(), alone.data(), rows * cols * sizeof(T)) == 0,
        "other bits when rows and panels are computed alone", one);
  const double bound = Bound<T>(depth, one.bfloat16);
  for (int64_t row = 0; row < rows; row += 1 + depth / 100) {
    for (int64_t col = 0; col < cols; ++col) {
      double sum = one.init == Case::kNone ? 0.0 : other[row * cols + col];
      for (int64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(a[row * depth + k]) * element_of_b(k, col);
      }
      Check(IsNear(sums[row * cols + col], sum, bound), "a wrong sum", one);
    }
  }
}

// Checks C = A^T B and the sums of A's columns.
template <typename T>
void CheckTransposedProduct() {
  Case one = {};
  one.rows = Draw(0, 1) ? Draw(1, 40) : Draw(1, 200);
  one.cols = Draw(1, 150);
  one.depth = Draw(0, 2) > 0 ? Draw(1, 100) : Draw(500, 1700);
  one.is_double = !std::is_same_v<T, float>;
  one.bfloat16 =
      !one.is_double && Simd().multiplies_bfloat16() && Draw(0, 1) > 0;
  const auto [rows, cols, depth] = std::tuple(one.rows, one.cols, one.depth);
  const std::vector<T> a = DrawNumbers<T>(depth * rows);
  const std::vector<T> b = DrawNumbers<T>(depth * cols);
  const auto compute = [&, rows = rows, cols = cols,
                        depth = depth](int64_t threads) {
    std::vector<T> results(rows * cols + rows);
    TransposedProducts<T> products(depth, one.bfloat16);
    const int64_t of_b = products.AddB({Stored<T>{b.data()}, cols}, cols);
    products.AddA({{a.data()}, rows}, rows, {{of_b, {results.data()}}},
                  {{results.data() + rows * cols}});
    Arena counting(nullptr);
    Schedule unused(threads), schedule(threads);
    products.AddTo(&counting, &unused);
    ArenaMemory memory;
    memory.Grow(counting.used());
    Arena arena(memory.data());
    products.AddTo(&arena, &schedule);
    RunOnThisThread(&schedule);
    return results;
  };
  const std::vector<T> results = compute(1);
  Check(results == compute(Draw(2, 20)), "other bits with more threads", one);
  const double bound = Bound<T>(depth, one.bfloat16);
  for (int64_t row = 0; row < rows; row += 1 + depth / 100) {
    for (int64_t col = 0; col <= cols; ++col) {
      double sum = 0.0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(a[k * rows + row]) *
               (col < cols ? b[k * cols + col] : T(1));
      }
      const T result =
          results[col < cols ? row * cols + col : rows * cols + row];
      Check(IsNear(result, sum, bound), "a wrong transposed sum", one);
    }
  }
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main() {
  for (const auto* one :
       {&cudnn_rnn_tf::amx::Table(), &cudnn_rnn_tf::avx512bf16::Table()}) {
    cudnn_rnn_tf::table = one;
    for (int i = 0; i < 100; ++i) {
      cudnn_rnn_tf::CheckProduct<float>();
      cudnn_rnn_tf::CheckProduct<float>();
      cudnn_rnn_tf::CheckProduct<double>();
      if (i % 4 > 0) continue;
      cudnn_rnn_tf::CheckTransposedProduct<float>();
      cudnn_rnn_tf::CheckTransposedProduct<double>();
    }
  }
  std::printf("well\n");
  return 0;
}
