// Runs random networks' passes on a fake GPU: its memory is the host's, its
// threads run one after the other, and its cuDNN only checks its inputs and
// writes known numbers. Checks, without a GPU, that cuDNN finds every array in
// its own order and layout, and callers in theirs.
//
//   batch_major_on_fake_gpu SEEDS
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/cudnn/network.h"
#include "kernels/param_layout.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

constexpr size_t kReserveBytes = 100, kWorkspaceBytes = 1000;
// The fake cuDNN knows or is told the following.
const RnnProblem* problem = nullptr;
std::unique_ptr<ParamLayout> layout;
int made_descriptors = 0, num_descriptors = 0;
int bias_dims[3], matrix_dims[3];
int num_exchanges = 0;
bool has_compiler = true, lacks_memory = false;

enum CallBuffer {
  kInput,
  kInputH,
  kInputC,
  kParams,
  kOutput,
  kOutputH,
  kOutputC,
  kOutputBackprop,
  kOutputHBackprop,
  kOutputCBackprop,
  kInputBackprop,
  kInputHBackprop,
  kInputCBackprop,
  kParamsBackprop
};

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

// Reads and writes data as cuDNN sees them.
void Read(CallBuffer buffer, const void* memory) {
  Visit(ArrayOf(buffer), true, false, const_cast<void*>(memory));
}
void Write(CallBuffer buffer, void* memory) {
  Visit(ArrayOf(buffer), true, true, memory);
}

// Parameters are bytes.
unsigned char ParamByte(CallBuffer buffer, size_t place) {
  return static_cast<unsigned char>(Number(buffer, 0, 0, place));
}
void VisitParams(CallBuffer buffer, bool writes, void* memory) {
  auto* const bytes = static_cast<unsigned char*>(memory);
  const size_t count = layout->size() * SizeOf(problem->dtype);
  for (size_t i = 0; i < count; ++i) {
    if (writes) {
      bytes[i] = ParamByte(buffer, i);
    } else {
      Check(bytes[i] == ParamByte(buffer, i), "other parameters");
    }
  }
}

void UseReserve(bool writes, size_t size, void* memory) {
  Check(size == (problem->is_training ? kReserveBytes : 0),
        "size of the reserve space");
  if (!problem->is_training) return;
  auto* const bytes = static_cast<unsigned char*>(memory);
  if (writes) std::fill_n(bytes, kReserveBytes, 0x77);
  Check(std::all_of(bytes, bytes + kReserveBytes,
                    [&](unsigned char byte) { return byte == 0x77; }),
        "another reserve space");
}

