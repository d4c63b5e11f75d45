#include "kernels/gpu/resident/kernel.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/known.h"
#include "kernels/never_destroyed.h"

namespace cudnn_rnn_tf {
namespace {

constexpr int64_t kWarps = 8, kThreads = 32 * kWarps;
// The tensor cores' instruction mma takes eight sequences, one for each column.
// In float32, a lane holds the sums of all sequences in registers, which have
// room for four.
constexpr int64_t kMaxBatch = 8, kMaxBatchOfFloat32 = 4;
constexpr int64_t kChunkBytes = 16, kSliceBytes = 64;
// A kernel beyond these limits takes long to compile, since its loops are
// unrolled.
constexpr int64_t kMaxChunks = 256, kMaxRounds = 4;
// A thread has kRegisters. It needs kOtherRegisters and, for each round,
// kRegistersOfRound for other things than weights: with these numbers, the
// compiler moves next to nothing to memory.
constexpr int64_t kRegisters = 255, kOtherRegisters = 20,
                  kRegistersOfRound = 32;
// Streamed weights are assumed to get this part of the L2 cache.
constexpr double kKeptPart = 0.6;

RnnStatus NotResident(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented,
          "the algorithm resident cannot run this: " + why};
}

// The placement of the weights among blocks and kinds of memory. The macros of
// resident.cu with these names say more.
struct Placement {
  int64_t units, blocks;
  int64_t in_registers, in_shared, ahead;
  double kept;
  int64_t shared_bytes;
};

RnnStatus Place(const ResidentShape& shape, const DeviceLimits& device,
                Placement* placement) {
  const int64_t item = static_cast<int64_t>(SizeOf(shape.dtype));
  const bool is_float = shape.dtype == RnnDataType::kFloat32;
  if (device.architecture < 80)
    return NotResident("the GPU is older than Ampere");
  if (shape.dtype == RnnDataType::kFloat64) return NotResident("float64");
  if (shape.num_units * item % kSliceBytes != 0) {
    return NotResident(
        "the number of units, " + std::to_string(shape.num_units) +
        ", must be a multiple of " + std::to_string(kSliceBytes / item));
  }
  const int64_t max_batch = is_float ? kMaxBatchOfFloat32 : kMaxBatch;
  if (shape.batch_size > max_batch) {
    return NotResident("the batch size, " + std::to_string(shape.batch_size) +
                       ", must be at most " + std::to_string(max_batch));
  }
  const int64_t gates = NumGates(shape.rnn_mode);
  int64_t units = CeilDiv(shape.num_units, device.multiprocessors);
  // A block writes words of two numbers of a half type, so it has whole pairs
  // of units.
  if (!is_float) units += units % 2;
  const int64_t rows = gates * units, groups = CeilDiv(rows, 8);
  const int64_t slices = CeilDiv(shape.num_units * item / kSliceBytes, kWarps);
  const int64_t chunks = slices * groups;
  const int64_t rounds = CeilDiv(units * shape.batch_size * 4, kThreads);
  if (chunks > kMaxChunks || rounds > kMaxRounds) {
    return NotResident("there are too many units, " +
                       std::to_string(shape.num_units));
  }
  const int64_t pitch = CeilDiv(rows * shape.batch_size, 32) * 32 + 8;
  const int64_t other_bytes =
      2 * kWarps * pitch * static_cast<int64_t>(sizeof(float)) +
      (is_float ? kWarps * 2 * shape.batch_size * kSliceBytes : 0);
  const int64_t products =
      is_float ? groups * shape.batch_size : (groups + 1) / 2 * 4;
  const int64_t free_registers = kRegisters - kOtherRegisters -
                                 kRegistersOfRound * rounds - 4 * slices -
                                 4 * groups - products;
  if (other_bytes > device.shared_bytes) {
    return NotResident("the GPU has too little shared memory");
  }
  const int64_t room =
      (device.shared_bytes - other_bytes) / (kThreads * kChunkBytes);
  placement->units = units;
  placement->blocks = CeilDiv(shape.num_units, units);
  placement->in_registers = std::clamp(free_registers / 4, int64_t{0}, chunks);
  placement->in_shared = std::min(room, chunks - placement->in_registers);
  placement->ahead = 0;
  placement->kept = 1.0;
  const auto streamed = [&] {
    return chunks - placement->in_registers - placement->in_shared;
  };
  const double l2_bytes = kKeptPart * device.l2_bytes;
  const auto streamed_bytes = [&] {
    return static_cast<double>(streamed() * kThreads * kChunkBytes *
                               placement->blocks);
  };
  // Weights that stay in the L2 cache are loaded when they are needed, which is
  // soon enough. Others are fetched ahead, to slots in shared memory if there
  // is enough of it. The number of streamed chunks is then a multiple of the
  // number of slots, so that a chunk has the same slot in every step.
  if (streamed_bytes() > l2_bytes) {
    const int64_t chunks_of_shared = chunks - placement->in_registers;
    int64_t most_in_shared = -1;
    for (int64_t ahead = groups; ahead <= std::min(3 * groups, room); ++ahead) {
      int64_t in_shared = room - ahead;
      while (in_shared >= 0 && (chunks_of_shared - in_shared) % ahead != 0) {
        --in_shared;
      }
      if (in_shared <= most_in_shared) continue;
      most_in_shared = in_shared;
      placement->in_shared = in_shared;
      placement->ahead = ahead;
    }
    placement->kept = l2_bytes / streamed_bytes();
  }
  placement->shared_bytes =
      (placement->in_shared + placement->ahead) * kThreads * kChunkBytes +
      other_bytes;
  return {};
}

std::vector<std::string> Macros(const ResidentShape& shape,
                                const Placement& placement) {
  std::vector<std::string> macros = {TypeMacro(shape.dtype),
                                     ModeMacro(shape.rnn_mode)};
  for (const auto& [name, value] :
       {std::pair("NUM_UNITS", shape.num_units),
        std::pair("BATCH", shape.batch_size),
        std::pair("GATES", NumGates(shape.rnn_mode)),
        std::pair("UNITS", placement.units), std::pair("WARPS", kWarps),
        std::pair("IN_REGISTERS", placement.in_registers),
        std::pair("IN_SHARED", placement.in_shared),
        std::pair("AHEAD", placement.ahead)}) {
    macros.push_back(std::string(name) + "=" + std::to_string(value));
  }
  // The fraction is written with whole numbers, since the locale decides how a
  // decimal point looks.
  macros.push_back("KEPT=(" +
                   std::to_string(std::lround(1000 * placement.kept)) +
                   "/1000.0f)");
  return macros;
}

}  // namespace

