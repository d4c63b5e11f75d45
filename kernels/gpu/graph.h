// A recorded pass, which one launch runs again over any buffers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "kernels/gpu/recording.h"

namespace cudnn_rnn_tf {

// Which words of a recording's nodes hold addresses is found out by a second
// recording, for which every buffer is moved by a distance of its own: those
// that moved along do, and are rewritten for other buffers. A pass whose
// recordings differ in anything else is only launched over the buffers that it
// was recorded for. Any thread may use it.
class Graph {
 public:
  // The addresses of a pass's buffers, 0 for those that it does not have.
  using Addresses = std::vector<CUdeviceptr>;
  // Records the pass over buffers at these addresses, where there may be none.
  using Record = std::function<RnnStatus(const Addresses&, Recording*)>;

  // Enqueues the pass over these buffers, which must have the same remainders
  // by kMoveUnit as those of all other launches. After a failure, nothing is
  // enqueued; other launches may follow, since another thread may be waiting
  // with one. `launched` is false if the graph cannot run over the buffers; if
  // not `may_make`, it only runs what is made.
  RnnStatus Launch(CUstream stream, const Addresses& addresses,
                   const Record& record, bool may_make, bool* launched);

  // An estimate of the host and device memory that the graph takes.
  size_t bytes() const { return bytes_; }

  // Buffers are moved by multiples of this, since the choice of kernels depends
  // on alignment.
  static constexpr CUdeviceptr kMoveUnit = 256;
  // A graph takes at most about this many bytes.
  static constexpr size_t kMaxBytes = size_t{256} << 20;

 private:
  struct Destroy {
    void operator()(CUgraphExec exec) const {
      Gpu().cuda.cuGraphExecDestroy(exec);
    }
  };
  struct Instance {
    std::unique_ptr<CUgraphExec_st, Destroy> exec;
    // None if its nodes may have the addresses of different buffers.
    std::optional<Addresses> addresses;
  };
  // A word of a node that holds the address of `buffer` plus `distance`.
  struct Patch {
    RecordedNode* node;
    size_t word, buffer;
    CUdeviceptr distance;
  };

  // Records the pass anew, for which there must be no instances.
  RnnStatus RecordTwice(const Addresses& addresses, const Record& record);
  // Sets patches_ unless the recordings, of which the first is over these
  // buffers, differ in more than addresses.
  void FindPatches(const Addresses& addresses, const Recording& moved);
  bool HasRoom() const;
  // Appends an instance over these buffers.
  RnnStatus Instantiate(const Addresses& addresses);
  // Rewrites the nodes of which an address differs.
  RnnStatus Move(const Addresses& addresses, Instance* instance) const;
  // Puts addresses into the nodes that have any, and passes on those of which
  // one differs from `before`, or all.
  RnnStatus ForPatched(
      const Addresses& addresses, const std::optional<Addresses>& before,
      const std::function<RnnStatus(const RecordedNode&)>& write) const;

  std::mutex mutex_;
  // The driver finds the nodes of instances by this one's.
  Recording recording_;
  // In the order of nodes. None if the graph runs only over the buffers that it
  // was recorded for.
  std::optional<std::vector<Patch>> patches_;
  // To rewrite and launch an instance takes the CPU about 1.5 µs for each node,
  // to make and launch one 4 µs, and a mere launch far less.
  std::vector<Instance> instances_;
  std::minstd_rand random_;
  std::atomic<size_t> bytes_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_
