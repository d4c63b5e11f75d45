// Runs random networks' passes on a fake GPU: its memory is the host's, its
// threads run one after the other, and its cuDNN only checks its inputs and
// writes known numbers. Checks, without a GPU, that cuDNN finds every array in
// its own order and callers in theirs. If sequences run in halves, it also
// checks that each half gets its steps, its states and its reserve space.
//
//   batch_major_on_fake_gpu SEEDS
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/cudnn/enqueue_pass.h"
#include "kernels/gpu/cudnn/transpose.h"
#include "kernels/param_layout.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

constexpr size_t kReserveBytes = 100;
// The fake cuDNN knows or is told the following.
const RnnProblem* problem = nullptr;
std::unique_ptr<ParamLayout> layout;
int made_descriptors = 0, num_descriptors = 0;
std::map<cudnnRNNDescriptor_t, cudnnRNNAlgo_t> algorithm_of;
std::map<cudnnRNNDataDescriptor_t, int> steps_of;
// Bytes of workspace for each step.
size_t standard_bytes = 0, persistent_bytes = 0;
// The step at which the next part begins or, in a backward pass, ends.
int64_t next_step = 0;
const void* params = nullptr;
int bias_dims[3], matrix_dims[3];
int num_exchanges = 0;
bool loads_kernels = false;

// The number that an array has at [row, batch, place].
uint64_t Number(CallBuffer buffer, int64_t row, int64_t batch, int64_t place) {
  uint64_t number = 1 + buffer;
  for (const int64_t next : {row, batch, place}) {
    number = (number ^ static_cast<uint64_t>(next)) * 0x9E3779B97F4A7C15u;
    number ^= number >> 29;
  }
  return number;
}

struct Array {
  CallBuffer buffer;
  int64_t rows, size;
  int64_t first_row = 0;
};

// Writes an array's numbers or checks that they are there.
void Visit(const Array& array, bool time_major, bool writes, void* memory) {
  if (array.size == 0) return;
  const size_t item = SizeOf(problem->dtype);
  char* place = static_cast<char*>(memory);
  const int64_t outer = time_major ? array.rows : problem->batch_size;
  const int64_t inner = time_major ? problem->batch_size : array.rows;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      for (int64_t k = 0; k < array.size; ++k, place += item) {
        const uint64_t number =
            Number(array.buffer, array.first_row + (time_major ? i : j),
                   time_major ? j : i, k);
        if (writes) {
          std::memcpy(place, &number, item);
        } else {
          Check(std::memcmp(place, &number, item) == 0,
                "another number in array " + std::to_string(array.buffer));
        }
      }
    }
  }
}

Array ArrayOf(CallBuffer buffer) {
  const RnnSpec& spec = problem->spec;
  switch (buffer) {
    case kInput:
    case kInputBackprop:
      return {buffer, problem->max_time, spec.input_size};
    case kOutput:
    case kOutputBackprop:
      return {buffer, problem->max_time, spec.layer_output_size()};
    case kInputH:
    case kOutputH:
    case kInputHBackprop:
    case kOutputHBackprop:
      return {buffer, spec.num_pseudo_layers(), spec.output_size()};
    case kInputC:
    case kOutputC:
    case kInputCBackprop:
    case kOutputCBackprop:
      return {buffer, spec.num_pseudo_layers(),
              spec.is_lstm() ? spec.num_units : 0};
    default:
      return {buffer, 0, 0};
  }
}

// A state, or its gradient, between two halves.
Array Between(CallBuffer buffer) {
  Array array = ArrayOf(buffer);
  array.first_row = 1000;
  return array;
}

// Reads and writes data as cuDNN sees them.
void Read(const Array& array, const void* memory) {
  Visit(array, true, false, const_cast<void*>(memory));
}
void Write(const Array& array, void* memory) {
  Visit(array, true, true, memory);
}

