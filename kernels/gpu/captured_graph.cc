#include "kernels/gpu/captured_graph.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include "kernels/gpu/enqueue_lock.h"
#include "kernels/gpu/ptx.h"

namespace cudnn_rnn_tf {
namespace {

// The driver's own fills are faster for more bytes than this.
constexpr size_t kMostFilledByKernel = 64 << 10;
constexpr unsigned int kFillThreads = 256, kFillLanes = 32;

constexpr char kReadGraph[] = "read a graph";
constexpr char kReadNode[] = "read a graph's node";
constexpr char kChangeGraph[] = "change a graph";

const CudaDriver& Cuda() { return Gpu().cuda; }

// The driver does not tell how many arguments a kernel has, but it refuses the
// index after the last.
RnnStatus ArgumentSizes(const CUDA_KERNEL_NODE_PARAMS& kernel,
                        GraphNode::Kernels* kernels,
                        const std::vector<size_t>** argument_sizes) {
  const auto [known, is_new] = kernels->try_emplace({kernel.func, kernel.kern});
  *argument_sizes = &known->second;
  if (!is_new) return {};
  for (size_t i = 0;; ++i) {
    size_t offset, size;
    const CUresult result =
        kernel.func != nullptr
            ? Cuda().cuFuncGetParamInfo(kernel.func, i, &offset, &size)
            : Cuda().cuKernelGetParamInfo(kernel.kern, i, &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) return {};
    CRNN_RETURN_IF_ERROR(CudaStatus(result, "read a kernel's parameters"));
    known->second.push_back(size);
  }
}

bool IsSet(const CUlaunchAttribute& attribute) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      return attribute.value.cooperative != 0;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      return attribute.value.clusterDim.x != 0;
    default:
      return attribute.value.clusterSchedulingPolicyPreference !=
             CU_CLUSTER_SCHEDULING_POLICY_DEFAULT;
  }
}

// Compares two attributes for which IsSet is true.
bool IsSame(const CUlaunchAttribute& a, const CUlaunchAttribute& b) {
  if (a.id != b.id) return false;
  const auto &first = a.value.clusterDim, &second = b.value.clusterDim;
  switch (a.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      return true;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      return first.x == second.x && first.y == second.y && first.z == second.z;
    default:
      return a.value.clusterSchedulingPolicyPreference ==
             b.value.clusterSchedulingPolicyPreference;
  }
}

// The driver returns the value as its caller gave it, so the bits beyond an
// element are ignored.
bool IsSame(const CUDA_MEMSET_NODE_PARAMS& a,
            const CUDA_MEMSET_NODE_PARAMS& b) {
  const uint64_t element = (uint64_t{1} << (8 * a.elementSize)) - 1;
  return a.elementSize == b.elementSize && a.width == b.width &&
         a.height == b.height && (a.height <= 1 || a.pitch == b.pitch) &&
         (a.value & element) == (b.value & element);
}

// Pitches and heights matter only if there are several rows.
bool IsSame(const CUDA_MEMCPY3D& a, const CUDA_MEMCPY3D& b) {
  const bool has_rows = a.Height > 1 || a.Depth > 1;
  return a.WidthInBytes == b.WidthInBytes && a.Height == b.Height &&
         a.Depth == b.Depth && a.srcXInBytes == b.srcXInBytes &&
         a.srcY == b.srcY && a.srcZ == b.srcZ &&
         a.dstXInBytes == b.dstXInBytes && a.dstY == b.dstY &&
         a.dstZ == b.dstZ &&
         (!has_rows ||
          (a.srcPitch == b.srcPitch && a.dstPitch == b.dstPitch &&
           a.srcHeight == b.srcHeight && a.dstHeight == b.dstHeight));
}

// Only copies within device memory can be replayed, since other memory may be
// gone at the next launch. If a copy does not name the type of its memory, the
// driver is asked about the address.
bool IsOfDevice(CUmemorytype type, CUdeviceptr address) {
  unsigned int found = type;
  if (type == CU_MEMORYTYPE_UNIFIED &&
      Cuda().cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   address) != CUDA_SUCCESS) {
    return false;
  }
  return found == CU_MEMORYTYPE_DEVICE;
}

