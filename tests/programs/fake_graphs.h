// A fake driver that records, changes and launches graphs.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPHS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPHS_H_

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

inline CUstream const kStream = reinterpret_cast<CUstream>(64);
inline CUstream const kCaptureStream = reinterpret_cast<CUstream>(128);
// These addresses lie in the host's memory.
constexpr CUdeviceptr kPinned = 256, kPageable = 512;

struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  // A kernel's function, its grid, and its arguments, each in words of its own.
  int number = 1, grid = 1;
  std::vector<std::vector<CUdeviceptr>> arguments;
  bool is_in_block = false;  // Whether they were given as one block.
  CUDA_MEMSET_NODE_PARAMS fill = {};
  bool says_whose_memory = true;  // Of a copy.
  CUdeviceptr from = 1 << 20, to = 2 << 20;
  bool is_destroyed = false;
  // What the driver points to when it is asked for a kernel's arguments.
  std::vector<CUdeviceptr> block;
  std::vector<void*> pointers;
  size_t block_bytes = 0;
};

// A word from here to twice this is a gap in a kernel's argument, which holds
// what the stack held. That differs from call to call, and now and then between
// two recordings of a call.
constexpr CUdeviceptr kGap = CUdeviceptr{1} << 50;
inline std::atomic<CUdeviceptr> stack = 0;
inline std::atomic<int> num_recorded = 0;

// The function of our own kernel, which fills.
constexpr int kFill = 1000;

// What a node does, in comparable words. Fills say which bytes they set.
inline std::vector<int64_t> WorkOf(const Node& node) {
  std::vector<int64_t> work = {node.type};
  const auto append = [&](auto value) {
    work.push_back(static_cast<int64_t>(value));
  };
  if (node.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    append(node.from);
    append(node.to);
  } else if (node.type == CU_GRAPH_NODE_TYPE_KERNEL && node.number == kFill) {
    return {CU_GRAPH_NODE_TYPE_MEMSET,
            static_cast<int64_t>(node.arguments[0][0]),
            static_cast<int64_t>(4 * (node.arguments[1][0] & 0xFFFFFFFF)), 1,
            static_cast<int64_t>(node.arguments[2][0] & 0xFFFFFFFF)};
  } else if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    append(node.number);
    append(node.grid);
    for (const auto& argument : node.arguments) {
      for (const CUdeviceptr word : argument) {
        append(word / kGap == 1 ? kGap : word);
      }
    }
  } else if (node.type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const CUDA_MEMSET_NODE_PARAMS& fill = node.fill;
    uint32_t word = 0;
    for (unsigned byte = 0; byte < 4; ++byte) {
      word |= (fill.value >> (8 * (byte % fill.elementSize)) & 0xFF)
              << (8 * byte);
    }
    append(fill.dst);
    append(fill.width * fill.elementSize);
    append(fill.height);
    append(word);
  }
  return work;
}

struct FakeGraph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::set<std::pair<Node*, Node*>> edges;
};
// An executable graph has nodes of its own, which are found by the graph's.
struct Exec {
  std::map<const Node*, Node> nodes;
  std::set<std::pair<Node*, Node*>> edges;
};
using Work = std::multiset<std::vector<int64_t>>;
using Order =
    std::multiset<std::pair<std::vector<int64_t>, std::vector<int64_t>>>;

inline Exec Instance(const FakeGraph& graph) {
  Exec exec;
  for (const auto& node : graph.nodes) {
    if (!node->is_destroyed) exec.nodes[node.get()] = *node;
  }
  for (const auto& edge : graph.edges) {
    if (!edge.first->is_destroyed && !edge.second->is_destroyed) {
      exec.edges.insert(edge);
    }
  }
  return exec;
}

inline Work WorkOf(const Exec& exec) {
  Work work;
  for (const auto& [handle, node] : exec.nodes) work.insert(WorkOf(node));
  return work;
}

inline Order OrderOf(const Exec& exec) {
  Order order;
  for (const auto& [from, to] : exec.edges) {
    order.emplace(WorkOf(exec.nodes.at(from)), WorkOf(exec.nodes.at(to)));
  }
  return order;
}

