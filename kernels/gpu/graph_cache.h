// Replays passes as CUDA graphs when they come again.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_GRAPH_CACHE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GRAPH_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/gpu/graph.h"
#include "kernels/maps.h"

namespace cudnn_rnn_tf {

// A pass that may be replayed.
struct ReplayablePass {
  // Everything that the pass depends on besides the addresses of buffers; the
  // stream, which buffers there are, and their addresses' remainders by
  // Graph::kMoveUnit are among it. What else it reads is in these buffers.
  std::string key;
  CUstream stream;
  Graph::Addresses addresses;
  // False if no graph may be made, only launched.
  bool may_make;
  // The use at which the pass is captured.
  int64_t captured_use = 2;
  // Records the pass in a stream of the caller's own.
  Graph::Record record;
  // Takes the reason if a graph cannot be made or launched.
  std::function<void(const std::string&)> log;
};

// The graphs of one device, for any thread. A pass is left to its caller until
// it is captured; each further use is one launch. Small networks take the host
// longer to enqueue, kernel by kernel, than the GPU to run.
class GraphCache {
 public:
  // Launches the pass's graph, if it has one. Otherwise, returns false, and the
  // caller must enqueue the pass. So it must while the pass's stream is being
  // captured, since that capture gets the kernels themselves.
  bool Replay(const ReplayablePass& pass);

  // The number of launches of all graphs of the process.
  static int64_t NumLaunches();

  // All graphs of a device take at most about this many bytes, partly on the
  // host.
  static constexpr size_t kMaxBytes = size_t{512} << 20;
  static_assert(2 * Graph::kMaxBytes <= kMaxBytes);
  // At most this many passes are remembered.
  static constexpr size_t kMaxPasses = 4096;

 private:
  // Capturing takes as long as enqueuing several times. So a pass whose graph
  // was dropped for want of room is captured again after so many uses.
  static constexpr int64_t kUsesAfterDrop = 16;
  // After a failure, which may be temporary such as a lack of memory, so many
  // uses go by without a graph. Each further failure doubles the wait.
  static constexpr int64_t kFirstWait = 64, kMaxWait = int64_t{1} << 20;

  struct Entry {
    std::shared_ptr<Graph> graph;
    size_t bytes = 0;  // Of the graph, as counted in bytes_.
    int64_t uses = 0, captured_use = 0, wait = kFirstWait;
  };

  Entry& Use(const ReplayablePass& pass);
  // Counts what the graph has become, and makes room for it.
  void Count(const std::string& key, const std::shared_ptr<Graph>& graph);
  // Drops a graph that failed.
  void Forget(const std::string& key, const std::shared_ptr<Graph>& graph);
  // Drops the pass's graph, if it has one, until so many uses later.
  void Drop(Entry* entry, int64_t uses);

  std::mutex mutex_;
  LruMap<Entry> passes_;
  size_t bytes_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GRAPH_CACHE_H_
