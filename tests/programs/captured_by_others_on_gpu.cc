// Runs networks on a GPU while the caller captures the stream in which they
// run, so that their passes become a part of its graph. Checks that results are
// the same as without captures.
//
//   captured_by_others_on_gpu DEVICE
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/param_layout.h"
#include "tests/programs/without_masks.h"

namespace cudnn_rnn_tf {
namespace {

std::string being_checked = "the start";

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("failed: %s, for %s\n", what.c_str(), being_checked.c_str());
  std::exit(1);
}

void Check(const RnnStatus& status) { Check(status.ok(), status.message); }

template <typename Function>
Function* Find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  Check(found != nullptr, std::string("no ") + name);
  return reinterpret_cast<Function*>(found);
}
#define TEXT(name) #name
#define CUDA(name, ...)                                             \
  Check(CudaStatus(Find<decltype(::name)>(TEXT(name))(__VA_ARGS__), \
                   "call " TEXT(name)))

constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                          CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};

// Device memory that is allocated before anything is captured, as a framework's
// memory is.
class Memory {
 public:
  static constexpr size_t kBytes = size_t{512} << 20;

  Memory() { CUDA(cuMemAlloc, &next_, kBytes); }
  // The memory can be lent again once nobody holds it.
  std::shared_ptr<void> Lend(size_t bytes) {
    const auto large_enough = free_.lower_bound(bytes);
    std::pair<size_t, CUdeviceptr> block = {bytes, 0};
    if (large_enough != free_.end()) {
      block = *large_enough;
      free_.erase(large_enough);
    } else {
      block.second = next_;
      next_ += (bytes + 255) / 256 * 256;
      lent_ += next_ - block.second;
      Check(lent_ <= kBytes, "too little memory for the test");
    }
    return {reinterpret_cast<void*>(block.second),
            [this, block](void*) { free_.insert(block); }};
  }

 private:
  CUdeviceptr next_ = 0;
  size_t lent_ = 0;
  std::multimap<size_t, CUdeviceptr> free_;
};

// A training step of a network, over buffers of its own.
class Network {
 public:
  using Bytes = std::vector<unsigned char>;

  Network(RnnAlgorithm algorithm, int64_t batch_size, CUstream stream,
          Memory* memory)
      : stream_(stream), memory_(*memory) {
    problem_.spec.num_layers = 2;
    problem_.spec.num_units = problem_.spec.input_size = kUnits;
    problem_.dtype = RnnDataType::kFloat32;
    problem_.max_time = kTime;
    problem_.batch_size = batch_size;
    problem_.time_major = batch_size % 4 == 0;
    problem_.algorithm = algorithm;
    const size_t sequence = kTime * batch_size * kUnits;
    const size_t state = 2 * batch_size * kUnits;
    const size_t params = ParamLayout(problem_.spec).size();
    for (const size_t count :
         {sequence, state, state, params, sequence, state, state}) {
      inputs_.push_back(NewInput(count));
    }
    for (const size_t count :
         {sequence, state, state, sequence, state, state, params}) {
      outputs_.push_back({Hold(sizeof(float) * count), sizeof(float) * count});
    }
    reserve_space_ = Hold(kMaxReserveBytes);
  }

  // Enqueues a forward and a backward pass.
  void Run() {
    std::shared_ptr<const RnnPlan> plan;
    RnnBufferSizes sizes;
    {
      GpuBackend backend(Resources(), GpuOptions());
      RnnForwardBuffers buffers;
      Check(backend.Plan(problem_, /*choice=*/0, /*lengths=*/nullptr, &plan));
      sizes = plan->sizes;
      Check(sizes.reserve_space <= kMaxReserveBytes, "a large reserve space");
      FillBoth(&buffers);
      buffers.output_h = Pointer(outputs_[1].first);
      buffers.output_c = Pointer(outputs_[2].first);
      const auto workspace = memory_.Lend(sizes.forward_workspace);
      buffers.workspace = workspace.get();
      Check(backend.Forward(*plan, buffers));
    }
    GpuBackend backend(Resources(), GpuOptions());
    RnnBackwardBuffers buffers;
    Check(backend.Plan(problem_, ChoiceIn(sizes.reserve_space),
                       /*lengths=*/nullptr, &plan));
    FillBoth(&buffers);
    buffers.output_backprop = Pointer(inputs_[4]);
    buffers.output_h_backprop = Pointer(inputs_[5]);
    buffers.output_c_backprop = Pointer(inputs_[6]);
    buffers.input_backprop = Pointer(outputs_[3].first);
    buffers.input_h_backprop = Pointer(outputs_[4].first);
    buffers.input_c_backprop = Pointer(outputs_[5].first);
    buffers.params_backprop = Pointer(outputs_[6].first);
    const auto workspace = memory_.Lend(sizes.backward_workspace);
    buffers.workspace = workspace.get();
    Check(backend.Backward(*plan, buffers));
  }

