// The networks of all engines as a function that Python calls. The fake GPU's
// memory is the host's, its kernels are those of steps_on_fake_device.cc and
// persistent_on_fake_device.cc, and plain loops take the place of cuBLAS.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/engine.h"
#include "kernels/gpu/persistent/network.h"
#include "kernels/op_tensors.h"
#include "tests/programs/fake_cudnn.h"

namespace cudnn_rnn_tf {
namespace {

// The functions of the library in use.
bool (*run_kernel)(const char*, const unsigned int*, void**);
const std::vector<size_t>* (*parameters_of)(const char*);

// The persistent kernels in use, by their names, which end with their macros.
using RunPersistent = void (*)(const void* arguments, int stages,
                               unsigned int seed);
std::map<std::string, RunPersistent> persistent_kernels;
// Compiles the kernel of a name into a library.
void (*compile_library)(const char* kernel, const char* library);
std::string folder_of_libraries;

// Memory of exactly the size that was asked for, full of NaN.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * kGuard, 0xFF) {
    const size_t past = reinterpret_cast<uintptr_t>(all_.data()) % kGuard;
    begin_ = all_.data() + (kGuard - past);
  }
  void* data() { return begin_; }
  void CheckEnd() const {
    const unsigned char* const begin = begin_;
    const unsigned char* const end = all_.data() + all_.size();
    Check(std::all_of(begin + bytes_, end,
                      [](unsigned char byte) { return byte == 0xFF; }),
          "nothing is written past the end");
  }

 private:
  static constexpr size_t kGuard = Arena::kAlign;

  size_t bytes_;
  std::vector<unsigned char> all_;
  unsigned char* begin_;
};

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuLaunchKernel = [](CUfunction kernel, unsigned int blocks, unsigned,
                           unsigned, unsigned int threads,
                           unsigned int threads_y, unsigned, unsigned, CUstream,
                           void** parameters, void**) {
    const char* const name = reinterpret_cast<const char*>(kernel);
    const unsigned int grid[] = {blocks, threads, threads_y};
    int unit_bytes = 1;
    if (std::sscanf(name, "transposeUNIT_BYTES=%d", &unit_bytes) == 1) {
      for (int i = 0; i < 2; ++i) {
        Check(*static_cast<size_t*>(parameters[i]) % unit_bytes == 0,
              "the alignment of what is transposed");
      }
    }
    Check(run_kernel(name, grid, parameters), name);
    return CUDA_SUCCESS;
  };
  cuda.cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction kernel,
                             void** parameters, void**) {
    const std::string name = reinterpret_cast<const char*>(kernel);
    Check(static_cast<persistent::PassArguments*>(parameters[0])
                  ->first_direction == 0,
          "all directions at the same time");
    // A stack has a stage for each layer and one before each but the lowest.
    const int stages = static_cast<int>(config->gridDimY);
    const bool is_stack = name.find("IS_STACK=1") != std::string::npos;
    static unsigned int seed = 0;
    persistent_kernels.at(name)(parameters[0],
                                is_stack ? (stages + 1) / 2 : stages, ++seed);
    return CUDA_SUCCESS;
  };
  Succeed(&cuda.cuCtxSetCurrent);
  Give<16>(&cuda.cuOccupancyMaxActiveClusters);
  cuda.cuMemsetD8Async = [](CUdeviceptr to, unsigned char byte, size_t bytes,
                            CUstream) {
    std::memset(reinterpret_cast<void*>(to), byte, bytes);
    return CUDA_SUCCESS;
  };
  cuda.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from),
                bytes);
    return CUDA_SUCCESS;
  };
  cuda.cuMemcpy2DAsync = [](const CUDA_MEMCPY2D* copy, CUstream) {
    for (size_t row = 0; row < copy->Height; ++row) {
      std::memcpy(
          reinterpret_cast<char*>(copy->dstDevice) + row * copy->dstPitch,
          reinterpret_cast<char*>(copy->srcDevice) + row * copy->srcPitch,
          copy->WidthInBytes);
    }
    return CUDA_SUCCESS;
  };
  FakeBlas(&libraries.cublas);
  FakeCudnn(&libraries.cudnn);
  return libraries;
}