// The steps of one call.
struct Steps {
  int64_t first, count;
  bool are_first() const { return first == 0; }
  bool are_last() const { return first + count == problem->max_time; }
  Array Of(CallBuffer buffer) const {
    return {buffer, count, ArrayOf(buffer).size, first};
  }
  void UseReserve(bool writes, size_t size, void* memory) const {
    Check(size == (problem->is_training ? kReserveBytes : 0),
          "size of the reserve space");
    if (!problem->is_training) return;
    auto* const bytes = static_cast<unsigned char*>(memory);
    const auto mark = static_cast<unsigned char>(1 + first);
    if (writes) std::fill_n(bytes, kReserveBytes, mark);
    Check(std::all_of(bytes, bytes + kReserveBytes,
                      [&](unsigned char byte) { return byte == mark; }),
          "another reserve space");
  }
};

size_t WorkspaceBytes(cudnnRNNDescriptor_t network, int steps) {
  return steps * (algorithm_of.at(network) == CUDNN_RNN_ALGO_STANDARD
                      ? standard_bytes
                      : persistent_bytes);
}

// Overwrites a call's workspace, as every call of cuDNN may do. While cuDNN
// enqueues work, no other thread may.
void Overwrite(cudnnRNNDescriptor_t network, cudnnRNNDataDescriptor_t x,
               size_t workspace_bytes, void* workspace) {
  CheckEnqueuesAlone(/*stream=*/nullptr);
  Check(workspace_bytes >= WorkspaceBytes(network, steps_of.at(x)),
        "a workspace that is too small");
  std::memset(workspace, 0xEE, workspace_bytes);
}
Steps NextSteps(cudnnRNNDataDescriptor_t x, cudnnRNNDataDescriptor_t y) {
  Check(steps_of.at(x) == steps_of.at(y), "other steps of the outputs");
  const Steps steps = {next_step, steps_of.at(x)};
  next_step += steps.count;
  return steps;
}
Steps StepsBefore(cudnnRNNDataDescriptor_t x, cudnnRNNDataDescriptor_t y) {
  Check(steps_of.at(x) == steps_of.at(y), "other steps of the outputs");
  if (next_step == 0) next_step = problem->max_time;
  next_step -= steps_of.at(x);
  return {next_step, steps_of.at(x)};
}

// Does what the kernel's threads do, one after the other.
CUresult RunKernel(CUfunction kernel, unsigned blocks, unsigned, unsigned,
                   unsigned lanes, unsigned rows_per_block, unsigned, unsigned,
                   CUstream, void** arguments, void**) {
  const auto item = reinterpret_cast<uintptr_t>(kernel);
  const auto from = *static_cast<const char**>(arguments[0]);
  const auto to = *static_cast<char**>(arguments[1]);
  const uint32_t outer = *static_cast<uint32_t*>(arguments[2]);
  const uint32_t inner = *static_cast<uint32_t*>(arguments[3]);
  const uint32_t items = *static_cast<uint32_t*>(arguments[4]);
  Check((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) %
                item ==
            0,
        "alignment");
  ++num_exchanges;
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned y = 0; y < rows_per_block; ++y) {
      const uint32_t row = block * rows_per_block + y;
      if (row >= outer * inner) continue;
      const uint32_t i = row / inner, j = row % inner;
      for (unsigned x = 0; x < lanes; ++x) {
        for (uint64_t k = x; k < items; k += lanes) {
          std::memcpy(to + ((uint64_t{j} * outer + i) * items + k) * item,
                      from + (uint64_t{row} * items + k) * item, item);
        }
      }
    }
  }
  return CUDA_SUCCESS;
}

