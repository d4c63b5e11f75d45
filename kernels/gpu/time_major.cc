#include "kernels/gpu/time_major.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/gpu/compiler.h"

namespace cudnn_rnn_tf {
namespace {

constexpr int kLanes = 32, kRowsPerBlock = 8;

// Does the same without a kernel: the driver copies all rows of one index at
// once, which takes a call for each index.
RnnStatus CopyRows(CUstream stream, const void* from, void* to, int64_t outer,
                   int64_t inner, int64_t row_bytes) {
  const bool by_outer = outer < inner;
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.WidthInBytes = row_bytes;
  copy.Height = std::max(outer, inner);
  copy.srcPitch = (by_outer ? 1 : inner) * row_bytes;
  copy.dstPitch = (by_outer ? outer : 1) * row_bytes;
  for (int64_t i = 0; i < std::min(outer, inner); ++i) {
    copy.srcDevice = reinterpret_cast<CUdeviceptr>(from) +
                     i * (by_outer ? inner : 1) * row_bytes;
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(to) +
                     i * (by_outer ? 1 : outer) * row_bytes;
    CRNN_RETURN_IF_ERROR(CudaStatus(Gpu().cuda.cuMemcpy2DAsync(&copy, stream),
                                    "transpose batch and time"));
  }
  return {};
}

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
  const RnnStatus compiled =
      CompileKernel("transpose.cu", "transpose",
                    {"UNIT_BYTES=" + std::to_string(unit_bytes)}, &kernel);
  if (compiled.code == RnnStatus::Code::kFailedPrecondition ||
      compiled.code == RnnStatus::Code::kUnimplemented) {
    return CopyRows(stream, from, to, outer, inner, row_bytes);
  }
  CRNN_RETURN_IF_ERROR(compiled);
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
