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

  bool only_counts() const { return base_ == nullptr; }

  template <typename T>
  T* Take(int64_t count) {
    const size_t offset = taken_;
    taken_ +=
        (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    used_ = taken_ > used_ ? taken_ : used_;
    return only_counts() ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  // Bytes that the buffer must have.
  size_t used() const { return used_; }

  // Gives back, at its end, what was taken during its life.
  class Scope {
   public:
    explicit Scope(Arena* arena) : arena_(arena), taken_(arena->taken_) {}
    ~Scope() { arena_->taken_ = taken_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena* const arena_;
    const size_t taken_;
  };

 private:
  static constexpr size_t kAlign = 256;
  char* base_;
  size_t taken_ = 0;
  size_t used_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_ARENA_H_
