// Numbers where their owners have them: the tensors of callers, whose numbers
// may be of another type than the network computes in, and its own arrays.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_ROWS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace cudnn_rnn_tf {

// Fetches n numbers into the L2 cache. Code that reads a few neighbouring
// numbers of each of many rows needs them, since the hardware does not foresee
// such reads. The asm is there because GCC takes a function that only
// prefetches for one without effect, and removes calls of it.
template <typename T>
void Prefetch(const T* from, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(from + i, 0, 2);
  asm volatile("");
}

// Code that goes through such rows fetches the one this many places ahead.
constexpr int64_t kAhead = 16;

// Numbers that are read. They are of type T if `convert` is null; otherwise
// they are of a half type, and `convert` converts them to T.
template <typename T>
struct Stored {
  const void* data = nullptr;
  // Converts numbers [first, first + n) of `data` and writes them to `to`.
  void (*convert)(const void* data, int64_t first, int64_t n, T* to) = nullptr;
  int64_t offset = 0;

  Stored From(int64_t first) const { return {data, convert, offset + first}; }
  bool in_place() const { return convert == nullptr; }
  const T* InPlace() const { return static_cast<const T*>(data) + offset; }
  const uint16_t* Halves() const {
    return static_cast<const uint16_t*>(data) + offset;
  }
  void Prefetch(int64_t n) const {
    if (in_place()) return cudnn_rnn_tf::Prefetch(InPlace(), n);
    cudnn_rnn_tf::Prefetch(Halves(), n);
  }
  void Copy(int64_t n, T* to) const {
    if (in_place()) {
      std::copy_n(InPlace(), n, to);
    } else {
      convert(data, offset, n, to);
    }
  }
  // Returns where n numbers of type T are: in place or, if they had to be
  // converted, in `buffer`.
  const T* Read(int64_t n, T* buffer) const {
    if (in_place()) return InPlace();
    convert(data, offset, n, buffer);
    return buffer;
  }
};

// Where results of type T go. It holds numbers of this type if `convert` is
// null; otherwise it holds numbers of a half type, and `convert` converts
// results and writes them to `data` from number `first` on.
template <typename T>
struct Destination {
  void* data = nullptr;
  void (*convert)(const T* from, int64_t n, void* data,
                  int64_t first) = nullptr;
  int64_t offset = 0;

  Destination From(int64_t first) const {
    return {data, convert, offset + first};
  }
  bool in_place() const { return convert == nullptr; }
  T* InPlace() const { return static_cast<T*>(data) + offset; }
  void Write(int64_t n, const T* from) const {
    if (in_place()) {
      std::copy_n(from, n, InPlace());
    } else {
      convert(from, n, data, offset);
    }
  }
};

// The rows of a matrix, in memory that the caller owns. If there is an index,
// row i is at index[i] strides from `data`, otherwise at i strides. Strides are
// in elements; with a stride of 0 all rows are the same.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  const int64_t* index = nullptr;

  T* operator[](int64_t row) const {
    return data + (index == nullptr ? row : index[row]) * stride;
  }
  Rows From(int64_t row, int64_t col = 0) const {
    return index == nullptr ? Rows{data + row * stride + col, stride, nullptr}
                            : Rows{data + col, stride, index + row};
  }
  operator Rows<const T>() const { return {data, stride, index}; }
};

// Such rows of numbers that are Stored, or that go to a Destination.
template <typename Numbers>
struct RowsOf {
  using Number =
      std::remove_pointer_t<decltype(std::declval<Numbers>().InPlace())>;
  Numbers numbers;
  int64_t stride = 0;
  const int64_t* index = nullptr;

  RowsOf() = default;
  RowsOf(Numbers numbers, int64_t stride, const int64_t* index = nullptr)
      : numbers(numbers), stride(stride), index(index) {}
  template <typename T>
  RowsOf(Rows<T> rows)
      : numbers{rows.data}, stride(rows.stride), index(rows.index) {
    static_assert(
        std::is_same_v<std::remove_const_t<T>, std::remove_const_t<Number>>);
  }

  Numbers operator[](int64_t row) const {
    return numbers.From((index == nullptr ? row : index[row]) * stride);
  }
  RowsOf From(int64_t row, int64_t col = 0) const {
    return index == nullptr ? RowsOf(numbers.From(row * stride + col), stride)
                            : RowsOf(numbers.From(col), stride, index + row);
  }
  bool in_place() const { return numbers.in_place(); }
  Rows<Number> InPlace() const { return {numbers.InPlace(), stride, index}; }
};
template <typename T>
using StoredRows = RowsOf<Stored<T>>;
template <typename T>
using DestinationRows = RowsOf<Destination<T>>;

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_ROWS_H_
