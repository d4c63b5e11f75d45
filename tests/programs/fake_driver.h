// A fake driver. Its graphs are lists of nodes, and a launch notes what the
// nodes hold.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_DRIVER_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_DRIVER_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/programs/fake_gpu.h"
#include "tests/programs/fake_graph.h"

namespace cudnn_rnn_tf {

using Bytes = std::vector<unsigned char>;

struct FakeNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  size_t index = 0;      // Its place in its graph.
  bool refuses = false;  // Setting it in the graph fails.
  // A kernel's grid, or the width of a fill or copy.
  unsigned grid = 1;
  unsigned element_size = 1, value = 0, height = 1;  // For fills.
  bool is_cooperative = false;
  bool says_whose_memory = true;  // For copies.
  bool fills = false;             // A kernel that fills memory.
  std::vector<Bytes> arguments;
  CUdeviceptr destination = 0, source = 0;
  std::vector<void*> pointers;  // The driver hands these out.

  bool operator==(const FakeNode& other) const {
    return type == other.type && grid == other.grid && fills == other.fills &&
           element_size == other.element_size && value == other.value &&
           height == other.height && is_cooperative == other.is_cooperative &&
           arguments == other.arguments && destination == other.destination &&
           source == other.source;
  }
};
using Graph = FakeGraph<FakeNode>;
using Exec = FakeExec<FakeNode>;

// These addresses lie in the host's memory.
inline constexpr CUdeviceptr kPinned = 256, kPageable = 512;

inline std::vector<FakeNode> launched;  // Nodes that do something.
inline FakeEdges launched_edges;
inline long num_instantiated = 0, num_rewritten = 0;
inline bool refuses_rewriting = false, refuses_instantiating = false,
            refuses_kernels = false;  // As nodes that are added to a graph.

inline FakeNode* Node(CUgraphNode node) { return Graph::NodeOf(node); }

