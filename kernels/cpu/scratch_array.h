#ifndef CUDNN_RNN_TF_KERNELS_CPU_SCRATCH_ARRAY_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SCRATCH_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <new>

#include "kernels/arena.h"

namespace cudnn_rnn_tf {

// Memory for one thread's ScratchArrays. They follow each other like variables
// on a stack, so arrays of successive calls are in the same place, which is in
// a near cache. The thread keeps the memory from its first array to its end,
// and the system gives pages only to the part that is written to.
class ThreadScratch {
 public:
  static ThreadScratch& OfThisThread() {
    static thread_local ThreadScratch scratch;
    return scratch;
  }

  void* Take(size_t bytes) {
    if (bytes > kBytes - taken_) throw std::bad_alloc();
    void* const data = static_cast<char*>(memory_.data()) + taken_;
    taken_ += bytes;
    return data;
  }
  // Gives back so many of the bytes that were taken last.
  void GiveBack(size_t bytes) { taken_ -= bytes; }

 private:
  // All arrays that a thread has at one time must fit into this. A product that
  // widens its left factor has 384 KiB of them.
  static constexpr size_t kBytes = size_t{512} << 10;

  ThreadScratch() { memory_.Grow(kBytes); }

  ArenaMemory memory_;
  size_t taken_ = 0;
};

// An array that a function works in. At first, its contents are undefined. It
// is for arrays that are too large for the stack, since a caller's thread may
// have one of 64 KiB only.
template <typename T>
class ScratchArray {
 public:
  explicit ScratchArray(int64_t count)
      : bytes_((count * sizeof(T) + kAlign - 1) / kAlign * kAlign),
        data_(static_cast<T*>(scratch_.Take(bytes_))) {}
  ~ScratchArray() { scratch_.GiveBack(bytes_); }
  ScratchArray(const ScratchArray&) = delete;
  ScratchArray& operator=(const ScratchArray&) = delete;

  T* data() const { return data_; }

 private:
  static constexpr size_t kAlign = 64;

  ThreadScratch& scratch_ = ThreadScratch::OfThisThread();
  const size_t bytes_;
  T* const data_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SCRATCH_ARRAY_H_