// This takes the place of compiler.cc. A kernel is represented by its name, to
// which that of a transposition adds its macro, and a persistent one all.
RnnStatus CompileKernel(const std::string&, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CompiledKernel* kernel) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  const bool is_persistent = entry == "forward" || entry == "backward";
  std::string name = entry;
  if (entry == "transpose") name += macros[0];
  for (size_t i = 0; is_persistent && i < macros.size(); ++i) {
    name += ' ' + macros[i];
  }
  kernel->handle = reinterpret_cast<CUkernel>(
      const_cast<char*>(names.insert(name).first->c_str()));
  if (!is_persistent) {
    kernel->parameters = std::make_shared<const std::vector<size_t>>(
        *parameters_of(entry.c_str()));
  }
  if (!is_persistent || persistent_kernels.count(name) > 0) return {};
  const std::string path = folder_of_libraries + '/' +
                           std::to_string(persistent_kernels.size()) + ".so";
  compile_library(name.c_str(), path.c_str());
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  Check(library != nullptr, name);
  persistent_kernels[name] =
      reinterpret_cast<RunPersistent>(dlsym(library, "run"));
  return {};
}

}  // namespace cudnn_rnn_tf

// Returns why the persistent kernels cannot train an LSTM, or an empty string.
extern "C" const char* persistent_error(int64_t num_units, int64_t max_time) {
  using namespace cudnn_rnn_tf;
  RnnProblem problem;
  problem.spec.num_units = num_units;
  problem.dtype = RnnDataType::kFloat16;
  problem.max_time = max_time;
  problem.batch_size = 1;
  problem.is_training = true;
  DeviceLimits limits;
  Check(ReadLimits(&limits).ok(), "the limits");
  static std::string message;
  message =
      persistent::Network::EstimateCycles(problem, true, limits).status.message;
  return message.c_str();
}

// Says how persistent kernels are compiled, and a folder for their libraries.
extern "C" void compile_persistent_kernels(void (*compile)(const char*,
                                                           const char*),
                                           const char* folder) {
  cudnn_rnn_tf::compile_library = compile;
  cudnn_rnn_tf::folder_of_libraries = folder;
}

// Returns how many products of floats were in float16 in the last network's
// run.
extern "C" int num_halved_products() { return cudnn_rnn_tf::num_halved; }

