#include "kernels/gpu/graph.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cudnn_rnn_tf {
namespace {

// The memory that a node of an executable graph takes, measured and rounded up.
constexpr size_t kBytesPerNode = 16 << 10;
// Some kernels' arguments have gaps with old contents of the stack. These
// mostly agree in recordings that follow each other, or else in the next two.
constexpr int kAttempts = 3;
// A program may call layers of one configuration in several places, so a graph
// has several instances: two, and more as long as they take at most this many
// bytes.
constexpr size_t kFirstInstances = 2, kMaxInstances = 16;
constexpr size_t kMaxBytesOfMany = size_t{32} << 20;

const CudaDriver& Cuda() { return Gpu().cuda; }

// The distance by which a buffer is moved for the second recording. It is an
// odd multiple, and the difference of two odd multiples is an even one, so the
// difference of two addresses is not taken for an address.
CUdeviceptr DistanceOf(size_t buffer) {
  return (2 * buffer + 1) * Graph::kMoveUnit;
}

}  // namespace

RnnStatus Graph::Launch(CUstream stream, const Addresses& addresses,
                        const Record& record, bool may_make, bool* launched) {
  *launched = false;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto instance = std::find_if(
      instances_.begin(), instances_.end(),
      [&](const Instance& one) { return one.addresses == addresses; });
  if (instance == instances_.end()) {
    if (instances_.empty()) {
      if (!may_make) return {};
      CRNN_RETURN_IF_ERROR(RecordTwice(addresses, record));
    } else if (!patches_) {
      return {};
    }
    const bool makes = may_make && HasRoom();
    // Without room for another instance, a random one is used: in a loop over
    // more buffers than there is room for, the least recently used one would
    // always be the next that is needed. If making one fails, the last is used.
    const RnnStatus status = makes ? Instantiate(addresses) : RnnStatus();
    if (instances_.empty()) return status;
    instance = makes ? std::prev(instances_.end())
                     : instances_.begin() + random_() % instances_.size();
    CRNN_RETURN_IF_ERROR(Move(addresses, &*instance));
  }
  const std::lock_guard<std::mutex> enqueues(EnqueueLock(stream));
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuGraphLaunch(instance->exec.get(), stream), "launch a graph"));
  *launched = true;
  return {};
}

RnnStatus Graph::RecordTwice(const Addresses& addresses, const Record& record) {
  patches_.reset();
  Addresses moved_addresses = addresses;
  for (size_t i = 0; i < moved_addresses.size(); ++i) {
    if (moved_addresses[i] != 0) moved_addresses[i] += DistanceOf(i);
  }
  for (int attempt = 0; attempt < kAttempts && !patches_; ++attempt) {
    Recording moved;
    CRNN_RETURN_IF_ERROR(record(addresses, &recording_));
    // The driver refuses copies where there is no memory.
    if (record(moved_addresses, &moved).ok()) FindPatches(addresses, moved);
  }
  return {};
}

void Graph::FindPatches(const Addresses& addresses, const Recording& moved) {
  std::vector<RecordedNode>& nodes = recording_.nodes();
  if (moved.nodes().size() != nodes.size()) return;
  std::vector<Patch> patches;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const RecordedNode& other = moved.nodes()[i];
    if (!nodes[i].IsLike(other)) return;
    for (size_t word = 0; word < nodes[i].words.size(); ++word) {
      const CUdeviceptr was = nodes[i].words[word];
      const CUdeviceptr difference = other.words[word] - was;
      if (difference == 0) continue;
      size_t buffer = 0;
      while (buffer < addresses.size() &&
             (addresses[buffer] == 0 || DistanceOf(buffer) != difference)) {
        ++buffer;
      }
      if (buffer == addresses.size()) return;
      patches.push_back({&nodes[i], word, buffer, was - addresses[buffer]});
    }
  }
  patches_ = std::move(patches);
}

bool Graph::HasRoom() const {
  const size_t bytes = recording_.nodes().size() * kBytesPerNode;
  return instances_.size() < kFirstInstances ||
         (instances_.size() < kMaxInstances &&
          bytes_ + bytes <= kMaxBytesOfMany);
}

RnnStatus Graph::Instantiate(const Addresses& addresses) {
  const size_t bytes = recording_.nodes().size() * kBytesPerNode;
  if (bytes_ + bytes > kMaxBytes) return NotRepeatable("it is too large");
  // The graph itself is rewritten, since a GPU takes longer for an executable
  // one that was. The driver refuses to rewrite some nodes of graphs that it
  // rewrites in executable ones, as was seen with projections.
  std::vector<const RecordedNode*> refused;
  if (!instances_.empty()) {
    CRNN_RETURN_IF_ERROR(
        ForPatched(addresses, std::nullopt, [&](const RecordedNode& node) {
          if (!node.WriteTo(nullptr).ok()) refused.push_back(&node);
          return RnnStatus();
        }));
  }
  CUgraphExec made = nullptr;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuGraphInstantiate(&made, recording_.graph(), 0),
                 "make a graph executable"));
  Instance instance;
  instance.exec.reset(made);
  instance.addresses = addresses;
  for (const RecordedNode* const node : refused) {
    CRNN_RETURN_IF_ERROR(node->WriteTo(made));
  }
  instances_.push_back(std::move(instance));
  bytes_ += bytes;
  return {};
}

RnnStatus Graph::Move(const Addresses& addresses, Instance* instance) const {
  if (instance->addresses == addresses) return {};
  const auto before = std::exchange(instance->addresses, std::nullopt);
  CRNN_RETURN_IF_ERROR(
      ForPatched(addresses, before, [&](const RecordedNode& node) {
        return node.WriteTo(instance->exec.get());
      }));
  instance->addresses = addresses;
  return {};
}

RnnStatus Graph::ForPatched(
    const Addresses& addresses, const std::optional<Addresses>& before,
    const std::function<RnnStatus(const RecordedNode&)>& write) const {
  for (auto patch = patches_->begin(); patch != patches_->end();) {
    RecordedNode* const node = patch->node;
    bool has_moved = !before;
    for (; patch != patches_->end() && patch->node == node; ++patch) {
      const size_t buffer = patch->buffer;
      node->words[patch->word] = addresses[buffer] + patch->distance;
      has_moved |= before && addresses[buffer] != (*before)[buffer];
    }
    if (has_moved) CRNN_RETURN_IF_ERROR(write(*node));
  }
  return {};
}

}  // namespace cudnn_rnn_tf
