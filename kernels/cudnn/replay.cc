#include "kernels/cudnn/replay.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

namespace cudnn_rnn_tf {
namespace {

constexpr CUdeviceptr kAlignment = 256;
// Of a node, host and device memory together, as measured, rounded up.
constexpr size_t kBytesPerNode = 16 << 10;
// Some kernels' arguments have gaps that hold what the stack held before, which
// the next captures do not see again.
constexpr int kAttempts = 3;
constexpr size_t kMaxInstances = 64;
// Of one pass and of all. A pass may always have two instances.
constexpr size_t kMaxInstanceBytes = size_t{128} << 20;
constexpr size_t kMaxInstanceBytesOfAll = size_t{256} << 20;
// Rewriting no more than this part of the nodes costs next to nothing.
constexpr size_t kNearPart = 16;
// Addresses that come again within so many launches are worth an instance.
constexpr size_t kRecent = 64;

const CudaDriver& Cuda() { return Gpu().cuda; }

RnnStatus NotReplayable(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented, "cannot be replayed: " + why};
}

// By how much the second capture moves a buffer. The difference of two odd
// multiples is no odd multiple, so that a difference of two addresses is not
// taken for an address.
CUdeviceptr MoveOf(int buffer) {
  return (2 * static_cast<CUdeviceptr>(buffer) + 1) * kAlignment;
}
static_assert(2 * (2 * kNumCallBuffers * kAlignment) <= Replay::kRegionSlack);

// The buffers that stand elsewhere, a bit for each.
uint32_t Changed(const CallAddresses& before, const CallAddresses& now) {
  uint32_t changed = 0;
  for (int i = 0; i < kNumCallBuffers; ++i) {
    if (before[i] != now[i]) changed |= uint32_t{1} << i;
  }
  return changed;
}

std::atomic<size_t>& BytesOfAll() {
  static std::atomic<size_t> bytes = 0;
  return bytes;
}

std::atomic<int64_t>& LaunchesOfAll() {
  static std::atomic<int64_t> launches = 0;
  return launches;
}

std::atomic<int64_t>& LaunchedOnceOfAll() {
  static std::atomic<int64_t> replays = 0;
  return replays;
}

}  // namespace

bool Replay::Fits(const CallAddresses& addresses) {
  for (const CUdeviceptr address : addresses) {
    if (address % kAlignment != 0) return false;
  }
  return true;
}

size_t Replay::TotalBytes() { return BytesOfAll(); }

int64_t Replay::TotalLaunches() { return LaunchesOfAll(); }

int64_t Replay::NumLaunchedOnce() { return LaunchedOnceOfAll(); }

Replay::~Replay() { Forget(); }

void Replay::Forget() {
  instances_.clear();
  rewritten_ = {};
  missed_.clear();
  BytesOfAll() -= bytes_;
  bytes_ = 0;
}

RnnStatus Replay::Capture(CUstream stream, CUdeviceptr region,
                          const std::array<bool, kNumCallBuffers>& used,
                          const Enqueue& enqueue,
                          std::unique_ptr<Replay>* replay) {
  if (!Gpu().has_graphs) return NotReplayable("the CUDA driver is too old");
  std::unique_ptr<Replay> made(new Replay);
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuCtxGetCurrent(&made->context_), "name its context"));
  CallAddresses addresses = {}, distances = {}, moved_addresses = {};
  for (int i = 0; i < kNumCallBuffers; ++i) {
    if (!used[i]) continue;
    // No two are the same, so that nothing runs as if in place.
    addresses[i] = region + 2 * i * kAlignment;
    distances[i] = MoveOf(i);
    moved_addresses[i] = addresses[i] + distances[i];
  }
  Kernels kernels;
  std::vector<Node> nodes;
  RnnStatus found;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Graph moved_graph;
    std::vector<Node> moved;
    CRNN_RETURN_IF_ERROR(
        CaptureGraph(stream, addresses, enqueue, &made->graph_));
    CRNN_RETURN_IF_ERROR(
        CaptureGraph(stream, moved_addresses, enqueue, &moved_graph));
    CRNN_RETURN_IF_ERROR(ReadNodes(made->graph_.get(), &kernels, &nodes));
    CRNN_RETURN_IF_ERROR(ReadNodes(moved_graph.get(), &kernels, &moved));
    found = FindPatches(moved, addresses, distances, &nodes);
    if (found.ok()) break;
  }
  CRNN_RETURN_IF_ERROR(found);
  made->num_nodes_ = nodes.size();
  for (Node& node : nodes) {
    if (node.patches.empty()) continue;
    ++made->num_nodes_by_buffers_[node.buffers];
    made->nodes_.push_back(std::move(node));
  }
  *replay = std::move(made);
  return {};
}

