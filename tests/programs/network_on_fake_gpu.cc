// The networks of all engines but the persistent kernels as a function that
// Python calls. The fake GPU's memory is the host's, its kernels are those of
// steps_on_fake_device.cc, and plain loops take the place of cuBLAS. Passes may
// be replayed.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/copies_arguments.h"
#include "kernels/gpu/cudnn/network.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/replay.h"
#include "tests/programs/fake_cudnn.h"
#include "tests/programs/fake_resident.h"
#include "tests/programs/without_masks.h"

namespace cudnn_rnn_tf {
namespace {

// The function of the library in use.
bool (*bind_kernel)(const char*, const unsigned int*, void**,
                    std::function<void()>*);
bool has_compiler;
int num_runs = 0;

// Memory of exactly the size that was asked for, full of NaN.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * kGuard, 0xFF) {
    const size_t past = reinterpret_cast<uintptr_t>(all_.data()) % kGuard;
    begin_ = all_.data() + (kGuard - past);
  }
  void* data() { return begin_; }
  std::vector<unsigned char> Bytes() const { return {begin_, begin_ + bytes_}; }
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

RnnStatus LoadCudaDriver() { return {}; }
RnnStatus LoadGpuLibraries() { return {}; }

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuCtxGetDevice = [](CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
  };
  cuda.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute,
                                 CUdevice) {
    // No persistent kernel fits a GPU without shared memory.
    *value =
        attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
        : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            ? 0
            : 1 << 10;
    return CUDA_SUCCESS;
  };
  FakeStreams(&cuda);
  cuda.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) {
    return CUDA_SUCCESS;
  };
  cuda.cuStreamCreate = [](CUstream* stream, unsigned) {
    *stream = reinterpret_cast<CUstream>(1000);
    return CUDA_SUCCESS;
  };
  cuda.cuStreamDestroy = [](CUstream) { return CUDA_SUCCESS; };
  cuda.cuLaunchKernel =
      [](CUfunction kernel, unsigned int blocks, unsigned int blocks_y,
         unsigned, unsigned int threads, unsigned int threads_y, unsigned,
         unsigned, CUstream stream, void** parameters, void**) {
        const char* const name = reinterpret_cast<const char*>(kernel);
        const unsigned int grid[] = {blocks, blocks_y, threads, threads_y};
        int unit_bytes = 1;
        if (std::sscanf(name, "transposeUNIT_BYTES=%d", &unit_bytes) == 1) {
          for (int i = 0; i < 2; ++i) {
            Check(*static_cast<size_t*>(parameters[i]) % unit_bytes == 0,
                  "the alignment of what is transposed");
          }
        }
        std::function<void()> launch;
        Check(bind_kernel(name, grid, parameters, &launch), name);
        return EnqueueWork(stream, launch);
      };
  cuda.cuMemsetD8Async = [](CUdeviceptr to, unsigned char byte, size_t bytes,
                            CUstream stream) {
    return EnqueueWork(
        stream, [=] { std::memset(reinterpret_cast<void*>(to), byte, bytes); });
  };
  cuda.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream stream) {
    return EnqueueWork(stream, [=] {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from),
                  bytes);
    });
  };
  cuda.cuMemcpy2DAsync = [](const CUDA_MEMCPY2D* given, CUstream stream) {
    return EnqueueWork(stream, [copy = *given] {
      for (size_t row = 0; row < copy.Height; ++row) {
        std::memcpy(
            reinterpret_cast<char*>(copy.dstDevice) + row * copy.dstPitch,
            reinterpret_cast<char*>(copy.srcDevice) + row * copy.srcPitch,
            copy.WidthInBytes);
      }
    });
  };
  FakeBlas(&libraries.cublas);
  libraries.cublas.cublasCreate_v2 = [](cublasHandle_t*) {
    return CUBLAS_STATUS_SUCCESS;
  };
  libraries.cublas.cublasDestroy_v2 = [](cublasHandle_t) {
    return CUBLAS_STATUS_SUCCESS;
  };
  FakeCudnn(&libraries.cudnn);
  return libraries;
}

// This takes the place of compiler.cc. A kernel is represented by its name, to
// which that of a transposition adds its macro.
RnnStatus CompileKernel(const std::string&, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CUkernel* kernel) {
  static std::set<std::string> names;
  const bool transposes = entry == "transpose";
  if ((transposes || entry == "copy_arrays") && !has_compiler) {
    return {RnnStatus::Code::kFailedPrecondition, "no NVRTC"};
  }
  *kernel = reinterpret_cast<CUkernel>(const_cast<char*>(
      names.insert(transposes ? entry + macros[0] : entry).first->c_str()));
  return {};
}