// Each thread has a stream.
inline thread_local FakeGraph* capturing = nullptr;
inline bool is_callers_capture = false, refuses_kernels = false;
inline std::string failing;  // The name of the call that fails.
inline std::atomic<int> num_execs = 0, num_graphs = 0, num_captures = 0,
                        num_attempts = 0, num_launches = 0, num_direct = 0;
inline std::atomic<int> num_rewritten = 0;  // Nodes of executable graphs.
inline Exec launched;                       // What ran last.
inline bool only_counts = false;  // Then passes are counted, but not compared.

// Whether the last launch's work is compared: that of the first hundred, and
// after these of every sixteenth, since comparing takes most of the time.
inline bool IsCompared() {
  return !only_counts && (num_launches <= 100 || num_launches % 16 == 0);
}

// The number of launches of a thread, of which every tenth fails if some do.
inline thread_local int launches_of_thread = 0;

inline CUresult Outcome(const char* call) {
  if (failing == "some launches" && std::string("launch") == call) {
    return ++launches_of_thread % 10 == 0 ? CUDA_ERROR_OUT_OF_MEMORY
                                          : CUDA_SUCCESS;
  }
  if (failing == "second rewrite" && std::string("rewrite") == call) {
    return num_rewritten == 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  return failing == call ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

// The arguments' sizes. Those of four bytes leave a gap in their word.
inline size_t SizeOf(const Node& node, size_t argument) {
  return node.number == kFill && argument > 0
             ? 4
             : 8 * node.arguments[argument].size();
}

template <typename T>
T* Of(void* handle) {
  return static_cast<T*>(handle);
}

// This takes the place of compiler.cc.
RnnStatus CompileKernel(const std::string& file, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CompiledKernel* kernel) {
  if (refuses_kernels) return {RnnStatus::Code::kUnimplemented, "no NVRTC"};
  Check(file == "fill.cu" && entry == "fill" && macros.empty(), "the kernel");
  kernel->handle = reinterpret_cast<CUkernel>(kFill);
  return {};
}

inline thread_local std::map<int, std::vector<size_t>> sizes;  // Of arguments.

template <typename Kernel>
CUresult ParamInfo(Kernel kernel, size_t index, size_t*, size_t* size) {
  const std::vector<size_t>& of_kernel =
      sizes.at(static_cast<int>(reinterpret_cast<uintptr_t>(kernel)));
  if (index >= of_kernel.size()) return CUDA_ERROR_INVALID_VALUE;
  *size = of_kernel[index];
  return CUDA_SUCCESS;
}

// The driver rewrites this kernel only in executable graphs.
constexpr int kRefused = 5;

inline CUresult Rewrite(Node* node, const CUDA_KERNEL_NODE_PARAMS& params) {
  if (Outcome("rewrite") != CUDA_SUCCESS) return Outcome("rewrite");
  const CUdeviceptr* block = nullptr;
  if (node->is_in_block) {
    Check(params.kernelParams == nullptr, "two ways to give arguments");
    block = static_cast<const CUdeviceptr*>(params.extra[1]);
  }
  Check(static_cast<int>(params.gridDimX) == node->grid, "a new grid");
  for (size_t i = 0; i < node->arguments.size(); ++i) {
    std::vector<CUdeviceptr>& argument = node->arguments[i];
    std::memcpy(argument.data(),
                block == nullptr ? params.kernelParams[i] : block,
                SizeOf(*node, i));
    if (block != nullptr) block += argument.size();
  }
  return CUDA_SUCCESS;
}
inline CUresult Rewrite(Node* node, const CUDA_MEMSET_NODE_PARAMS& params) {
  node->fill = params;
  return Outcome("rewrite");
}
inline CUresult Rewrite(Node* node, const CUDA_MEMCPY3D& params) {
  node->from = params.srcDevice;
  node->to = params.dstDevice;
  return Outcome("rewrite");
}
// An executable graph's own node.
inline Node* NodeOf(CUgraphExec exec, CUgraphNode handle) {
  return &Of<Exec>(exec)->nodes.at(Of<Node>(handle));
}
template <typename Params>
CUresult SetParams(CUgraphNode handle, const Params* params) {
  return Rewrite(Of<Node>(handle), *params);
}
template <typename Params>
CUresult SetParamsOfExec(CUgraphExec exec, CUgraphNode handle,
                         const Params* params, CUcontext) {
  return Rewrite(NodeOf(exec, handle), *params);
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
  cuda.cuGraphKernelNodeGetParams = [](CUgraphNode handle,
                                       CUDA_KERNEL_NODE_PARAMS* params) {
    Node* const node = Of<Node>(handle);
    *params = {};
    params->gridDimX = node->grid;
    if (node->number == kFill) {
      params->kern = reinterpret_cast<CUkernel>(kFill);
    } else {
      params->func =
          reinterpret_cast<CUfunction>(static_cast<uintptr_t>(node->number));
    }
    sizes[node->number].clear();
    node->block.clear();
    node->pointers.clear();
    for (size_t i = 0; i < node->arguments.size(); ++i) {
      sizes[node->number].push_back(SizeOf(*node, i));
      node->block.insert(node->block.end(), node->arguments[i].begin(),
                         node->arguments[i].end());
      node->pointers.push_back(node->arguments[i].data());
    }
    if (node->is_in_block) {
      node->block_bytes = 8 * node->block.size();
      node->pointers = {CU_LAUNCH_PARAM_BUFFER_SIZE, &node->block_bytes,
                        CU_LAUNCH_PARAM_BUFFER_POINTER, node->block.data(),
                        CU_LAUNCH_PARAM_END};
      params->extra = node->pointers.data();
    } else {
      params->kernelParams = node->pointers.data();
    }
    return Outcome("arguments");
  };
  cuda.cuFuncGetParamInfo = ParamInfo;
  cuda.cuKernelGetParamInfo = ParamInfo;
  cuda.cuGraphKernelNodeSetParams = [](CUgraphNode handle,
                                       const CUDA_KERNEL_NODE_PARAMS* params) {
    if (Of<Node>(handle)->number == kRefused) return CUDA_ERROR_INVALID_VALUE;
    return Rewrite(Of<Node>(handle), *params);
  };
  cuda.cuGraphMemsetNodeSetParams = SetParams;
  cuda.cuGraphMemcpyNodeSetParams = SetParams;
  cuda.cuGraphExecKernelNodeSetParams =
      [](CUgraphExec exec, CUgraphNode handle,
         const CUDA_KERNEL_NODE_PARAMS* params) {
        ++num_rewritten;
        return Rewrite(NodeOf(exec, handle), *params);
      };
  cuda.cuGraphExecMemsetNodeSetParams = SetParamsOfExec;
  cuda.cuGraphExecMemcpyNodeSetParams = SetParamsOfExec;
  cuda.cuGraphAddKernelNode = [](CUgraphNode* node, CUgraph graph,
                                 const CUgraphNode*, size_t num_before,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
    if (Outcome("kernel") != CUDA_SUCCESS) return Outcome("kernel");
    unsigned count;
    std::memcpy(&count, params->kernelParams[1], 4);
    auto made = std::make_unique<Node>();
    made->type = CU_GRAPH_NODE_TYPE_KERNEL;
    made->number = kFill;
    made->grid = static_cast<int>(params->gridDimX);
    made->arguments = {{0}, {0}, {0}};
    for (size_t i = 0; i < 3; ++i) {
      std::memcpy(made->arguments[i].data(), params->kernelParams[i],
                  SizeOf(*made, i));
    }
    const unsigned threads = params->gridDimX * params->blockDimX;
    Check(num_before == 0 && threads >= count &&
              threads < count + params->blockDimX &&
              params->blockDimX < count + 32 &&
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
    *exec = reinterpret_cast<CUgraphExec>(
        new Exec(Instance(*Of<FakeGraph>(graph))));
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
    const CUresult outcome = Outcome("launch");
    if (outcome != CUDA_SUCCESS) return outcome;
    ++num_launches;
    if (only_counts) return CUDA_SUCCESS;
    CheckEnqueuesAlone(stream);
    if (!IsCompared()) return CUDA_SUCCESS;
    launched = *Of<Exec>(exec);
    return CUDA_SUCCESS;
  };
  return libraries;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPHS_H_
