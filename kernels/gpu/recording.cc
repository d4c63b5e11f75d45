#include "kernels/gpu/recording.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"

namespace cudnn_rnn_tf {
namespace {

// The driver's own fills are faster for more bytes than this.
constexpr size_t kMostFilledByKernel = 64 << 10;
constexpr unsigned int kFillThreads = 256, kWarp = 32;

const CudaDriver& Cuda() { return Gpu().cuda; }
RnnStatus Read(CUresult result) { return CudaStatus(result, "read a graph"); }
RnnStatus Change(CUresult result) {
  return CudaStatus(result, "change a graph");
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

// The sizes in bytes of the arguments of each kernel.
using Kernels = std::map<std::pair<CUfunction, CUkernel>, std::vector<size_t>>;

RnnStatus ArgumentSizes(const CUDA_KERNEL_NODE_PARAMS& kernel, Kernels* kernels,
                        const std::vector<size_t>** sizes) {
  const auto [known, is_new] = kernels->try_emplace({kernel.func, kernel.kern});
  *sizes = &known->second;
  if (!is_new) return {};
  return kernel.func != nullptr ? ReadParameters(Cuda().cuFuncGetParamInfo,
                                                 kernel.func, &known->second)
                                : ReadParameters(Cuda().cuKernelGetParamInfo,
                                                 kernel.kern, &known->second);
}

// Appends bytes to the node's words, beginning at a word of their own.
void AppendWords(const void* bytes, size_t size, RecordedNode* node) {
  const size_t begin = node->words.size();
  node->words.resize(begin + CeilDiv(size, sizeof(CUdeviceptr)));
  std::memcpy(&node->words[begin], bytes, size);
}

RnnStatus ReadKernel(Kernels* kernels, RecordedNode* node) {
  CUDA_KERNEL_NODE_PARAMS& kernel = node->kernel;
  CRNN_RETURN_IF_ERROR(
      Read(Cuda().cuGraphKernelNodeGetParams(node->handle, &kernel)));
  if (kernel.extra != nullptr) {
    const void* block = nullptr;
    for (void** entry = kernel.extra; *entry != CU_LAUNCH_PARAM_END;
         entry += 2) {
      if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER) block = entry[1];
      if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        node->block_bytes = *static_cast<const size_t*>(entry[1]);
      }
    }
    AppendWords(block, node->block_bytes, node);
    return {};
  }
  const std::vector<size_t>* sizes;
  CRNN_RETURN_IF_ERROR(ArgumentSizes(kernel, kernels, &sizes));
  if (kernel.kernelParams == nullptr && !sizes->empty()) {
    return NotRepeatable("a kernel's arguments cannot be read");
  }
  for (size_t i = 0; i < sizes->size(); ++i) {
    node->arguments.push_back(node->words.size());
    AppendWords(kernel.kernelParams[i], (*sizes)[i], node);
  }
  return {};
}

// Other memory than the device's may be gone, or hold something else, at the
// next launch.
RnnStatus ReadNode(Kernels* kernels, RecordedNode* node) {
  switch (node->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return {};
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return ReadKernel(kernels, node);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      CRNN_RETURN_IF_ERROR(
          Read(Cuda().cuGraphMemsetNodeGetParams(node->handle, &node->fill)));
      node->words = {node->fill.dst};
      return {};
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      CRNN_RETURN_IF_ERROR(
          Read(Cuda().cuGraphMemcpyNodeGetParams(node->handle, &node->copy)));
      node->words = {node->copy.srcDevice, node->copy.dstDevice};
      return IsOfDevice(node->copy.srcMemoryType, node->copy.srcDevice) &&
                     IsOfDevice(node->copy.dstMemoryType, node->copy.dstDevice)
                 ? RnnStatus()
                 : NotRepeatable("it copies memory that is not the device's");
    default:
      return NotRepeatable("it has nodes of type " +
                           std::to_string(node->type));
  }
}

// Adds a node that does what a small fill does, with a kernel of ours, and that
// waits for no other node. Returns null if the fill is no small one, or if the
// kernel cannot be had.
CUgraphNode AddFill(CUgraph graph, CUDA_MEMSET_NODE_PARAMS fill) {
  const size_t bytes = fill.width * fill.elementSize;
  CompiledKernel kernel;
  if (fill.height != 1 || bytes == 0 ||
      (fill.dst | bytes) % sizeof(uint32_t) != 0 ||
      bytes > kMostFilledByKernel ||
      !CompileKernel("fill.cu", "fill", {}, &kernel).ok()) {
    return nullptr;
  }
  // The value of an element is repeated to fill a word.
  uint32_t value = fill.elementSize == 1   ? 0x01010101 * (fill.value & 0xFF)
                   : fill.elementSize == 2 ? 0x00010001 * (fill.value & 0xFFFF)
                                           : fill.value;
  auto count = static_cast<unsigned int>(bytes / sizeof(uint32_t));
  void* arguments[] = {&fill.dst, &count, &value};
  CUDA_KERNEL_NODE_PARAMS launch = {};
  launch.kern = kernel.handle;
  // A larger block than needed takes longer to start.
  launch.blockDimX =
      std::min(kFillThreads, kWarp * CeilDiv<unsigned int>(count, kWarp));
  launch.gridDimX = CeilDiv(count, launch.blockDimX);
  launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1;
  launch.kernelParams = arguments;
  CUgraphNode added = nullptr;
  return Cuda().cuGraphAddKernelNode(&added, graph, nullptr, 0, &launch) ==
                 CUDA_SUCCESS
             ? added
             : nullptr;
}

}  // namespace

