#include "kernels/gpu/resident/kernel.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"

namespace cudnn_rnn_tf {
namespace {

constexpr int kWarps = 8;
// The tensor cores' instruction mma takes eight sequences, one for each column.
// In float32, a lane holds the sums of all sequences in registers, which have
// room for four.
constexpr int kMaxBatch = 8, kMaxBatchOfFloat32 = 4;
constexpr int kSliceBytes = 64;
// A kernel beyond these limits takes long to compile, since its loops are
// unrolled. No layer of more units keeps to them.
constexpr int kMaxChunks = 256, kMaxRounds = 4, kMaxUnits = 1 << 20;
// A thread has kRegisters. It needs kOtherRegisters and, for each round,
// kRegistersOfRound for other things than weights: with these numbers, the
// compiler moves next to nothing to memory.
constexpr int kRegisters = 255, kOtherRegisters = 20, kRegistersOfRound = 32;
// Streamed weights are assumed to get this part of the L2 cache.
constexpr double kKeptPart = 0.6;

}  // namespace

RnnStatus PlaceResident(const ResidentRequest& request, const DeviceLimits& gpu,
                        ResidentShape* shape) {
  const int item = static_cast<int>(SizeOf(request.dtype));
  const bool is_float = request.dtype == RnnDataType::kFloat32;
  if (gpu.architecture < 80) return NotResident("the GPU is older than Ampere");
  if (request.dtype == RnnDataType::kFloat64) return NotResident("float64");
  if (request.num_units * item % kSliceBytes != 0) {
    return NotResident(
        "the number of units, " + std::to_string(request.num_units) +
        ", must be a multiple of " + std::to_string(kSliceBytes / item));
  }
  const int max_batch = is_float ? kMaxBatchOfFloat32 : kMaxBatch;
  if (request.batch_size > max_batch) {
    return NotResident("the batch size, " + std::to_string(request.batch_size) +
                       ", must be at most " + std::to_string(max_batch));
  }
  *shape = {};
  shape->num_units =
      static_cast<int>(std::min<int64_t>(request.num_units, kMaxUnits));
  shape->batch = static_cast<int>(request.batch_size);
  shape->gates = static_cast<int>(KindOf(request.rnn_mode).num_gates);
  shape->item_bytes = item;
  shape->units = CeilDiv(shape->num_units, gpu.multiprocessors);
  // A block writes words of two numbers of a half type, so it has whole pairs
  // of units.
  if (!is_float) shape->units += shape->units % 2;
  shape->warps = kWarps;
  shape->kept = 1000;
  const int chunks = shape->chunks(), groups = shape->groups();
  if (chunks > kMaxChunks || shape->rounds() > kMaxRounds) {
    return NotResident("there are too many units, " +
                       std::to_string(request.num_units));
  }
  if (shape->other_bytes() > gpu.shared_bytes) {
    return NotResident("the GPU has too little shared memory");
  }
  const int products = is_float ? groups * shape->batch : (groups + 1) / 2 * 4;
  const int free_registers = kRegisters - kOtherRegisters -
                             kRegistersOfRound * shape->rounds() -
                             4 * shape->own_slices() - 4 * groups - products;
  const int room =
      (gpu.shared_bytes - shape->other_bytes()) / shape->chunk_bytes();
  shape->in_registers = std::clamp(free_registers / 4, 0, chunks);
  shape->in_shared = std::min(room, chunks - shape->in_registers);
  const double l2_bytes = kKeptPart * gpu.l2_bytes;
  const auto streamed_bytes = [&] {
    return static_cast<double>(shape->streamed()) * shape->chunk_bytes() *
           shape->blocks();
  };
  // Weights that stay in the L2 cache are loaded when they are needed, which is
  // soon enough. Others are fetched ahead, to slots in shared memory if there
  // is enough of it. The number of streamed chunks is then a multiple of the
  // number of slots, so that a chunk has the same slot in every step.
  if (streamed_bytes() <= l2_bytes) return {};
  const int chunks_of_shared = chunks - shape->in_registers;
  int most_in_shared = -1;
  for (int ahead = groups; ahead <= std::min(3 * groups, room); ++ahead) {
    int in_shared = room - ahead;
    while (in_shared >= 0 && (chunks_of_shared - in_shared) % ahead != 0) {
      --in_shared;
    }
    if (in_shared <= most_in_shared) continue;
    most_in_shared = in_shared;
    shape->in_shared = in_shared;
    shape->ahead = ahead;
  }
  shape->kept =
      static_cast<int>(std::lround(1000 * l2_bytes / streamed_bytes()));
  return {};
}

std::vector<std::string> ResidentMacros(const ResidentRequest& request,
                                        const ResidentShape& shape) {
  std::vector<std::string> macros = {TypeMacro(request.dtype),
                                     CellMacro(request.rnn_mode)};
  for (const auto& [name, value] : {std::pair("NUM_UNITS", shape.num_units),
                                    {"BATCH", shape.batch},
                                    {"UNITS", shape.units},
                                    {"WARPS", shape.warps},
                                    {"IN_REGISTERS", shape.in_registers},
                                    {"IN_SHARED", shape.in_shared},
                                    {"AHEAD", shape.ahead},
                                    {"KEPT", shape.kept}}) {
    macros.push_back(std::string(name) + "=" + std::to_string(value));
  }
  return macros;
}

RnnStatus ResidentKernel::Get(const ResidentRequest& request,
                              ResidentKernel* kernel) {
  CUdevice id;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&id));
  DeviceLimits gpu;
  ResidentShape& shape = kernel->shape_;
  CRNN_RETURN_IF_ERROR(ReadLimits(&gpu));
  CRNN_RETURN_IF_ERROR(PlaceResident(request, gpu, &shape));
  CRNN_RETURN_IF_ERROR(CompileKernel("resident.cu", "resident",
                                     ResidentMacros(request, shape),
                                     &kernel->kernel_));
  return CudaStatus(Gpu().cuda.cuKernelSetAttribute(
                        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        shape.shared_bytes(), kernel->kernel_, id),
                    "give a kernel shared memory");
}

RnnStatus ResidentKernel::Enqueue(CUstream stream,
                                  const ResidentArguments& arguments) const {
  ResidentArguments a = arguments;
  void* pointers[] = {
      &a.weights, &a.input_bias, &a.recurrent_bias, &a.projected,  &a.first_h,
      &a.first_c, &a.output,     &a.last_h,         &a.last_c,     &a.first,
      &a.steps,   &a.num_steps,  &a.stride,         &a.is_reversed};
  // The kernel's blocks wait for each other, so all must run at the same time;
  // a cooperative launch guarantees that.
  return CudaStatus(
      Gpu().cuda.cuLaunchCooperativeKernel(
          reinterpret_cast<CUfunction>(kernel_), shape_.blocks(), 1, 1,
          shape_.threads(), 1, 1, shape_.shared_bytes(), stream, pointers),
      "launch a kernel");
}

}  // namespace cudnn_rnn_tf
