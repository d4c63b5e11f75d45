// The small kernels around the persistent ones. Rows are steps of sequences, as
// in Sequences.
#include "elementwise.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::HostLengths;

extern "C" __global__ void store_lengths(const HostLengths lengths, int count,
                                         long long* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    to[i] = lengths.of[i];
  }
}

extern "C" __global__ void store_seed(unsigned long long seed0,
                                      unsigned long long seed1,
                                      unsigned long long* to) {
  if (threadIdx.x > 0) return;
  to[0] = seed0;
  to[1] = seed1;
}

// Computes the order from the longest sequence to the shortest, and the
// lengths, with -1 for those out of range. A thread has one sequence; blocks
// have 256 threads.
extern "C" __global__ void order_sequences(const long long* given, int batch,
                                           int steps, int* lengths,
                                           int* order) {
  __shared__ int tile[256];
  const auto length_of = [=](int b) {
    const long long length = given[b];
    return length < 0 || length > steps ? -1 : static_cast<int>(length);
  };
  const int b = blockIdx.x * 256 + threadIdx.x;
  const int mine = b < batch ? length_of(b) : 0;
  int place = 0;
  for (int first = 0; first < batch; first += 256) {
    const int other = first + threadIdx.x;
    __syncthreads();
    tile[threadIdx.x] = other < batch ? length_of(other) : 0;
    __syncthreads();
    const int count = min(256, batch - first);
    for (int i = 0; i < count; ++i) {
      place += tile[i] > mine || (tile[i] == mine && first + i < b);
    }
  }
  if (b >= batch) return;
  lengths[b] = mine;
  order[place] = b;
}

// Multiplies `values`, [rows, width], by the dropout mask of a layer, which is
// [time, batch, width].
extern "C" __global__ void apply_dropout(Sequences all, Index count, int width,
                                         int layer,
                                         const unsigned long long* seed,
                                         Word threshold, float rate,
                                         Item* values) {
  const Sum scale = 1.0f / (1.0f - static_cast<Sum>(rate));
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Step step = StepOfRow(all, i / width);
    const unsigned long long element =
        (static_cast<unsigned long long>(step.time) * all.batch + step.b) *
            width +
        i % width;
    const Sum value = ToFloat(values[i]);
    values[i] = FromFloat(
        IsDropped(seed, layer, element, threshold) ? 0.0f : value * scale);
  }
}

// Spreads the inputs of a layer without input matrices, in which every gate's
// input is the input itself. `inputs`, [rows, units], go to the first `gates`
// of the `slots` of each unit in `to`, [rows, slots, units].
extern "C" __global__ void spread_inputs(Index count, int units, int gates,
                                         int slots, const Item* inputs,
                                         Item* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Item value = inputs[i];
    for (int gate = 0; gate < gates; ++gate) {
      to[(i / units * slots + gate) * units + i % units] = value;
    }
  }
}

// Computes the gradient of spread_inputs, summed over one direction or two.
extern "C" __global__ void gather_inputs(Index count, int units, int gates,
                                         int slots, const Item* of_forward,
                                         const Item* of_backward, Item* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    Sum sum = 0.0f;
    for (int gate = 0; gate < gates; ++gate) {
      const Index at = (i / units * slots + gate) * units + i % units;
      sum += ToFloat(of_forward[at]);
      if (of_backward != nullptr) sum += ToFloat(of_backward[at]);
    }
    to[i] = FromFloat(sum);
  }
}

// Copies [rows, width] but writes zeros past the sequences' ends, where `from`
// may hold anything.
extern "C" __global__ void copy_without_padding(Sequences all, Index count,
                                                int width, const Item* from,
                                                Item* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Step step = StepOfRow(all, i / width);
    to[i] = step.time < all.lengths[step.b] ? from[i] : FromFloat(0.0f);
  }
}

// Copies [rows, width] as [width, pitch], but writes zeros past the sequences'
// ends if lengths are given. Blocks have 32 x 8 threads.
extern "C" __global__ void transpose_steps(Sequences all, Index rows, int width,
                                           Index pitch, const Item* from,
                                           Item* to) {
  __shared__ Item tile[32][33];
  const Index across = (width + 31) / 32, tiles = across * ((rows + 31) / 32);
  const int x = threadIdx.x;
  for (Index i = blockIdx.x; i < tiles; i += gridDim.x) {
    const Index first_row = i / across * 32;
    const int first_column = static_cast<int>(i % across) * 32;
    for (int y = threadIdx.y; y < 32; y += 8) {
      const Index row = first_row + y;
      if (row >= rows || first_column + x >= width) continue;
      const Step step = StepOfRow(all, row);
      tile[y][x] = all.lengths == nullptr || step.time < all.lengths[step.b]
                       ? from[row * width + first_column + x]
                       : FromFloat(0.0f);
    }
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8) {
      if (first_row + x < rows && first_column + y < width) {
        to[(first_column + y) * pitch + first_row + x] = tile[x][y];
      }
    }
    __syncthreads();
  }
}

// Computes the gradients of a direction's biases from the sums over sequences,
// [rows, slots * units], with a row for each sequence. `recurrent_slot` is the
// slot of the last gate's recurrent side. Blocks have 32 x 8 threads.
extern "C" __global__ void sum_biases(const Sum* sums, int rows, int units,
                                      int gates, int slots, int recurrent_slot,
                                      Item* input_bias, Item* recurrent_bias) {
  __shared__ Sum parts[8][33];
  const int at = blockIdx.x * 32 + threadIdx.x, width = slots * units;
  Sum sum = 0.0f;
  if (at < width) {
#pragma unroll 4
    for (int row = threadIdx.y; row < rows; row += 8) {
      sum += sums[static_cast<Index>(row) * width + at];
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || at >= width) return;
  for (int i = 1; i < 8; ++i) sum += parts[i][threadIdx.x];
  const int slot = at / units, unit = at % units;
  if (slot < gates && input_bias != nullptr) {
    input_bias[slot * units + unit] = FromFloat(sum);
  }
  const int gate = slot == recurrent_slot ? gates - 1 : slot;
  const bool is_recurrent = slot == recurrent_slot || slot < gates - 1;
  if (is_recurrent && recurrent_bias != nullptr) {
    recurrent_bias[gate * units + unit] = FromFloat(sum);
  }
}

// Adds up `num_parts` arrays of `count` numbers, which follow one another.
extern "C" __global__ void add_parts(Index count, int num_parts,
                                     const Sum* parts, Item* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    Sum sum = 0.0f;
#pragma unroll 8
    for (int part = 0; part < num_parts; ++part) sum += parts[part * count + i];
    to[i] = FromFloat(sum);
  }
}
