// The numbers of a network's type, and the words that hold them.
//
// Whoever compiles defines one of IS_FLOAT64, IS_FLOAT, IS_FLOAT16 and
// IS_BFLOAT16.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ITEMS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_ITEMS_CUH_

#if defined(IS_FLOAT64)
using Item = double;
using Sum = double;
#elif defined(IS_FLOAT)
using Item = float;
using Sum = float;
#elif defined(IS_FLOAT16) || defined(IS_BFLOAT16)
using Item = unsigned short;  // A half type's bits.
using Sum = float;            // Kernels compute in this type.
#else
#error "none of the types is defined"
#endif
using Word = unsigned int;

// A thread loads or stores one chunk at once.
struct alignas(16) Chunk {
  Word word[4];
};

using Half = unsigned short;  // A float16's bits.

// Tests define these two for a CPU.
#if !defined(HAS_OWN_HALVES)
static float OfHalf(Half item) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(item));
  return value;
}
static Half ToHalf(float value) {
  Half item;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(item) : "f"(value));
  return item;
}
#endif

static Sum ToFloat(Item item) {
#if defined(IS_FLOAT64) || defined(IS_FLOAT)
  return item;
#elif defined(IS_BFLOAT16)
  return __uint_as_float(static_cast<Word>(item) << 16);
#elif defined(IS_FLOAT16)
  return OfHalf(item);
#endif
}

static Item FromFloat(Sum value) {
#if defined(IS_FLOAT64) || defined(IS_FLOAT)
  return value;
#elif defined(IS_BFLOAT16) && __CUDA_ARCH__ < 800
  // Turing has no such instruction.
  const Word bits = __float_as_uint(value);
  return static_cast<Item>(
      value != value ? 0x7FFFu : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
#elif defined(IS_BFLOAT16)
  Item item;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(item) : "f"(value));
  return item;
#elif defined(IS_FLOAT16)
  return ToHalf(value);
#endif
}

#if !defined(IS_FLOAT64)
// Takes one float, or two numbers of a half type, out of a word; the first
// number has the low bits.
static void FromWord(Word word, float* values) {
#if defined(IS_FLOAT)
  values[0] = __uint_as_float(word);
#else
  values[0] = ToFloat(static_cast<Item>(word));
  values[1] = ToFloat(static_cast<Item>(word >> 16));
#endif
}
#endif

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ITEMS_CUH_