RnnStatus Replay::Instantiate(const CallAddresses& addresses,
                              Instance* instance) {
  // Seen for networks with projections: the driver refuses in the graph what it
  // takes in the executable graph.
  std::vector<Node*> refused;
  for (Node& node : nodes_) {
    if (!Rewrite(&node, addresses, nullptr).ok()) refused.push_back(&node);
  }
  CUgraphExec instantiated = nullptr;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphInstantiate(&instantiated, graph_.get(), 0),
                 "instantiate a graph"));
  Exec exec(instantiated);
  for (Node* const node : refused) {
    CRNN_RETURN_IF_ERROR(Rewrite(node, addresses, exec.get()));
  }
  if (instance->exec == nullptr) {
    const size_t bytes = num_nodes_ * kBytesPerNode;
    bytes_ += bytes;
    BytesOfAll() += bytes;
  }
  instance->exec = std::move(exec);
  instance->addresses = addresses;
  return {};
}

RnnStatus Replay::CaptureGraph(CUstream stream, const CallAddresses& addresses,
                               const Enqueue& enqueue, Graph* graph) {
  // Relaxed: cuDNN may load kernels and allocate meanwhile, and what other
  // threads do is no business of this capture.
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
      "begin a capture"));
  const RnnStatus status = enqueue(addresses);
  CUgraph captured = nullptr;
  const CUresult ended = Cuda().cuStreamEndCapture(stream, &captured);
  graph->reset(captured);
  CRNN_RETURN_IF_ERROR(status);
  return CudaStatus(ended, "capture a graph");
}

RnnStatus Replay::ReadNodes(CUgraph graph, Kernels* kernels,
                            std::vector<Node>* nodes) {
  size_t count = 0;
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphGetNodes(graph, nullptr, &count), "read a graph"));
  std::vector<CUgraphNode> handles(count);
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphGetNodes(graph, handles.data(), &count), "read a graph"));
  nodes->assign(count, Node());
  for (size_t i = 0; i < count; ++i) {
    (*nodes)[i].node = handles[i];
    CRNN_RETURN_IF_ERROR(ReadNode(kernels, &(*nodes)[i]));
  }
  return {};
}

RnnStatus Replay::ReadNode(Kernels* kernels, Node* node) {
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphNodeGetType(node->node, &node->type),
                 "read a graph's node"));
  switch (node->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return {};
    case CU_GRAPH_NODE_TYPE_MEMSET:
      CRNN_RETURN_IF_ERROR(
          CudaStatus(Cuda().cuGraphMemsetNodeGetParams(node->node, &node->fill),
                     "read a graph's node"));
      node->words = {node->fill.dst};
      return {};
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      CRNN_RETURN_IF_ERROR(
          CudaStatus(Cuda().cuGraphMemcpyNodeGetParams(node->node, &node->copy),
                     "read a graph's node"));
      if (node->copy.srcMemoryType == CU_MEMORYTYPE_HOST ||
          node->copy.dstMemoryType == CU_MEMORYTYPE_HOST) {
        // That memory may be gone at the next launch.
        return NotReplayable("it copies host memory");
      }
      node->words = {node->copy.srcDevice, node->copy.dstDevice};
      return {};
    case CU_GRAPH_NODE_TYPE_KERNEL:
      break;
    default:
      return NotReplayable("it has nodes of type " +
                           std::to_string(node->type));
  }
  CUDA_KERNEL_NODE_PARAMS& kernel = node->kernel;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphKernelNodeGetParams(node->node, &kernel),
                 "read a graph's node"));
  if (kernel.extra != nullptr) {
    const void* block = nullptr;
    for (void** entry = kernel.extra; *entry != CU_LAUNCH_PARAM_END;
         entry += 2) {
      if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER) block = entry[1];
      if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        node->block_bytes = *static_cast<const size_t*>(entry[1]);
      }
    }
    node->words.resize((node->block_bytes + sizeof(CUdeviceptr) - 1) /
                       sizeof(CUdeviceptr));
    std::memcpy(node->words.data(), block, node->block_bytes);
    return {};
  }
  const std::vector<size_t>* argument_sizes;
  CRNN_RETURN_IF_ERROR(ArgumentSizes(kernel, kernels, &argument_sizes));
  if (kernel.kernelParams == nullptr && !argument_sizes->empty()) {
    return NotReplayable("a kernel's arguments cannot be read");
  }
  for (size_t i = 0; i < argument_sizes->size(); ++i) {
    const size_t size = (*argument_sizes)[i], begin = node->words.size();
    node->arguments.push_back(begin);
    node->words.resize(begin +
                       (size + sizeof(CUdeviceptr) - 1) / sizeof(CUdeviceptr));
    std::memcpy(&node->words[begin], kernel.kernelParams[i], size);
  }
  return {};
}

