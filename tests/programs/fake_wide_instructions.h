// Stands in for AVX-512 BF16 and AMX, so that code for them runs on any x86-64.
// The compiler itself splits vectors that are too wide for the processor; here
// are the products of bfloat16 numbers. They are exact but for the sums' order.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_WIDE_INSTRUCTIONS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_WIDE_INSTRUCTIONS_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#undef __AVX512BF16__
#define __AVX512BF16__ 1

namespace fake {

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));

// Adds the products of both halves of each word.
inline Floats AddProducts(Floats sum, Words a, Words b) {
  sum += (Floats)(a << 16) * (Floats)(b << 16);
  return sum + (Floats)(a & 0xffff0000u) * (Floats)(b & 0xffff0000u);
}

// The matrix registers: 16 rows of 16 words.
struct Register {
  Words rows[16];
};
inline thread_local Register registers[8];

inline void Zero(int to) { registers[to] = {}; }
inline void Load(int to, const void* from, int64_t stride) {
  for (int row = 0; row < 16; ++row) {
    std::memcpy(&registers[to].rows[row],
                static_cast<const char*>(from) + row * stride, sizeof(Words));
  }
}
inline void Store(int from, void* to, int64_t stride) {
  for (int row = 0; row < 16; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride,
                &registers[from].rows[row], sizeof(Words));
  }
}
inline void Multiply(int sums, int a, int b) {
  for (int row = 0; row < 16; ++row) {
    Floats sum = (Floats)registers[sums].rows[row];
    for (int pair = 0; pair < 16; ++pair) {
      const Words number = Words{} + registers[a].rows[row][pair];
      sum = AddProducts(sum, number, registers[b].rows[pair]);
    }
    registers[sums].rows[row] = (Words)sum;
  }
}

}  // namespace fake

#define __m512 fake::Floats
#define __m512bh fake::Words
#define _mm512_dpbf16_ps fake::AddProducts
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(configuration) static_cast<void>(configuration)
#define _tile_release() static_cast<void>(0)
#define _tile_zero fake::Zero
#define _tile_loadd fake::Load
#define _tile_stored fake::Store
#define _tile_dpbf16ps fake::Multiply

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_WIDE_INSTRUCTIONS_H_
