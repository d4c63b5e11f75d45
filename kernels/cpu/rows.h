// Numbers where their owners have them: the tensors of callers, whose numbers
// may be of another type than the network computes in, and its own arrays.
// Half types are computed in float.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_ROWS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd_kernels.h"
#include "kernels/rnn_spec.h"

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

// Calls body with a number, 0, of the type that data of this type are computed
// in.
template <typename Body>
void Dispatch(RnnDataType dtype, const Body& body) {
  WithStorageType(dtype, [&](auto number) {
    body(std::conditional_t<std::is_floating_point_v<decltype(number)>,
                            decltype(number), float>());
  });
}

// Returns null if data of this type are computed with as they are.
inline const HalfType* HalfTypeOf(RnnDataType dtype) {
  switch (dtype) {
    case RnnDataType::kFloat16:
      return &Simd().float16;
    case RnnDataType::kBfloat16:
      return &Simd().bfloat16;
    case RnnDataType::kFloat64:
    case RnnDataType::kFloat32:
      break;
  }
  return nullptr;
}

// Numbers of type T or, if `half_type` is set and T is float, of that type. As
// with pointers, T is const if they are only read.
template <typename T>
struct StoredNumbers {
  using Value = std::remove_const_t<T>;
  template <typename U>
  using AsConst = std::conditional_t<std::is_const_v<T>, const U, U>;
  static constexpr bool kMayBeHalf = std::is_same_v<Value, float>;

  AsConst<void>* data = nullptr;
  const HalfType* half_type = nullptr;
  int64_t offset = 0;

  operator StoredNumbers<const T>() const { return {data, half_type, offset}; }
  StoredNumbers From(int64_t first) const {
    return {data, half_type, offset + first};
  }
  bool in_place() const { return !kMayBeHalf || half_type == nullptr; }
  T* InPlace() const { return static_cast<T*>(data) + offset; }
  AsConst<uint16_t>* Halves() const {
    return static_cast<AsConst<uint16_t>*>(data) + offset;
  }
  void Prefetch(int64_t n) const {
    if (in_place()) return cudnn_rnn_tf::Prefetch(InPlace(), n);
    cudnn_rnn_tf::Prefetch(Halves(), n);
  }
  void Copy(int64_t n, Value* to) const {
    if (in_place()) {
      std::copy_n(InPlace(), n, to);
    } else if constexpr (kMayBeHalf) {
      half_type->widen(n, Halves(), to);
    }
  }
  // Returns where n numbers of type T are: in place or, if they had to be
  // converted, in `buffer`.
  const Value* Read(int64_t n, Value* buffer) const {
    if (in_place()) return InPlace();
    Copy(n, buffer);
    return buffer;
  }
  void Write(int64_t n, const Value* from) const {
    if (in_place()) {
      std::copy_n(from, n, InPlace());
    } else if constexpr (kMayBeHalf) {
      half_type->round(n, from, Halves());
    }
  }
};
template <typename T>
using Stored = StoredNumbers<const T>;
template <typename T>
using Destination = StoredNumbers<T>;

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

// Such rows of StoredNumbers.
template <typename T>
struct NumberRows {
  StoredNumbers<T> numbers;
  int64_t stride = 0;
  const int64_t* index = nullptr;

  NumberRows() = default;
  NumberRows(StoredNumbers<T> numbers, int64_t stride,
             const int64_t* index = nullptr)
      : numbers(numbers), stride(stride), index(index) {}
  template <typename U>
  NumberRows(Rows<U> rows)
      : numbers{rows.data}, stride(rows.stride), index(rows.index) {}

  operator NumberRows<const T>() const { return {numbers, stride, index}; }
  StoredNumbers<T> operator[](int64_t row) const {
    return numbers.From((index == nullptr ? row : index[row]) * stride);
  }
  NumberRows From(int64_t row, int64_t col = 0) const {
    return index == nullptr
               ? NumberRows(numbers.From(row * stride + col), stride)
               : NumberRows(numbers.From(col), stride, index + row);
  }
  bool in_place() const { return numbers.in_place(); }
  Rows<T> InPlace() const { return {numbers.InPlace(), stride, index}; }
};
template <typename T>
using StoredRows = NumberRows<const T>;
template <typename T>
using DestinationRows = NumberRows<T>;

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_ROWS_H_
