// Transposes the first two dimensions of an array of units, [outer, inner,
// width]. A row of threads copies a row of them.
#include "unit.cuh"

extern "C" __global__ void transpose(const Unit* __restrict__ from,
                                     Unit* __restrict__ to, unsigned int outer,
                                     unsigned int inner, unsigned int width) {
  const unsigned int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= outer * inner) return;
  const unsigned int i = row / inner, j = row % inner;
  from += static_cast<unsigned long long>(row) * width;
  to += static_cast<unsigned long long>(j * outer + i) * width;
  for (unsigned int at = threadIdx.x; at < width; at += blockDim.x) {
    to[at] = from[at];
  }
}