namespace {

// Each pass has a device of its own, and thus memory that just suffices.
GpuResources Resources(bool is_backward) {
  GpuResources resources;
  resources.device = 2 * num_runs + (is_backward ? 1 : 0);
  resources.is_profiled = [] { return false; };
  resources.log = [](const std::string& text) {
    Check(text.find("is not replayed") == std::string::npos, text);
  };
  return resources;
}

// Copies two arrays that begin anywhere, with few threads.
void CheckCopies() {
  std::vector<char> from(600), to(600, 'x'), expected = to;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i % 97);
  ArrayCopies all = {{{&from[0], &to[0], 301}, {&from[304], &to[322], 205}}};
  std::copy_n(&from[0], 301, &expected[0]);
  std::copy_n(&from[304], 205, &expected[322]);
  void* parameters[] = {&all};
  const unsigned grid[] = {2, 2, 3, 1};
  std::function<void()> launch;
  Check(bind_kernel("copy_arrays", grid, parameters, &launch), "a kernel");
  launch();
  Check(to == expected, "copies");
}

// Runs a forward and, in training, a backward pass over the tensors. Lengths
// may be found to be full. Over new tensors, a replay is one over copies.
RnnStatus Run(RnnLengths lengths, const uint64_t* seed, void* const* tensors,
              bool are_new, const GpuOptions& options, RnnProblem* given) {
  RnnProblem& problem = *given;
  RnnBufferSizes sizes;
  RnnForwardBuffers buffers;
  buffers.input = tensors[0];
  buffers.input_h = tensors[1];
  buffers.input_c = tensors[2];
  buffers.params = tensors[3];
  buffers.output = tensors[4];
  buffers.output_h = tensors[5];
  buffers.output_c = tensors[6];
  std::copy_n(seed, 2, buffers.seed);
  auto backend = std::make_unique<GpuBackend>(Resources(false), options);
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(backend->ReadSequenceLengths(0, &problem, &lengths));
  }
  buffers.sequence_lengths = lengths;
  CRNN_RETURN_IF_ERROR(backend->ForwardBufferSizes(problem, &sizes));
  // The rest of the size is the algorithm's number.
  Memory reserve(sizes.reserve_space / Arena::kAlign * Arena::kAlign);
  Memory forward(sizes.forward_workspace);
  if (problem.is_training) buffers.reserve_space = reserve.data();
  buffers.workspace = forward.data();
  CRNN_RETURN_IF_ERROR(backend->Forward(problem, buffers));
  forward.CheckEnd();
  reserve.CheckEnd();
  if (!problem.is_training) return {};

  backend = std::make_unique<GpuBackend>(Resources(true), options);
  CRNN_RETURN_IF_ERROR(
      backend->BackwardBufferSizes(problem, sizes.reserve_space, &sizes));
  Memory backward(sizes.backward_workspace);
  RnnBackwardBuffers gradients;
  gradients.input = buffers.input;
  gradients.input_h = buffers.input_h;
  gradients.input_c = buffers.input_c;
  gradients.params = buffers.params;
  gradients.sequence_lengths = buffers.sequence_lengths;
  gradients.output = buffers.output;
  gradients.output_backprop = tensors[7];
  gradients.output_h_backprop = tensors[8];
  gradients.output_c_backprop = tensors[9];
  gradients.input_backprop = tensors[10];
  gradients.input_h_backprop = tensors[11];
  gradients.input_c_backprop = tensors[12];
  gradients.params_backprop = tensors[13];
  gradients.reserve_space = reserve.data();
  gradients.workspace = backward.data();
  const std::vector<unsigned char> kept = reserve.Bytes();
  const int64_t before = Replays::NumLaunches();
  CRNN_RETURN_IF_ERROR(backend->Backward(problem, gradients));
  Check(!are_new || Replays::NumLaunches() == before || reserve.Bytes() == kept,
        "a replay writes to the caller's reserve space");
  backward.CheckEnd();
  reserve.CheckEnd();
  return {};
}

