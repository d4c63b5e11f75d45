// Computes the lengths of sequences, [batch], from a mask, a bool for each step
// of each sequence. The length is -1 if a sequence's true values are not all at
// its beginning. A warp has one sequence.
extern "C" __global__ void lengths_of_mask(const unsigned char* mask, int batch,
                                           int steps, long long batch_stride,
                                           long long time_stride,
                                           long long* lengths) {
  const int b = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (b >= batch) return;
  int count = 0, end = 0;
  for (int time = lane; time < steps; time += 32) {
    if (mask[time * time_stride + b * batch_stride]) {
      ++count;
      end = time + 1;
    }
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    count += __shfl_xor_sync(~0u, count, lanes);
    end = max(end, __shfl_xor_sync(~0u, end, lanes));
  }
  if (lane == 0) lengths[b] = count == end ? count : -1;
}
