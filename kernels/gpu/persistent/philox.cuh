// The random words that masks are drawn by.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_PHILOX_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_PHILOX_CUH_

#include "items.cuh"

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

// Returns the random words of four elements of a layer's mask, from a multiple
// of four on. They are a function of the seeds, the layer and the elements'
// place in the mask.
static Words4 WordsOf(const unsigned long long* seed, int layer,
                      unsigned long long group) {
  return Philox(
      {{static_cast<Word>(group),
        static_cast<Word>(group >> 32) | static_cast<Word>(layer) << 16,
        static_cast<Word>(seed[1]), static_cast<Word>(seed[1] >> 32)}},
      static_cast<Word>(seed[0]), static_cast<Word>(seed[0] >> 32));
}

// Tells whether dropout drops an element of a layer's mask: one whose word is
// below `threshold`.
static bool IsDropped(const unsigned long long* seed, int layer,
                      unsigned long long element, Word threshold) {
  return WordsOf(seed, layer, element / 4).word[element % 4] < threshold;
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_PHILOX_CUH_
