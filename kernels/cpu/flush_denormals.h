#ifndef CUDNN_RNN_TF_KERNELS_CPU_FLUSH_DENORMALS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_FLUSH_DENORMALS_H_

namespace cudnn_rnn_tf {

// While such an object lives, its thread treats denormal numbers as zeros, as
// TensorFlow's threads do, because arithmetic on denormal numbers is a hundred
// times slower. It has no effect on processors other than x86-64.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(__builtin_ia32_stmxcsr()) {
    constexpr unsigned kFlushToZero = 1 << 15, kDenormalsAreZeros = 1 << 6;
    __builtin_ia32_ldmxcsr(before_ | kFlushToZero | kDenormalsAreZeros);
  }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(before_); }
#else
  FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

#if defined(__x86_64__)
 private:
  const unsigned before_;
#endif
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_FLUSH_DENORMALS_H_
