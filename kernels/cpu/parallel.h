#ifndef CUDNN_RNN_TF_KERNELS_CPU_PARALLEL_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace cudnn_rnn_tf {

// Runs body(begin, end) over ranges that together cover [0, tasks), on several
// threads where it pays. The tasks are the same whatever the number of threads,
// and each writes to its own place, so results are too.
using ParallelFor =
    std::function<void(int64_t tasks, double flops_per_task,
                       const std::function<void(int64_t, int64_t)>& body)>;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PARALLEL_H_
