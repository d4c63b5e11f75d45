// Work captured into a CUDA graph, whose nodes can be read, written and
// launched one by one.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CAPTURED_GRAPH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CAPTURED_GRAPH_H_

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Returns a status that says why a pass cannot be replayed as a graph.
RnnStatus NotReplayable(const std::string& why);

// One node of a graph with its parameters: a kernel, a copy or a fill of device
// memory, or an empty node. It is valid as long as its graph.
class GraphNode {
 public:
  // The sizes in bytes of the arguments of each kernel.
  using Kernels =
      std::map<std::pair<CUfunction, CUkernel>, std::vector<size_t>>;

  // Fails if the node is of another kind.
  static RnnStatus Read(CUgraphNode handle, Kernels* kernels, GraphNode* node);

  CUgraphNode handle() const { return handle_; }

  // The words that may hold addresses. A kernel has its arguments here, either
  // as one block or each beginning at a word of its own; a copy has its source
  // and its destination; a fill has its destination, which stays the first word
  // when the fill becomes a kernel.
  const std::vector<CUdeviceptr>& words() const { return words_; }
  void set_word(size_t index, CUdeviceptr word) { words_[index] = word; }

  // Tells whether the other node does the same over words that may differ: it
  // runs the same kernel over the same grid, with as many words and with the
  // attributes that a kernel may fail without, or it copies or fills as much in
  // the same way.
  bool IsLike(const GraphNode& other) const;

  // Writes the words into the graph's node or, unless null, into that of
  // `exec`.
  RnnStatus Write(CUgraphExec exec, CUcontext context) const;

  // Replaces a small fill: adds a node to the graph that does the same with a
  // kernel of ours and that waits for no other node. From then on this object
  // is that node. Nothing changes if this is no small fill or if the driver
  // refuses the node.
  void FillByKernel(CUgraph graph);

  // Enqueues the node's work as if there were no graph.
  RnnStatus Launch(CUstream stream) const;

 private:
  RnnStatus ReadKernel(Kernels* kernels);
  // These give the node's parameters with its current words. Those of a kernel
  // point to memory that lives only during `call`.
  template <typename Call>
  CUresult WithKernel(const Call& call) const;
  CUDA_MEMCPY3D Copy() const;
  CUDA_MEMSET_NODE_PARAMS Fill() const;

  CUgraphNode handle_ = nullptr;
  CUgraphNodeType type_ = CU_GRAPH_NODE_TYPE_EMPTY;
  // The type decides which of these is used.
  CUDA_KERNEL_NODE_PARAMS kernel_ = {};
  CUDA_MEMCPY3D copy_ = {};
  CUDA_MEMSET_NODE_PARAMS fill_ = {};
  std::vector<CUdeviceptr> words_;
  std::vector<size_t> arguments_;              // The word at which each begins.
  size_t block_bytes_ = 0;                     // 0 unless they are one block.
  std::vector<CUlaunchAttribute> attributes_;  // A kernel launch's attributes.
};

// Used by one thread at a time.
class CapturedGraph {
 public:
  // Captures what `enqueue` enqueues in the stream.
  static RnnStatus Capture(CUstream stream,
                           const std::function<RnnStatus()>& enqueue,
                           GraphNode::Kernels* kernels, CapturedGraph* graph);

  CUgraph get() const { return graph_.get(); }
  std::vector<GraphNode>& nodes() { return nodes_; }
  const std::vector<GraphNode>& nodes() const { return nodes_; }

  // Tells whether each node comes after those that it waits for. The driver
  // lists nodes in the order of their capture, but does not promise that.
  bool is_in_order() const { return is_in_order_; }
  // Tells whether the nodes wait for each other as those of the other graph do.
  bool HasEdgesOf(const CapturedGraph& other) const;

  // Replaces small fills by kernels of ours. On an H200, in graphs of empty
  // kernels that take 0.5 µs each, a memset takes 2 µs, and if the graph has
  // forks as well, every node takes 2 µs. cuDNN's matrix products in float32
  // and TF32 contain a memset of a few bytes for each step.
  RnnStatus FillByKernels();

  // Enqueues the nodes' work one after the other. The nodes must be in order.
  // After a failure, `has_begun` says whether some of the work was enqueued.
  RnnStatus LaunchNodes(CUstream stream, bool* has_begun) const;

 private:
  struct Destroy {
    void operator()(CUgraph graph) const { Gpu().cuda.cuGraphDestroy(graph); }
  };

  // The node to[i] waits for the node from[i].
  struct Edges {
    std::vector<CUgraphNode> from, to;
    std::vector<CUgraphEdgeData> data;
  };

  RnnStatus ReadNodes(GraphNode::Kernels* kernels);
  RnnStatus ReadEdges();
  // The edges in sorted order. Each is {from, to, from_port, to_port, type},
  // with nodes named by their places in nodes_.
  std::vector<std::array<size_t, 5>> EdgesByPlace() const;

  std::unique_ptr<CUgraph_st, Destroy> graph_;
  std::vector<GraphNode> nodes_;
  Edges edges_;
  bool is_in_order_ = false;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CAPTURED_GRAPH_H_
