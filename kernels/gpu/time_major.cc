#include "kernels/gpu/time_major.h"

#include <limits>
#include <string>

#include "kernels/gpu/compiler.h"

namespace cudnn_rnn_tf {
namespace {

constexpr int kLanes = 32, kRowsPerBlock = 8;

RnnStatus Transpose(CUstream stream, const void* from, void* to, int64_t outer,
                    int64_t inner, int64_t row_bytes) {
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
  CUkernel kernel;
  CRNN_RETURN_IF_ERROR(
      CompileKernel("transpose.cu", "transpose",
                    {"UNIT_BYTES=" + std::to_string(unit_bytes)}, &kernel));
  return Launch(kernel, stream,
                {CeilDiv(outer * inner, kRowsPerBlock), kLanes, kRowsPerBlock},
                from, to, static_cast<uint32_t>(outer),
                static_cast<uint32_t>(inner), static_cast<uint32_t>(units));
}

}  // namespace

RnnStatus Copies::Enqueue(CUstream stream) const {
  for (const auto& [from, to, outer, inner, row_bytes] : copies_) {
    CRNN_RETURN_IF_ERROR(Transpose(stream, from, to, outer, inner, row_bytes));
  }
  return {};
}

}  // namespace cudnn_rnn_tf