template <typename Number>
Bytes BytesOf(Number number) {
  Bytes bytes(sizeof(number));
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

inline void Set(const CUDA_KERNEL_NODE_PARAMS& from, FakeNode* node) {
  for (size_t i = 0; i < node->arguments.size(); ++i) {
    Bytes& argument = node->arguments[i];
    std::memcpy(argument.data(), from.kernelParams[i], argument.size());
  }
}
inline void Set(const CUDA_MEMSET_NODE_PARAMS& from, FakeNode* node) {
  node->destination = from.dst;
}
inline void Set(const CUDA_MEMCPY3D& from, FakeNode* node) {
  node->destination = from.dstDevice;
  node->source = from.srcDevice;
}

template <unsigned kElementSize, typename Value>
CUresult LaunchFill(CUdeviceptr destination, size_t, Value value, size_t width,
                    size_t height, CUstream) {
  FakeNode& node = launched.emplace_back();
  node.type = CU_GRAPH_NODE_TYPE_MEMSET;
  node.destination = destination;
  node.grid = width;
  node.height = height;
  node.element_size = kElementSize;
  node.value = value;
  return CUDA_SUCCESS;
}

template <typename Params>
CUresult SetInGraph(CUgraphNode node, const Params* params) {
  if (Node(node)->refuses) return CUDA_ERROR_INVALID_VALUE;
  Set(*params, Node(node));
  return CUDA_SUCCESS;
}
template <typename Params>
CUresult SetInExec(CUgraphExec exec, CUgraphNode node, const Params* params) {
  if (refuses_rewriting) return CUDA_ERROR_INVALID_VALUE;
  ++num_rewritten;
  Set(*params, &Exec::Of(exec)->nodes[Node(node)->index]);
  return CUDA_SUCCESS;
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  Graph::AddTo(&cuda);
  cuda.cuGraphNodeGetType = [](CUgraphNode node, CUgraphNodeType* type) {
    *type = Node(node)->type;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphKernelNodeGetParams = [](CUgraphNode node,
                                       CUDA_KERNEL_NODE_PARAMS* params) {
    FakeNode& from = *Node(node);
    from.pointers.clear();
    for (Bytes& argument : from.arguments) {
      from.pointers.push_back(argument.data());
    }
    *params = {};
    // Each node has a function of its own, whose number is the node's.
    params->func = reinterpret_cast<CUfunction>(from.index + 1);
    params->gridDimX = from.grid;
    params->kernelParams = from.pointers.data();
    return CUDA_SUCCESS;
  };
  cuda.cuGraphKernelNodeGetAttribute = [](CUgraphNode node,
                                          CUlaunchAttributeID id,
                                          CUlaunchAttributeValue* value) {
    *value = {};
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      value->cooperative = Node(node)->is_cooperative;
    }
    return CUDA_SUCCESS;
  };
  cuda.cuFuncGetParamInfo = [](CUfunction function, size_t index,
                               size_t* offset, size_t* size) {
    const size_t node = reinterpret_cast<uintptr_t>(function) - 1;
    const std::vector<Bytes>& arguments =
        Graph::last_read->nodes[node]->arguments;
    if (index >= arguments.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    *size = arguments[index].size();
    return CUDA_SUCCESS;
  };
  cuda.cuGraphMemsetNodeGetParams = [](CUgraphNode node,
                                       CUDA_MEMSET_NODE_PARAMS* params) {
    *params = {};
    params->dst = Node(node)->destination;
    params->width = Node(node)->grid;
    params->height = Node(node)->height;
    params->elementSize = Node(node)->element_size;
    // The bits beyond an element may have any value, as in the caller's number.
    static unsigned others = 0;
    params->value = Node(node)->value;
    if (params->elementSize < sizeof(params->value)) {
      params->value |= ++others << (8 * params->elementSize);
    }
    return CUDA_SUCCESS;
  };
  cuda.cuGraphAddKernelNode = [](CUgraphNode* node, CUgraph graph,
                                 const CUgraphNode*, size_t num_before,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
    const bool fills =
        std::strcmp(reinterpret_cast<const char*>(params->kern), "fill") == 0;
    if (!fills || num_before > 0) return CUDA_ERROR_INVALID_VALUE;
    if (refuses_kernels) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    FakeNode added;
    added.type = CU_GRAPH_NODE_TYPE_KERNEL;
    added.fills = true;
    added.arguments = {Bytes(8), Bytes(4), Bytes(4)};
    Set(*params, &added);
    unsigned count;
    std::memcpy(&count, added.arguments[1].data(), sizeof(count));
    const unsigned block = params->blockDimX;
    const unsigned threads = params->gridDimX * block;
    if (block == 0 || block > 1024 || threads < count ||
        threads >= count + block || params->gridDimY != 1 ||
        params->gridDimZ != 1 || params->blockDimY != 1 ||
        params->blockDimZ != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *node = Graph::Of(graph)->Add(std::move(added));
    return CUDA_SUCCESS;
  };
  cuda.cuGraphDestroyNode = [](CUgraphNode node) {
    Graph::last_added_to->DestroyNode(node);
    return CUDA_SUCCESS;
  };
  cuda.cuGraphMemcpyNodeGetParams = [](CUgraphNode node,
                                       CUDA_MEMCPY3D* params) {
    *params = {};
    params->srcMemoryType = params->dstMemoryType =
        Node(node)->says_whose_memory ? CU_MEMORYTYPE_DEVICE
                                      : CU_MEMORYTYPE_UNIFIED;
    params->dstDevice = Node(node)->destination;
    params->srcDevice = Node(node)->source;
    params->WidthInBytes = Node(node)->grid;
    return CUDA_SUCCESS;
  };
  cuda.cuPointerGetAttribute = [](void* data, CUpointer_attribute attribute,
                                  CUdeviceptr address) {
    if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    // The driver does not know this memory.
    if (address == kPageable) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<unsigned*>(data) =
        address == kPinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphKernelNodeSetParams = SetInGraph<CUDA_KERNEL_NODE_PARAMS>;
  cuda.cuGraphMemsetNodeSetParams = SetInGraph<CUDA_MEMSET_NODE_PARAMS>;
  cuda.cuGraphMemcpyNodeSetParams = SetInGraph<CUDA_MEMCPY3D>;
  cuda.cuGraphExecKernelNodeSetParams = SetInExec<CUDA_KERNEL_NODE_PARAMS>;
  cuda.cuGraphExecMemsetNodeSetParams =
      [](CUgraphExec exec, CUgraphNode node,
         const CUDA_MEMSET_NODE_PARAMS* params,
         CUcontext) { return SetInExec(exec, node, params); };
  cuda.cuGraphExecMemcpyNodeSetParams =
      [](CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
         CUcontext) { return SetInExec(exec, node, params); };
  cuda.cuGraphInstantiate = [](CUgraphExec* exec, CUgraph graph,
                               unsigned long long) {
    if (refuses_instantiating) return CUDA_ERROR_OUT_OF_MEMORY;
    ++num_instantiated;
    *exec = reinterpret_cast<CUgraphExec>(new Exec(*Graph::Of(graph)));
    return CUDA_SUCCESS;
  };
  cuda.cuGraphExecDestroy = Exec::Destroy;
  cuda.cuGraphLaunch = [](CUgraphExec exec, CUstream stream) {
    CheckEnqueuesAlone(stream);
    launched_edges = Exec::Of(exec)->edges;
    for (const FakeNode& node : Exec::Of(exec)->nodes) {
      if (node.type != CU_GRAPH_NODE_TYPE_EMPTY) launched.push_back(node);
    }
    return CUDA_SUCCESS;
  };
  cuda.cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction function,
                             void** arguments, void**) {
    CheckEnqueuesAlone(config->hStream);
    FakeNode& node = launched.emplace_back();
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.grid = config->gridDimX;
    node.is_cooperative =
        config->numAttrs > 0 &&
        config->attrs[0].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    const size_t index = reinterpret_cast<uintptr_t>(function) - 1;
    for (const Bytes& like : Graph::capturing->nodes[index]->arguments) {
      const auto* const bytes = static_cast<unsigned char*>(*arguments++);
      node.arguments.emplace_back(bytes, bytes + like.size());
    }
    return CUDA_SUCCESS;
  };
  cuda.cuMemsetD2D8Async = LaunchFill<1, unsigned char>;
  cuda.cuMemsetD2D16Async = LaunchFill<2, unsigned short>;
  cuda.cuMemsetD2D32Async = LaunchFill<4, unsigned int>;
  cuda.cuMemcpy3DAsync = [](const CUDA_MEMCPY3D* copy, CUstream) {
    FakeNode& node = launched.emplace_back();
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.grid = copy->WidthInBytes;
    Set(*copy, &node);
    return CUDA_SUCCESS;
  };
  return libraries;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_DRIVER_H_
