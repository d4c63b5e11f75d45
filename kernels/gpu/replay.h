// Replays passes as CUDA graphs when they come again.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_REPLAY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/gpu/graph.h"
#include "kernels/gpu/lru_map.h"
#include "kernels/gpu/pass_buffers.h"

namespace cudnn_rnn_tf {

// A pass that may be replayed.
struct ReplayablePass {
  // Everything that the pass depends on besides what its buffers hold.
  std::string key;
  CUstream stream;
  // These have the caller's addresses. When `begin` or `capture` is called,
  // they have those of the graph, which may lie in the replay memory.
  std::vector<PassBuffer> buffers;
  // False if no graph may be made, only launched.
  bool may_make;
  // The use from which it is replayed although its buffers are new.
  int64_t first_copied_use = 2;
  // Enqueues the beginning of the pass, which changes from call to call, in the
  // stream. It is told where the replay memory is that the pass takes, if any.
  std::function<RnnStatus(void* memory, size_t bytes)> begin;
  // Captures the rest, in a stream of the caller's own.
  std::function<RnnStatus(std::unique_ptr<Graph>*)> capture;
  // Takes the reason if a graph cannot be made or launched.
  std::function<void(const std::string&)> log;
};

struct PassCopies;

// The graphs of one device and the memory that they use, for any thread. A
// graph has fixed addresses. TensorFlow mostly gives a pass buffers that it had
// before, so buffers that come again get a graph of their own. All others share
// one over memory of ours, the replay memory, into which a call copies what the
// pass reads, and from which it copies what the pass writes. That pays off for
// passes of so many launches that the host takes longer to enqueue them than
// the GPU to run them.
class Replays {
 public:
  static Replays& Of(int device);

  // Replays a pass. Returns false if it is not replayed; then its caller
  // enqueues it as it is, since what it reads has not changed. While the pass's
  // stream is being captured, that capture gets the kernels themselves.
  bool Run(ReplayablePass* pass);

  // The number of launches of all graphs of the process.
  static int64_t NumLaunches();

  // All graphs of a device take at most about this many bytes, partly on the
  // host.
  static constexpr size_t kMaxBytes = size_t{512} << 20;
  static_assert(2 * Graph::kMaxBytes <= kMaxBytes);
  // At most this many passes are remembered.
  static constexpr size_t kMaxPasses = 4096;

 private:
  // Capturing takes as long as enqueuing several times. So that passes do not
  // push each other out in turn, one that was pushed out is captured after so
  // many uses, and a new one at this use while others take half of the room.
  static constexpr int64_t kCapturedUseOfMany = 16;
  // After a failure, which may be temporary such as a lack of memory, so many
  // uses go by without a graph. Each further failure doubles the wait.
  static constexpr int64_t kFirstWait = 64, kMaxWait = int64_t{1} << 20;
  // The replay memory takes at most this share of the device's memory, since
  // TensorFlow, which does not know of it, leaves about that much to others.
  // Small devices have room for small networks all the same.
  static constexpr size_t kShare = 64, kLeastMost = size_t{256} << 20;

  struct Known {
    std::unique_ptr<Graph> graph;
    int64_t uses = 0, captured_use = 0, wait = kFirstWait;
  };

  // Returns what is known of a key, with one use more, if it has a graph or may
  // get one now, and null otherwise.
  Known* Use(const std::string& key, int64_t captured_use, bool may_make);
  // Launches a graph over the caller's buffers, or over copies of them.
  RnnStatus Replay(bool copies, ReplayablePass* pass, Known* known);
  // Gives the pass buffers in the replay memory, and notes what to copy.
  RnnStatus Move(ReplayablePass* pass, PassCopies* in, PassCopies* out,
                 size_t* bytes);
  // Makes the replay memory large enough, and drops all graphs if it moves.
  RnnStatus Grow(size_t bytes);
  // Drops the graphs that were used least recently, as many as are too many.
  void MakeRoom(const Known* except);
  // Drops the pass's graph, if it has one, until so many uses later.
  void Drop(Known* known, int64_t uses);

  // Held while a call enqueues a graph.
  std::mutex mutex_;
  LruMap<Known> passes_;
  size_t graph_bytes_ = 0;
  CUdeviceptr memory_ = 0;
  size_t memory_bytes_ = 0;
  // Comes after the last graph, whose stream may be another. Graphs run one
  // after the other, since they share the replay memory, and memory of the
  // handles that captured them.
  CUevent last_use_ = nullptr;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_REPLAY_H_