// A kernel that stores `value` to `count` words, one for each thread.
constexpr char kFillName[] = "fill";
constexpr char kFillText[] = R"(.visible .entry fill(
    .param .u64 to, .param .u32 count, .param .u32 value)
{
  .reg .pred %done;
  .reg .b32 %count, %value, %block, %size, %word;
  .reg .b64 %to, %address;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  ld.param.u32 %count, [count];
  ld.param.u32 %value, [value];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %word, %tid.x;
  mad.lo.u32 %word, %block, %size, %word;
  setp.ge.u32 %done, %word, %count;
  @%done bra END;
  mul.wide.u32 %address, %word, 4;
  add.u64 %address, %to, %address;
  st.global.b32 [%address], %value;
END:
  ret;
}
)";

// Returns null if the driver cannot load the kernel.
CUkernel FillKernel() {
  static const CUkernel kernel = [] {
    CUkernel loaded = nullptr;
    return LoadPtx(kFillName, kFillText, &loaded).ok() ? loaded : nullptr;
  }();
  return kernel;
}

CUresult EnqueueFill(const CUDA_MEMSET_NODE_PARAMS& fill, CUstream stream) {
  switch (fill.elementSize) {
    case 1:
      return Cuda().cuMemsetD2D8Async(fill.dst, fill.pitch, fill.value,
                                      fill.width, fill.height, stream);
    case 2:
      return Cuda().cuMemsetD2D16Async(fill.dst, fill.pitch, fill.value,
                                       fill.width, fill.height, stream);
    default:
      return Cuda().cuMemsetD2D32Async(fill.dst, fill.pitch, fill.value,
                                       fill.width, fill.height, stream);
  }
}

}  // namespace

RnnStatus NotReplayable(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented, "cannot be replayed: " + why};
}

RnnStatus GraphNode::Read(CUgraphNode handle, Kernels* kernels,
                          GraphNode* node) {
  node->handle_ = handle;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphNodeGetType(handle, &node->type_), kReadNode));
  switch (node->type_) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return {};
    case CU_GRAPH_NODE_TYPE_MEMSET:
      CRNN_RETURN_IF_ERROR(CudaStatus(
          Cuda().cuGraphMemsetNodeGetParams(handle, &node->fill_), kReadNode));
      node->words_ = {node->fill_.dst};
      return {};
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      CRNN_RETURN_IF_ERROR(CudaStatus(
          Cuda().cuGraphMemcpyNodeGetParams(handle, &node->copy_), kReadNode));
      if (!IsOfDevice(node->copy_.srcMemoryType, node->copy_.srcDevice) ||
          !IsOfDevice(node->copy_.dstMemoryType, node->copy_.dstDevice)) {
        return NotReplayable("it copies memory that is not the device's");
      }
      node->words_ = {node->copy_.srcDevice, node->copy_.dstDevice};
      return {};
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return node->ReadKernel(kernels);
    default:
      return NotReplayable("it has nodes of type " +
                           std::to_string(node->type_));
  }
}

