#include "kernels/gpu/graph.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/enqueue_lock.h"

namespace cudnn_rnn_tf {
namespace {

// The memory that a node of an executable graph takes, measured and rounded up.
constexpr size_t kBytesPerNode = 16 << 10;
// The driver's own fills are faster for more bytes than this.
constexpr size_t kMostFilledByKernel = 64 << 10;
constexpr unsigned int kFillThreads = 256;

constexpr char kReadGraph[] = "read a graph";
constexpr char kChangeGraph[] = "change a graph";

const CudaDriver& Cuda() { return Gpu().cuda; }

RnnStatus NotRepeatable(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented, "a graph cannot repeat it: " + why};
}

// If a copy does not name the type of its memory, the driver is asked about the
// address.
bool IsOfDevice(CUmemorytype type, CUdeviceptr address) {
  unsigned int found = type;
  if (type == CU_MEMORYTYPE_UNIFIED &&
      Cuda().cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   address) != CUDA_SUCCESS) {
    return false;
  }
  return found == CU_MEMORYTYPE_DEVICE;
}

// Other memory than the device's may be gone, or hold something else, at the
// next launch.
RnnStatus CheckNode(CUgraphNode node, CUgraphNodeType type) {
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    CUDA_MEMCPY3D copy;
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Cuda().cuGraphMemcpyNodeGetParams(node, &copy), kReadGraph));
    return IsOfDevice(copy.srcMemoryType, copy.srcDevice) &&
                   IsOfDevice(copy.dstMemoryType, copy.dstDevice)
               ? RnnStatus()
               : NotRepeatable("it copies memory that is not the device's");
  }
  return type == CU_GRAPH_NODE_TYPE_EMPTY ||
                 type == CU_GRAPH_NODE_TYPE_KERNEL ||
                 type == CU_GRAPH_NODE_TYPE_MEMSET
             ? RnnStatus()
             : NotRepeatable("it has nodes of type " + std::to_string(type));
}

// Adds a node that does what a small fill does, with a kernel of ours, and that
// waits for no other node. `added` stays null if the fill is no small one, or
// if the kernel cannot be had.
RnnStatus AddFill(CUgraph graph, CUgraphNode node, CUgraphNode* added) {
  CUDA_MEMSET_NODE_PARAMS fill;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphMemsetNodeGetParams(node, &fill), kReadGraph));
  const size_t bytes = fill.width * fill.elementSize;
  CUkernel kernel;
  if (fill.height != 1 || bytes == 0 ||
      (fill.dst | bytes) % sizeof(uint32_t) != 0 ||
      bytes > kMostFilledByKernel ||
      !CompileKernel("fill.cu", "fill", {}, &kernel).ok()) {
    return {};
  }
  // The value of an element is repeated to fill a word.
  uint32_t value = fill.elementSize == 1   ? 0x01010101 * (fill.value & 0xFF)
                   : fill.elementSize == 2 ? 0x00010001 * (fill.value & 0xFFFF)
                                           : fill.value;
  auto count = static_cast<unsigned int>(bytes / sizeof(uint32_t));
  void* arguments[] = {&fill.dst, &count, &value};
  CUDA_KERNEL_NODE_PARAMS launch = {};
  launch.kern = kernel;
  launch.gridDimX = CeilDiv(count, kFillThreads);
  launch.blockDimX = kFillThreads;
  launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1;
  launch.kernelParams = arguments;
  if (Cuda().cuGraphAddKernelNode(added, graph, nullptr, 0, &launch) !=
      CUDA_SUCCESS) {
    *added = nullptr;
  }
  return {};
}

// Replaces small fills by kernels of ours. On an H200, in graphs of empty
// kernels that take 0.5 µs each, a memset takes 2 µs, and if the graph has
// forks as well, every node takes 2 µs. cuDNN's matrix products in float32 and
// TF32 contain a memset of a few bytes for each step.
RnnStatus FillByKernels(CUgraph graph, const std::vector<CUgraphNode>& fills) {
  std::unordered_map<CUgraphNode, CUgraphNode> replaced;
  for (const CUgraphNode fill : fills) {
    CUgraphNode added = nullptr;
    CRNN_RETURN_IF_ERROR(AddFill(graph, fill, &added));
    if (added != nullptr) replaced.emplace(fill, added);
  }
  if (replaced.empty()) return {};
  // An edge leads from one node to another that waits for it.
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count),
      kReadGraph));
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphGetEdges_v2(graph, from.data(), to.data(),
                                           data.data(), &count),
                 kReadGraph));
  for (size_t i = 0; i < count; ++i) {
    const auto new_from = replaced.find(from[i]), new_to = replaced.find(to[i]);
    if (new_from == replaced.end() && new_to == replaced.end()) continue;
    if (new_from != replaced.end()) from[i] = new_from->second;
    if (new_to != replaced.end()) to[i] = new_to->second;
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Cuda().cuGraphAddDependencies_v2(graph, &from[i], &to[i], &data[i], 1),
        kChangeGraph));
  }
  // Destroying a node removes its edges too.
  for (const auto& [fill, kernel] : replaced) {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Cuda().cuGraphDestroyNode(fill), kChangeGraph));
  }
  return {};
}

struct DestroyGraph {
  void operator()(CUgraph graph) const { Cuda().cuGraphDestroy(graph); }
};
using OwnedGraph = std::unique_ptr<CUgraph_st, DestroyGraph>;

RnnStatus Record(CUstream stream, const std::function<RnnStatus()>& enqueue,
                 OwnedGraph* graph) {
  // The mode is relaxed, since cuDNN may load kernels and allocate memory
  // during the capture, and calls of other threads must not end it.
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
      "begin a capture"));
  RnnStatus status;
  try {
    status = enqueue();
  } catch (const std::bad_alloc&) {
    // The capture must end in any case, since the stream captures again later.
    status = {RnnStatus::Code::kResourceExhausted, "out of memory"};
  }
  CUgraph recorded = nullptr;
  const CUresult ended = Cuda().cuStreamEndCapture(stream, &recorded);
  graph->reset(recorded);
  return status.ok() ? CudaStatus(ended, "capture a graph") : status;
}

}  // namespace

RnnStatus Graph::Capture(CUstream stream,
                         const std::function<RnnStatus()>& enqueue,
                         Graph* graph) {
  OwnedGraph recorded;
  CRNN_RETURN_IF_ERROR(Record(stream, enqueue, &recorded));
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphGetNodes(recorded.get(), nullptr, &count), kReadGraph));
  std::vector<CUgraphNode> nodes(count), fills;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphGetNodes(recorded.get(), nodes.data(), &count),
                 kReadGraph));
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type;
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Cuda().cuGraphNodeGetType(node, &type), kReadGraph));
    CRNN_RETURN_IF_ERROR(CheckNode(node, type));
    if (type == CU_GRAPH_NODE_TYPE_MEMSET) fills.push_back(node);
  }
  CRNN_RETURN_IF_ERROR(FillByKernels(recorded.get(), fills));
  CUgraphExec exec = nullptr;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphInstantiate(&exec, recorded.get(), 0),
                 "make a graph executable"));
  graph->exec_.reset(exec);
  graph->bytes_ = nodes.size() * kBytesPerNode;
  return {};
}

RnnStatus Graph::Launch(CUstream stream) const {
  const std::lock_guard<std::mutex> lock(EnqueueLock(stream));
  return CudaStatus(Cuda().cuGraphLaunch(exec_.get(), stream),
                    "launch a graph");
}

}  // namespace cudnn_rnn_tf
