#include "kernels/gpu/replay.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "kernels/arena.h"
#include "kernels/gpu/enqueue_lock.h"

namespace cudnn_rnn_tf {
namespace {

constexpr CUdeviceptr kAlignment = Arena::kAlign;
// The host and device memory that a node of an executable graph takes, measured
// and rounded up.
constexpr size_t kBytesPerNode = 16 << 10;
// Capturing a pass is tried at most this many times. Some kernels' arguments
// have gaps with old contents of the stack, which can make two captures differ,
// but rarely the next two.
constexpr int kAttempts = 3;
constexpr size_t kMaxInstances = 64;
// At most this many missed calls are remembered. A loop over more calls gets no
// more instances than a pass may always have.
constexpr size_t kMaxMissed = 256;
// The instances of one pass, and those of all passes, take at most this many
// bytes. Regardless of these limits, a pass may have two instances, or as many
// as fit kOwnInstanceBytes, and it gets them at once, even for a call that
// comes for the first time.
constexpr size_t kMaxInstanceBytes = size_t{128} << 20;
constexpr size_t kMaxInstanceBytesOfAll = size_t{256} << 20;
constexpr size_t kOwnInstanceBytes = size_t{1} << 20;
// A graph with at most this many nodes gets an instance for each set of
// addresses.
constexpr size_t kFewNodes = 32;
constexpr int64_t kMaxWait = int64_t{1} << 20;

const CudaDriver& Cuda() { return Gpu().cuda; }

// The distance by which the second capture moves a buffer. It is an odd
// multiple of kAlignment, and the difference of two odd multiples is an even
// one, so the difference of two addresses is not taken for an address.
CUdeviceptr MoveOf(int buffer) {
  return (2 * static_cast<CUdeviceptr>(buffer) + 1) * kAlignment;
}
static_assert(2 * (2 * kNumCallBuffers * kAlignment) <= Replay::kRegionSlack);

// The buffers whose addresses differ, one bit for each.
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

Replay::~Replay() { BytesOfAll() -= bytes_; }

RnnStatus Replay::Capture(CUstream stream, CUdeviceptr region,
                          const std::array<bool, kNumCallBuffers>& used,
                          const Enqueue& enqueue,
                          std::unique_ptr<Replay>* replay) {
  std::unique_ptr<Replay> made(new Replay);
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuCtxGetCurrent(&made->context_), "name its context"));
  CallAddresses addresses = {}, distances = {}, moved_addresses = {};
  for (int i = 0; i < kNumCallBuffers; ++i) {
    if (!used[i]) continue;
    // No two buffers begin at the same place, since a pass might then run
    // differently, as if in place.
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
  CRNN_RETURN_IF_ERROR(made->graph_.FillByKernels());
  *replay = std::move(made);
  return {};
}

RnnStatus Replay::FindPatches(const CapturedGraph& moved,
                              const CallAddresses& addresses,
                              const CallAddresses& distances) {
  std::vector<GraphNode>& nodes = graph_.nodes();
  if (moved.nodes().size() != nodes.size() || !graph_.HasEdgesOf(moved)) {
    return NotReplayable("its kernels depend on addresses");
  }
  patched_.clear();
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
    patched_.push_back(std::move(patched));
  }
  return {};
}

void Replay::Patch(const CallAddresses& addresses, PatchedNode* patched) {
  for (const auto& [word, buffer, distance] : patched->patches) {
    patched->node->set_word(word, addresses[buffer] + distance);
  }
}

RnnStatus Replay::Launch(CUstream stream, const CallAddresses& addresses,
                         bool may_instantiate) {
  Instance* instance = InstanceFor(addresses, may_instantiate);
  if (instance == nullptr) {
    const RnnStatus status = Instantiate(addresses);
    // If there was no memory for another instance, an existing one is used.
    if (instances_.empty()) return status;
    instance = &instances_.back();
  }
  CRNN_RETURN_IF_ERROR(Move(addresses, instance));
  const std::lock_guard<std::mutex> lock(EnqueueLock(stream));
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphLaunch(instance->exec.get(), stream), "launch a graph"));
  ++LaunchesOfAll();
  return {};
}

bool Replay::AreOfOneInstance(const CallAddresses& a,
                              const CallAddresses& b) const {
  if (graph_.nodes().size() <= kFewNodes) return a == b;
  return a[kParams] == b[kParams] && a[kOutput] == b[kOutput];
}

Replay::Instance* Replay::InstanceFor(const CallAddresses& addresses,
                                      bool may_instantiate) {
  const auto same = std::find_if(
      instances_.begin(), instances_.end(), [&](const Instance& one) {
        return AreOfOneInstance(one.addresses, addresses);
      });
  if (same != instances_.end()) return &*same;
  const bool was_missed = NoteMiss(addresses);
  if (may_instantiate && HasRoom(was_missed)) return nullptr;
  // Addresses seen for the first time share the newest instance. Others take
  // over a random one: in a loop over more addresses than there is room for,
  // the least recently used instance would always be the one that is needed
  // next.
  return was_missed ? &instances_[random_() % instances_.size()]
                    : &instances_.back();
}

bool Replay::NoteMiss(const CallAddresses& addresses) {
  const bool was = std::any_of(missed_.begin(), missed_.end(),
                               [&](const CallAddresses& missed) {
                                 return AreOfOneInstance(missed, addresses);
                               });
  if (!was) missed_.push_back(addresses);
  if (missed_.size() > kMaxMissed) missed_.pop_front();
  return was;
}

bool Replay::HasRoom(bool was_missed) const {
  const size_t bytes = bytes_ + BytesOfInstance();
  return instances_.size() < kMaxInstances &&
         (bytes <= std::max(2 * BytesOfInstance(), kOwnInstanceBytes) ||
          (was_missed && bytes <= kMaxInstanceBytes &&
           BytesOfAll() + BytesOfInstance() <= kMaxInstanceBytesOfAll));
}

size_t Replay::BytesOfInstance() const {
  return graph_.nodes().size() * kBytesPerNode;
}

RnnStatus Replay::Instantiate(const CallAddresses& addresses) {
  // The driver was seen to refuse changes of a graph that it accepts for the
  // executable graph, in networks with projections. Such changes are made again
  // after the instantiation.
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
  bytes_ += BytesOfInstance();
  BytesOfAll() += BytesOfInstance();
  instances_.push_back({std::move(exec), addresses});
  return {};
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

bool PassReplay::IsDue() {
  if (cannot_replay) return false;
  if (uses_to_wait == 0) return true;
  --uses_to_wait;
  return false;
}

RnnStatus PassReplay::Launch(
    CUstream stream, const CallAddresses& addresses, bool may_instantiate,
    const std::function<RnnStatus(std::unique_ptr<Replay>*)>& capture) {
  RnnStatus status;
  if (replay == nullptr) status = capture(&replay);
  if (status.ok()) {
    status = replay->Launch(stream, addresses, may_instantiate);
  }
  if (status.ok()) return {};
  replay.reset();
  cannot_replay = status.code == RnnStatus::Code::kUnimplemented;
  uses_to_wait = next_wait;
  next_wait = std::min(2 * next_wait, kMaxWait);
  return status;
}

}  // namespace cudnn_rnn_tf