template <typename Descriptor>
cudnnStatus_t Make(Descriptor* descriptor) {
  ++num_descriptors;
  *descriptor =
      reinterpret_cast<Descriptor>(static_cast<uintptr_t>(++made_descriptors));
  return CUDNN_STATUS_SUCCESS;
}
template <typename Descriptor>
cudnnStatus_t Drop(Descriptor) {
  --num_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries;
  CudaDriver& cuda = libraries.cuda;
  cuda.cuLibraryLoadData = [](CUlibrary*, const void*, CUjit_option*, void**,
                              unsigned, CUlibraryOption*, void**, unsigned) {
    return loads_kernels ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  };
  cuda.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary, const char* name) {
    *kernel = reinterpret_cast<CUkernel>(
        static_cast<uintptr_t>(std::atoi(std::strrchr(name, '_') + 1)));
    return CUDA_SUCCESS;
  };
  cuda.cuLaunchKernel = RunKernel;
  cuda.cuMemsetD8Async = [](CUdeviceptr to, unsigned char byte, size_t bytes,
                            CUstream) {
    std::memset(reinterpret_cast<void*>(to), byte, bytes);
    return CUDA_SUCCESS;
  };
  CudnnLibrary& cudnn = libraries.cudnn;
  cudnn.cudnnCreateTensorDescriptor = Make;
  cudnn.cudnnDestroyTensorDescriptor = Drop;
  cudnn.cudnnCreateDropoutDescriptor = Make;
  cudnn.cudnnDestroyDropoutDescriptor = Drop;
  cudnn.cudnnCreateRNNDescriptor = Make;
  cudnn.cudnnDestroyRNNDescriptor = Drop;
  cudnn.cudnnCreateRNNDataDescriptor = Make;
  cudnn.cudnnDestroyRNNDataDescriptor = Drop;
  cudnn.cudnnSetTensorNdDescriptor =
      [](cudnnTensorDescriptor_t, cudnnDataType_t, int, const int*,
         const int*) { return CUDNN_STATUS_SUCCESS; };
  cudnn.cudnnSetDropoutDescriptor =
      [](cudnnDropoutDescriptor_t, cudnnHandle_t, float, void*, size_t,
         unsigned long long) { return CUDNN_STATUS_SUCCESS; };
  cudnn.cudnnRestoreDropoutDescriptor =
      [](cudnnDropoutDescriptor_t, cudnnHandle_t, float, void*, size_t,
         unsigned long long) { return CUDNN_STATUS_SUCCESS; };
  cudnn.cudnnDropoutGetStatesSize = [](cudnnHandle_t, size_t* bytes) {
    *bytes = 1000;
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.cudnnSetRNNDescriptor_v8 =
      [](cudnnRNNDescriptor_t network, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t,
         cudnnRNNBiasMode_t, cudnnDirectionMode_t, cudnnRNNInputMode_t,
         cudnnDataType_t, cudnnDataType_t, cudnnMathType_t, int32_t, int32_t,
         int32_t, int32_t, cudnnDropoutDescriptor_t, uint32_t) {
        algorithm_of[network] = algorithm;
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnSetRNNDataDescriptor =
      [](cudnnRNNDataDescriptor_t data, cudnnDataType_t,
         cudnnRNNDataLayout_t data_layout, int steps, int, int,
         const int* lengths, void*) {
        Check(data_layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
              "layout of the data");
        Check(lengths[0] == steps, "lengths that are not full");
        steps_of[data] = steps;
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnGetRNNTempSpaceSizes =
      [](cudnnHandle_t, cudnnRNNDescriptor_t network, cudnnForwardMode_t mode,
         cudnnRNNDataDescriptor_t x, size_t* workspace, size_t* reserve) {
        *workspace = WorkspaceBytes(network, steps_of.at(x));
        *reserve = mode == CUDNN_FWD_MODE_TRAINING ? kReserveBytes : 0;
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnGetRNNWeightSpaceSize = [](cudnnHandle_t, cudnnRNNDescriptor_t,
                                        size_t* bytes) {
    *bytes = layout->size() * SizeOf(problem->dtype);
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.cudnnGetRNNWeightParams =
      [](cudnnHandle_t, cudnnRNNDescriptor_t, int32_t pseudo_layer, size_t,
         const void* base, int32_t id, cudnnTensorDescriptor_t, void** matrix,
         cudnnTensorDescriptor_t, void** bias) {
        const auto find = [&](const std::vector<ParamBlock>& blocks,
                              int (&dims)[3], void** address) {
          for (const ParamBlock& block : blocks) {
            if (block.layer * problem->spec.num_dirs() + block.dir !=
                    pseudo_layer ||
                block.linear_layer_id != id) {
              continue;
            }
            dims[0] = 1;
            dims[1] = static_cast<int>(block.rows);
            dims[2] = static_cast<int>(block.size() / block.rows);
            *address = static_cast<char*>(const_cast<void*>(base)) +
                       block.offset * SizeOf(problem->dtype);
          }
        };
        find(layout->weights(), matrix_dims, matrix);
        find(layout->biases(), bias_dims, bias);
        return CUDNN_STATUS_SUCCESS;
      };
  // The plan creates the matrix's descriptor before the bias's, so the latter
  // is the last that was made.
  cudnn.cudnnGetTensorNdDescriptor = [](cudnnTensorDescriptor_t descriptor, int,
                                        cudnnDataType_t*, int*, int* dims,
                                        int*) {
    const bool is_bias =
        reinterpret_cast<intptr_t>(descriptor) == intptr_t{made_descriptors};
    std::copy_n(is_bias ? bias_dims : matrix_dims, 3, dims);
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.cudnnRNNForward =
      [](cudnnHandle_t, cudnnRNNDescriptor_t network, cudnnForwardMode_t,
         const int32_t*, cudnnRNNDataDescriptor_t x_steps, const void* x,
         cudnnRNNDataDescriptor_t y_steps, void* y, cudnnTensorDescriptor_t,
         const void* hx, void* hy, cudnnTensorDescriptor_t, const void* cx,
         void* cy, size_t, const void* weights, size_t workspace_bytes,
         void* workspace, size_t reserve_bytes, void* reserve) {
        Check(weights == params, "other weights");
        Overwrite(network, x_steps, workspace_bytes, workspace);
        const Steps steps = NextSteps(x_steps, y_steps);
        steps.UseReserve(true, reserve_bytes, reserve);
        Read(steps.Of(kInput), x);
        Read(steps.are_first() ? ArrayOf(kInputH) : Between(kOutputH), hx);
        Read(steps.are_first() ? ArrayOf(kInputC) : Between(kOutputC), cx);
        Write(steps.Of(kOutput), y);
        Write(steps.are_last() ? ArrayOf(kOutputH) : Between(kOutputH), hy);
        Write(steps.are_last() ? ArrayOf(kOutputC) : Between(kOutputC), cy);
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnRNNBackwardData_v8 =
      [](cudnnHandle_t, cudnnRNNDescriptor_t network, const int32_t*,
         cudnnRNNDataDescriptor_t y_steps, const void* y, const void* dy,
         cudnnRNNDataDescriptor_t x_steps, void* dx, cudnnTensorDescriptor_t,
         const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t,
         const void* cx, const void* dcy, void* dcx, size_t,
         const void* weights, size_t workspace_bytes, void* workspace,
         size_t reserve_bytes, void* reserve) {
        Check(weights == params, "other weights");
        Overwrite(network, x_steps, workspace_bytes, workspace);
        const Steps steps = StepsBefore(x_steps, y_steps);
        steps.UseReserve(false, reserve_bytes, reserve);
        Read(steps.Of(kOutput), y);
        Read(steps.Of(kOutputBackprop), dy);
        Read(steps.are_first() ? ArrayOf(kInputH) : Between(kOutputH), hx);
        Read(steps.are_first() ? ArrayOf(kInputC) : Between(kOutputC), cx);
        Read(steps.are_last() ? ArrayOf(kOutputHBackprop)
                              : Between(kOutputHBackprop),
             dhy);
        Read(steps.are_last() ? ArrayOf(kOutputCBackprop)
                              : Between(kOutputCBackprop),
             dcy);
        Write(steps.Of(kInputBackprop), dx);
        Check(dhx != dhy, "a gradient in the place of another");
        Write(steps.are_first() ? ArrayOf(kInputHBackprop)
                                : Between(kOutputHBackprop),
              dhx);
        Write(steps.are_first() ? ArrayOf(kInputCBackprop)
                                : Between(kOutputCBackprop),
              dcx);
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnRNNBackwardWeights_v8 =
      [](cudnnHandle_t, cudnnRNNDescriptor_t network, cudnnWgradMode_t mode,
         const int32_t*, cudnnRNNDataDescriptor_t x_steps, const void* x,
         cudnnTensorDescriptor_t, const void* hx,
         cudnnRNNDataDescriptor_t y_steps, const void* y, size_t, void* dw,
         size_t workspace_bytes, void* workspace, size_t reserve_bytes,
         void* reserve) {
        Check(mode == CUDNN_WGRAD_MODE_ADD, "gradients are not added");
        Overwrite(network, x_steps, workspace_bytes, workspace);
        const Steps steps = StepsBefore(x_steps, y_steps);
        steps.UseReserve(false, reserve_bytes, reserve);
        Read(steps.Of(kInput), x);
        Read(steps.are_first() ? ArrayOf(kInputH) : Between(kOutputH), hx);
        Read(steps.Of(kOutput), y);
        *static_cast<unsigned char*>(dw) += 1;
        return CUDNN_STATUS_SUCCESS;
      };
  return libraries;
}

namespace {

// Buffers of the sizes that a pass asks for, with a guard behind each.
class Memory {
 public:
  explicit Memory(const std::array<size_t, kNumCallBuffers>& sizes) {
    for (int i = 0; i < kNumCallBuffers; ++i) {
      if (sizes[i] == 0) continue;
      constexpr size_t kAlign = 256;
      const size_t bytes = (sizes[i] + 2 * kAlign - 1) / kAlign * kAlign;
      buffers_[i].reset(std::aligned_alloc(kAlign, bytes));
      guards_[i] = static_cast<unsigned char*>(buffers_[i].get()) + sizes[i];
      guard_bytes_[i] = bytes - sizes[i];
      std::memset(buffers_[i].get(), 0xDD, bytes);
      addresses[i] = reinterpret_cast<CUdeviceptr>(buffers_[i].get());
    }
  }
  void CheckGuards() const {
    for (int i = 0; i < kNumCallBuffers; ++i) {
      Check(std::all_of(guards_[i], guards_[i] + guard_bytes_[i],
                        [](unsigned char byte) { return byte == 0xDD; }),
            "something beyond the end of buffer " + std::to_string(i));
    }
  }
  void* at(CallBuffer buffer) const { return buffers_[buffer].get(); }

  CallAddresses addresses = {};

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::array<std::unique_ptr<void, Free>, kNumCallBuffers> buffers_;
  std::array<unsigned char*, kNumCallBuffers> guards_ = {};
  std::array<size_t, kNumCallBuffers> guard_bytes_ = {};
};

// Runs a pass over `given` buffers and checks the `asked` ones. A forward pass
// leaves its reserve space in `reserve`, with which a backward pass begins.
void CheckPass(Pass pass, CudnnPlan* plan, const std::vector<CallBuffer>& given,
               const std::vector<CallBuffer>& asked,
               std::vector<char>* reserve) {
  const auto sizes = CallBufferSizes(*plan, pass);
  const Memory memory(sizes);
  auto* const memory_of_reserve = static_cast<char*>(memory.at(kReserveSpace));
  if (pass == Pass::kBackward) {
    Check(reserve->size() == sizes[kReserveSpace], "size of the reserve space");
    std::copy(reserve->begin(), reserve->end(), memory_of_reserve);
  }
  for (const CallBuffer buffer : given) {
    Visit(ArrayOf(buffer), problem->time_major, true, memory.at(buffer));
  }
  num_exchanges = 0;
  next_step = 0;
  params = memory.at(kParams);
  const RnnStatus status =
      EnqueuePass(pass, {nullptr, nullptr, nullptr}, plan, memory.addresses);
  Check(status.ok(), status.message);
  for (const std::vector<CallBuffer>& buffers : {given, asked}) {
    for (const CallBuffer buffer : buffers) {
      Visit(ArrayOf(buffer), problem->time_major, false, memory.at(buffer));
    }
  }
  memory.CheckGuards();
  if (pass == Pass::kForward) {
    Check(next_step == problem->max_time, "steps are left out");
    reserve->assign(memory_of_reserve,
                    memory_of_reserve + sizes[kReserveSpace]);
  } else {
    Check(next_step == 0, "steps are left out");
    Check(*static_cast<unsigned char*>(memory.at(kParamsBackprop)) ==
              plan->parts().size(),
          "gradients are not those of all parts");
  }
  if (problem->time_major || problem->batch_size == 1) {
    Check(num_exchanges == 0, "arrays are exchanged");
  }
}

void CheckLoading() {
  const auto exchange = [] {
    return EnqueueTranspose(/*stream=*/nullptr, 0, 0, 0, 0, 0);
  };
  Check(!exchange().ok(), "an exchange without its kernels");
  loads_kernels = true;
  Check(exchange().ok(), "kernels that are there the next time");
}

void CheckNetwork(unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % (most - least + 1));
  };
  RnnProblem drawn;
  drawn.spec.rnn_mode = static_cast<RnnMode>(draw(0, 3));
  drawn.spec.num_layers = draw(1, 3);
  drawn.spec.num_units = draw(1, 40);
  drawn.spec.input_size = draw(1, 150);
  if (draw(0, 3) == 0) drawn.spec.direction = Direction::kBidirectional;
  if (drawn.spec.is_lstm() && drawn.spec.num_units > 1 && draw(0, 2) == 0) {
    drawn.spec.num_proj = draw(1, drawn.spec.num_units - 1);
  }
  drawn.dtype = static_cast<RnnDataType>(draw(0, 3));
  // Sequences of 100 steps or more may run in halves.
  drawn.max_time = draw(0, 1) == 1 ? draw(98, 105) : draw(1, 6);
  if (draw(0, 3) > 0) {
    drawn.spec.input_size = 16 << draw(0, 3);
    drawn.spec.num_units = 16 << draw(0, 3);
    if (drawn.spec.num_proj > 0) drawn.spec.num_proj = drawn.spec.num_units / 2;
  }
  drawn.is_training = draw(0, 7) > 0;
  if (draw(0, 3) == 0) drawn.spec.dropout = 0.5f;
  drawn.batch_size = draw(1, 5);
  drawn.time_major = draw(0, 4) == 0;
  drawn.has_sequence_lengths = draw(0, 7) == 0;
  problem = &drawn;
  being_checked = Describe(drawn);
  layout = std::make_unique<ParamLayout>(drawn.spec);
  std::unique_ptr<CudnnPlan> plan;
  const auto algorithm = static_cast<RnnAlgorithm>(draw(1, 3));
  standard_bytes = 10 * draw(10, 100);
  persistent_bytes = standard_bytes * draw(13, 20) / 10;
  const RnnStatus status =
      CudnnPlan::Create(nullptr, drawn, algorithm, {}, &plan);
  Check(status.ok(), status.message);
  const int64_t first_steps = (drawn.max_time + 1) / 2 * drawn.batch_size;
  const auto is_aligned = [&](int64_t size) {
    return first_steps * size * SizeOf(drawn.dtype) % 256 == 0;
  };
  const bool drops = drawn.spec.dropout > 0 && drawn.spec.num_layers > 1;
  const bool in_halves =
      drawn.is_training && !drops && !drawn.has_sequence_lengths &&
      algorithm != RnnAlgorithm::kStandard && drawn.spec.num_dirs() == 1 &&
      drawn.max_time >= 100 && is_aligned(drawn.spec.input_size) &&
      is_aligned(drawn.spec.layer_output_size()) &&
      persistent_bytes * 2 > standard_bytes * 3;
  Check(plan->parts().size() == (in_halves ? 2 : 1), "number of parts");
  Check(plan->workspace_size() ==
            (in_halves ? (drawn.max_time + 1) / 2 : drawn.max_time) *
                (algorithm == RnnAlgorithm::kStandard ? standard_bytes
                                                      : persistent_bytes),
        "size of the workspace");
  std::vector<char> reserve;
  CheckPass(Pass::kForward, plan.get(), {kInput, kInputH, kInputC},
            {kOutput, kOutputH, kOutputC}, &reserve);
  CheckPass(Pass::kBackward, plan.get(),
            {kInput, kInputH, kInputC, kOutput, kOutputBackprop,
             kOutputHBackprop, kOutputCBackprop},
            {kInputBackprop, kInputHBackprop, kInputCBackprop}, &reserve);
  plan.reset();
  Check(num_descriptors == 0, "descriptors are left");
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  cudnn_rnn_tf::CheckLoading();
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckNetwork);
}
