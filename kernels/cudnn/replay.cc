#include "kernels/cudnn/replay.h"

#include <algorithm>
#include <atomic>
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
// Of one pass and of all. What a pass may always have: two instances, or more
// of few nodes, whose loops would not settle otherwise where others are large.
constexpr size_t kMaxInstanceBytes = size_t{128} << 20;
constexpr size_t kMaxInstanceBytesOfAll = size_t{256} << 20;
constexpr size_t kOwnInstanceBytes = size_t{1} << 20;
// Rewriting no more than this part of the nodes costs next to nothing.
constexpr size_t kNearPart = 16;
// Addresses that come again within so many launches are worth an instance.
constexpr size_t kRecent = 64;
// To rewrite so many nodes takes the CPU milliseconds, which the device waits
// for unless steps are enqueued ahead. A pass of more may always have three
// instances, since cuDNN's workspace, which all its nodes name, is seen to come
// at three places in turn, and an instance that was not launched for so many
// times as long as other addresses took to come again is replaced by theirs.
constexpr size_t kManyNodes = 2048;
constexpr uint64_t kPatience = 4;

const CudaDriver& Cuda() { return Gpu().cuda; }

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

}  // namespace

bool Replay::Fits(const CallAddresses& addresses) {
  for (const CUdeviceptr address : addresses) {
    if (address % kAlignment != 0) return false;
  }
  return true;
}

size_t Replay::TotalBytes() { return BytesOfAll(); }

int64_t Replay::TotalLaunches() { return LaunchesOfAll(); }

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
                          bool as_chain, const Enqueue& enqueue,
                          std::unique_ptr<Replay>* replay) {
  std::unique_ptr<Replay> made(new Replay);
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuCtxGetCurrent(&made->context_), "name its context"));
  CallAddresses addresses = {}, distances = {}, moved_addresses = {};
  for (int i = 0; i < kNumCallBuffers; ++i) {
    if (!used[i]) continue;
    // No two begin at one place, where a pass might run as if in place.
    addresses[i] = region + 2 * i * kAlignment;
    distances[i] = MoveOf(i);
    moved_addresses[i] = addresses[i] + distances[i];
  }
  GraphNode::Kernels kernels;
  RnnStatus found;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    CapturedGraph moved;
    CRNN_RETURN_IF_ERROR(CapturedGraph::Capture(
        stream, [&] { return enqueue(addresses); }, &kernels, &made->graph_));
    CRNN_RETURN_IF_ERROR(CapturedGraph::Capture(
        stream, [&] { return enqueue(moved_addresses); }, &kernels, &moved));
    found = made->FindPatches(moved, addresses, distances);
    if (found.ok()) break;
  }
  CRNN_RETURN_IF_ERROR(found);
  if (as_chain && made->is_nearly_chain()) {
    CRNN_RETURN_IF_ERROR(made->graph_.MakeChain());
  }
  *replay = std::move(made);
  return {};
}

RnnStatus Replay::FindPatches(const CapturedGraph& moved,
                              const CallAddresses& addresses,
                              const CallAddresses& distances) {
  std::vector<GraphNode>& nodes = graph_.nodes();
  if (moved.nodes().size() != nodes.size()) {
    return NotReplayable("its kernels depend on addresses");
  }
  patched_.clear();
  num_nodes_by_buffers_.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& other = moved.nodes()[i];
    if (!nodes[i].IsLike(other)) {
      return NotReplayable("its kernels depend on addresses");
    }
    PatchedNode patched = {&nodes[i], {}, 0};
    const std::vector<CUdeviceptr>& words = nodes[i].words();
    for (size_t word = 0; word < words.size(); ++word) {
      const CUdeviceptr difference = other.words()[word] - words[word];
      if (difference == 0) continue;
      int buffer = 0;
      while (buffer < kNumCallBuffers && distances[buffer] != difference) {
        ++buffer;
      }
      if (buffer == kNumCallBuffers) {
        return NotReplayable("an argument of a kernel follows the addresses");
      }
      patched.patches.push_back({word, static_cast<CallBuffer>(buffer),
                                 words[word] - addresses[buffer]});
      patched.buffers |= uint32_t{1} << buffer;
    }
    if (patched.patches.empty()) continue;
    ++num_nodes_by_buffers_[patched.buffers];
    patched_.push_back(std::move(patched));
  }
  return {};
}

