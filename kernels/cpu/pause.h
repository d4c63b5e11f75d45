#ifndef CUDNN_RNN_TF_KERNELS_CPU_PAUSE_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PAUSE_H_

namespace cudnn_rnn_tf {

// Tells the processor that the thread waits for another one's memory, so that
// the other thread of the same core, if there is one, may go on.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PAUSE_H_
