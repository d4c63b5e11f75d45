// Kernels that compute number by number share this file.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ELEMENTWISE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ELEMENTWISE_CUH_

#include "arguments.h"
#include "items.cuh"

using Index = long long;

static Index FirstIndex() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}
static Index IndexStep() { return static_cast<Index>(gridDim.x) * blockDim.x; }

// Returns the largest word of a block's threads, which call this together and
// are whole warps.
static Word LargestOfBlock(Word word) {
  __shared__ Word largest;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  word = __reduce_max_sync(~0u, word);
  const bool is_asked = threadIdx.x % 32 == 0;
#else
  const bool is_asked = true;
#endif
  __syncthreads();  // All have read what an earlier call found.
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  if (is_asked) atomicMax(&largest, word);
  __syncthreads();
  return largest;
}

struct Words4 {
  Word word[4];
};

// Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", 2011), as the CPU backend has it.
static Words4 Philox(Words4 counter, Word key0, Word key1) {
  for (int round = 0; round < 10; ++round) {
    const Word high0 = __umulhi(0xD2511F53, counter.word[0]);
    const Word low0 = 0xD2511F53 * counter.word[0];
    const Word high1 = __umulhi(0xCD9E8D57, counter.word[2]);
    const Word low1 = 0xCD9E8D57 * counter.word[2];
    counter = {{high1 ^ counter.word[1] ^ key0, low1,
                high0 ^ counter.word[3] ^ key1, low0}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// Tells whether dropout drops an element of a layer's mask. The element's
// random word is a function of the seeds, the layer and the element's place in
// the mask; below `threshold` it drops the element.
static bool IsDropped(const unsigned long long* seed, int layer,
                      unsigned long long element, Word threshold) {
  const unsigned long long group = element / 4;
  const Words4 words =
      Philox({{static_cast<Word>(group),
               static_cast<Word>(group >> 32) | static_cast<Word>(layer) << 16,
               static_cast<Word>(seed[1]), static_cast<Word>(seed[1] >> 32)}},
             static_cast<Word>(seed[0]), static_cast<Word>(seed[0] >> 32));
  return words.word[element % 4] < threshold;
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ELEMENTWISE_CUH_
