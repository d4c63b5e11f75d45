// The persistent kernels as functions that Python calls: a library for one
// shape, given by the kernels' macros and by KERNEL, the kernel's file.
#include "tests/programs/fake_device.h"

#include KERNEL

extern "C" int shared_bytes() {
#if defined(IS_FORWARD)
  return kShape.forward_shared_bytes();
#else
  return kShape.backward_shared_bytes();
#endif
}

#if defined(IS_FORWARD)
extern "C" void run(const ForwardArguments* arguments, int directions,
                    unsigned int seed) {
#else
extern "C" void run(const BackwardArguments* arguments, int directions,
                    unsigned int seed) {
#endif
  const int clusters = (arguments->sequences.batch + kRows - 1) / kRows;
  for (int direction = 0; direction < directions; ++direction) {
    for (int i = 0; i < clusters; ++i) {
      FakeCluster cluster(CLUSTER, kThreads, shared_bytes(), seed + i);
      const Dim first = {static_cast<unsigned int>(i * CLUSTER),
                         static_cast<unsigned int>(direction)};
#if defined(IS_FORWARD)
      cluster.Run(first, [arguments] { forward(*arguments); });
#else
      cluster.Run(first, [arguments] { backward(*arguments); });
#endif
    }
  }
}
