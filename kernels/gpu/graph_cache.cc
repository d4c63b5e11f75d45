#include "kernels/gpu/graph_cache.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "kernels/never_destroyed.h"

namespace cudnn_rnn_tf {
namespace {

std::atomic<int64_t> num_launches = 0;

}  // namespace

GraphCache& GraphCache::Of(int device) {
  static NeverDestroyed<std::mutex> mutex;
  static NeverDestroyed<std::map<int, GraphCache>> caches;
  const std::lock_guard<std::mutex> lock(*mutex);
  return (*caches)[device];
}

int64_t GraphCache::NumLaunches() { return num_launches; }

void GraphCache::Known::Wait() {
  captured_use = uses + wait;
  wait = std::min(2 * wait, kMaxWait);
}

GraphCache::Known& GraphCache::Use(const ReplayablePass& pass) {
  Known& known = passes_.Use(pass.key);
  known.last_use = ++num_uses_;
  if (++known.uses == 1) {
    known.captured_use = is_crowded_ ? kCapturedUseOfMany : pass.captured_use;
  }
  if (passes_.size() > kMaxPasses) {
    Drop(&passes_.oldest());
    passes_.DropOldest();
  }
  return known;
}

void GraphCache::Drop(Known* known) {
  if (known->graph == nullptr) return;
  is_crowded_ = num_uses_ - known->last_use < kRecentUses;
  bytes_ -= known->graph->bytes();
  known->graph.reset();
  known->captured_use = known->uses + kCapturedUseOfMany;
}

void GraphCache::Keep(const std::string& key,
                      const std::shared_ptr<const Graph>& graph) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known* const known = passes_.Find(key);
  // Meanwhile, other passes may have pushed this one out, or another thread may
  // have made its graph.
  if (known == nullptr || known->graph != nullptr) return;
  passes_.VisitFromOldest([&](Known& oldest) {
    if (bytes_ + graph->bytes() <= kMaxBytes) return false;
    Drop(&oldest);
    return true;
  });
  known->graph = graph;
  known->wait = kFirstWait;
  bytes_ += graph->bytes();
}

void GraphCache::Forget(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known* const known = passes_.Find(key);
  if (known == nullptr || known->graph == nullptr) return;
  bytes_ -= known->graph->bytes();
  known->graph.reset();
  known->Wait();
}

RnnStatus GraphCache::Run(const ReplayablePass& pass) {
  if (!Gpu().has_graphs || StreamIsCapturing(pass.stream)) {
    return pass.enqueue();
  }
  std::shared_ptr<const Graph> graph;
  bool makes = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Known& known = Use(pass);
    graph = known.graph;
    makes =
        graph == nullptr && pass.may_make && known.uses >= known.captured_use;
    // Unless this attempt succeeds, it is the last one for a while, also of
    // other threads.
    if (makes) known.Wait();
  }
  RnnStatus status;
  if (makes) {
    const auto made = std::make_shared<Graph>();
    status = pass.capture(made.get());
    if (status.ok() && made->bytes() > kMaxBytes / 2) {
      status = {RnnStatus::Code::kUnimplemented, "its graph is too large"};
    }
    if (status.ok()) status = made->Launch(pass.stream);
    if (status.ok()) {
      ++num_launches;
      Keep(pass.key, made);
      return {};
    }
  } else if (graph != nullptr) {
    status = graph->Launch(pass.stream);
    if (status.ok()) {
      ++num_launches;
      return {};
    }
    Forget(pass.key);
  }
  if (!status.ok()) pass.log("a pass is not replayed: " + status.message);
  return pass.enqueue();
}

}  // namespace cudnn_rnn_tf