// Runs a forward and, in training, a backward pass of an engine: of steps, of
// cuDNN or of the persistent kernels. `numbers` and `rates` are, in this order,
// the fields of RnnSpec and RnnProblem that the function reads, between which
// are the engine's number and whether lengths are int64 in the device's memory
// instead of int32 in the host's, and how cuDNN's layout of parameters differs.
// `name` is that of a library with kernels. Returns an empty string or an
// error.
extern "C" const char* run_network(const char* name, const int64_t* numbers,
                                   const float* rates, const void* lengths,
                                   const bool* resets, const uint64_t* seed,
                                   void** tensors) {
  using namespace cudnn_rnn_tf;
  has_kernel_libraries = true;
  num_halved = 0;
  Check(num_descriptors == 0, "what an earlier call described is destroyed");
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  Check(library != nullptr, name);
  run_kernel =
      reinterpret_cast<decltype(run_kernel)>(dlsym(library, "run_kernel"));
  parameters_of = reinterpret_cast<decltype(parameters_of)>(
      dlsym(library, "parameters_of"));
  RnnProblem problem;
  RnnSpec& spec = problem.spec;
  spec.rnn_mode = static_cast<RnnMode>(*numbers++);
  spec.num_layers = *numbers++;
  spec.num_units = *numbers++;
  spec.input_size = *numbers++;
  spec.num_proj = *numbers++;
  spec.input_mode = static_cast<InputMode>(*numbers++);
  spec.direction = static_cast<Direction>(*numbers++);
  spec.bias_mode = static_cast<BiasMode>(*numbers++);
  problem.dtype = data_type = static_cast<RnnDataType>(*numbers++);
  problem.max_time = *numbers++;
  problem.batch_size = *numbers++;
  problem.time_major = *numbers++ != 0;
  problem.is_training = *numbers++ != 0;
  allows_tf32 = *numbers++ != 0;
  const bool is_on_device = *numbers++ != 0;
  const int64_t engine = *numbers++;
  num_more_params = static_cast<int>(*numbers++);
  num_before_biases = static_cast<int>(*numbers++);
  problem.has_sequence_lengths = lengths != nullptr;
  problem.has_resets = resets != nullptr;
  problem.has_cell_sequences = tensors[14] != nullptr;
  for (float* const rate :
       {&spec.dropout, &spec.recurrent_dropout, &spec.cell_clip,
        &spec.layer_norm_epsilon, &spec.zoneout, &spec.cell_zoneout}) {
    *rate = *rates++;
  }

  // Half of the networks make inner layers' outputs anew, however small.
  persistent::LeastSizes least;
  if (problem.time_major) least.remade_units = 1;
  least.remade_bytes = 1;
  least.halved_products = 1;
  static std::string message;
  std::unique_ptr<const Engine> network, of_backward;
  const auto create = [&](auto* network) -> RnnStatus {
    if (engine == 1) {
      return CreateCudnnNetwork(problem, CudnnAlgorithm::kStandard, allows_tf32,
                                /*cudnn=*/nullptr, network);
    }
    if (engine == 0) {
      return persistent::Network::CreateOfSteps(problem, allows_tf32, network,
                                                least);
    }
    DeviceLimits limits;
    CRNN_RETURN_IF_ERROR(ReadLimits(&limits));
    if (engine == 3) {  // A block has no room for a layer, nor its clusters.
      limits.architecture = 80;
      limits.shared_bytes = 6000;
    }
    persistent::Estimate estimate =
        persistent::Network::EstimateCycles(problem, allows_tf32, limits);
    CRNN_RETURN_IF_ERROR(estimate.status);
    Check(engine != 3 || !estimate.forward.shape.is_cluster, "teams");
    return persistent::Network::Create(problem, allows_tf32, limits, &estimate,
                                       network, least);
  };
  message = create(&network).message;
  if (!message.empty()) return message.c_str();
  problem.has_input_backprop = tensors[10] != nullptr;
  Check(create(&of_backward).ok(), "the network of the backward pass");
  const auto check = [](const RnnStatus& done) {
    Check(done.ok(), done.message);
  };
  const RnnBufferSizes sizes = network->sizes();
  Memory reserve(sizes.reserve_space), forward(sizes.forward_workspace);
  // The tensors are those that the ops have, in their order but for resets and
  // c of all steps.
  constexpr int kOwn = kSequenceLengths, kMore = kOwn + kNumBackwardInputs;
  const auto input = [&](int i) -> const void* {
    if (i < kMore) return tensors[i];
    return i == kMore && resets != nullptr ? resets : tensors[15];
  };
  auto buffers =
      BuffersOf<RnnForwardBuffers>(problem, input, kMore, [&](int i) {
        return i == kReserveSpace
                   ? reserve.data()
                   : tensors[i == kCellSequences ? 14 : kOwn + i];
      });
  if (is_on_device) {
    buffers.sequence_lengths.on_device = static_cast<const int64_t*>(lengths);
  } else {
    buffers.sequence_lengths.on_host = static_cast<const int32_t*>(lengths);
  }
  std::copy_n(seed, 2, buffers.seed);
  buffers.workspace = forward.data();
  check(network->StoreLengthsAndSeed({}, buffers));
  message = network->Forward({}, buffers).message;
  if (!message.empty()) return message.c_str();
  forward.CheckEnd();
  reserve.CheckEnd();
  if (!problem.is_training) return message.c_str();

  const RnnBufferSizes& other_sizes = of_backward->sizes();
  Check(other_sizes.reserve_space == sizes.reserve_space, "what both share");
  Memory backward(other_sizes.backward_workspace);
  auto gradients = BuffersOf<RnnBackwardBuffers>(
      problem, input, kOwn, [&](int i) { return tensors[10 + i]; });
  gradients.sequence_lengths = buffers.sequence_lengths;
  gradients.reserve_space = reserve.data();
  gradients.workspace = backward.data();
  check(of_backward->Backward({}, gradients));
  backward.CheckEnd();
  reserve.CheckEnd();
  return message.c_str();
}
