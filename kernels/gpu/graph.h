// A pass captured into a CUDA graph, which one launch runs again over the same
// buffers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

class Graph {
 public:
  // Captures what `enqueue` enqueues in the stream, in which nobody else may
  // enqueue anything, and makes it executable. Nothing runs. The status says
  // why if the work cannot be repeated: graphs that copy the host's memory, or
  // have nodes of other kinds than kernels, copies and fills, are refused.
  static RnnStatus Capture(CUstream stream,
                           const std::function<RnnStatus()>& enqueue,
                           Graph* graph);

  // Enqueues the work. A failure leaves nothing enqueued.
  RnnStatus Launch(CUstream stream) const;

  // An estimate of the host and device memory that the graph takes.
  size_t bytes() const { return bytes_; }

 private:
  struct Destroy {
    void operator()(CUgraphExec exec) const {
      Gpu().cuda.cuGraphExecDestroy(exec);
    }
  };

  std::unique_ptr<CUgraphExec_st, Destroy> exec_;
  size_t bytes_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_