RnnStatus ResidentKernel::Get(const ResidentShape& shape,
                              ResidentKernel* kernel) {
  using Name = std::tuple<CUdevice, RnnMode, RnnDataType, int64_t, int64_t>;
  static NeverDestroyed<Known<Name, ResidentKernel>> known;
  CUdevice id;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&id));
  const Name name(id, shape.rnn_mode, shape.dtype, shape.num_units,
                  shape.batch_size);
  if (known->Find(name, kernel)) return {};
  DeviceLimits device;
  Placement placement;
  CRNN_RETURN_IF_ERROR(ReadLimits(&device));
  CRNN_RETURN_IF_ERROR(Place(shape, device, &placement));
  CRNN_RETURN_IF_ERROR(CompileKernel(
      "resident.cu", "resident", Macros(shape, placement), &kernel->kernel_));
  kernel->blocks_ = static_cast<unsigned int>(placement.blocks);
  kernel->shared_bytes_ = static_cast<unsigned int>(placement.shared_bytes);
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Gpu().cuda.cuKernelSetAttribute(
          CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
          static_cast<int>(kernel->shared_bytes_), kernel->kernel_, id),
      "give a kernel shared memory"));
  known->Add(name, kernel);
  return {};
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
  return CudaStatus(Gpu().cuda.cuLaunchCooperativeKernel(
                        reinterpret_cast<CUfunction>(kernel_), blocks_, 1, 1,
                        kThreads, 1, 1, shared_bytes_, stream, pointers),
                    "launch a kernel");
}

}  // namespace cudnn_rnn_tf
