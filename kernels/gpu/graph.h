#ifndef CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Work as an executable CUDA graph, which one launch runs again.
class Graph {
 public:
  // Captures what `enqueue` enqueues in the stream, in which nobody else may
  // enqueue anything. Nothing runs, and no memory is touched. The status says
  // why if the work cannot be repeated.
  static RnnStatus Make(CUstream stream,
                        const std::function<RnnStatus()>& enqueue,
                        std::unique_ptr<Graph>* graph);
  ~Graph() { Gpu().cuda.cuGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  RnnStatus Launch(CUstream stream) const {
    return CudaStatus(Gpu().cuda.cuGraphLaunch(exec_, stream),
                      "launch a graph");
  }
  // An estimate of the host and device memory that the graph takes, which is at
  // most about kMaxBytes.
  size_t bytes() const { return bytes_; }
  static constexpr size_t kMaxBytes = size_t{256} << 20;

 private:
  Graph(CUgraphExec exec, size_t bytes) : exec_(exec), bytes_(bytes) {}

  const CUgraphExec exec_;
  const size_t bytes_;
};

// Says why a graph cannot repeat a pass.
inline RnnStatus NotRepeatable(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented, "a graph cannot repeat it: " + why};
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GRAPH_H_
