// Checks that sequences lie within the buffers, whatever their order and their
// lengths are said to be.
// clang-format off
#include "tests/programs/fake_device.h"
#include "kernels/gpu/persistent/sequences.cuh"
// clang-format on

#include <cstdio>

int main() {
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
      return 1;
    }
  }
  const Sequence none(all, kBatch);
  return none.b == -1 ? 0 : 1;
}
