// Copies for passes that take time-major data only.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_TIME_MAJOR_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_TIME_MAJOR_H_

#include <limits>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Copies of arrays from the caller's order to time-major order, or back. An
// array is [rows, B, size] time-major, and [B, rows, size] batch-major.
class Copies {
 public:
  explicit Copies(const RnnProblem& problem) : problem_(problem) {}

  // Returns where a pass finds an array of the caller's: there or, if the order
  // is another one, in memory from the arena, to which Enqueue then copies it.
  // An array without numbers is nowhere.
  const void* In(const void* callers, int64_t rows, int64_t size,
                 Arena* arena) {
    if (!AreNeeded(rows, size)) return size > 0 ? callers : nullptr;
    return InTo(callers, rows, size, Take(rows, size, arena));
  }
  // Does the same with memory of the array's size.
  const void* InTo(const void* callers, int64_t rows, int64_t size,
                   void* memory) {
    if (!AreNeeded(rows, size)) return callers;
    copies_.push_back(
        {callers, memory, problem_.batch_size, rows, RowBytes(size)});
    return memory;
  }
  // Returns where a pass leaves an array, from which Enqueue copies it to the
  // caller's place if that is another one.
  void* Out(void* callers, int64_t rows, int64_t size, Arena* arena) {
    if (!AreNeeded(rows, size)) return size > 0 ? callers : nullptr;
    void* const memory = Take(rows, size, arena);
    copies_.push_back(
        {memory, callers, rows, problem_.batch_size, RowBytes(size)});
    return memory;
  }
  // Returns memory for an array that is not the caller's.
  void* Take(int64_t rows, int64_t size, Arena* arena) const {
    return arena->Take<char>(rows * problem_.batch_size * RowBytes(size));
  }
  RnnStatus Enqueue(CUstream stream) const {
    for (const Copy& copy : copies_) {
      CRNN_RETURN_IF_ERROR(Transpose(stream, copy));
    }
    return {};
  }

 private:
  // From [outer, inner, row_bytes] to [inner, outer, row_bytes].
  struct Copy {
    const void* from;
    void* to;
    int64_t outer, inner, row_bytes;
  };

  static RnnStatus Transpose(CUstream stream, const Copy& copy) {
    constexpr int kLanes = 32, kRowsPerBlock = 8;
    const auto& [from, to, outer, inner, row_bytes] = copy;
    const int64_t unit_bytes = UnitBytes(from, to, row_bytes);
    const int64_t units = row_bytes / unit_bytes;
    // The numbers of threads beyond the last row or unit must not overflow, or
    // these threads would copy the first ones again.
    constexpr int64_t kMost = std::numeric_limits<uint32_t>::max() - kLanes;
    if (outer > kMost / inner || units > kMost) {
      return {
          RnnStatus::Code::kUnimplemented,
          "batch-major data on a GPU: there must be less than 2^32 time steps "
          "in all, but received " +
              std::to_string(outer) + " by " + std::to_string(inner)};
    }
    CompiledKernel kernel;
    CRNN_RETURN_IF_ERROR(
        CompileKernel("transpose.cu", "transpose",
                      {"UNIT_BYTES=" + std::to_string(unit_bytes)}, &kernel));
    return Launch(
        kernel, stream,
        {CeilDiv(outer * inner, kRowsPerBlock), kLanes, kRowsPerBlock}, from,
        to, static_cast<uint32_t>(outer), static_cast<uint32_t>(inner),
        static_cast<uint32_t>(units));
  }

  // If there is one sequence or one row only, both orders are the same.
  bool AreNeeded(int64_t rows, int64_t size) const {
    return !problem_.time_major && problem_.batch_size > 1 && rows > 1 &&
           size > 0;
  }
  int64_t RowBytes(int64_t size) const {
    return size * static_cast<int64_t>(SizeOf(problem_.dtype));
  }

  const RnnProblem& problem_;
  std::vector<Copy> copies_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_TIME_MAJOR_H_
