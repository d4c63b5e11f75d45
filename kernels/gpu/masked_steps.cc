// GpuBackend reads masks and moves masked steps here.
#include "kernels/masked_steps.h"

#include <algorithm>
#include <string>

#include "kernels/cpu/masked_steps.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/host_copy.h"

namespace cudnn_rnn_tf {
namespace {

constexpr char kFile[] = "masked_steps.cu";

// As in masked_steps.cu.
struct Rows {
  int64_t batch_stride, time_stride, max_time;
  bool is_reversed;
};

// Both arguments of the kernels, RnnMask and StepMove, have these members.
template <typename Steps>
Rows RowsOf(const Steps& steps) {
  return {steps.time_major ? 1 : steps.max_time,
          steps.time_major ? steps.batch_size : 1, steps.max_time,
          steps.is_reversed};
}

// Blocks have kRows rows at a time and, if they do not have whole ones,
// kColumns columns.
constexpr int kRows = 8, kColumns = 128;

Grid GridOfRows(int64_t num_rows, int64_t parts_of_row = 1) {
  // More blocks are not allowed in the second dimension.
  constexpr int64_t kMostBlocks = (1 << 16) - 1;
  return {std::min(CeilDiv(num_rows, kRows), kMostBlocks), 32, kRows,
          std::min(parts_of_row, kMostBlocks)};
}

RnnStatus EnqueueReadMask(CUstream stream, const RnnMask& mask,
                          const MaskedSteps& found) {
  CUkernel kernel;
  CRNN_RETURN_IF_ERROR(CompileKernel(kFile, "read_mask", {"IS_MASK"}, &kernel));
  Rows rows = RowsOf(mask);
  if (mask.is_shared) rows.batch_stride = 0, rows.time_stride = 1;
  if (mask.batch_size == 0) return {};
  return Launch(kernel, stream, GridOfRows(mask.batch_size), mask.values, rows,
                mask.batch_size, mask.refuses_gaps, found.lengths, found.places,
                found.steps);
}

RnnStatus EnqueueMoveSteps(CUstream stream, const StepMove& move) {
  const Rows rows = RowsOf(move);
  CUkernel kernel;
  const int64_t num_rows = move.batch_size * move.max_time;
  if (move.packs && move.repeats) {
    CRNN_RETURN_IF_ERROR(
        CompileKernel(kFile, "add_steps", {TypeMacro(move.dtype)}, &kernel));
    if (num_rows == 0) return {};
    return Launch(kernel, stream,
                  GridOfRows(num_rows, CeilDiv(move.width, kColumns)), rows,
                  move.batch_size, move.width, move.steps, move.from, move.to);
  }
  const int64_t row_bytes =
      move.width * static_cast<int64_t>(SizeOf(move.dtype));
  const int64_t unit_bytes = UnitBytes(move.from, move.to, row_bytes);
  CRNN_RETURN_IF_ERROR(
      CompileKernel(kFile, "move_steps",
                    {"UNIT_BYTES=" + std::to_string(unit_bytes)}, &kernel));
  if (num_rows == 0) return {};
  return Launch(kernel, stream, GridOfRows(num_rows), rows, move.batch_size,
                row_bytes / unit_bytes, move.packs, move.repeats, move.places,
                move.steps, move.from, move.to);
}

RnnStatus ReadMaskOnHost(CUstream stream, const RnnMask& mask,
                         const MaskedSteps& found) {
  const int64_t steps = mask.max_time * mask.batch_size;
  const HostCopy<bool> values(mask.is_shared ? mask.max_time : steps);
  const HostCopy<int64_t> lengths(mask.batch_size), places(steps), order(steps);
  CRNN_RETURN_IF_ERROR(values.Fetch(stream, mask.values));
  RnnMask on_host = mask;
  on_host.values = values.items();
  cpu::ReadMask(on_host, {lengths.items(), places.items(), order.items()});
  CRNN_RETURN_IF_ERROR(lengths.Store(stream, found.lengths));
  CRNN_RETURN_IF_ERROR(places.Store(stream, found.places));
  return order.Store(stream, found.steps);
}

RnnStatus MoveStepsOnHost(CUstream stream, const StepMove& move) {
  const int64_t steps = move.max_time * move.batch_size;
  const int64_t bytes =
      steps * move.width * static_cast<int64_t>(SizeOf(move.dtype));
  const HostCopy<char> from(bytes), to(bytes);
  const HostCopy<int64_t> places(steps), order(steps);
  CRNN_RETURN_IF_ERROR(from.Fetch(stream, static_cast<const char*>(move.from)));
  CRNN_RETURN_IF_ERROR(places.Fetch(stream, move.places));
  CRNN_RETURN_IF_ERROR(order.Fetch(stream, move.steps));
  StepMove on_host = move;
  on_host.from = from.items();
  on_host.to = to.items();
  on_host.places = places.items();
  on_host.steps = order.items();
  cpu::MoveSteps(on_host, 0, move.batch_size);
  return to.Store(stream, move.to);
}

}  // namespace

RnnStatus GpuBackend::ReadMask(const RnnMask& mask, const MaskedSteps& found) {
  return ByKernelOrOnHost(
      resources_,
      [&](CUstream stream) { return EnqueueReadMask(stream, mask, found); },
      [&](CUstream stream) { return ReadMaskOnHost(stream, mask, found); });
}

RnnStatus GpuBackend::MoveSteps(const StepMove& move) {
  return ByKernelOrOnHost(
      resources_,
      [&](CUstream stream) { return EnqueueMoveSteps(stream, move); },
      [&](CUstream stream) { return MoveStepsOnHost(stream, move); });
}

}  // namespace cudnn_rnn_tf
