// A pass captured into a CUDA graph and replayed over any buffers.
#ifndef CUDNN_RNN_TF_KERNELS_CUDNN_REPLAY_H_
#define CUDNN_RNN_TF_KERNELS_CUDNN_REPLAY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cudnn/calls.h"

namespace cudnn_rnn_tf {

// Which words of a graph's nodes hold addresses is learned, not known: the pass
// is captured twice, the second time with every buffer's address moved by a
// distance of its own, and the words that moved along are what a launch over
// other buffers writes anew. A pass in which anything else differs between the
// captures is refused.
//
// Used by one thread at a time, in one stream.
class Replay {
 public:
  // Enqueues the pass in the stream that is captured.
  using Enqueue = std::function<RnnStatus(const CallAddresses&)>;

  // Whether a graph can stand for work on these buffers. Kernels are chosen by
  // alignment as well; TensorFlow's allocator aligns to 256 bytes.
  static bool Fits(const CallAddresses& addresses);

  // Captures a pass in `stream`, or says why it cannot be replayed. Nothing
  // runs and no memory is touched, but the driver wants addresses of memory:
  // `region` stands for every buffer in `used`, and has the size of the largest
  // of them and kRegionSlack bytes.
  static RnnStatus Capture(CUstream stream, CUdeviceptr region,
                           const std::array<bool, kNumCallBuffers>& used,
                           const Enqueue& enqueue,
                           std::unique_ptr<Replay>* replay);
  static constexpr size_t kRegionSlack = 64 << 10;
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Enqueues the pass over `addresses`, which must fit. After a failure, which
  // leaves nothing enqueued, the replay is of no use any more.
  RnnStatus Launch(CUstream stream, const CallAddresses& addresses);

  // Frees what was made for launches so far; addresses to come are others.
  void Forget();

  // About what it takes in host and device memory, and what all of the process
  // take.
  size_t bytes() const { return bytes_; }
  static size_t TotalBytes();
  // How often the process has launched one, and how many it launched once only.
  static int64_t TotalLaunches();
  static int64_t NumLaunchedOnce();

 private:
  struct DestroyGraph {
    void operator()(CUgraph graph) const { Gpu().cuda.cuGraphDestroy(graph); }
  };
  struct DestroyExec {
    void operator()(CUgraphExec exec) const {
      Gpu().cuda.cuGraphExecDestroy(exec);
    }
  };
  using Graph = std::unique_ptr<CUgraph_st, DestroyGraph>;
  using Exec = std::unique_ptr<CUgraphExec_st, DestroyExec>;

  // An address in a node: that of a buffer, at a fixed distance.
  struct Patch {
    size_t word;  // Index into the node's words.
    CallBuffer buffer;
    CUdeviceptr distance;
  };
  struct Node {
    CUgraphNode node = nullptr;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    // By type.
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    CUDA_MEMCPY3D copy = {};
    CUDA_MEMSET_NODE_PARAMS fill = {};
    // A kernel's arguments, in one block or each from a word of its own on; a
    // copy's source and destination; a fill's destination.
    std::vector<CUdeviceptr> words;
    std::vector<size_t> arguments;  // The word at which each begins.
    size_t block_bytes = 0;         // 0: not in one block.
    std::vector<Patch> patches;
    uint32_t buffers = 0;  // A bit for each that the patches name.
  };
  struct Instance {
    Exec exec;
    CallAddresses addresses;
    uint64_t last_launch = 0;
  };
  // By kernel, the sizes of its arguments.
  using Kernels =
      std::map<std::pair<CUfunction, CUkernel>, std::vector<size_t>>;

  Replay() = default;
  static RnnStatus CaptureGraph(CUstream stream, const CallAddresses& addresses,
                                const Enqueue& enqueue, Graph* graph);
  static RnnStatus ReadNodes(CUgraph graph, Kernels* kernels,
                             std::vector<Node>* nodes);
  static RnnStatus ReadNode(Kernels* kernels, Node* node);
  static RnnStatus ArgumentSizes(const CUDA_KERNEL_NODE_PARAMS& kernel,
                                 Kernels* kernels,
                                 const std::vector<size_t>** argument_sizes);
  static RnnStatus FindPatches(const std::vector<Node>& moved,
                               const CallAddresses& addresses,
                               const CallAddresses& distances,
                               std::vector<Node>* nodes);
  // Makes or replaces an instance's graph by one over `addresses`.
  RnnStatus Instantiate(const CallAddresses& addresses, Instance* instance);
  // An instance over `addresses`, of theirs alone or rewritten.
  RnnStatus InstanceOver(const CallAddresses& addresses, Instance** instance);
  // A place for an instance of theirs alone; null where they are not worth one.
  Instance* OwnInstance(const CallAddresses& addresses);
  bool HasRoom() const;
  // How many nodes name one of these buffers, a bit for each.
  size_t NumNodesWith(uint32_t buffers) const;
  // Rewrites an instance where the addresses differ.
  RnnStatus Move(const CallAddresses& addresses, Instance* instance);
  // Writes `addresses` into a node of the graph or, unless null, of `exec`.
  RnnStatus Rewrite(Node* node, const CallAddresses& addresses,
                    CUgraphExec exec);

  // Its nodes name those of the executable graphs.
  Graph graph_;
  std::vector<Node> nodes_;  // Those with patches.
  // How many of them name the same buffers, by their bits.
  std::map<uint32_t, size_t> num_nodes_by_buffers_;
  // Programs that run in a loop come back to the same few sets of addresses:
  // each of these has an instance of its own. On an H200, a node that was
  // rewritten in an executable graph takes about half a microsecond longer from
  // then on, so one other is rewritten for addresses that do not come again,
  // or not soon; instantiating takes the CPU about 4 µs for each node.
  std::vector<Instance> instances_;
  Instance rewritten_;
  std::deque<CallAddresses> missed_;  // The latest that had no instance.
  uint64_t launches_ = 0;
  CUcontext context_ = nullptr;
  size_t num_nodes_ = 0;
  size_t bytes_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CUDNN_REPLAY_H_
