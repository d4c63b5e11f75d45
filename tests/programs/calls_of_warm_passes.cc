// Counts what warm passes ask of NVIDIA's libraries and of the heap, with the
// real backend on a fake driver, and lets loading and asking fail for a while.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "kernels/gpu/gpu_backend.h"
#include "tests/programs/fake_gpu.h"
#include "tests/programs/without_masks.h"

namespace {

std::atomic<int> num_allocations, num_calls, num_kernels, num_loaded;
// How many loadings of code, and questions about occupancy, are to fail yet.
std::atomic<int> num_without_memory, num_unanswered;

bool Fails(std::atomic<int>* left) { return *left > 0 && (*left)-- > 0; }

// Makes a function that is counted and succeeds, of any signature.
template <typename Result, typename... Arguments>
void Fake(Result (**function)(Arguments...)) {
  *function = [](Arguments...) {
    ++num_calls;
    return Result();
  };
}

}  // namespace

// GCC warns of memory that is not from malloc if it sees one of these only.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++num_allocations;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace cudnn_rnn_tf {

RnnStatus LoadCudaDriver() { return {}; }
RnnStatus LoadGpuLibraries() {
  return {RnnStatus::Code::kFailedPrecondition, "no cuDNN"};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  const CudaDriver known = libraries.cuda;
  const auto fake = [](const char*, auto* function) { Fake(function); };
  static_cast<CudaFunctions&>(libraries.cuda).Visit(fake);
  static_cast<CudaGraphFunctions&>(libraries.cuda).Visit(fake);
  libraries.cublas.Visit(fake);
  libraries.nvrtc.Visit(fake);
  CudaDriver& cuda = libraries.cuda;
  cuda.cuLibraryGetKernel = known.cuLibraryGetKernel;
  cuda.cuKernelGetParamInfo = [](CUkernel, size_t, size_t*, size_t*) {
    ++num_calls;
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  cuda.cuCtxGetDevice = [](CUdevice* device) {
    ++num_calls;
    *device = 0;
    return CUDA_SUCCESS;
  };
  cuda.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute,
                                 CUdevice device) {
    ++num_calls;
    return DeviceGetAttribute(value, attribute, device);
  };
  cuda.cuLaunchKernelEx = [](const CUlaunchConfig*, CUfunction, void**,
                             void**) {
    ++num_calls;
    ++num_kernels;
    return CUDA_SUCCESS;
  };
  cuda.cuLibraryLoadData = [](CUlibrary*, const void*, CUjit_option*, void**,
                              unsigned, CUlibraryOption*, void**, unsigned) {
    ++num_loaded;
    return Fails(&num_without_memory) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  };
  cuda.cuOccupancyMaxActiveClusters = [](int* clusters, CUfunction,
                                         const CUlaunchConfig*) {
    *clusters = 8;
    return Fails(&num_unanswered) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  };
  cuda.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    ++num_calls;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphGetNodes = [](CUgraph, CUgraphNode*, size_t* count) {
    *count = 0;
    return CUDA_SUCCESS;
  };
  cuda.cuStreamEndCapture = [](CUstream, CUgraph* graph) {
    *graph = nullptr;
    return CUDA_SUCCESS;
  };
  Give<uintptr_t{1}>(&cuda.cuGraphInstantiate);
  Give<uintptr_t{1}>(&libraries.cublas.cublasCreate_v2);
  FakeCompiler(&libraries.nvrtc);
  return libraries;
}

