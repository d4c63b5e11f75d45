// A pass captured into a CUDA graph and replayed over any buffers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_REPLAY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_REPLAY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kernels/gpu/call_addresses.h"
#include "kernels/gpu/captured_graph.h"

namespace cudnn_rnn_tf {

// A replay finds out which words of a graph's nodes hold addresses: it captures
// the pass twice, the second time with every buffer's address moved by a
// distance of its own. The words that moved along hold addresses, which a
// launch over other buffers overwrites. A pass is refused if its captures
// differ in any other way: in kernels, in how they are launched, in what is
// copied or filled, or in which nodes wait for which. Launch attributes that a
// kernel can run without are not compared.
//
// Used by one thread at a time, in one stream.
class Replay {
 public:
  // Enqueues the pass in the stream that is captured.
  using Enqueue = std::function<RnnStatus(const CallAddresses&)>;

  // Tells whether a pass over these addresses can be replayed. They must be
  // multiples of 256 bytes, as TensorFlow's allocator gives them out, since the
  // choice of kernels depends on alignment.
  static bool Fits(const CallAddresses& addresses);

  // Captures a pass in `stream`, or says why it cannot be replayed. `region`
  // stands for every buffer in `used`. Nothing runs and no memory is touched,
  // but the driver refuses to capture a copy from or to memory that is not
  // there, so the region has the size of the largest buffer that the pass
  // copies from or to, and kRegionSlack bytes more. Of kernels and fills, the
  // driver checks no addresses; these may lie beyond the region.
  static RnnStatus Capture(CUstream stream, CUdeviceptr region,
                           const std::array<bool, kNumCallBuffers>& used,
                           const Enqueue& enqueue,
                           std::unique_ptr<Replay>* replay);
  static constexpr size_t kRegionSlack = 64 << 10;
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Enqueues the pass over `addresses`, which must fit. A failure leaves
  // nothing enqueued; the replay must not be used again after it, but the pass
  // may be captured again. `may_instantiate` may be false only if the replay
  // was launched before.
  RnnStatus Launch(CUstream stream, const CallAddresses& addresses,
                   bool may_instantiate = true);
  bool was_launched() const { return !instances_.empty(); }

  // Estimates of the host and device memory, in bytes, that the instances of
  // this replay take, and those of all replays of the process.
  size_t bytes() const { return bytes_; }
  static size_t TotalBytes();
  // While all replays take this much or more, sessions make no more of them.
  static constexpr size_t kMaxTotalBytes = size_t{512} << 20;
  // The number of launches of all replays of the process.
  static int64_t TotalLaunches();

 private:
  struct DestroyExec {
    void operator()(CUgraphExec exec) const {
      Gpu().cuda.cuGraphExecDestroy(exec);
    }
  };
  using Exec = std::unique_ptr<CUgraphExec_st, DestroyExec>;

  // A word of a node that holds the address of `buffer` plus `distance`.
  struct PatchedWord {
    size_t word;  // Index into the node's words.
    CallBuffer buffer;
    CUdeviceptr distance;
  };
  struct PatchedNode {
    GraphNode* node;
    std::vector<PatchedWord> patches;
    uint32_t buffers;  // A bit for each buffer in `patches`.
  };
  struct Instance {
    Exec exec;
    CallAddresses addresses;
  };

  Replay() = default;
  // Finds the words that hold addresses. graph_ was captured over `addresses`,
  // and `moved` over addresses that are `distances` from these.
  RnnStatus FindPatches(const CapturedGraph& moved,
                        const CallAddresses& addresses,
                        const CallAddresses& distances);
  static void Patch(const CallAddresses& addresses, PatchedNode* patched);
  // Tells whether two calls share an instance.
  bool AreOfOneInstance(const CallAddresses& a, const CallAddresses& b) const;
  // Returns the instance to rewrite for `addresses`, or null if a new one
  // should be made.
  Instance* InstanceFor(const CallAddresses& addresses, bool may_instantiate);
  // Notes a call without an instance. Returns whether it was among the last
  // kMaxMissed calls that were noted.
  bool NoteMiss(const CallAddresses& addresses);
  bool HasRoom(bool was_missed) const;
  size_t BytesOfInstance() const;
  // Appends a new instance over `addresses`.
  RnnStatus Instantiate(const CallAddresses& addresses);
  // Rewrites the instance's nodes whose addresses differ.
  RnnStatus Move(const CallAddresses& addresses, Instance* instance);

  // The driver finds the nodes of the executable graphs by this graph's nodes.
  CapturedGraph graph_;
  std::vector<PatchedNode> patched_;
  // The executable graphs. While there is room, each pair of parameters and
  // output has one of its own, since layers of one configuration share a pass,
  // and a program may call a layer in several places; other buffers rarely
  // move. A small graph has one for each set of all addresses. To rewrite and
  // launch an instance takes the CPU about 1.5 µs for each node, to make and
  // launch one 4 µs.
  std::vector<Instance> instances_;
  std::deque<CallAddresses> missed_;
  std::minstd_rand random_;
  CUcontext context_ = nullptr;
  size_t bytes_ = 0;
};

// A pass that is replayed whenever it can be.
struct PassReplay {
  int64_t uses = 0;  // Counted by the caller.
  std::unique_ptr<Replay> replay;
  bool cannot_replay = false;
  // After a failure that may be temporary, such as lack of memory,
  // `uses_to_wait` uses go by without a replay. Each further failure doubles
  // the wait.
  int64_t uses_to_wait = 0, next_wait = 64;

  // Tells whether this use may be a replay. It must be asked once for each use.
  bool IsDue();
  // Launches the replay, which `capture` makes if there is none. A failure
  // leaves nothing enqueued.
  RnnStatus Launch(
      CUstream stream, const CallAddresses& addresses, bool may_instantiate,
      const std::function<RnnStatus(std::unique_ptr<Replay>*)>& capture);
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_REPLAY_H_