// The driver tells no number of arguments: it refuses the one after the last.
RnnStatus Replay::ArgumentSizes(const CUDA_KERNEL_NODE_PARAMS& kernel,
                                Kernels* kernels,
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

RnnStatus Replay::FindPatches(const std::vector<Node>& moved,
                              const CallAddresses& addresses,
                              const CallAddresses& distances,
                              std::vector<Node>* nodes) {
  if (moved.size() != nodes->size()) {
    return NotReplayable("its kernels depend on addresses");
  }
  for (size_t i = 0; i < moved.size(); ++i) {
    Node& node = (*nodes)[i];
    const Node& other = moved[i];
    if (node.type != other.type || node.words.size() != other.words.size()) {
      return NotReplayable("its kernels depend on addresses");
    }
    if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) {
      const CUDA_KERNEL_NODE_PARAMS &a = node.kernel, &b = other.kernel;
      if (a.func != b.func || a.kern != b.kern || a.gridDimX != b.gridDimX ||
          a.gridDimY != b.gridDimY || a.gridDimZ != b.gridDimZ ||
          a.blockDimX != b.blockDimX || a.blockDimY != b.blockDimY ||
          a.blockDimZ != b.blockDimZ || a.sharedMemBytes != b.sharedMemBytes) {
        return NotReplayable("its kernels depend on addresses");
      }
    }
    for (size_t word = 0; word < node.words.size(); ++word) {
      const CUdeviceptr difference = other.words[word] - node.words[word];
      if (difference == 0) continue;
      int buffer = 0;
      while (buffer < kNumCallBuffers && distances[buffer] != difference) {
        ++buffer;
      }
      if (buffer == kNumCallBuffers) {
        return NotReplayable("an argument of a kernel follows the addresses");
      }
      node.patches.push_back({word, static_cast<CallBuffer>(buffer),
                              node.words[word] - addresses[buffer]});
      node.buffers |= uint32_t{1} << buffer;
    }
  }
  return {};
}

size_t Replay::NumNodesWith(uint32_t buffers) const {
  size_t count = 0;
  for (const auto& [named, nodes] : num_nodes_by_buffers_) {
    if ((named & buffers) != 0) count += nodes;
  }
  return count;
}

RnnStatus Replay::Launch(CUstream stream, const CallAddresses& addresses) {
  ++launches_;
  Instance* instance;
  CRNN_RETURN_IF_ERROR(InstanceOver(addresses, &instance));
  instance->last_launch = launches_;
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphLaunch(instance->exec.get(), stream), "launch a graph"));
  ++LaunchesOfAll();
  if (launches_ == 1) ++LaunchedOnceOfAll();
  if (launches_ == 2) --LaunchedOnceOfAll();
  return {};
}