namespace {

// An address for each tensor, at which there is nothing.
template <typename Buffers>
void Place(Buffers* buffers) {
  uintptr_t address = uintptr_t{1} << 32;
  VisitTensors(*buffers, [&](auto& tensor) {
    tensor = reinterpret_cast<void*>(address += 1 << 24);
  });
}

RnnStatus Forward(const RnnProblem& problem, RnnLengths lengths,
                  size_t* reserve_space) {
  const auto backend =
      std::make_unique<GpuBackend>(ResourcesOf(64), GpuOptions());
  std::shared_ptr<const RnnPlan> plan;
  CRNN_RETURN_IF_ERROR(backend->Plan(problem, 0, &lengths, &plan));
  *reserve_space = plan->sizes.reserve_space;
  RnnForwardBuffers all;
  Place(&all);
  all.sequence_lengths = lengths;
  return backend->Forward(*plan, all);
}

RnnStatus Backward(const RnnProblem& problem, RnnLengths lengths,
                   size_t reserve_space) {
  const auto backend =
      std::make_unique<GpuBackend>(ResourcesOf(64), GpuOptions());
  std::shared_ptr<const RnnPlan> plan;
  CRNN_RETURN_IF_ERROR(
      backend->Plan(problem, ChoiceIn(reserve_space), &lengths, &plan));
  RnnBackwardBuffers all;
  Place(&all);
  all.sequence_lengths = lengths;
  return backend->Backward(*plan, all);
}

// Counts what the last of some uses of both passes asks for.
void CountCalls(RnnProblem problem) {
  RnnLengths lengths;
  if (problem.has_sequence_lengths) {
    lengths.on_device = reinterpret_cast<const int64_t*>(uintptr_t{1} << 40);
  }
  size_t reserve_space = 0;
  for (int use = 0; use < 4; ++use) {
    num_calls = num_allocations = 0;
    Check(Forward(problem, lengths, &reserve_space).ok(), "a forward pass");
    const int calls = num_calls.exchange(0);
    const int allocations = num_allocations.exchange(0);
    if (problem.is_training) {
      Check(Backward(problem, lengths, reserve_space).ok(), "a backward pass");
    }
    if (use < 3) continue;
    std::printf("%s: %d + %d calls, %d + %d allocations\n",
                being_checked.c_str(), calls, num_calls.load(), allocations,
                num_allocations.load());
    Check(calls <= 10 && num_calls <= 10, "at most 10 calls");
    Check(allocations <= 10 && num_allocations <= 10, "at most 10 allocations");
  }
  if (!problem.is_training) return;
  num_loaded = 0;
  problem.has_input_backprop = false;
  Check(Backward(problem, lengths, reserve_space).ok(), "fewer gradients");
  Check(num_loaded == 0, "a pass with fewer gradients has the same kernels");
}

// For a while, the driver does not load code or answer.
void CheckFailures(RnnProblem problem) {
  size_t reserve_space = 0;
  const auto runs_persistent = [&] {
    const int before = num_kernels;
    return Forward(problem, {}, &reserve_space).ok() && num_kernels > before;
  };
  num_without_memory = 6;
  Check(!runs_persistent(), "a kernel without memory");
  for (int use = 0; num_without_memory > 0; ++use) {
    Check(use < 50, "that loading is tried again");
    (void)Forward(problem, {}, &reserve_space);
  }
  int uses = 0;
  while (!runs_persistent()) Check(++uses < 50, "a kernel with memory");
  problem.batch_size += 1;
  problem.spec.num_units += 1;
  num_unanswered = 1;
  Check(!runs_persistent(), "a kernel without an answer");
  Check(runs_persistent(), "a kernel with an answer");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main() {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  has_kernel_libraries = true;
  RnnProblem problem;
  problem.spec.num_units = 256;
  problem.spec.input_size = 128;
  problem.max_time = 100;
  problem.batch_size = 32;
  problem.dtype = RnnDataType::kFloat16;
  problem.has_sequence_lengths = true;
  being_checked = "training with lengths";
  CountCalls(problem);
  being_checked = "training of two layers with dropout";
  problem.spec.num_layers = 2;
  problem.spec.dropout = 0.5f;
  problem.has_sequence_lengths = false;
  CountCalls(problem);
  being_checked = "inference";
  problem.is_training = false;
  CountCalls(problem);
  being_checked = "training in single steps";
  problem.is_training = true;
  problem.spec.recurrent_dropout = 0.5f;
  CountCalls(problem);
  being_checked = "failures";
  problem.spec = RnnSpec();
  problem.spec.num_units = 320;
  problem.spec.input_size = 128;
  problem.algorithm = RnnAlgorithm::kPersistent;
  CheckFailures(problem);
}
