#ifndef CUDNN_RNN_TF_KERNELS_CPU_PAUSE_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PAUSE_H_

#include <cstdint>
#include <thread>

namespace cudnn_rnn_tf {

// Tells the processor that the thread waits for another one's memory, so that
// the other thread of the same core, if there is one, may go on.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits for another thread, a turn at a time. Later turns yield the processor,
// since the other thread may have lost its own.
class Waiting {
 public:
  void Turn() {
    constexpr int kPauses = 2000;
    if (turns_++ < kPauses) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  int64_t turns_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PAUSE_H_
