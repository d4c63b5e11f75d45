#ifndef CUDNN_RNN_TF_KERNELS_ARENA_H_
#define CUDNN_RNN_TF_KERNELS_ARENA_H_

#include <cstddef>
#include <cstdint>

namespace cudnn_rnn_tf {

// Hands out aligned pieces of one buffer; over a null buffer it only counts, so
// that one piece of code both sizes a workspace and lays it out.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* Take(int64_t count) {
    const size_t offset = used_;
    used_ +=
        (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlign = 256;
  char* base_;
  size_t used_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_ARENA_H_
