// Runs random passes through the cache of graphs, on a fake driver. Checks,
// without a GPU, that each run does the pass's work once, whether as a graph or
// not, which passes become graphs, what happens after failures, and that graphs
// take no more memory than they may.
//
//   graphs_on_fake_driver SEEDS
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/graph_cache.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

using Random = std::mt19937;

CUstream const kStream = reinterpret_cast<CUstream>(64);
CUstream const kCaptureStream = reinterpret_cast<CUstream>(128);
// These addresses lie in the host's memory.
constexpr CUdeviceptr kPinned = 256, kPageable = 512;

struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  int number = 0;  // Of a kernel.
  CUDA_MEMSET_NODE_PARAMS fill = {};
  bool says_whose_memory = true;  // Of a copy.
  CUdeviceptr from = 1 << 20, to = 2 << 20;
  bool is_destroyed = false;
};

// What a node does, in comparable words. Fills say which bytes they set.
std::array<int64_t, 5> WorkOf(const Node& node) {
  if (node.type != CU_GRAPH_NODE_TYPE_MEMSET) {
    return {node.type, node.number, 0, 0, 0};
  }
  const CUDA_MEMSET_NODE_PARAMS& fill = node.fill;
  const auto width = static_cast<int64_t>(fill.width * fill.elementSize);
  uint32_t word = 0;
  for (unsigned byte = 0; byte < 4; ++byte) {
    word |= (fill.value >> (8 * (byte % fill.elementSize)) & 0xFF)
            << (8 * byte);
  }
  return {node.type, static_cast<int64_t>(fill.dst), width,
          static_cast<int64_t>(fill.height), word};
}

struct FakeGraph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::set<std::pair<Node*, Node*>> edges;
};
using Work = std::multiset<std::array<int64_t, 5>>;
using Order =
    std::multiset<std::pair<std::array<int64_t, 5>, std::array<int64_t, 5>>>;

Work WorkOf(const FakeGraph& graph) {
  Work work;
  for (const auto& node : graph.nodes) {
    if (!node->is_destroyed && node->type != CU_GRAPH_NODE_TYPE_EMPTY) {
      work.insert(WorkOf(*node));
    }
  }
  return work;
}

Order OrderOf(const FakeGraph& graph) {
  Order order;
  for (const auto& [from, to] : graph.edges) {
    if (!from->is_destroyed && !to->is_destroyed) {
      order.emplace(WorkOf(*from), WorkOf(*to));
    }
  }
  return order;
}

struct Exec {
  Work work;
  Order order;
};

thread_local FakeGraph* capturing = nullptr;  // Each thread has a stream.
bool is_callers_capture = false, refuses_kernels = false;
std::string failing;  // The name of the call that fails.
std::atomic<int> num_execs = 0, num_graphs = 0, num_captures = 0,
                 num_attempts = 0, num_launches = 0, num_direct = 0;
Exec launched;             // What ran last.
bool only_counts = false;  // Then passes are counted, but not compared.
int device = 0;
const std::function<void()> kNothing = [] {};
thread_local std::function<void()> before_capture = kNothing;  // Called once.

CUresult Outcome(const char* call) {
  return failing == call ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

template <typename T>
T* Of(void* handle) {
  return static_cast<T*>(handle);
}

}  // namespace