// Runs the passes often enough for a replay, over zeros in other tensors and
// with another seed, and with the lengths in another order.
RnnStatus RunBefore(const RnnProblem& problem, RnnLengths lengths,
                    const uint64_t* seed, void* const* tensors,
                    const GpuOptions& options) {
  const ArrayBytes bytes(problem);
  const size_t sizes[] = {bytes.input,  bytes.h,     bytes.c,     bytes.params,
                          bytes.output, bytes.h,     bytes.c,     bytes.output,
                          bytes.h,      bytes.c,     bytes.input, bytes.h,
                          bytes.c,      bytes.params};
  const uint64_t other_seed[] = {seed[0] + 1, seed[1]};
  std::vector<int32_t> on_host;
  std::vector<int64_t> on_device;
  const int64_t batch = problem.batch_size;
  if (lengths.on_host != nullptr) {
    on_host.assign(lengths.on_host, lengths.on_host + batch);
    std::reverse(on_host.begin(), on_host.end());
    lengths.on_host = on_host.data();
  } else if (lengths.on_device != nullptr) {
    on_device.assign(lengths.on_device, lengths.on_device + batch);
    std::reverse(on_device.begin(), on_device.end());
    lengths.on_device = on_device.data();
  }
  std::vector<std::vector<char>> zeros;  // All of them have other addresses.
  for (int use = 0; use < 2; ++use) {
    void* others[std::size(sizes)];
    for (size_t i = 0; i < std::size(sizes); ++i) {
      zeros.emplace_back(sizes[i]);
      others[i] = tensors[i] == nullptr ? nullptr : zeros.back().data();
    }
    RnnProblem given = problem;
    CRNN_RETURN_IF_ERROR(
        Run(lengths, other_seed, others, true, options, &given));
  }
  return {};
}

}  // namespace
}  // namespace cudnn_rnn_tf

// Runs a forward and, in training, a backward pass of an engine: of steps, of
// cuDNN or, in inference, `resident`. `numbers` and `rates` are, in this order,
// the fields of RnnSpec and RnnProblem that the function reads, between which
// are the engine's number and whether lengths are int64 in the device's memory
// instead of int32 in the host's, whether cuDNN lays out parameters in its own
// way, whether there is a compiler for transpositions and copies, and whether
// the passes are replayed. `name` is that of a library with kernels. Returns an
// empty string or an error.
extern "C" const char* run_network(const char* name, const int64_t* numbers,
                                   const float* rates, const void* lengths,
                                   const uint64_t* seed, void** tensors) {
  using namespace cudnn_rnn_tf;
  has_resident_libraries = true;
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  Check(library != nullptr, name);
  bind_kernel =
      reinterpret_cast<decltype(bind_kernel)>(dlsym(library, "bind_kernel"));
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
  has_other_layout = *numbers++ != 0;
  has_compiler = *numbers++ != 0;
  const bool is_replayed = *numbers++ != 0;
  problem.has_sequence_lengths = lengths != nullptr;
  spec.dropout = *rates++;
  spec.recurrent_dropout = *rates++;
  spec.cell_clip = *rates++;
  constexpr RnnAlgorithm kAlgorithms[] = {RnnAlgorithm::kPersistent,
                                          RnnAlgorithm::kStandard,
                                          RnnAlgorithm::kResident};
  problem.algorithm = kAlgorithms[engine];

  GpuOptions options;
  options.allow_tf32 = allows_tf32;
  options.replay = is_replayed;
  options.poison_scratch = true;
  RnnLengths all;
  if (is_on_device) {
    all.on_device = static_cast<const int64_t*>(lengths);
  } else {
    all.on_host = static_cast<const int32_t*>(lengths);
  }
  static std::string message;
  const auto run = [&]() -> RnnStatus {
    if (is_replayed) {
      CRNN_RETURN_IF_ERROR(RunBefore(problem, all, seed, tensors, options));
    }
    const RnnProblem given = problem;
    const int64_t before = Replays::NumLaunches();
    CRNN_RETURN_IF_ERROR(Run(all, seed, tensors, true, options, &problem));
    const bool may_be_replayed =
        is_replayed &&
        (engine == 0 || (engine == 1 && !problem.has_sequence_lengths));
    Check(Replays::NumLaunches() - before == (!may_be_replayed      ? 0
                                              : problem.is_training ? 2
                                                                    : 1),
          "the number of replays");
    // The same buffers may come again, and results must be the same.
    for (int use = 0; is_replayed && use < 2; ++use) {
      problem = given;
      CRNN_RETURN_IF_ERROR(Run(all, seed, tensors, false, options, &problem));
    }
    return {};
  };
  if (num_runs++ == 0) CheckCopies();
  message = run().message;
  FreeMemory();
  return message.c_str();
}