RnnStatus NotRepeatable(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented, "a graph cannot repeat it: " + why};
}

bool RecordedNode::IsLike(const RecordedNode& other) const {
  const auto launch = [](const CUDA_KERNEL_NODE_PARAMS& kernel) {
    return std::make_tuple(kernel.func, kernel.kern, kernel.gridDimX,
                           kernel.gridDimY, kernel.gridDimZ, kernel.blockDimX,
                           kernel.blockDimY, kernel.blockDimZ,
                           kernel.sharedMemBytes);
  };
  return type == other.type && words.size() == other.words.size() &&
         launch(kernel) == launch(other.kernel) &&
         copy.WidthInBytes == other.copy.WidthInBytes &&
         copy.Height == other.copy.Height && copy.Depth == other.copy.Depth &&
         fill.width == other.fill.width && fill.height == other.fill.height;
}

RnnStatus RecordedNode::WriteTo(CUgraphExec exec) const {
  CUcontext context = nullptr;
  if (type != CU_GRAPH_NODE_TYPE_KERNEL) {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Cuda().cuCtxGetCurrent(&context), "name a context"));
  }
  CUresult result = CUDA_SUCCESS;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    std::vector<CUdeviceptr> values = words;
    std::vector<void*> pointers;
    for (const size_t begin : arguments) pointers.push_back(&values[begin]);
    size_t bytes = block_bytes;
    void* block[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, values.data(),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CUDA_KERNEL_NODE_PARAMS launch = kernel;
    launch.kernelParams = bytes == 0 ? pointers.data() : nullptr;
    launch.extra = bytes == 0 ? nullptr : block;
    result = exec == nullptr
                 ? Cuda().cuGraphKernelNodeSetParams(handle, &launch)
                 : Cuda().cuGraphExecKernelNodeSetParams(exec, handle, &launch);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
    CUDA_MEMSET_NODE_PARAMS moved = fill;
    moved.dst = words[0];
    result = exec == nullptr ? Cuda().cuGraphMemsetNodeSetParams(handle, &moved)
                             : Cuda().cuGraphExecMemsetNodeSetParams(
                                   exec, handle, &moved, context);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    CUDA_MEMCPY3D moved = copy;
    moved.srcDevice = words[0];
    moved.dstDevice = words[1];
    result = exec == nullptr ? Cuda().cuGraphMemcpyNodeSetParams(handle, &moved)
                             : Cuda().cuGraphExecMemcpyNodeSetParams(
                                   exec, handle, &moved, context);
  }
  return Change(result);
}

