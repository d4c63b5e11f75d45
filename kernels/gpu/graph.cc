#include "kernels/gpu/graph.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"

namespace cudnn_rnn_tf {
namespace {

// The memory that a node of an executable graph takes, measured and rounded up.
constexpr size_t kBytesPerNode = 16 << 10;
// The driver's own fills are faster for more bytes than this.
constexpr size_t kMostFilledByKernel = 64 << 10;
constexpr unsigned int kFillThreads = 256, kWarp = 32;

const CudaDriver& Cuda() { return Gpu().cuda; }

RnnStatus OfGraph(CUresult result) {
  return CudaStatus(result, "read or change a graph");
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

// cuDNN could copy from memory of the host, which may be gone, or hold
// something else, at the next launch.
RnnStatus CheckCopy(CUgraphNode node) {
  CUDA_MEMCPY3D copy = {};
  CRNN_RETURN_IF_ERROR(OfGraph(Cuda().cuGraphMemcpyNodeGetParams(node, &copy)));
  return IsOfDevice(copy.srcMemoryType, copy.srcDevice) &&
                 IsOfDevice(copy.dstMemoryType, copy.dstDevice)
             ? RnnStatus()
             : NotRepeatable("it copies memory that is not the device's");
}

// Replaces a small fill by a kernel of ours, if that can be had. On an H200, in
// graphs of empty kernels that take 0.5 µs each, a memset takes 2 µs, and if
// the graph has forks as well, every node takes 2 µs. cuDNN's matrix products
// in float32 and TF32 contain a memset of a few bytes for each step.
RnnStatus FillByKernel(CUgraph graph, CUgraphNode node) {
  CUDA_MEMSET_NODE_PARAMS fill = {};
  CRNN_RETURN_IF_ERROR(OfGraph(Cuda().cuGraphMemsetNodeGetParams(node, &fill)));
  const size_t bytes = fill.width * fill.elementSize;
  // A fill with more neighbours stays what it is, as does one whose edges are
  // of another kind than usual, which the driver refuses to read.
  constexpr size_t kMost = 16;
  CUgraphNode before[kMost], after[kMost], added = nullptr;
  size_t num_before = kMost, num_after = kMost;
  CUkernel kernel;
  if (fill.height != 1 || bytes == 0 || bytes > kMostFilledByKernel ||
      (fill.dst | bytes) % sizeof(uint32_t) != 0 ||
      Cuda().cuGraphNodeGetDependencies_v2(node, before, nullptr,
                                           &num_before) != CUDA_SUCCESS ||
      Cuda().cuGraphNodeGetDependentNodes_v2(node, after, nullptr,
                                             &num_after) != CUDA_SUCCESS ||
      num_before == kMost || num_after == kMost ||
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
  // A larger block than needed takes longer to start.
  launch.blockDimX =
      std::min(kFillThreads, kWarp * CeilDiv<unsigned int>(count, kWarp));
  launch.gridDimX = CeilDiv(count, launch.blockDimX);
  launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1;
  launch.kernelParams = arguments;
  CRNN_RETURN_IF_ERROR(OfGraph(
      Cuda().cuGraphAddKernelNode(&added, graph, before, num_before, &launch)));
  const std::vector<CUgraphNode> from(num_after, added);
  CRNN_RETURN_IF_ERROR(OfGraph(Cuda().cuGraphAddDependencies_v2(
      graph, from.data(), after, nullptr, num_after)));
  return OfGraph(Cuda().cuGraphDestroyNode(node));
}

}  // namespace

RnnStatus Graph::Make(CUstream stream,
                      const std::function<RnnStatus()>& enqueue,
                      std::unique_ptr<Graph>* graph) {
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
  const auto destroy = [](CUgraph made) { Cuda().cuGraphDestroy(made); };
  const std::unique_ptr<CUgraph_st, decltype(destroy)> owner(recorded, destroy);
  CRNN_RETURN_IF_ERROR(status);
  CRNN_RETURN_IF_ERROR(CudaStatus(ended, "capture a graph"));
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(
      OfGraph(Cuda().cuGraphGetNodes(recorded, nullptr, &count)));
  if (count > kMaxBytes / kBytesPerNode) {
    return NotRepeatable("it is too large");
  }
  std::vector<CUgraphNode> nodes(count);
  CRNN_RETURN_IF_ERROR(
      OfGraph(Cuda().cuGraphGetNodes(recorded, nodes.data(), &count)));
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type;
    CRNN_RETURN_IF_ERROR(OfGraph(Cuda().cuGraphNodeGetType(node, &type)));
    if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
      CRNN_RETURN_IF_ERROR(FillByKernel(recorded, node));
    } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      CRNN_RETURN_IF_ERROR(CheckCopy(node));
    } else if (type != CU_GRAPH_NODE_TYPE_KERNEL &&
               type != CU_GRAPH_NODE_TYPE_EMPTY) {
      return NotRepeatable("it has nodes of type " + std::to_string(type));
    }
  }
  CUgraphExec exec = nullptr;
  CRNN_RETURN_IF_ERROR(CudaStatus(Cuda().cuGraphInstantiate(&exec, recorded, 0),
                                  "make a graph executable"));
  graph->reset(new Graph(exec, count * kBytesPerNode));
  return {};
}

}  // namespace cudnn_rnn_tf
