// The lock under which graphs and cuDNN's passes are enqueued.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ENQUEUE_LOCK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_ENQUEUE_LOCK_H_

#include <cuda.h>

#include <array>
#include <cstdint>
#include <mutex>

namespace cudnn_rnn_tf {

// cuDNN enqueues parts of a pass in streams of its own, between two points of
// the caller's stream. A graph that another thread launched between these two
// points would run at the same time as those parts. On an H200, a few of
// 100,000 passes of an LSTM with a projection in float16 went wrong that way,
// from some step on, although the graph and the pass use none of each other's
// buffers; with this lock, none did. Streams may share a lock, which costs them
// a little time at most.
//
// Graphs of others do not take this lock. XLA launches its command buffers,
// which are graphs, in the stream that TensorFlow gives to these passes too, so
// a thread that runs a function compiled by XLA beside another thread's pass of
// cuDNN can still do what the lock prevents. We have not seen that, and nothing
// here could prevent it.
inline std::mutex& EnqueueLock(CUstream stream) {
  static std::array<std::mutex, 64> locks;
  return locks[reinterpret_cast<uintptr_t>(stream) / 64 % locks.size()];
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ENQUEUE_LOCK_H_
