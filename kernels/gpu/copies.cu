// Copies arrays to other places. A row of blocks has one of them.
#include "copies_arguments.h"

extern "C" __global__ void __launch_bounds__(256)
    copy_arrays(const cudnn_rnn_tf::ArrayCopies all) {
  const cudnn_rnn_tf::ArrayCopy& my = all.of[blockIdx.y];
  const char* const from = static_cast<const char*>(my.from);
  char* const to = static_cast<char*>(my.to);
  const long long first =
      static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  // The caller's array may begin anywhere; the bytes that are left over, or
  // all, are copied one by one then.
  const bool is_aligned = (reinterpret_cast<unsigned long long>(from) |
                           reinterpret_cast<unsigned long long>(to)) %
                              sizeof(uint4) ==
                          0;
  const long long chunks = is_aligned ? my.bytes / sizeof(uint4) : 0;
  for (long long i = first; i < chunks; i += threads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (long long i = chunks * sizeof(uint4) + first; i < my.bytes;
       i += threads) {
    to[i] = from[i];
  }
}
