// Checks that sequences lie within the buffers, whatever their order and their
// lengths are said to be, and the order that a kernel gives them.
// clang-format off
#include "tests/programs/fake_device.h"
#define __shared__ static
inline void __syncthreads() {}
inline int __shfl_xor_sync(Word, int number, int lanes) {
  return static_cast<int>(
      ShuffleFrom(static_cast<Word>(number), Fake().me().lane ^ lanes));
}
using std::min;
#include "kernels/gpu/persistent/auxiliary.cu"
// clang-format on

#include <cstdio>
#include <numeric>

namespace {

bool LieWithinBuffers() {
  constexpr int kBatch = 4, kSteps = 7;
  const int order[kBatch] = {2, -1, 65792, kBatch};
  const int lengths[kBatch] = {-1, kSteps, kSteps + 1, -65792};
  const Sequences all = {lengths, order, kBatch, kSteps, kBatch, 1};
  for (int row = 0; row < kBatch; ++row) {
    const Sequence sequence(all, row);
    if (sequence.b < 0 || sequence.b >= kBatch || sequence.length < 0 ||
        sequence.length > kSteps) {
      std::printf("row %d has %d steps of sequence %d\n", row, sequence.length,
                  sequence.b);
      return false;
    }
  }
  const Sequence none(all, kBatch);
  return none.b == -1;
}

// Compares the kernel's order and lengths with those of a stable sort. Some
// lengths are out of range, by one or by more than an int holds.
bool AreOrdered(int batch, int steps, int distinct, std::mt19937* random) {
  std::vector<long long> given(batch);
  std::vector<int> expected_lengths, expected(batch), lengths(batch),
      order(batch);
  for (long long& length : given) {
    const long long out_of_range[] = {-1, steps + 1LL, (1LL << 32) + 1};
    const auto draw = (*random)() % 20;
    length = draw < 3 ? out_of_range[draw]
                      : steps - (*random)() % distinct % (steps + 1LL);
    const bool is_valid = length >= 0 && length <= steps;
    expected_lengths.push_back(is_valid ? static_cast<int>(length) : -1);
  }
  std::iota(expected.begin(), expected.end(), 0);
  std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) {
    return expected_lengths[a] > expected_lengths[b];
  });
  const auto run = [&] {
    order_sequences(given.data(), batch, steps, lengths.data(), order.data());
  };
  for (unsigned int b = 0; b < static_cast<unsigned int>(batch); ++b) {
    // To run all blocks with a warp's threads would take long.
    blockDim = {b % 32 == 1 ? 32u : 1u, 1};
    blockIdx = {b, 0};
    threadIdx = {};
    if (blockDim.x == 1) {
      run();
    } else {
      FakeTeam(1, 32, 0, b).Run(run, blockIdx);
    }
  }
  if (order == expected && lengths == expected_lengths) return true;
  std::printf("%d sequences of %d steps are in disorder\n", batch, steps);
  return false;
}

}  // namespace

int main() {
  if (!LieWithinBuffers()) return 1;
  std::mt19937 random(0);
  for (const int batch : {1, 2, 31, 33, 64, 257, 1500}) {
    for (const int steps : {0, 1, 14, 15, 254, 255, 5000, 0x7FFFFFFF}) {
      for (const int distinct : {1, 3, 0x7FFFFFFF}) {
        if (!AreOrdered(batch, steps, distinct, &random)) return 1;
      }
    }
  }
  return 0;
}