RnnStatus Recording::Make(CUstream stream,
                          const std::function<RnnStatus()>& enqueue,
                          Recording* recording) {
  // The mode is relaxed, since cuDNN may load kernels and allocate memory
  // during the capture, and calls of other threads must not end it.
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
      "begin a capture"));
  RnnStatus status;
  try {
    status = enqueue();
  } catch (...) {
    // The capture must end in any case, since the stream captures again later.
    // Callers then enqueue the pass itself, which throws again if it must.
    status = {RnnStatus::Code::kInternal, "recording threw an exception"};
  }
  CUgraph recorded = nullptr;
  const CUresult ended = Cuda().cuStreamEndCapture(stream, &recorded);
  recording->graph_.reset(recorded);
  CRNN_RETURN_IF_ERROR(status);
  CRNN_RETURN_IF_ERROR(CudaStatus(ended, "capture a graph"));
  CRNN_RETURN_IF_ERROR(recording->ReadNodes());
  return recording->FillByKernels();
}

RnnStatus Recording::ReadNodes() {
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(
      Read(Cuda().cuGraphGetNodes(graph_.get(), nullptr, &count)));
  std::vector<CUgraphNode> handles(count);
  CRNN_RETURN_IF_ERROR(
      Read(Cuda().cuGraphGetNodes(graph_.get(), handles.data(), &count)));
  nodes_.assign(count, RecordedNode());
  Kernels kernels;
  for (size_t i = 0; i < count; ++i) {
    nodes_[i].handle = handles[i];
    CRNN_RETURN_IF_ERROR(
        Read(Cuda().cuGraphNodeGetType(handles[i], &nodes_[i].type)));
    CRNN_RETURN_IF_ERROR(ReadNode(&kernels, &nodes_[i]));
  }
  return {};
}

// Replaces small fills by kernels of ours. On an H200, in graphs of empty
// kernels that take 0.5 µs each, a memset takes 2 µs, and if the graph has
// forks as well, every node takes 2 µs. cuDNN's matrix products in float32 and
// TF32 contain a memset of a few bytes for each step.
RnnStatus Recording::FillByKernels() {
  CUgraph const graph = graph_.get();
  Kernels kernels;
  std::unordered_map<CUgraphNode, CUgraphNode> replaced;
  for (RecordedNode& node : nodes_) {
    if (node.type != CU_GRAPH_NODE_TYPE_MEMSET) continue;
    CUgraphNode const added = AddFill(graph, node.fill);
    if (added == nullptr) continue;
    replaced.emplace(node.handle, added);
    node = RecordedNode();
    node.handle = added;
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    CRNN_RETURN_IF_ERROR(ReadNode(&kernels, &node));
  }
  if (replaced.empty()) return {};
  // An edge leads from one node to another that waits for it.
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(Read(
      Cuda().cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count)));
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  CRNN_RETURN_IF_ERROR(Read(Cuda().cuGraphGetEdges_v2(
      graph, from.data(), to.data(), data.data(), &count)));
  for (size_t i = 0; i < count; ++i) {
    const auto new_from = replaced.find(from[i]), new_to = replaced.find(to[i]);
    if (new_from == replaced.end() && new_to == replaced.end()) continue;
    if (new_from != replaced.end()) from[i] = new_from->second;
    if (new_to != replaced.end()) to[i] = new_to->second;
    CRNN_RETURN_IF_ERROR(Change(Cuda().cuGraphAddDependencies_v2(
        graph, &from[i], &to[i], &data[i], 1)));
  }
  // Destroying a node removes its edges too.
  for (const auto& [fill, kernel] : replaced) {
    CRNN_RETURN_IF_ERROR(Change(Cuda().cuGraphDestroyNode(fill)));
  }
  return {};
}

}  // namespace cudnn_rnn_tf