RnnStatus GraphNode::ReadKernel(Kernels* kernels) {
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphKernelNodeGetParams(handle_, &kernel_), kReadNode));
  // A kernel may fail without these attributes, so launches must repeat them.
  for (const CUlaunchAttributeID id :
       {CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE}) {
    CUlaunchAttribute attribute = {};
    attribute.id = id;
    const CUresult result =
        Cuda().cuGraphKernelNodeGetAttribute(handle_, id, &attribute.value);
    // A GPU without clusters may not know the attributes of clusters.
    const bool may_fail = id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    if (result != CUDA_SUCCESS && may_fail) continue;
    CRNN_RETURN_IF_ERROR(CudaStatus(result, kReadNode));
    if (IsSet(attribute)) attributes_.push_back(attribute);
  }
  if (kernel_.extra != nullptr) {
    const void* block = nullptr;
    for (void** entry = kernel_.extra; *entry != CU_LAUNCH_PARAM_END;
         entry += 2) {
      if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER) block = entry[1];
      if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        block_bytes_ = *static_cast<const size_t*>(entry[1]);
      }
    }
    words_.resize((block_bytes_ + sizeof(CUdeviceptr) - 1) /
                  sizeof(CUdeviceptr));
    std::memcpy(words_.data(), block, block_bytes_);
    return {};
  }
  const std::vector<size_t>* argument_sizes;
  CRNN_RETURN_IF_ERROR(ArgumentSizes(kernel_, kernels, &argument_sizes));
  if (kernel_.kernelParams == nullptr && !argument_sizes->empty()) {
    return NotReplayable("a kernel's arguments cannot be read");
  }
  for (size_t i = 0; i < argument_sizes->size(); ++i) {
    const size_t size = (*argument_sizes)[i], begin = words_.size();
    arguments_.push_back(begin);
    words_.resize(begin +
                  (size + sizeof(CUdeviceptr) - 1) / sizeof(CUdeviceptr));
    std::memcpy(&words_[begin], kernel_.kernelParams[i], size);
  }
  return {};
}

bool GraphNode::IsLike(const GraphNode& other) const {
  const CUDA_KERNEL_NODE_PARAMS &a = kernel_, &b = other.kernel_;
  return type_ == other.type_ && words_.size() == other.words_.size() &&
         a.func == b.func && a.kern == b.kern && a.gridDimX == b.gridDimX &&
         a.gridDimY == b.gridDimY && a.gridDimZ == b.gridDimZ &&
         a.blockDimX == b.blockDimX && a.blockDimY == b.blockDimY &&
         a.blockDimZ == b.blockDimZ && a.sharedMemBytes == b.sharedMemBytes &&
         std::equal(attributes_.begin(), attributes_.end(),
                    other.attributes_.begin(), other.attributes_.end(),
                    [](const CUlaunchAttribute& first,
                       const CUlaunchAttribute& second) {
                      return IsSame(first, second);
                    }) &&
         IsSame(copy_, other.copy_) && IsSame(fill_, other.fill_);
}

