#include <cstdlib>
#include <cstring>

#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {

namespace baseline {
const SimdTable& Table();
}
#ifdef CRNN_SIMD_X86
namespace avx2 {
const SimdTable& Table();
}
namespace avx512 {
const SimdTable& Table();
}
namespace avx512bf16 {
const SimdTable& Table();
}
namespace amx {
bool CanRun();
const SimdTable& Table();
}  // namespace amx
#endif

namespace {

const SimdTable* Choose() {
  struct Candidate {
    const char* name;
    const SimdTable& (*table)();
  };
  Candidate candidates[5] = {};
  int count = 0;
#ifdef CRNN_SIMD_X86
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") &&
                        __builtin_cpu_supports("f16c") &&
                        __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512dq");
  // The compiler's flag for BF16 implies BW.
  if (has_avx512 && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512bf16")) {
    if (HasAmx()) candidates[count++] = {"amx", amx::Table};
    candidates[count++] = {"avx512bf16", avx512bf16::Table};
  }
  if (has_avx512) candidates[count++] = {"avx512", avx512::Table};
  if (has_avx2) candidates[count++] = {"avx2", avx2::Table};
#endif
  candidates[count++] = {"baseline", baseline::Table};
  if (const char* wanted = std::getenv("CUDNN_RNN_TF_CPU_ISA")) {
    for (int i = 0; i < count; ++i) {
      if (std::strcmp(candidates[i].name, wanted) == 0) {
        return &candidates[i].table();
      }
    }
  }
  return &candidates[0].table();
}

}  // namespace

bool HasAmx() {
#ifdef CRNN_SIMD_X86
  return amx::CanRun();
#else
  return false;
#endif
}

const SimdTable& Simd() {
  static const SimdTable* const table = Choose();
  return *table;
}

}  // namespace cudnn_rnn_tf