  // Returns what the last step has left, and then overwrites it.
  std::vector<Bytes> Results() {
    CUDA(cuStreamSynchronize, stream_);
    std::vector<Bytes> results;
    for (const auto& [address, bytes] : outputs_) {
      results.emplace_back(bytes);
      CUDA(cuMemcpyDtoH, results.back().data(), address, bytes);
    }
    Overwrite();
    return results;
  }

  void Overwrite() {
    for (const auto& [address, bytes] : outputs_) {
      CUDA(cuMemsetD8Async, address, 0xFF, bytes, stream_);
    }
    CUDA(cuStreamSynchronize, stream_);
  }

 private:
  static constexpr int64_t kUnits = 96, kTime = 20;
  static constexpr size_t kMaxReserveBytes = 16 << 20;

  static void* Pointer(CUdeviceptr address) {
    return reinterpret_cast<void*>(address);
  }

  CUdeviceptr Hold(size_t bytes) {
    held_.push_back(memory_.Lend(bytes));
    return reinterpret_cast<CUdeviceptr>(held_.back().get());
  }

  CUdeviceptr NewInput(size_t count) {
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; ++i) {
      numbers[i] = static_cast<float>(i * 37 % 101) / 5000.0f - 0.01f;
    }
    const CUdeviceptr address = Hold(sizeof(float) * count);
    CUDA(cuMemcpyHtoD, address, numbers.data(), sizeof(float) * count);
    return address;
  }

  // Fills in the buffers that both passes have.
  template <typename Buffers>
  void FillBoth(Buffers* buffers) const {
    buffers->input = Pointer(inputs_[0]);
    buffers->input_h = Pointer(inputs_[1]);
    buffers->input_c = Pointer(inputs_[2]);
    buffers->params = Pointer(inputs_[3]);
    buffers->output = Pointer(outputs_[0].first);
    buffers->reserve_space = Pointer(reserve_space_);
  }

  GpuResources Resources() const {
    GpuResources resources;
    resources.stream = stream_;
    resources.is_profiled = [] { return false; };
    resources.log = [](const std::string&) {};
    return resources;
  }

  RnnProblem problem_;
  const CUstream stream_;
  Memory& memory_;
  std::vector<std::shared_ptr<void>> held_;
  std::vector<CUdeviceptr> inputs_;
  std::vector<std::pair<CUdeviceptr, size_t>> outputs_;
  CUdeviceptr reserve_space_ = 0;
};

// The caller captures the stream at the network's first use, at the second, at
// which a pass is otherwise captured, or later, when it is already replayed.
void CheckPartOfACapture(CUstream stream, Memory* memory) {
  const CudaDriver& cuda = Gpu().cuda;
  int64_t batch_size = 0;
  for (const RnnAlgorithm algorithm :
       {RnnAlgorithm::kAuto, RnnAlgorithm::kStandard}) {
    for (const int uses_before : {0, 1, 4}) {
      for (const CUstreamCaptureMode mode : kModes) {
        being_checked = "a part of a capture, mode " + std::to_string(mode) +
                        ", after " + std::to_string(uses_before) +
                        " uses, algorithm " + NameOf(algorithm);
        batch_size += 2;  // Makes a configuration of its own.
        Network network(algorithm, batch_size, stream, memory);
        for (int i = 0; i < uses_before; ++i) network.Run();
        network.Overwrite();
        const int64_t launches = GraphCache::NumLaunches();
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        Check(CudaStatus(cuda.cuStreamBeginCapture(stream, mode), "begin"));
        network.Run();
        Check(CudaStatus(cuda.cuStreamEndCapture(stream, &graph), "end"));
        Check(GraphCache::NumLaunches() == launches, "a replay in a capture");
        Check(CudaStatus(cuda.cuGraphInstantiate(&exec, graph, 0),
                         "instantiate the caller's graph"));
        std::vector<std::vector<Network::Bytes>> results;
        for (int i = 0; i < 2; ++i) {
          Check(CudaStatus(cuda.cuGraphLaunch(exec, stream), "launch"));
          results.push_back(network.Results());
        }
        for (int i = 0; i < 6; ++i) {
          network.Run();
          results.push_back(network.Results());
        }
        Check(GraphCache::NumLaunches() > launches, "nothing is replayed");
        for (const auto& result : results) {
          Check(result == results[0], "another result");
        }
        cuda.cuGraphExecDestroy(exec);
        cuda.cuGraphDestroy(graph);
      }
    }
  }
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  using namespace cudnn_rnn_tf;  // NOLINT
  Check(LoadGpuLibraries());
  CUdevice device;
  CUcontext context;
  CUDA(cuInit, 0);
  CUDA(cuDeviceGet, &device, argc > 1 ? std::atoi(argv[1]) : 0);
  CUDA(cuDevicePrimaryCtxRetain, &context, device);
  CUDA(cuCtxSetCurrent, context);
  Memory memory;
  CUstream stream;
  CUDA(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  CheckPartOfACapture(stream, &memory);
  std::printf("passed\n");
  return 0;
}
