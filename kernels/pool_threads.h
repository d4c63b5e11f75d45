// Runs the ops' work on TensorFlow's threads. A CpuPredictor has its own.
#ifndef CUDNN_RNN_TF_KERNELS_POOL_THREADS_H_
#define CUDNN_RNN_TF_KERNELS_POOL_THREADS_H_

#include <cstdint>
#include <functional>

#include "tensorflow/core/platform/threadpool.h"

namespace cudnn_rnn_tf {

// Calls body(0) on the calling thread, and body(member) for every member in
// [1, members) for which a thread of the pool is free before body(0) returns.
// Any one member must do all work that is left, and the body must not throw.
// The pool's ParallelFor would wait for a thread for each member, and so for
// other calls' work on the same threads.
void RunInPool(tensorflow::thread::ThreadPool* pool, int64_t members,
               const std::function<void(int64_t)>& body);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_POOL_THREADS_H_
