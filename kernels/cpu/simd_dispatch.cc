#include "kernels/cpu/simd_kernels.h"

#ifdef CRNN_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <cstring>
#include <vector>

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
const SimdTable& Table();
}
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
#ifdef CRNN_HAS_AMX
    if (HasAmx()) candidates.push_back({"amx", amx::Table});
#endif
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
#ifdef CRNN_HAS_AMX
  // Linux does not allow the registers unasked, since each thread then has 8
  // KiB more to save, and it refuses if it does not know them itself.
  static const bool is_allowed = [] {
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
    if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return is_allowed;
#else
  return false;
#endif
}

const SimdTable& Simd() {
  static const SimdTable* const table = Choose();
  return *table;
}

}  // namespace cudnn_rnn_tf
