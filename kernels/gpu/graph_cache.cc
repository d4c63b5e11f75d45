#include "kernels/gpu/graph_cache.h"

#include <algorithm>
#include <atomic>

namespace cudnn_rnn_tf {
namespace {

std::atomic<int64_t> num_launches = 0;

}  // namespace

int64_t GraphCache::NumLaunches() { return num_launches; }

GraphCache::Entry& GraphCache::Use(const ReplayablePass& pass) {
  Entry& entry = passes_.Use(pass.key);
  if (++entry.uses == 1) entry.captured_use = pass.captured_use;
  if (entry.graph == nullptr && pass.may_make &&
      entry.uses >= entry.captured_use) {
    entry.graph = std::make_shared<Graph>();
  }
  if (passes_.size() > kMaxPasses) {
    Drop(&passes_.oldest(), 0);
    passes_.DropOldest();
  }
  return entry;
}

void GraphCache::Drop(Entry* entry, int64_t uses) {
  bytes_ -= entry->bytes;
  entry->bytes = 0;
  entry->graph.reset();
  entry->captured_use = entry->uses + uses;
}

void GraphCache::Count(const std::string& key,
                       const std::shared_ptr<Graph>& graph) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = passes_.Find(key);
  // Meanwhile, other passes may have pushed this one out.
  if (entry == nullptr || entry->graph != graph) return;
  const auto bytes = graph->bytes();  // Another thread may add to it.
  bytes_ += bytes - entry->bytes;
  entry->bytes = bytes;
  passes_.VisitFromOldest([&](Entry& oldest) {
    if (bytes_ <= kMaxBytes) return false;
    if (oldest.bytes == 0 || &oldest == entry) return true;
    Drop(&oldest, kUsesAfterDrop);
    return true;
  });
}

void GraphCache::Forget(const std::string& key,
                        const std::shared_ptr<Graph>& graph) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = passes_.Find(key);
  if (entry == nullptr || entry->graph != graph) return;
  Drop(entry, entry->wait);
  entry->wait = std::min(2 * entry->wait, kMaxWait);
}

bool GraphCache::Replay(const ReplayablePass& pass) {
  if (!Gpu().has_graphs || StreamIsCapturing(pass.stream)) return false;
  std::shared_ptr<Graph> graph;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    graph = Use(pass).graph;
  }
  if (graph == nullptr) return false;
  const size_t bytes = graph->bytes();
  bool launched;
  const RnnStatus status = graph->Launch(pass.stream, pass.addresses,
                                         pass.record, pass.may_make, &launched);
  if (!status.ok()) {
    pass.log("a pass is not replayed: " + status.message);
    Forget(pass.key, graph);
  }
  if (!launched) return false;
  ++num_launches;
  if (graph->bytes() != bytes) Count(pass.key, graph);
  return true;
}

}  // namespace cudnn_rnn_tf
