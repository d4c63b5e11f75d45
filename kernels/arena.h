#ifndef CUDNN_RNN_TF_KERNELS_ARENA_H_
#define CUDNN_RNN_TF_KERNELS_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

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
    taken_ += Rounded(static_cast<size_t>(count) * sizeof(T));
    used_ = taken_ > used_ ? taken_ : used_;
    return only_counts() ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  // The number of bytes that the buffer must have: the most that was taken at
  // one time.
  size_t used() const { return used_; }

  // At the end of a Scope, the pieces taken during its lifetime can be handed
  // out again.
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

  // Every piece begins at a multiple of this many bytes from the buffer's
  // beginning.
  static constexpr size_t kAlign = 256;
  // Returns what a piece of so many bytes takes.
  static constexpr size_t Rounded(size_t bytes) {
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }

 private:
  char* base_;
  size_t taken_ = 0;
  size_t used_ = 0;
};

// A heap buffer for an arena.
class ArenaMemory {
 public:
  void* data() const { return data_.get(); }
  size_t size() const { return size_; }
  // Makes the buffer at least this large. If it has to grow, its contents are
  // lost.
  void Grow(size_t bytes) {
    if (bytes <= size_) return;
    // Large buffers are aligned to huge pages, so that the operating system can
    // back them with such pages.
    const size_t align = bytes < kLargePage ? Arena::kAlign : kLargePage;
    data_.reset();
    size_ = 0;
    const size_t size = (bytes + align - 1) / align * align;
    data_.reset(std::aligned_alloc(align, size));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = size;
  }

 private:
  static constexpr size_t kLargePage = size_t{1} << 21;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_ARENA_H_
