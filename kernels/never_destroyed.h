#ifndef CUDNN_RNN_TF_KERNELS_NEVER_DESTROYED_H_
#define CUDNN_RNN_TF_KERNELS_NEVER_DESTROYED_H_

#include <new>

namespace cudnn_rnn_tf {

// Holds an object that is never destroyed. Static objects are held in this way,
// since threads may use them until the process ends, when the CUDA context may
// be gone already.
template <typename T>
class NeverDestroyed {
 public:
  NeverDestroyed() { ::new (storage_) T; }
  NeverDestroyed(const NeverDestroyed&) = delete;
  NeverDestroyed& operator=(const NeverDestroyed&) = delete;

  T& operator*() { return *std::launder(reinterpret_cast<T*>(storage_)); }
  T* operator->() { return &**this; }

 private:
  alignas(T) unsigned char storage_[sizeof(T)];
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_NEVER_DESTROYED_H_