RnnStatus Replay::InstanceOver(const CallAddresses& addresses,
                               Instance** instance) {
  const auto same = std::find_if(
      instances_.begin(), instances_.end(),
      [&](const Instance& one) { return one.addresses == addresses; });
  if (same != instances_.end()) {
    *instance = &*same;
    return {};
  }
  Instance* nearest = &rewritten_;
  size_t distance = num_nodes_;
  for (Instance& one : instances_) {
    const size_t other = NumNodesWith(Changed(one.addresses, addresses));
    if (other < distance) {
      nearest = &one;
      distance = other;
    }
  }
  if (distance > num_nodes_ / kNearPart) {
    if (Instance* const own = OwnInstance(addresses)) {
      *instance = own;
      return Instantiate(addresses, own);
    }
    nearest = &rewritten_;
  }
  *instance = nearest;
  return nearest->exec == nullptr ? Instantiate(addresses, nearest)
                                  : Move(addresses, nearest);
}

Replay::Instance* Replay::OwnInstance(const CallAddresses& addresses) {
  const auto recent = std::find(missed_.begin(), missed_.end(), addresses);
  if (!instances_.empty() && recent == missed_.end()) {
    missed_.push_back(addresses);
    if (missed_.size() > kRecent) missed_.pop_front();
    return nullptr;
  }
  if (HasRoom()) return &instances_.emplace_back();
  const auto oldest =
      std::min_element(instances_.begin(), instances_.end(),
                       [](const Instance& a, const Instance& b) {
                         return a.last_launch < b.last_launch;
                       });
  return oldest->last_launch + kRecent < launches_ ? &*oldest : nullptr;
}

bool Replay::HasRoom() const {
  const size_t bytes = num_nodes_ * kBytesPerNode;
  return instances_.size() < kMaxInstances &&
         (bytes_ <= bytes || (bytes_ + bytes <= kMaxInstanceBytes &&
                              BytesOfAll() + bytes <= kMaxInstanceBytesOfAll));
}

RnnStatus Replay::Move(const CallAddresses& addresses, Instance* instance) {
  const uint32_t changed = Changed(instance->addresses, addresses);
  if (changed == 0) return {};
  for (Node& node : nodes_) {
    if ((node.buffers & changed) != 0) {
      CRNN_RETURN_IF_ERROR(Rewrite(&node, addresses, instance->exec.get()));
    }
  }
  instance->addresses = addresses;
  return {};
}

RnnStatus Replay::Rewrite(Node* node, const CallAddresses& addresses,
                          CUgraphExec exec) {
  std::vector<CUdeviceptr>& words = node->words;
  for (const Patch& patch : node->patches) {
    words[patch.word] = addresses[patch.buffer] + patch.distance;
  }
  CUresult result;
  if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
    CUDA_KERNEL_NODE_PARAMS kernel = node->kernel;
    std::vector<void*> arguments(node->arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      arguments[i] = &words[node->arguments[i]];
    }
    void* block[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words.data(),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &node->block_bytes,
                     CU_LAUNCH_PARAM_END};
    const bool in_block = node->block_bytes > 0;
    kernel.kernelParams = in_block ? nullptr : arguments.data();
    kernel.extra = in_block ? block : nullptr;
    result =
        exec == nullptr
            ? Cuda().cuGraphKernelNodeSetParams(node->node, &kernel)
            : Cuda().cuGraphExecKernelNodeSetParams(exec, node->node, &kernel);
  } else if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    CUDA_MEMSET_NODE_PARAMS fill = node->fill;
    fill.dst = words[0];
    result = exec == nullptr
                 ? Cuda().cuGraphMemsetNodeSetParams(node->node, &fill)
                 : Cuda().cuGraphExecMemsetNodeSetParams(exec, node->node,
                                                         &fill, context_);
  } else {
    CUDA_MEMCPY3D copy = node->copy;
    copy.srcDevice = words[0];
    copy.dstDevice = words[1];
    result = exec == nullptr
                 ? Cuda().cuGraphMemcpyNodeSetParams(node->node, &copy)
                 : Cuda().cuGraphExecMemcpyNodeSetParams(exec, node->node,
                                                         &copy, context_);
  }
  return CudaStatus(result, "change a graph's node");
}

}  // namespace cudnn_rnn_tf
