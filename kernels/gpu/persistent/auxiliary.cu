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

// Computes the order from the longest sequence to the shortest, in which
// sequences of one length keep their order, and the lengths, with -1 for those
// out of range. A block, of one warp, counts the sequences before its own.
extern "C" __global__ void order_sequences(const long long* __restrict__ given,
                                           int batch, int steps, int* lengths,
                                           int* order) {
  const auto length_of = [=](int b) {
    const long long length = given[b];
    return length < 0 || length > steps ? -1 : static_cast<int>(length);
  };
  const int b = blockIdx.x, length = length_of(b);
  int place = 0;
  for (int i = threadIdx.x; i < batch; i += blockDim.x) {
    const int other = length_of(i);
    place += other > length || (other == length && i < b);
  }
  for (int lanes = blockDim.x / 2; lanes > 0; lanes /= 2) {
    place += __shfl_xor_sync(~0u, place, lanes);
  }
  if (threadIdx.x > 0) return;
  lengths[b] = length;
  order[place] = b;
}

// Multiplies [rows, width] by the dropout mask of a layer, which is [time,
// batch, width].
extern "C" __global__ void apply_dropout(Sequences all, Index count, int width,
                                         int layer,
                                         const unsigned long long* seed,
                                         Word threshold, float rate,
                                         const Item* from, Item* to) {
  const Sum scale = 1.0f / (1.0f - static_cast<Sum>(rate));
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Step step = StepOfRow(all, i / width);
    const unsigned long long element =
        (static_cast<unsigned long long>(step.time) * all.batch + step.b) *
            width +
        i % width;
    const Sum value = ToFloat(from[i]);
    to[i] = FromFloat(
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

// Copies numbers of steps, [rows, width]. A warp takes a row.
extern "C" __global__ void copy_steps(const StepRows steps, Index rows,
                                      int width, Item* to) {
  constexpr int kOfChunk = sizeof(Chunk) / sizeof(Item);
  const int lane = threadIdx.x % 32;
  for (Index row = FirstIndex() / 32; row < rows; row += IndexStep() / 32) {
    const Item* const from = RowOf(steps, row);
    Item* const mine = to + row * width;
    const bool is_aligned =
        (reinterpret_cast<Index>(from) | reinterpret_cast<Index>(mine)) %
            sizeof(Chunk) ==
        0;
    const int chunks = is_aligned ? width / kOfChunk : 0;
    for (int i = lane; i < chunks; i += 32) {
      reinterpret_cast<Chunk*>(mine)[i] =
          from == nullptr ? Chunk{} : reinterpret_cast<const Chunk*>(from)[i];
    }
    for (int i = chunks * kOfChunk + lane; i < width; i += 32) {
      mine[i] = from == nullptr ? FromFloat(0.0f) : from[i];
    }
  }
}

// The following are for layers with projections around the persistent kernels.
// This one adds `products`, [batch, width], of the first states to the inputs
// of the steps that read them, [rows, width].
extern "C" __global__ void add_first_products(Sequences all, int width,
                                              bool is_reversed,
                                              const Sum* products, Item* to) {
  for (Index i = FirstIndex(); i < static_cast<Index>(all.batch) * width;
       i += IndexStep()) {
    const Sequence sequence(all, static_cast<int>(i / width));
    const Index row = sequence.RowAt(all, 0, is_reversed);
    if (sequence.length == 0 || StartsAnew(all, 0, row, is_reversed)) continue;
    Item& item = to[row * width + i % width];
    item = FromFloat(ToFloat(item) + products[i]);
  }
}

// Stores the last states. Rows of `states`, those after each step, are `pitch`
// numbers apart, and those of the first states and the last ones `stride`.
extern "C" __global__ void store_last_states(Sequences all, int width,
                                             bool is_reversed,
                                             const Item* states, Index pitch,
                                             const Item* first, Index stride,
                                             Item* last) {
  for (Index i = FirstIndex(); i < static_cast<Index>(all.batch) * width;
       i += IndexStep()) {
    const int b = static_cast<int>(i / width),
              unit = static_cast<int>(i % width);
    const Sequence sequence(all, b);
    const Index row = sequence.RowAt(all, sequence.length - 1, is_reversed);
    last[b * stride + unit] = sequence.is_invalid   ? FromFloat(InvalidValue())
                              : sequence.length > 0 ? states[row * pitch + unit]
                                                    : first[b * stride + unit];
  }
}

// Computes the gradients of the states after each step, [rows, width], from
// those of the outputs, of the last states, and of the states before each step,
// [rows, width], and those of the first states.
extern "C" __global__ void add_gradients(Sequences all, Index count, int width,
                                         bool is_reversed,
                                         const Item* of_output, Index pitch,
                                         const Item* of_last, Index stride,
                                         const Item* before, Item* of_first,
                                         Item* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Index row = i / width;
    const int unit = static_cast<int>(i % width);
    const Step at = StepOfRow(all, row);
    const Sequence sequence(all, at.b);
    const Index state = at.b * stride + unit;
    const int step = is_reversed ? sequence.length - 1 - at.time : at.time;
    Sum sum = sequence.is_invalid ? InvalidValue() : 0.0f;
    if (at.time < sequence.length) {
      sum = ToFloat(of_output[row * pitch + unit]);
      const Index next = sequence.RowAt(all, step + 1, is_reversed);
      if (step + 1 == sequence.length) {
        sum += ToFloat(of_last[state]);
      } else if (!StartsAnew(all, step + 1, next, is_reversed)) {
        sum += ToFloat(before[next * width + unit]);
      }
    }
    to[i] = FromFloat(sum);
    if (step == 0 && at.time < sequence.length) {
      of_first[state] =
          StartsAnew(all, 0, row, is_reversed) ? FromFloat(0.0f) : before[i];
    } else if (sequence.length == 0 && at.time == 0) {
      of_first[state] = sequence.is_invalid ? FromFloat(sum) : of_last[state];
    }
  }
}

// Computes the gradients of a direction's biases from the sums over sequences,
// [rows, slots * units], with some sequences in each row. `recurrent_slot` is
// the slot of the last gate's recurrent side. Blocks have 32 x at most 32
// threads.
extern "C" __global__ void sum_biases(const Sum* sums, int rows, int units,
                                      int gates, int slots, int recurrent_slot,
                                      Item* input_bias, Item* recurrent_bias) {
  __shared__ Sum parts[32][33];
  const int at = blockIdx.x * 32 + threadIdx.x, width = slots * units;
  Sum sum = 0.0f;
  if (at < width) {
    constexpr int kAtOnce = 8;
    for (int row = threadIdx.y; row < rows; row += kAtOnce * blockDim.y) {
      Sum some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Index each = row + static_cast<Index>(i) * blockDim.y;
        some[i] = each < rows ? sums[each * width + at] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum += some[i];
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || at >= width) return;
  for (unsigned i = 1; i < blockDim.y; ++i) sum += parts[i][threadIdx.x];
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
