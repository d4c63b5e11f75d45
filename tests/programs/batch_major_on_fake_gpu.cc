// Runs random networks' passes on a GPU that is none: its memory is the host's,
// its threads run one after the other, and its cuDNN only looks at what it is
// given and writes numbers of its own. Tells, without a GPU, whether cuDNN
// finds every array in its order and callers in theirs.
//
//   batch_major_on_fake_gpu SEEDS
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cudnn/calls.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

constexpr size_t kWorkspaceBytes = 1000, kReserveBytes = 100;

// What the fake cuDNN is told, or knows.
const RnnProblem* problem = nullptr;
std::unique_ptr<ParamLayout> layout;
int next_descriptor = 0;
int bias_dims[3], matrix_dims[3];
int num_exchanges = 0;

// The number of an array at [row, batch, place].
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
            Number(array.buffer, time_major ? i : j, time_major ? j : i, k);
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

// As cuDNN sees it.
void Read(CallBuffer buffer, const void* memory) {
  Visit(ArrayOf(buffer), true, false, const_cast<void*>(memory));
}
void Write(CallBuffer buffer, void* memory) {
  Visit(ArrayOf(buffer), true, true, memory);
}

// What each thread of the kernel does.
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
  *descriptor = reinterpret_cast<Descriptor>(uintptr_t{1} + next_descriptor++);
  return CUDNN_STATUS_SUCCESS;
}
template <typename Descriptor>
cudnnStatus_t Drop(Descriptor) {
  --next_descriptor;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries;
  CudaDriver& cuda = libraries.cuda;
  cuda.cuLibraryLoadData = [](CUlibrary*, const void*, CUjit_option*, void**,
                              unsigned, CUlibraryOption*, void**,
                              unsigned) { return CUDA_SUCCESS; };
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
  cudnn.cudnnSetRNNDescriptor_v8 =
      [](cudnnRNNDescriptor_t, cudnnRNNAlgo_t, cudnnRNNMode_t,
         cudnnRNNBiasMode_t, cudnnDirectionMode_t, cudnnRNNInputMode_t,
         cudnnDataType_t, cudnnDataType_t, cudnnMathType_t, int32_t, int32_t,
         int32_t, int32_t, cudnnDropoutDescriptor_t,
         uint32_t) { return CUDNN_STATUS_SUCCESS; };
  cudnn.cudnnSetRNNDataDescriptor =
      [](cudnnRNNDataDescriptor_t, cudnnDataType_t,
         cudnnRNNDataLayout_t data_layout, int, int, int, const int*, void*) {
        Check(data_layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
              "layout of the data");
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnGetRNNTempSpaceSizes =
      [](cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t,
         cudnnRNNDataDescriptor_t, size_t* workspace, size_t* reserve) {
        *workspace = kWorkspaceBytes;
        *reserve = kReserveBytes;
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
  // Of a plan's descriptors, the matrix's is made before the bias's.
  cudnn.cudnnGetTensorNdDescriptor = [](cudnnTensorDescriptor_t descriptor, int,
                                        cudnnDataType_t*, int*, int* dims,
                                        int*) {
    const bool is_bias =
        reinterpret_cast<intptr_t>(descriptor) == intptr_t{next_descriptor};
    std::copy_n(is_bias ? bias_dims : matrix_dims, 3, dims);
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.cudnnRNNForward =
      [](cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t,
         const int32_t*, cudnnRNNDataDescriptor_t, const void* x,
         cudnnRNNDataDescriptor_t, void* y, cudnnTensorDescriptor_t,
         const void* hx, void* hy, cudnnTensorDescriptor_t, const void* cx,
         void* cy, size_t, const void*, size_t workspace_bytes, void* workspace,
         size_t, void*) {
        std::memset(workspace, 0xEE, workspace_bytes);
        Read(kInput, x);
        Read(kInputH, hx);
        Read(kInputC, cx);
        Write(kOutput, y);
        Write(kOutputH, hy);
        Write(kOutputC, cy);
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnRNNBackwardData_v8 =
      [](cudnnHandle_t, cudnnRNNDescriptor_t, const int32_t*,
         cudnnRNNDataDescriptor_t, const void* y, const void* dy,
         cudnnRNNDataDescriptor_t, void* dx, cudnnTensorDescriptor_t,
         const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t,
         const void* cx, const void* dcy, void* dcx, size_t, const void*,
         size_t workspace_bytes, void* workspace, size_t, void*) {
        std::memset(workspace, 0xEE, workspace_bytes);
        Read(kOutput, y);
        Read(kOutputBackprop, dy);
        Read(kInputH, hx);
        Read(kInputC, cx);
        Read(kOutputHBackprop, dhy);
        Read(kOutputCBackprop, dcy);
        Write(kInputBackprop, dx);
        Write(kInputHBackprop, dhx);
        Write(kInputCBackprop, dcx);
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnRNNBackwardWeights_v8 =
      [](cudnnHandle_t, cudnnRNNDescriptor_t, cudnnWgradMode_t, const int32_t*,
         cudnnRNNDataDescriptor_t, const void* x, cudnnTensorDescriptor_t,
         const void* hx, cudnnRNNDataDescriptor_t, const void* y, size_t, void*,
         size_t workspace_bytes, void* workspace, size_t, void*) {
        std::memset(workspace, 0xEE, workspace_bytes);
        Read(kInput, x);
        Read(kInputH, hx);
        Read(kOutput, y);
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

void CheckPass(Pass pass, CudnnPlan* plan, const std::vector<CallBuffer>& given,
               const std::vector<CallBuffer>& asked) {
  const Memory memory(CallBufferSizes(*plan, pass));
  for (const CallBuffer buffer : given) {
    Visit(ArrayOf(buffer), problem->time_major, true, memory.at(buffer));
  }
  num_exchanges = 0;
  const RnnStatus status =
      EnqueuePass(pass, {nullptr, nullptr}, plan, memory.addresses);
  Check(status.ok(), status.message);
  for (const std::vector<CallBuffer>& buffers : {given, asked}) {
    for (const CallBuffer buffer : buffers) {
      Visit(ArrayOf(buffer), problem->time_major, false, memory.at(buffer));
    }
  }
  memory.CheckGuards();
  if (problem->time_major || problem->batch_size == 1) {
    Check(num_exchanges == 0, "arrays are exchanged");
  }
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
  if (draw(0, 1) == 1) drawn.spec.direction = Direction::kBidirectional;
  if (drawn.spec.is_lstm() && drawn.spec.num_units > 1 && draw(0, 2) == 0) {
    drawn.spec.num_proj = draw(1, drawn.spec.num_units - 1);
  }
  drawn.dtype = static_cast<RnnDataType>(draw(0, 3));
  drawn.max_time = draw(1, 6);
  drawn.batch_size = draw(1, 5);
  drawn.time_major = draw(0, 4) == 0;
  drawn.has_sequence_lengths = draw(0, 3) == 0;
  problem = &drawn;
  being_checked = Describe(drawn);
  layout = std::make_unique<ParamLayout>(drawn.spec);
  std::unique_ptr<CudnnPlan> plan;
  const RnnStatus status = CudnnPlan::Create(nullptr, drawn, {}, &plan);
  Check(status.ok(), status.message);
  CheckPass(Pass::kForward, plan.get(), {kInput, kInputH, kInputC},
            {kOutput, kOutputH, kOutputC});
  CheckPass(Pass::kBackward, plan.get(),
            {kInput, kInputH, kInputC, kOutput, kOutputBackprop,
             kOutputHBackprop, kOutputCBackprop},
            {kInputBackprop, kInputHBackprop, kInputCBackprop});
  plan.reset();
  Check(next_descriptor == 0, "descriptors are left");
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckNetwork);
}