void Replay::Patch(const CallAddresses& addresses, PatchedNode* patched) {
  for (const auto& [word, buffer, distance] : patched->patches) {
    patched->node->set_word(word, addresses[buffer] + distance);
  }
}

RnnStatus Replay::Instantiate(const CallAddresses& addresses,
                              Instance* instance) {
  // Seen for networks with projections: the driver refuses in the graph what it
  // takes in the executable graph.
  std::vector<const GraphNode*> refused;
  for (PatchedNode& patched : patched_) {
    Patch(addresses, &patched);
    if (!patched.node->Write(nullptr, context_).ok()) {
      refused.push_back(patched.node);
    }
  }
  CUgraphExec instantiated = nullptr;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphInstantiate(&instantiated, graph_.get(), 0),
                 "instantiate a graph"));
  Exec exec(instantiated);
  for (const GraphNode* const node : refused) {
    CRNN_RETURN_IF_ERROR(node->Write(exec.get(), context_));
  }
  if (instance->exec == nullptr) {
    bytes_ += BytesOfInstance();
    BytesOfAll() += BytesOfInstance();
  }
  instance->exec = std::move(exec);
  instance->addresses = addresses;
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
  const size_t num_nodes = graph_.nodes().size();
  size_t distance = num_nodes;
  for (Instance& one : instances_) {
    const size_t other = NumNodesWith(Changed(one.addresses, addresses));
    if (other < distance) {
      nearest = &one;
      distance = other;
    }
  }
  if (distance > num_nodes / kNearPart) {
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
  const auto before = std::find_if(
      missed_.begin(), missed_.end(),
      [&](const Missed& one) { return one.addresses == addresses; });
  if (!instances_.empty() && before == missed_.end()) {
    missed_.push_back({addresses, launches_});
    if (missed_.size() > kRecent) missed_.pop_front();
    return nullptr;
  }
  if (HasRoom()) return &instances_.emplace_back();
  const auto oldest =
      std::min_element(instances_.begin(), instances_.end(),
                       [](const Instance& a, const Instance& b) {
                         return a.last_launch < b.last_launch;
                       });
  uint64_t unused = kRecent;
  if (has_many_nodes()) {
    unused = std::min(kPatience * (launches_ - before->launch), unused);
  }
  before->launch = launches_;
  return oldest->last_launch + unused < launches_ ? &*oldest : nullptr;
}

bool Replay::has_many_nodes() const {
  return graph_.nodes().size() > kManyNodes;
}

size_t Replay::BytesOfInstance() const {
  return graph_.nodes().size() * kBytesPerNode;
}

bool Replay::HasRoom() const {
  const size_t bytes = BytesOfInstance();
  const size_t own_bytes =
      std::max((has_many_nodes() ? 3 : 2) * bytes, kOwnInstanceBytes);
  return instances_.size() < kMaxInstances &&
         (bytes_ + bytes <= own_bytes ||
          (bytes_ + bytes <= kMaxInstanceBytes &&
           BytesOfAll() + bytes <= kMaxInstanceBytesOfAll));
}

RnnStatus Replay::Move(const CallAddresses& addresses, Instance* instance) {
  const uint32_t changed = Changed(instance->addresses, addresses);
  if (changed == 0) return {};
  for (PatchedNode& patched : patched_) {
    if ((patched.buffers & changed) == 0) continue;
    Patch(addresses, &patched);
    CRNN_RETURN_IF_ERROR(patched.node->Write(instance->exec.get(), context_));
  }
  instance->addresses = addresses;
  return {};
}

}  // namespace cudnn_rnn_tf
