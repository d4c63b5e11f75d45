// Moves the tensors of Keras's layers into the opaque buffer, if TO_PARAMS is
// defined, or back. A block has one tile, which goes through shared memory,
// because the rows of a tensor are the columns of a gate in the buffer: so a
// warp has adjacent places in both of them.
//
// A unit is a number. Blocks have 32 x 8 threads.
#include "keras_tensors_arguments.h"
#include "unit.cuh"

using cudnn_rnn_tf::KerasTensorMove;
using cudnn_rnn_tf::KerasTensorMoves;

extern "C" __global__ void __launch_bounds__(256)
    move_keras_tensors(const KerasTensorMoves all) {
  // A row has one number more than it needs, or the numbers of a column would
  // all be in the same bank of shared memory.
  __shared__ Unit tile[32][33];
  int i = 0;
  while (i + 1 < all.count && blockIdx.x >= all.of[i + 1].first_tile) ++i;
  const KerasTensorMove& my = all.of[i];
  unsigned int at = blockIdx.x - my.first_tile;
  const unsigned int of_rows = (my.fan_in + 31) / 32;
  const unsigned int of_units = (my.units + 31) / 32;
  const int first_row = at % of_rows * 32;
  at /= of_rows;
  const int first_unit = at % of_units * 32;
  at /= of_units;
  const int gate = at % my.gates;
  const long long side = at / my.gates;
  const int place = my.swaps_gates && gate < 2 ? 1 - gate : gate;
  Unit* const tensor = static_cast<Unit*>(my.tensor) +
                       (side * my.fan_in * my.gates + gate) * my.units;
  Unit* const params = static_cast<Unit*>(all.params) + my.offset +
                       (side * my.gates + place) * my.units * my.fan_in;
  const long long pitch = static_cast<long long>(my.gates) * my.units;
  const int x = threadIdx.x;
#if defined(TO_PARAMS)
#pragma unroll
  for (int y = threadIdx.y; y < 32; y += 8) {
    if (first_row + y >= my.fan_in || first_unit + x >= my.units) continue;
    tile[y][x] = tensor[(first_row + y) * pitch + first_unit + x];
  }
  __syncthreads();
#pragma unroll
  for (int y = threadIdx.y; y < 32; y += 8) {
    if (first_unit + y >= my.units || first_row + x >= my.fan_in) continue;
    params[static_cast<long long>(first_unit + y) * my.fan_in + first_row + x] =
        tile[x][y];
  }
#else
#pragma unroll
  for (int y = threadIdx.y; y < 32; y += 8) {
    if (first_unit + y >= my.units || first_row + x >= my.fan_in) continue;
    tile[x][y] = params[static_cast<long long>(first_unit + y) * my.fan_in +
                        first_row + x];
  }
  __syncthreads();
#pragma unroll
  for (int y = threadIdx.y; y < 32; y += 8) {
    if (first_row + y >= my.fan_in || first_unit + x >= my.units) continue;
    tensor[(first_row + y) * pitch + first_unit + x] = tile[y][x];
  }
#endif
}
