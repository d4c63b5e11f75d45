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

// Why no graph can stand for a pass.
RnnStatus NotReplayable(const std::string& why);

// A kernel, a copy or a fill of device memory, or nothing, and what it is
// called with. Valid as long as its graph.
class GraphNode {
 public:
  // By kernel, the sizes of its arguments.
  using Kernels =
      std::map<std::pair<CUfunction, CUkernel>, std::vector<size_t>>;

  // Fails where the node is of another kind.
  static RnnStatus Read(CUgraphNode handle, Kernels* kernels, GraphNode* node);

  CUgraphNode handle() const { return handle_; }

  // A kernel's arguments, in one block or each from a word of its own on; a
  // copy's source and destination; a fill's destination, as a kernel too.
  const std::vector<CUdeviceptr>& words() const { return words_; }
  void set_word(size_t index, CUdeviceptr word) { words_[index] = word; }

  // Whether the other does the same over words that may differ: runs the same
  // kernel over the same grid with as many words and the attributes that it may
  // not run without, or copies or fills as much in the same way.
  bool IsLike(const GraphNode& other) const;

  // Writes the words into the graph's node or, unless null, into that of
  // `exec`.
  RnnStatus Write(CUgraphExec exec, CUcontext context) const;

  // Adds a node to the graph that does what a small fill does by a kernel of
  // ours, and waits for none; from then on this is that node. Changes nothing
  // where this is no small fill, or the driver will not have the node.
  void FillByKernel(CUgraph graph);

  // Enqueues the node's work as if there were no graph.
  RnnStatus Launch(CUstream stream) const;

 private:
  RnnStatus ReadKernel(Kernels* kernels);
  // These give the node's parameters, with its words in them. A kernel's point
  // to what lives during `call` only.
  template <typename Call>
  CUresult WithKernel(const Call& call) const;
  CUDA_MEMCPY3D Copy() const;
  CUDA_MEMSET_NODE_PARAMS Fill() const;

  CUgraphNode handle_ = nullptr;
  CUgraphNodeType type_ = CU_GRAPH_NODE_TYPE_EMPTY;
  // By type.
  CUDA_KERNEL_NODE_PARAMS kernel_ = {};
  CUDA_MEMCPY3D copy_ = {};
  CUDA_MEMSET_NODE_PARAMS fill_ = {};
  std::vector<CUdeviceptr> words_;
  std::vector<size_t> arguments_;              // The word at which each begins.
  size_t block_bytes_ = 0;                     // 0: not in one block.
  std::vector<CUlaunchAttribute> attributes_;  // Of a kernel's launch.
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

  // Whether each node comes after those that it waits for. The driver lists
  // nodes as they were captured, but does not promise that.
  bool is_in_order() const { return longest_path_ > 0; }
  // Tells whether the nodes wait for each other as those of the other graph do.
  bool HasEdgesOf(const CapturedGraph& other) const;
  // Whether it is in order and so nearly a chain that it may be faster as one.
  bool is_nearly_chain() const;
  // Makes each node wait for the one before it. Only if they are in order.
  RnnStatus MakeChain();

  // Lets kernels of ours fill memory where that is not large. On an H200, in
  // graphs of empty kernels that take 0.5 µs, a memset takes 2 µs, and where
  // there are forks as well, all nodes do. cuDNN's matrix products in float32
  // and TF32 bring one for each step, of some bytes.
  RnnStatus FillByKernels();

  // Enqueues the nodes' work one after the other. Only if they are in order.
  // After a failure, `has_begun` says whether some is enqueued.
  RnnStatus LaunchNodes(CUstream stream, bool* has_begun) const;

 private:
  struct Destroy {
    void operator()(CUgraph graph) const { Gpu().cuda.cuGraphDestroy(graph); }
  };

  // Which nodes wait for which.
  struct Edges {
    std::vector<CUgraphNode> from, to;
    std::vector<CUgraphEdgeData> data;
  };

  RnnStatus ReadNodes(GraphNode::Kernels* kernels);
  RnnStatus ReadEdges();
  // From which node to which and of which kind, by the nodes' places, sorted.
  std::vector<std::array<size_t, 5>> EdgesByPlace() const;

  std::unique_ptr<CUgraph_st, Destroy> graph_;
  std::vector<GraphNode> nodes_;
  Edges edges_;
  size_t longest_path_ = 0;  // In nodes; 0 if they are not in order.
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CAPTURED_GRAPH_H_