// This takes the place of compiler.cc.
RnnStatus CompileKernel(const std::string& file, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CUkernel* kernel) {
  if (refuses_kernels) return {RnnStatus::Code::kUnimplemented, "no NVRTC"};
  Check(file == "fill.cu" && entry == "fill" && macros.empty(), "the kernel");
  *kernel = reinterpret_cast<CUkernel>(1);
  return {};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = is_callers_capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                 : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  cuda.cuStreamBeginCapture = [](CUstream stream, CUstreamCaptureMode mode) {
    Check(stream == kCaptureStream, "a capture of the caller's stream");
    Check(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "the mode of a capture");
    if (Outcome("begin") != CUDA_SUCCESS) return Outcome("begin");
    Check(capturing == nullptr, "a capture within a capture");
    capturing = new FakeGraph;
    ++num_graphs;
    ++num_captures;
    return CUDA_SUCCESS;
  };
  cuda.cuStreamEndCapture = [](CUstream, CUgraph* graph) {
    *graph = reinterpret_cast<CUgraph>(std::exchange(capturing, nullptr));
    return Outcome("end");
  };
  cuda.cuGraphDestroy = [](CUgraph graph) {
    delete Of<FakeGraph>(graph);
    --num_graphs;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphGetNodes = [](CUgraph graph, CUgraphNode* nodes, size_t* count) {
    *count = Of<FakeGraph>(graph)->nodes.size();
    for (size_t i = 0; nodes != nullptr && i < *count; ++i) {
      nodes[i] =
          reinterpret_cast<CUgraphNode>(Of<FakeGraph>(graph)->nodes[i].get());
    }
    return Outcome("nodes");
  };
  cuda.cuGraphNodeGetType = [](CUgraphNode node, CUgraphNodeType* type) {
    *type = Of<Node>(node)->type;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphMemsetNodeGetParams = [](CUgraphNode node,
                                       CUDA_MEMSET_NODE_PARAMS* params) {
    *params = Of<Node>(node)->fill;
    // The bits beyond an element are whatever the caller's number had.
    if (params->elementSize < 4) params->value |= 0xAB << 24;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphMemcpyNodeGetParams = [](CUgraphNode node,
                                       CUDA_MEMCPY3D* params) {
    *params = {};
    params->srcMemoryType = params->dstMemoryType =
        Of<Node>(node)->says_whose_memory ? CU_MEMORYTYPE_DEVICE
                                          : CU_MEMORYTYPE_UNIFIED;
    params->srcDevice = Of<Node>(node)->from;
    params->dstDevice = Of<Node>(node)->to;
    return CUDA_SUCCESS;
  };
  cuda.cuPointerGetAttribute = [](void* data, CUpointer_attribute,
                                  CUdeviceptr address) {
    // The driver does not know this memory.
    if (address == kPageable) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<unsigned*>(data) =
        address == kPinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphAddKernelNode = [](CUgraphNode* node, CUgraph graph,
                                 const CUgraphNode*, size_t num_before,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
    if (Outcome("kernel") != CUDA_SUCCESS) return Outcome("kernel");
    // The node is known by what it fills.
    unsigned count;
    auto made = std::make_unique<Node>();
    made->type = CU_GRAPH_NODE_TYPE_MEMSET;
    std::memcpy(&made->fill.dst, params->kernelParams[0], 8);
    std::memcpy(&count, params->kernelParams[1], 4);
    std::memcpy(&made->fill.value, params->kernelParams[2], 4);
    made->fill.elementSize = 4;
    made->fill.width = count;
    made->fill.height = 1;
    const unsigned threads = params->gridDimX * params->blockDimX;
    Check(num_before == 0 && threads >= count &&
              threads < count + params->blockDimX &&
              params->gridDimY * params->gridDimZ * params->blockDimY *
                      params->blockDimZ ==
                  1,
          "the threads of a kernel");
    *node = reinterpret_cast<CUgraphNode>(made.get());
    Of<FakeGraph>(graph)->nodes.push_back(std::move(made));
    return CUDA_SUCCESS;
  };
  cuda.cuGraphGetEdges_v2 = [](CUgraph graph, CUgraphNode* from,
                               CUgraphNode* to, CUgraphEdgeData*,
                               size_t* count) {
    size_t i = 0;
    for (const auto& edge : Of<FakeGraph>(graph)->edges) {
      if (from != nullptr) {
        from[i] = reinterpret_cast<CUgraphNode>(edge.first);
        to[i] = reinterpret_cast<CUgraphNode>(edge.second);
      }
      ++i;
    }
    *count = i;
    return Outcome("edges");
  };
  cuda.cuGraphAddDependencies_v2 = [](CUgraph graph, const CUgraphNode* from,
                                      const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Of<FakeGraph>(graph)->edges.emplace(Of<Node>(from[i]), Of<Node>(to[i]));
    }
    return CUDA_SUCCESS;
  };
  cuda.cuGraphDestroyNode = [](CUgraphNode node) {
    Of<Node>(node)->is_destroyed = true;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphInstantiate = [](CUgraphExec* exec, CUgraph graph,
                               unsigned long long) {
    if (Outcome("instantiate") != CUDA_SUCCESS) return Outcome("instantiate");
    *exec = reinterpret_cast<CUgraphExec>(new Exec{
        WorkOf(*Of<FakeGraph>(graph)), OrderOf(*Of<FakeGraph>(graph))});
    ++num_execs;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphExecDestroy = [](CUgraphExec exec) {
    delete Of<Exec>(exec);
    --num_execs;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphLaunch = [](CUgraphExec exec, CUstream stream) {
    Check(stream == kStream, "the stream of a launch");
    ++num_attempts;
    if (Outcome("launch") != CUDA_SUCCESS) return Outcome("launch");
    ++num_launches;
    if (only_counts) return CUDA_SUCCESS;
    CheckEnqueuesAlone(stream);
    launched = *Of<Exec>(exec);
    return CUDA_SUCCESS;
  };
  return libraries;
}

namespace {

// A pass of random nodes.
struct Pass {
  std::string key;
  unsigned seed = 0;
  int num_nodes = 5;
  Node special;  // A node that the pass has as well, unless it is empty.

  void AddTo(FakeGraph* graph) const {
    Random random(seed);
    for (int i = 0; i < num_nodes; ++i) {
      auto node = std::make_unique<Node>();
      node->number = i;
      switch (random() % 5) {
        case 0:
          break;  // Empty.
        case 1:
          node->type = CU_GRAPH_NODE_TYPE_MEMCPY;
          node->says_whose_memory = random() % 2 == 0;
          break;
        case 2: {
          node->type = CU_GRAPH_NODE_TYPE_MEMSET;
          node->fill.elementSize = 1 << random() % 3;
          node->fill.dst = (CUdeviceptr{i + 1u} << 30) + random() % 3 * 2;
          const unsigned bits = 8 * node->fill.elementSize;
          node->fill.value = random() >> (32 - bits);
          node->fill.height = random() % 5 == 0 ? 2 : 1;
          node->fill.width = random() % (random() % 3 == 0 ? 100000 : 9) * 4;
          break;
        }
        default:
          node->type = CU_GRAPH_NODE_TYPE_KERNEL;
      }
      graph->nodes.push_back(std::move(node));
      for (unsigned edges = random() % 3; i > 0 && edges > 0; --edges) {
        graph->edges.emplace(graph->nodes[random() % i].get(),
                             graph->nodes[i].get());
      }
    }
    if (special.type != CU_GRAPH_NODE_TYPE_EMPTY) {
      graph->nodes.push_back(std::make_unique<Node>(special));
    }
  }

  // Runs the pass, whose work must be done exactly once.
  void Run(bool may_make = true) const {
    ReplayablePass pass;
    pass.key = key;
    pass.stream = kStream;
    pass.may_make = may_make;
    pass.log = [](const std::string&) {};
    pass.enqueue = [] {
      ++num_direct;
      return RnnStatus();
    };
    pass.capture = [this](Graph* graph) {
      std::exchange(before_capture, kNothing)();
      return Graph::Capture(
          kCaptureStream,
          [this]() -> RnnStatus {
            AddTo(capturing);
            if (failing == "no memory") throw std::bad_alloc();
            if (failing == "enqueue") {
              return {RnnStatus::Code::kInternal, "no pass"};
            }
            return {};
          },
          graph);
    };
    const int direct = num_direct, launches = num_launches;
    Check(GraphCache::Of(device).Run(pass).ok(), "a pass");
    if (only_counts) return;
    Check(num_direct + num_launches == direct + launches + 1,
          "a pass is run once");
    Check(capturing == nullptr && num_graphs == 0, "a graph is left");
    if (num_launches == launches) return;
    FakeGraph expected;
    AddTo(&expected);
    Check(launched.work == WorkOf(expected), "other work");
    Check(launched.order == OrderOf(expected), "another order");
  }
};

void Reset() {
  num_direct = num_launches = num_attempts = num_captures = 0;
  failing.clear();
}

Pass NewPass(unsigned seed, int num_nodes = 5) {
  static int number = 0;
  return {"pass " + std::to_string(number++), seed, num_nodes, {}};
}

void CheckUses(unsigned seed) {
  Reset();
  const Pass pass = NewPass(seed, 1 + static_cast<int>(seed % 100));
  refuses_kernels = seed % 5 == 0;
  pass.Run();
  Check(num_direct == 1 && num_captures == 0, "a first use is direct");
  NewPass(seed).Run();
  pass.Run(/*may_make=*/false);
  Check(num_direct == 3 && num_captures == 0, "passes are kept apart");
  for (int i = 0; i < 5; ++i) pass.Run();
  Check(num_direct == 3 && num_captures == 1 && num_launches == 5,
        "later uses are replays");
  pass.Run(/*may_make=*/false);
  Check(num_launches == 6, "what was made needs not be made");
  is_callers_capture = true;
  pass.Run();
  Check(num_direct == 4, "a replay in the caller's capture");
  is_callers_capture = false;
  auto& libraries = const_cast<GpuLibraries&>(Gpu());
  libraries.has_graphs = false;
  pass.Run();
  Check(num_direct == 5, "a replay by an old driver");
  libraries.has_graphs = true;
  pass.Run();
  Check(num_launches == 7 && num_captures == 1, "the graph stays");
  refuses_kernels = false;
}

// While a call fails, passes are enqueued as they are, and only few uses try
// again. Later, passes are replayed.
void CheckFailures(unsigned seed) {
  for (const char* const call : {"begin", "enqueue", "no memory", "end",
                                 "nodes", "instantiate", "launch"}) {
    being_checked = std::string("failures of ") + call;
    Reset();
    const Pass pass = NewPass(seed);
    if (seed % 2 == 1 && std::string(call) == "launch") {
      for (int i = 0; i < 3; ++i) pass.Run();
      num_captures = num_direct = num_launches = num_attempts = 0;
    }
    failing = call;
    for (int i = 0; i < 1000; ++i) pass.Run();
    Check(num_direct == 1000 && num_launches == 0, "a failure falls back");
    Check(num_captures <= 5 && num_attempts <= 5, "few attempts");
    failing.clear();
    for (int i = 0; i < 3000; ++i) pass.Run();
    Check(num_launches > 1500, "a failure passes");
  }
  // Without the node of our kernel, a fill stays what it is.
  Reset();
  failing = "kernel";
  const Pass pass = NewPass(seed, 50);
  for (int i = 0; i < 3; ++i) pass.Run();
  Check(num_launches == 2, "a pass without our kernel");
}

void CheckRefusals(unsigned seed) {
  Node copy;
  copy.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  copy.says_whose_memory = false;
  std::vector<Node> refused(4, copy);
  refused[0].from = kPinned;
  refused[1].to = kPageable;
  refused[2].type = CU_GRAPH_NODE_TYPE_HOST;
  refused[3].type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  for (const Node& node : refused) {
    Reset();
    Pass pass = NewPass(seed);
    pass.special = node;
    for (int i = 0; i < 20; ++i) pass.Run();
    Check(num_direct == 20 && num_captures == 1, "a node is refused");
  }
  Reset();
  const Pass large = NewPass(seed, 16385);
  for (int i = 0; i < 20; ++i) large.Run();
  Check(num_direct == 20 && num_captures == 1, "a graph that is too large");
}

// Passes that push each other out are not captured in turn, and the memory of
// graphs has a bound, after which others are replayed all the same.
void CheckBounds(unsigned seed) {
  constexpr int kNodes = 400;
  constexpr int kFit = (512 << 20) / (kNodes * (16 << 10));
  Random random(seed);
  Reset();
  only_counts = true;
  const int shapes = 2 * kFit + random() % 100;
  std::vector<Pass> passes;
  for (int i = 0; i < shapes; ++i) passes.push_back(NewPass(seed, kNodes));
  for (int i = 0; i < 40 * shapes; ++i) {
    passes[seed % 2 == 0 ? i % shapes : random() % shapes].Run();
  }
  only_counts = false;
  Check(num_execs <= kFit + 600, "too much memory");
  Check(num_captures < 5 * shapes, "captured in turn");
  const int launches = num_launches;
  const Pass other = NewPass(seed, kNodes);
  for (int i = 0; i < 100; ++i) other.Run();
  Check(num_launches - launches >= 85, "never captured");
  // Passes that come once push out what others know of, and leave nothing.
  for (int i = 0; i < 5000; ++i) NewPass(seed).Run();
  Check(num_execs == 0, "graphs of passes that are forgotten");
}

// While a thread captures a pass, others may use it so often that one of them
// captures it as well. Only one of the graphs is kept, and counted.
void CheckTwoCaptures() {
  Reset();
  only_counts = true;
  const Pass pass = NewPass(1, 16000), other = NewPass(1, 8000);
  pass.Run();
  before_capture = [&] {
    for (int i = 0; i < 100; ++i) pass.Run();
  };
  pass.Run();
  Check(num_captures == 2 && num_execs == 1, "two captures of a pass");
  other.Run();
  other.Run();
  Check(num_execs == 2, "a graph has no room beside one that counts twice");
  only_counts = false;
}

// Threads may use one pass at the same time; each use runs it once.
void CheckThreads() {
  Reset();
  only_counts = true;
  const Pass pass = NewPass(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int use = 0; use < 500; ++use) pass.Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  only_counts = false;
  Check(num_captures < 20, "several captures of a pass");
  Check(num_direct + num_launches == 2000 && num_launches > 0, "uses");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    // Each device has graphs of its own.
    cudnn_rnn_tf::device = static_cast<int>(seed);
    cudnn_rnn_tf::CheckTwoCaptures();
    cudnn_rnn_tf::CheckThreads();
    cudnn_rnn_tf::CheckUses(seed);
    cudnn_rnn_tf::CheckFailures(seed);
    cudnn_rnn_tf::CheckRefusals(seed);
    cudnn_rnn_tf::CheckBounds(seed);
  });
}
