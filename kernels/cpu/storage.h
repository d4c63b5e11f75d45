// The types that callers' tensors are stored in, and the types that the network
// computes in.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_STORAGE_H_
#define CUDNN_RNN_TF_KERNELS_CPU_STORAGE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Half-precision numbers, represented by their bits.
struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

// Convert n numbers. They round to the nearest number, and a tie to the even
// one.
template <typename T>
void Convert(const T* from, T* to, int64_t n) {
  std::copy_n(from, n, to);
}
inline void Convert(const Float16* from, float* to, int64_t n) {
  Simd().conversions.from_float16(n, &from->bits, to);
}
inline void Convert(const float* from, Float16* to, int64_t n) {
  Simd().conversions.to_float16(n, from, &to->bits);
}
inline void Convert(const Bfloat16* from, float* to, int64_t n) {
  Simd().conversions.from_bfloat16(n, &from->bits, to);
}
inline void Convert(const float* from, Bfloat16* to, int64_t n) {
  Simd().conversions.to_bfloat16(n, from, &to->bits);
}

template <typename Storage, typename Compute>
const HalfType<Compute>* HalfTypeOf() {
  if constexpr (std::is_same_v<Storage, Compute>) return nullptr;
  static constexpr HalfType<Compute> half_type = {
      [](const void* data, int64_t first, int64_t n, Compute* to) {
        Convert(static_cast<const Storage*>(data) + first, to, n);
      },
      [](const Compute* from, int64_t n, void* data, int64_t first) {
        Convert(from, static_cast<Storage*>(data) + first, n);
      }};
  return &half_type;
}

// Return a caller's tensor, whose numbers are computed with as Compute.
template <typename Storage, typename Compute>
Stored<Compute> NumbersOf(const void* tensor) {
  return {tensor, HalfTypeOf<Storage, Compute>()};
}
template <typename Storage, typename Compute>
Destination<Compute> NumbersOf(void* tensor) {
  return {tensor, HalfTypeOf<Storage, Compute>()};
}

// Returns numbers that were rounded to bfloat16. Only floats ever are.
template <typename Compute>
Stored<Compute> StoredBfloat16(const uint16_t* numbers) {
  if constexpr (std::is_same_v<Compute, float>) {
    return NumbersOf<Bfloat16, float>(static_cast<const void*>(numbers));
  }
  return {};
}

// Calls body(Storage(), Compute()) with the types that tensors of this data
// type are stored and computed in. Half types are computed in float.
template <typename Body>
void Dispatch(RnnDataType dtype, const Body& body) {
  switch (dtype) {
    case RnnDataType::kFloat64:
      return body(double(), double());
    case RnnDataType::kFloat32:
      return body(float(), float());
    case RnnDataType::kFloat16:
      return body(Float16(), float());
    case RnnDataType::kBfloat16:
      return body(Bfloat16(), float());
  }
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_STORAGE_H_