// Overwrites a call's workspace, as every call of cuDNN may do. While cuDNN
// enqueues work, no other thread may.
void Overwrite(size_t workspace_bytes, void* workspace) {
  CheckEnqueuesAlone(/*stream=*/nullptr);
  Check(workspace_bytes == kWorkspaceBytes, "size of the workspace");
  std::memset(workspace, 0xEE, workspace_bytes);
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

// This takes the place of compiler.cc. A kernel is the number of its units'
// bytes.
RnnStatus CompileKernel(const std::string&, const std::string&,
                        const std::vector<std::string>& macros,
                        CUkernel* kernel) {
  if (lacks_memory) return {RnnStatus::Code::kResourceExhausted, "no memory"};
  if (!has_compiler) return {RnnStatus::Code::kFailedPrecondition, "no NVRTC"};
  *kernel = reinterpret_cast<CUkernel>(static_cast<uintptr_t>(
      std::atoi(macros[0].c_str() + std::strlen("UNIT_BYTES="))));
  return {};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuMemcpy2DAsync = [](const CUDA_MEMCPY2D* copy, CUstream) {
    ++num_exchanges;
    for (size_t row = 0; row < copy->Height; ++row) {
      std::memcpy(
          reinterpret_cast<char*>(copy->dstDevice) + row * copy->dstPitch,
          reinterpret_cast<char*>(copy->srcDevice) + row * copy->srcPitch,
          copy->WidthInBytes);
    }
    return CUDA_SUCCESS;
  };
  cuda.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from),
                bytes);
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
      [](cudnnRNNDescriptor_t, cudnnRNNAlgo_t, cudnnRNNMode_t,
         cudnnRNNBiasMode_t, cudnnDirectionMode_t, cudnnRNNInputMode_t,
         cudnnDataType_t, cudnnDataType_t, cudnnMathType_t, int32_t, int32_t,
         int32_t, int32_t, cudnnDropoutDescriptor_t,
         uint32_t) { return CUDNN_STATUS_SUCCESS; };
  cudnn.cudnnSetRNNDataDescriptor =
      [](cudnnRNNDataDescriptor_t, cudnnDataType_t,
         cudnnRNNDataLayout_t data_layout, int steps, int, int,
         const int* lengths, void*) {
        Check(data_layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
              "layout of the data");
        Check(lengths[0] == steps && steps == problem->max_time,
              "lengths that are not full");
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn.cudnnGetRNNTempSpaceSizes =
      [](cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t mode,
         cudnnRNNDataDescriptor_t, size_t* workspace, size_t* reserve) {
        *workspace = kWorkspaceBytes;
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
      [](cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t,
         const int32_t*, cudnnRNNDataDescriptor_t, const void* x,
         cudnnRNNDataDescriptor_t, void* y, cudnnTensorDescriptor_t,
         const void* hx, void* hy, cudnnTensorDescriptor_t, const void* cx,
         void* cy, size_t, const void* weights, size_t workspace_bytes,
         void* workspace, size_t reserve_bytes, void* reserve) {
        Overwrite(workspace_bytes, workspace);
        UseReserve(true, reserve_bytes, reserve);
        VisitParams(kParams, false, const_cast<void*>(weights));
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
         const void* cx, const void* dcy, void* dcx, size_t,
         const void* weights, size_t workspace_bytes, void* workspace,
         size_t reserve_bytes, void* reserve) {
        Overwrite(workspace_bytes, workspace);
        UseReserve(false, reserve_bytes, reserve);
        VisitParams(kParams, false, const_cast<void*>(weights));
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
      [](cudnnHandle_t, cudnnRNNDescriptor_t, cudnnWgradMode_t mode,
         const int32_t*, cudnnRNNDataDescriptor_t, const void* x,
         cudnnTensorDescriptor_t, const void* hx, cudnnRNNDataDescriptor_t,
         const void* y, size_t, void* dw, size_t workspace_bytes,
         void* workspace, size_t reserve_bytes, void* reserve) {
        Check(mode == CUDNN_WGRAD_MODE_ADD, "gradients are not added");
        Overwrite(workspace_bytes, workspace);
        UseReserve(false, reserve_bytes, reserve);
        Read(kInput, x);
        Read(kInputH, hx);
        Read(kOutput, y);
        // cuDNN adds gradients to this buffer, so it must hold zeros.
        auto* const bytes = static_cast<unsigned char*>(dw);
        const size_t count = layout->size() * SizeOf(problem->dtype);
        for (size_t i = 0; i < count; ++i) {
          bytes[i] += ParamByte(kParamsBackprop, i);
        }
        return CUDNN_STATUS_SUCCESS;
      };
  return libraries;
}

namespace {

// Buffers with a guard behind each.
class Memory {
 public:
  void* New(size_t bytes) {
    constexpr size_t kAlign = 256;
    const size_t all = (bytes + 2 * kAlign - 1) / kAlign * kAlign;
    buffers_.push_back({{std::aligned_alloc(kAlign, all), std::free}, bytes});
    std::memset(buffers_.back().memory.get(), 0xDD, all);
    return buffers_.back().memory.get();
  }
  void* New(CallBuffer buffer, bool is_given) {
    const Array array = ArrayOf(buffer);
    const size_t bytes =
        array.rows * array.size * problem->batch_size * SizeOf(problem->dtype);
    void* const memory = New(bytes);
    if (is_given) Visit(array, problem->time_major, true, memory);
    arrays_.emplace_back(array, memory);
    return memory;
  }
  // Checks that all arrays are in the caller's order, the given ones as they
  // were.
  void CheckAll() const {
    for (const auto& [array, memory] : arrays_) {
      Visit(array, problem->time_major, false, memory);
    }
    for (const auto& [memory, bytes] : buffers_) {
      const auto* const end =
          static_cast<const unsigned char*>(memory.get()) + bytes;
      Check(std::all_of(end, end + 256 - bytes % 256,
                        [](unsigned char byte) { return byte == 0xDD; }),
            "something beyond the end of a buffer");
    }
  }

 private:
  struct Guarded {
    std::unique_ptr<void, void (*)(void*)> memory;
    size_t bytes;
  };

  std::list<Guarded> buffers_;
  std::vector<std::pair<Array, void*>> arrays_;
};

void CheckOk(const RnnStatus& status) { Check(status.ok(), status.message); }

void CheckPasses(const GpuOptions& options) {
  Session session(nullptr);
  std::unique_ptr<Engine> network;
  const auto create = [&] {
    return CudnnNetwork::Create(*problem, problem->algorithm, options, &session,
                                &network);
  };
  CheckOk(create());
  const size_t param_bytes = layout->size() * SizeOf(problem->dtype);
  Memory memory;
  void* const reserve = memory.New(network->reserve_size());
  RnnForwardBuffers forward;
  forward.input = memory.New(kInput, true);
  forward.input_h = memory.New(kInputH, true);
  forward.input_c = memory.New(kInputC, true);
  forward.output = memory.New(kOutput, false);
  forward.output_h = memory.New(kOutputH, false);
  forward.output_c = memory.New(kOutputC, false);
  void* const params = memory.New(param_bytes);
  VisitParams(kParams, true, params);
  forward.params = params;
  forward.reserve_space = reserve;
  forward.workspace = memory.New(network->forward_workspace_size());
  const std::vector<int32_t> lengths(problem->batch_size, problem->max_time);
  forward.sequence_lengths.on_host = lengths.data();
  num_exchanges = 0;
  const Handles handles = session.handles();
  if (lacks_memory && !problem->time_major && problem->batch_size > 1) {
    const RnnStatus status = network->Forward(handles, forward);
    Check(problem->max_time == 1 ||
              status.code == RnnStatus::Code::kResourceExhausted,
          "a pass without its kernels");
    return;
  }
  CheckOk(network->StoreLengthsAndSeed(handles, forward));
  CheckOk(network->Forward(handles, forward));
  memory.CheckAll();
  if (problem->is_training) {
    CheckOk(create());
    RnnBackwardBuffers backward;
    backward.input = forward.input;
    backward.input_h = forward.input_h;
    backward.input_c = forward.input_c;
    backward.params = params;
    backward.output = forward.output;
    backward.sequence_lengths = forward.sequence_lengths;
    backward.reserve_space = reserve;
    backward.output_backprop = memory.New(kOutputBackprop, true);
    backward.output_h_backprop = memory.New(kOutputHBackprop, true);
    backward.output_c_backprop = memory.New(kOutputCBackprop, true);
    backward.input_backprop = memory.New(kInputBackprop, false);
    backward.input_h_backprop = memory.New(kInputHBackprop, false);
    backward.input_c_backprop = memory.New(kInputCBackprop, false);
    backward.params_backprop = memory.New(param_bytes);
    backward.workspace = memory.New(network->backward_workspace_size());
    CheckOk(network->Backward(handles, backward));
    memory.CheckAll();
    VisitParams(kParamsBackprop, false, backward.params_backprop);
  }
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
  if (draw(0, 3) == 0) drawn.spec.direction = Direction::kBidirectional;
  if (drawn.spec.is_lstm() && drawn.spec.num_units > 1 && draw(0, 2) == 0) {
    drawn.spec.num_proj = draw(1, drawn.spec.num_units - 1);
  }
  drawn.dtype = static_cast<RnnDataType>(draw(0, 3));
  drawn.max_time = draw(1, 9);
  if (draw(0, 3) > 0) {
    drawn.spec.input_size = 16 << draw(0, 3);
    drawn.spec.num_units = 16 << draw(0, 3);
    if (drawn.spec.num_proj > 0) drawn.spec.num_proj = drawn.spec.num_units / 2;
  }
  drawn.is_training = draw(0, 7) > 0;
  if (draw(0, 3) == 0) drawn.spec.dropout = 0.5f;
  drawn.batch_size = draw(1, 9);
  drawn.time_major = draw(0, 4) == 0;
  drawn.has_sequence_lengths = draw(0, 7) == 0;
  drawn.algorithm = static_cast<RnnAlgorithm>(draw(1, 3));
  problem = &drawn;
  being_checked = Describe(drawn);
  layout = std::make_unique<ParamLayout>(drawn.spec);
  GpuOptions options;
  options.force_repack = draw(0, 2) == 0;
  has_compiler = draw(0, 3) > 0;
  lacks_memory = draw(0, 19) == 0;
  CheckPasses(options);
  Check(num_descriptors == 0, "descriptors are left");
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckNetwork);
}
