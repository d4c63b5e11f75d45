// GpuBackend reads masks and moves masked steps here.
#include "kernels/masked_steps.h"

#include <algorithm>
#include <string>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/masked_steps_arguments.h"

namespace cudnn_rnn_tf {
namespace {

constexpr char kFile[] = "masked_steps.cu";

// Both arguments of the kernels, RnnMask and StepMove, have these members.
template <typename Steps>
MaskedRows RowsOf(const Steps& steps) {
  return {steps.time_major ? 1 : steps.max_time,
          steps.time_major ? steps.batch_size : 1, steps.max_time,
          steps.is_reversed};
}

Grid GridOfRows(int64_t num_rows, int64_t parts_of_row = 1) {
  // More blocks are not allowed in the second dimension.
  constexpr int64_t kMostBlocks = (1 << 16) - 1;
  constexpr int kRows = MaskedRows::kOfBlock;
  return {std::min(CeilDiv<int64_t>(num_rows, kRows), kMostBlocks), 32, kRows,
          std::min(parts_of_row, kMostBlocks)};
}

}  // namespace

RnnStatus GpuBackend::ReadMask(const RnnMask& mask, const MaskedSteps& found) {
  if (mask.batch_size == 0) return {};
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  CompiledKernel kernel;
  CRNN_RETURN_IF_ERROR(CompileKernel(kFile, "read_mask", {"IS_MASK"}, &kernel));
  MaskedRows rows = RowsOf(mask);
  if (mask.is_shared) rows.batch_stride = 0, rows.time_stride = 1;
  return Launch(kernel, stream(), GridOfRows(mask.batch_size), mask.values,
                rows, mask.batch_size, found.lengths, found.places,
                found.steps);
}

RnnStatus GpuBackend::MoveSteps(const StepMove& move) {
  const int64_t num_rows = move.width > 0 ? move.batch_size * move.max_time : 0;
  if (num_rows == 0) return {};
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  const MaskedRows rows = RowsOf(move);
  CompiledKernel kernel;
  if (move.packs && move.repeats) {
    CRNN_RETURN_IF_ERROR(
        CompileKernel(kFile, "add_steps", {TypeOf(move.dtype).macro}, &kernel));
    return Launch(
        kernel, stream(),
        GridOfRows(num_rows,
                   CeilDiv<int64_t>(move.width, MaskedRows::kColumns)),
        rows, move.batch_size, move.width, move.steps, move.from, move.to);
  }
  const int64_t row_bytes =
      move.width * static_cast<int64_t>(SizeOf(move.dtype));
  const int64_t unit_bytes = UnitBytes(move.from, move.to, row_bytes);
  CRNN_RETURN_IF_ERROR(
      CompileKernel(kFile, "move_steps",
                    {"UNIT_BYTES=" + std::to_string(unit_bytes)}, &kernel));
  return Launch(kernel, stream(), GridOfRows(num_rows), rows, move.batch_size,
                row_bytes / unit_bytes, move.packs, move.repeats, move.places,
                move.steps, move.from, move.to);
}

}  // namespace cudnn_rnn_tf
