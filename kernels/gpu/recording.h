// A pass captured into a CUDA graph, whose nodes can be read and written.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RECORDING_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RECORDING_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Says why a graph cannot repeat a pass.
RnnStatus NotRepeatable(const std::string& why);

// One node of a graph. It is valid as long as its graph.
struct RecordedNode {
  CUgraphNode handle = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  // The words that may hold addresses. A kernel has its arguments here, either
  // as one block or each beginning at a word of its own; a copy has its source
  // and its destination; a fill has its destination.
  std::vector<CUdeviceptr> words;
  // The type decides which of these is used.
  CUDA_KERNEL_NODE_PARAMS kernel = {};
  CUDA_MEMCPY3D copy = {};
  CUDA_MEMSET_NODE_PARAMS fill = {};
  std::vector<size_t>
      arguments;           // The word at which each of a kernel's begins.
  size_t block_bytes = 0;  // 0 unless they are one block.

  // Tells whether the other node does the same over words that may differ.
  bool IsLike(const RecordedNode& other) const;
  // Writes the words into the graph or, unless that is null, into an executable
  // graph that was made from it.
  RnnStatus WriteTo(CUgraphExec exec) const;
};

class Recording {
 public:
  // Captures what `enqueue` enqueues in the stream, in which nobody else may
  // enqueue anything. Nothing runs, and no memory is touched. The status says
  // why if the work cannot be repeated: graphs that copy the host's memory, or
  // have nodes of other kinds than kernels, copies and fills, are refused.
  static RnnStatus Make(CUstream stream,
                        const std::function<RnnStatus()>& enqueue,
                        Recording* recording);

  CUgraph graph() const { return graph_.get(); }
  std::vector<RecordedNode>& nodes() { return nodes_; }
  const std::vector<RecordedNode>& nodes() const { return nodes_; }

 private:
  struct Destroy {
    void operator()(CUgraph graph) const { Gpu().cuda.cuGraphDestroy(graph); }
  };

  RnnStatus ReadNodes();
  RnnStatus FillByKernels();

  std::unique_ptr<CUgraph_st, Destroy> graph_;
  std::vector<RecordedNode> nodes_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RECORDING_H_
