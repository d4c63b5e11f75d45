#include <cstdlib>
#include <cstring>
#include <vector>

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
  std::vector<Candidate> candidates;
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
    if (HasAmx()) candidates.push_back({"amx", amx::Table});
    candidates.push_back({"avx512bf16", avx512bf16::Table});
  }
  if (has_avx512) candidates.push_back({"avx512", avx512::Table});
  if (has_avx2) candidates.push_back({"avx2", avx2::Table});
#endif
  candidates.push_back({"baseline", baseline::Table});
  if (const char* wanted = std::getenv("CUDNN_RNN_TF_CPU_ISA")) {
    for (const auto& [name, table] : candidates) {
      if (std::strcmp(name, wanted) == 0) return &table();
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