template <typename Call>
CUresult GraphNode::WithKernel(const Call& call) const {
  // The driver takes pointers to non-const data, but does not change the data.
  auto* const words = const_cast<CUdeviceptr*>(words_.data());
  size_t block_bytes = block_bytes_;
  std::vector<void*> arguments(arguments_.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    arguments[i] = words + arguments_[i];
  }
  void* block[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words,
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &block_bytes,
                   CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_;
  const bool in_block = block_bytes > 0;
  kernel.kernelParams = in_block ? nullptr : arguments.data();
  kernel.extra = in_block ? block : nullptr;
  return call(kernel);
}

CUDA_MEMCPY3D GraphNode::Copy() const {
  CUDA_MEMCPY3D copy = copy_;
  copy.srcDevice = words_[0];
  copy.dstDevice = words_[1];
  return copy;
}

CUDA_MEMSET_NODE_PARAMS GraphNode::Fill() const {
  CUDA_MEMSET_NODE_PARAMS fill = fill_;
  fill.dst = words_[0];
  return fill;
}

RnnStatus GraphNode::Write(CUgraphExec exec, CUcontext context) const {
  CUresult result = CUDA_SUCCESS;
  if (type_ == CU_GRAPH_NODE_TYPE_KERNEL) {
    result = WithKernel([&](const CUDA_KERNEL_NODE_PARAMS& kernel) {
      return exec == nullptr
                 ? Cuda().cuGraphKernelNodeSetParams(handle_, &kernel)
                 : Cuda().cuGraphExecKernelNodeSetParams(exec, handle_,
                                                         &kernel);
    });
  } else if (type_ == CU_GRAPH_NODE_TYPE_MEMSET) {
    const CUDA_MEMSET_NODE_PARAMS fill = Fill();
    result = exec == nullptr ? Cuda().cuGraphMemsetNodeSetParams(handle_, &fill)
                             : Cuda().cuGraphExecMemsetNodeSetParams(
                                   exec, handle_, &fill, context);
  } else if (type_ == CU_GRAPH_NODE_TYPE_MEMCPY) {
    const CUDA_MEMCPY3D copy = Copy();
    result = exec == nullptr ? Cuda().cuGraphMemcpyNodeSetParams(handle_, &copy)
                             : Cuda().cuGraphExecMemcpyNodeSetParams(
                                   exec, handle_, &copy, context);
  }
  return CudaStatus(result, "change a graph's node");
}

void GraphNode::FillByKernel(CUgraph graph) {
  const size_t bytes = fill_.width * fill_.elementSize;
  if (type_ != CU_GRAPH_NODE_TYPE_MEMSET || fill_.height != 1 || bytes == 0 ||
      (fill_.dst | bytes) % sizeof(uint32_t) != 0 ||
      bytes > kMostFilledByKernel || FillKernel() == nullptr) {
    return;
  }
  // The value of an element is repeated to fill a word.
  const uint32_t value =
      fill_.elementSize == 1   ? 0x01010101 * (fill_.value & 0xFF)
      : fill_.elementSize == 2 ? 0x00010001 * (fill_.value & 0xFFFF)
                               : fill_.value;
  const auto count = static_cast<unsigned int>(bytes / sizeof(uint32_t));
  GraphNode made;
  made.type_ = CU_GRAPH_NODE_TYPE_KERNEL;
  made.kernel_.kern = FillKernel();
  made.kernel_.blockDimX = std::min(
      kFillThreads, (count + kFillLanes - 1) / kFillLanes * kFillLanes);
  made.kernel_.gridDimX =
      (count + made.kernel_.blockDimX - 1) / made.kernel_.blockDimX;
  made.kernel_.gridDimY = made.kernel_.gridDimZ = made.kernel_.blockDimY =
      made.kernel_.blockDimZ = 1;
  made.words_ = {fill_.dst, count, value};
  made.arguments_ = {0, 1, 2};
  const CUresult added =
      made.WithKernel([&](const CUDA_KERNEL_NODE_PARAMS& kernel) {
        return Cuda().cuGraphAddKernelNode(&made.handle_, graph, nullptr, 0,
                                           &kernel);
      });
  if (added == CUDA_SUCCESS) *this = std::move(made);
}

RnnStatus GraphNode::Launch(CUstream stream) const {
  CUresult result = CUDA_SUCCESS;
  if (type_ == CU_GRAPH_NODE_TYPE_KERNEL) {
    result = WithKernel([&](const CUDA_KERNEL_NODE_PARAMS& kernel) {
      CUlaunchConfig config = {};
      config.gridDimX = kernel.gridDimX;
      config.gridDimY = kernel.gridDimY;
      config.gridDimZ = kernel.gridDimZ;
      config.blockDimX = kernel.blockDimX;
      config.blockDimY = kernel.blockDimY;
      config.blockDimZ = kernel.blockDimZ;
      config.sharedMemBytes = kernel.sharedMemBytes;
      config.hStream = stream;
      config.attrs = const_cast<CUlaunchAttribute*>(attributes_.data());
      config.numAttrs = attributes_.size();
      return Cuda().cuLaunchKernelEx(
          &config,
          kernel.func != nullptr ? kernel.func
                                 : reinterpret_cast<CUfunction>(kernel.kern),
          kernel.kernelParams, kernel.extra);
    });
  } else if (type_ == CU_GRAPH_NODE_TYPE_MEMSET) {
    result = EnqueueFill(Fill(), stream);
  } else if (type_ == CU_GRAPH_NODE_TYPE_MEMCPY) {
    const CUDA_MEMCPY3D copy = Copy();
    result = Cuda().cuMemcpy3DAsync(&copy, stream);
  }
  return CudaStatus(result, "launch a graph's node");
}

RnnStatus CapturedGraph::Capture(CUstream stream,
                                 const std::function<RnnStatus()>& enqueue,
                                 GraphNode::Kernels* kernels,
                                 CapturedGraph* graph) {
  if (!Gpu().has_graphs) return NotReplayable("the CUDA driver is too old");
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
  CUgraph captured = nullptr;
  const CUresult ended = Cuda().cuStreamEndCapture(stream, &captured);
  graph->graph_.reset(captured);
  CRNN_RETURN_IF_ERROR(status);
  CRNN_RETURN_IF_ERROR(CudaStatus(ended, "capture a graph"));
  CRNN_RETURN_IF_ERROR(graph->ReadNodes(kernels));
  return graph->ReadEdges();
}

RnnStatus CapturedGraph::ReadNodes(GraphNode::Kernels* kernels) {
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphGetNodes(get(), nullptr, &count), kReadGraph));
  std::vector<CUgraphNode> handles(count);
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphGetNodes(get(), handles.data(), &count), kReadGraph));
  nodes_.assign(count, GraphNode());
  for (size_t i = 0; i < count; ++i) {
    CRNN_RETURN_IF_ERROR(GraphNode::Read(handles[i], kernels, &nodes_[i]));
  }
  return {};
}

