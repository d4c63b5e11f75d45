// CpuBackend moves the weights of Keras's layers here.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/keras_layout.h"

namespace cudnn_rnn_tf {
namespace {

// Each thread needs so many numbers to be worth waking.
constexpr int64_t kNumbersPerThread = 1 << 17;
// The units that a chunk of the work has. Their rows in the buffer are written
// or read together, so there must not be more of them than a processor has
// translations of addresses at hand.
constexpr int64_t kUnitsPerChunk = 64;

template <typename T>
void Transpose(int64_t rows, int64_t cols, const T* from, int64_t from_stride,
               T* to, int64_t to_stride) {
  Kernels<T>().transpose(rows, cols, from, from_stride, to, to_stride);
}

// Half types are for networks whose products take far longer than this.
template <>
void Transpose(int64_t rows, int64_t cols, const uint16_t* from,
               int64_t from_stride, uint16_t* to, int64_t to_stride) {
  constexpr int64_t kBlock = 16;
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t last = std::min(first + kBlock, rows);
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = first; r < last; ++r) {
        to[c * to_stride + r] = from[r * from_stride + c];
      }
    }
  }
}

template <typename T>
void Move(const KerasTensor& place, bool to_params, T* tensor, T* params,
          const Threads& threads) {
  const int64_t chunks_of_gate = CeilDiv(place.units, kUnitsPerChunk);
  Schedule schedule(
      std::clamp<int64_t>(place.size() / kNumbersPerThread, 1, threads.count));
  schedule.Add(
      1, place.sides * place.gates * chunks_of_gate,
      [=, &place](int64_t /*repeat*/, int64_t chunk) {
        const int64_t side_and_gate = chunk / chunks_of_gate;
        const int64_t side = side_and_gate / place.gates;
        const int64_t gate = side_and_gate % place.gates;
        const int64_t unit = chunk % chunks_of_gate * kUnitsPerChunk;
        const int64_t units = std::min(kUnitsPerChunk, place.units - unit);
        const int64_t stride = place.gates * place.units;
        T* const of_tensor = tensor + place.PlaceOfGate(side, gate) + unit;
        T* const of_params =
            params + place.OffsetOfGate(side, gate) + unit * place.fan_in;
        if (to_params) {
          Transpose<T>(place.fan_in, units, of_tensor, stride, of_params,
                       place.fan_in);
        } else {
          Transpose<T>(units, place.fan_in, of_params, place.fan_in, of_tensor,
                       stride);
        }
      });
  schedule.Run(threads);
}

}  // namespace

RnnStatus CpuBackend::MoveKerasTensors(const KerasLayout& layout,
                                       RnnDataType dtype, bool to_params,
                                       const std::vector<void*>& tensors,
                                       void* params) {
  auto next = tensors.begin();
  for (const KerasTensor& place : layout.tensors()) {
    void* const tensor = *next++;
    WithStorageType(dtype, [&](auto number) {
      using T = decltype(number);
      Move(place, to_params, static_cast<T*>(tensor), static_cast<T*>(params),
           threads_);
    });
  }
  return {};
}

}  // namespace cudnn_rnn_tf