RnnStatus CapturedGraph::ReadEdges() {
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphGetEdges_v2(get(), nullptr, nullptr, nullptr, &count),
      kReadGraph));
  auto& [from, to, data] = edges_;
  from.resize(count);
  to.resize(count);
  data.resize(count);
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphGetEdges_v2(get(), from.data(), to.data(),
                                           data.data(), &count),
                 kReadGraph));
  const auto edges = EdgesByPlace();
  is_in_order_ = std::all_of(edges.begin(), edges.end(), [](const auto& edge) {
    return edge[0] < edge[1];
  });
  return {};
}

std::vector<std::array<size_t, 5>> CapturedGraph::EdgesByPlace() const {
  std::unordered_map<CUgraphNode, size_t> place;
  for (const GraphNode& node : nodes_) {
    place.emplace(node.handle(), place.size());
  }
  std::vector<std::array<size_t, 5>> edges;
  for (size_t i = 0; i < edges_.from.size(); ++i) {
    const CUgraphEdgeData& data = edges_.data[i];
    edges.push_back({place.at(edges_.from[i]), place.at(edges_.to[i]),
                     data.from_port, data.to_port, data.type});
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

bool CapturedGraph::HasEdgesOf(const CapturedGraph& other) const {
  return EdgesByPlace() == other.EdgesByPlace();
}

RnnStatus CapturedGraph::FillByKernels() {
  std::unordered_map<CUgraphNode, CUgraphNode> replaced;
  for (GraphNode& node : nodes_) {
    const CUgraphNode before = node.handle();
    node.FillByKernel(get());
    if (node.handle() != before) replaced.emplace(before, node.handle());
  }
  // Destroying a node removes its edges too, so the edges are first added again
  // for the new nodes.
  Edges added;
  for (size_t i = 0; i < edges_.from.size(); ++i) {
    const auto from = replaced.find(edges_.from[i]);
    const auto to = replaced.find(edges_.to[i]);
    if (from == replaced.end() && to == replaced.end()) continue;
    if (from != replaced.end()) edges_.from[i] = from->second;
    if (to != replaced.end()) edges_.to[i] = to->second;
    added.from.push_back(edges_.from[i]);
    added.to.push_back(edges_.to[i]);
    added.data.push_back(edges_.data[i]);
  }
  if (!added.from.empty()) {
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Cuda().cuGraphAddDependencies_v2(get(), added.from.data(),
                                         added.to.data(), added.data.data(),
                                         added.from.size()),
        kChangeGraph));
  }
  for (const auto& [before, node] : replaced) {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Cuda().cuGraphDestroyNode(before), kChangeGraph));
  }
  return {};
}

RnnStatus CapturedGraph::LaunchNodes(CUstream stream, bool* has_begun) const {
  const std::lock_guard<std::mutex> lock(EnqueueLock(stream));
  *has_begun = false;
  for (const GraphNode& node : nodes_) {
    CRNN_RETURN_IF_ERROR(node.Launch(stream));
    *has_begun = true;
  }
  return {};
}

}  // namespace cudnn_rnn_tf
