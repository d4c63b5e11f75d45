// All steps of a recurrent layer, backward, with the recurrent weights in the
// registers and the shared memory of clusters.
//
// A block has the gates' rows of its units, as in the forward pass. In a step
// its threads first compute the gradients of its cells' gates, which go to
// memory, for the products that follow this kernel, and to shared memory. Its
// warps multiply these by the transposed rows: a partial gradient of h for all
// units, which goes to the units' owners as floats, each sender's to a place of
// its own. The owners add the parts in the order of the senders, so results do
// not depend on who was first.
#include "common.cuh"

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::BackwardDirection;

constexpr int kPairs = kShape.backward_pairs();
constexpr int kPitch = Shape::Pitch(kPairs);
constexpr int kTiles = kShape.backward_warp_tiles();
constexpr int kSlotPitch = kShape.backward_slot_pitch();
constexpr int kChains = kTiles * ROW_TILES >= 2 ? 2 : 4;
constexpr int kCells = BLOCK_UNITS * kRows;
constexpr int kRounds = (kCells + kThreads - 1) / kThreads;

// What a cell's step reads.
struct CellInputs {
  Item gates[kSlots];
  Item h_before, output_backprop;
  float c, c_before;
};

// The gradients of what goes into a cell's gates, in the order of its slots.
// `dh` is the gradient of its h; `carry_h` is left what goes to the h before
// without passing a gate, and `carry_c` becomes the gradient of the c before.
static __device__ void ComputeGradients(const CellInputs& in, float dh,
                                        float* carry_h, float* carry_c,
                                        float* gradients) {
  float gate[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    gate[slot] = ToFloat(in.gates[slot]);
#if defined(IS_LSTM)
  const float tanh_c = Tanh(in.c);
  const float dc = *carry_c + dh * gate[3] * (1.0f - tanh_c * tanh_c);
  gradients[0] = dc * gate[2] * gate[0] * (1.0f - gate[0]);
  gradients[1] = dc * in.c_before * gate[1] * (1.0f - gate[1]);
  gradients[2] = dc * gate[0] * (1.0f - gate[2] * gate[2]);
  gradients[3] = dh * tanh_c * gate[3] * (1.0f - gate[3]);
  *carry_c = dc * gate[1];
  *carry_h = 0.0f;
#elif defined(IS_GRU)
  gradients[2] = dh * (1.0f - gate[1]) * (1.0f - gate[2] * gate[2]);
  gradients[3] = gradients[2] * gate[0];
  gradients[0] = gradients[2] * gate[3] * gate[0] * (1.0f - gate[0]);
  gradients[1] =
      dh * (ToFloat(in.h_before) - gate[2]) * gate[1] * (1.0f - gate[1]);
  *carry_h = dh * gate[1];
#elif defined(IS_TANH)
  gradients[0] = dh * (1.0f - gate[0] * gate[0]);
  *carry_h = 0.0f;
#else
  gradients[0] = gate[0] > 0.0f ? dh : 0.0f;
  *carry_h = 0.0f;
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    backward(const BackwardArguments all) {
  const Sequences& sequences = all.sequences;
  const BackwardDirection& my = all.direction[blockIdx.y];
  const bool is_reversed = blockIdx.y == 1;
  const int first_row = blockIdx.x / CLUSTER * kRows;
  const int rank = BlockOfCluster();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4, is_odd = g % 2, quad = g / 2;

  Barrier* const barriers = reinterpret_cast<Barrier*>(SharedMemory());
  // [2][CLUSTER][kRows][kSlotPitch]
  float* const parts =
      reinterpret_cast<float*>(SharedMemory() + Shape::kBarrierBytes);
  // [2][kRows], each row the block's gradients, unit by unit and slot by slot.
  char* const gradients =
      reinterpret_cast<char*>(parts) + kShape.backward_slots_bytes();
  Chunk* const shared_weights =
      reinterpret_cast<Chunk*>(gradients + kShape.backward_gradient_bytes()) +
      warp * kTiles * 2 * 32 + lane;
  const auto shared_at = [&](int pair, int i, int half) -> Chunk& {
    return shared_weights[(((pair - RESIDENT_PAIRS) * WARPS * kTiles + i) * 2 +
                           half) *
                          32];
  };
  // A tile's rows are dealt so that a pair of lanes, with rows g and g + 8
  // each, has four units that follow each other.
  const auto load_weights = [&](int pair, int i, int half) {
    Chunk chunk = {};
    const int unit = (warp * kTiles + i) * 16 + quad * 4 + is_odd * 2 + half;
    if (unit >= NUM_UNITS) return chunk;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float values[kItems];
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const int k = ((pair * 4 + t) * 4 + j) * kItems + e;
        const int gate = k % kProductSlots;
        const int row = rank * BLOCK_UNITS + k / kProductSlots;
        values[e] =
            gate < kGates && row < NUM_UNITS
                ? ToFloat(static_cast<const Item*>(
                      my.recurrent_weights)[static_cast<long long>(
                                                gate * NUM_UNITS + row) *
                                                NUM_UNITS +
                                            unit])
                : 0.0f;
      }
      chunk.word[j] = ToOperand(ToWord(values));
    }
    return chunk;
  };
  Chunk weights[RESIDENT_PAIRS > 0 ? RESIDENT_PAIRS : 1][kTiles][2];
#pragma unroll
  for (int pair = 0; pair < RESIDENT_PAIRS; ++pair) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      weights[pair][i][0] = load_weights(pair, i, 0);
      weights[pair][i][1] = load_weights(pair, i, 1);
    }
  }
#pragma unroll 1
  for (int pair = RESIDENT_PAIRS; pair < kPairs; ++pair) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      shared_at(pair, i, 0) = load_weights(pair, i, 0);
      shared_at(pair, i, 1) = load_weights(pair, i, 1);
    }
  }
  if (thread == 0) {
    InitializeBarriers(barriers, 2);
    ArmBarrier(barriers, kShape.backward_step_bytes());
    ArmBarrier(barriers + 1, kShape.backward_step_bytes());
  }

  // The thread's cells.
  int b_of[kRounds], length[kRounds], row_of[kRounds];
  float carry_h[kRounds], carry_c[kRounds], bias_sums[kRounds][kSlots];
  const auto row_in_block = [&](int round) {
    return (round * kThreads + thread) / BLOCK_UNITS;
  };
  const auto unit_in_block = [&](int round) {
    return (round * kThreads + thread) % BLOCK_UNITS;
  };
  const auto unit_of = [&](int round) {
    return rank * BLOCK_UNITS + unit_in_block(round);
  };
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const bool is_cell = round * kThreads + thread < kCells;
    Sequence sequence(sequences, first_row + row_in_block(round));
    if (!is_cell || unit_of(round) >= NUM_UNITS) {
      sequence.b = -1;
      sequence.length = 0;
    }
    b_of[round] = sequence.b;
    length[round] = sequence.length;
    row_of[round] = sequence.RowAt(sequences, 0, is_reversed);
    const long long at = sequence.b * all.state_stride + unit_of(round);
    carry_h[round] =
        sequence.b >= 0
            ? ToFloat(static_cast<const Item*>(my.last_h_backprop)[at])
            : 0.0f;
    carry_c[round] = 0.0f;
#if defined(IS_LSTM)
    if (sequence.b >= 0) {
      carry_c[round] =
          ToFloat(static_cast<const Item*>(my.last_c_backprop)[at]);
    }
#endif
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) bias_sums[round][slot] = 0.0f;
  }
  const int steps = Sequence(sequences, first_row).length;
  const int row_step =
      is_reversed ? -sequences.time_stride : sequences.time_stride;
  Item* const gates = static_cast<Item*>(my.gates);
  CellInputs inputs[kRounds];
  const auto load_inputs = [&](int step) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      CellInputs& in = inputs[round];
      in = {};
      if (step < 0 || step >= length[round]) continue;
      const long long row = row_of[round] + step * row_step;
      const int unit = unit_of(round);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        in.gates[slot] = gates[(row * kSlots + slot) * NUM_UNITS + unit];
      }
      in.output_backprop = static_cast<const Item*>(
          my.output_backprop)[row * all.output_stride + unit];
#if defined(IS_LSTM)
      in.c = my.cells[row * NUM_UNITS + unit];
      in.c_before =
          step > 0 ? my.cells[(row - row_step) * NUM_UNITS + unit]
                   : ToFloat(static_cast<const Item*>(
                         my.first_c)[b_of[round] * all.state_stride + unit]);
#elif defined(IS_GRU)
      in.h_before =
          static_cast<const Item*>(my.previous_h)[row * NUM_UNITS + unit];
#endif
    }
  };
  load_inputs(steps - 1);
  // From here on peers may store to this block.
  SynchronizeCluster();

  // One turn more than there are steps adds up the first states' gradients.
  for (int turn = 0; turn <= steps; ++turn) {
    const int step = steps - 1 - turn, current = turn % 2, next = 1 - current;
    CellInputs inputs_now[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      inputs_now[round] = inputs[round];
    }
    load_inputs(step - 1);
    if (CLUSTER > 1 && turn > 0) {
      WaitForBarrier(barriers + current, (turn - 1) / 2 % 2);
      if (thread == 0) {
        ArmBarrier(barriers + current, kShape.backward_step_bytes());
      }
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (round * kThreads + thread >= kCells) continue;
      const int row_in_cluster = row_in_block(round);
      const int unit_here = unit_in_block(round);
      float dh = carry_h[round];
      if (turn > 0) {
        const float* const part = parts +
                                  current * CLUSTER * kRows * kSlotPitch +
                                  row_in_cluster * kSlotPitch + unit_here;
#pragma unroll
        for (int peer = 0; peer < CLUSTER; ++peer) {
          dh += part[peer * kRows * kSlotPitch];
        }
      }
      if (step < 0) {
        carry_h[round] = dh;
        continue;
      }
      float of_slots[kProductSlots] = {};
      if (step < length[round]) {
        dh += ToFloat(inputs_now[round].output_backprop);
        ComputeGradients(inputs_now[round], dh, &carry_h[round],
                         &carry_c[round], of_slots);
        const long long row = row_of[round] + step * row_step;
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          gates[(row * kSlots + slot) * NUM_UNITS + unit_of(round)] =
              FromFloat(of_slots[slot]);
          bias_sums[round][slot] += of_slots[slot];
        }
#if defined(IS_GRU)
        // The candidate's input side has no part in the recurrent product.
        of_slots[2] = of_slots[3];
        of_slots[3] = 0.0f;
#endif
      }
      Word* const to = reinterpret_cast<Word*>(
          gradients + (current * kRows + row_in_cluster) * kPitch +
          unit_here * kProductSlots * static_cast<int>(sizeof(Item)));
#pragma unroll
      for (int j = 0; j < kProductSlots / kItems; ++j) {
        to[j] = ToOperand(ToWord(of_slots + j * kItems));
      }
    }
    if (step < 0) break;
    SynchronizeBlock();

    float sums[ROW_TILES][kTiles][kChains][4] = {};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Chunk of_gradients[ROW_TILES];
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) {
        of_gradients[n] = *reinterpret_cast<const Chunk*>(
            gradients + (current * kRows + n * 8 + g) * kPitch + pair * 64 +
            t * 16);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        constexpr int kLast = RESIDENT_PAIRS > 0 ? RESIDENT_PAIRS - 1 : 0;
        Chunk upper = weights[pair < RESIDENT_PAIRS ? pair : kLast][i][0];
        Chunk lower = weights[pair < RESIDENT_PAIRS ? pair : kLast][i][1];
        if (pair >= RESIDENT_PAIRS) {
          upper = shared_at(pair, i, 0);
          lower = shared_at(pair, i, 1);
        }
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int w = 2 * half;
            MultiplyAdd(sums[n][i][(2 * pair + half) % kChains], upper.word[w],
                        lower.word[w], upper.word[w + 1], lower.word[w + 1],
                        of_gradients[n].word[w], of_gradients[n].word[w + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        float sum[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[j] = sums[n][i][0][j];
#pragma unroll
          for (int chain = 1; chain < kChains; ++chain) {
            sum[j] += sums[n][i][chain][j];
          }
        }
        const float other = ShuffleXor(is_odd ? sum[0] : sum[1], 4);
        const float far = ShuffleXor(is_odd ? sum[2] : sum[3], 4);
        const Chunk chunk = {{__float_as_uint(is_odd ? other : sum[0]),
                              __float_as_uint(is_odd ? far : sum[2]),
                              __float_as_uint(is_odd ? sum[1] : other),
                              __float_as_uint(is_odd ? sum[3] : far)}};
        const int unit = (warp * kTiles + i) * 16 + quad * 4;
        if (unit >= kShape.all_units()) continue;
        float* const to =
            parts +
            ((next * CLUSTER + rank) * kRows + n * 8 + 2 * t + is_odd) *
                kSlotPitch +
            unit % BLOCK_UNITS;
        if (CLUSTER == 1) {
          *reinterpret_cast<Chunk*>(to) = chunk;
        } else {
          StoreToPeer(unit / BLOCK_UNITS, to, barriers + next, chunk);
        }
      }
    }
    if (CLUSTER == 1) SynchronizeBlock();
  }

#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (round * kThreads + thread >= kCells || unit_of(round) >= NUM_UNITS) {
      continue;
    }
    float* const sums =
        my.bias_sums + static_cast<long long>(first_row + row_in_block(round)) *
                           (kSlots * NUM_UNITS);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      sums[slot * NUM_UNITS + unit_of(round)] = bias_sums[round][slot];
    }
    if (b_of[round] < 0) continue;
    const long long at = b_of[round] * all.state_stride + unit_of(round);
    static_cast<Item*>(my.first_h_backprop)[at] = FromFloat(carry_h[round]);
#if defined(IS_LSTM)
    static_cast<Item*>(my.first_c_backprop)[at] = FromFloat(carry_c[round]);
#endif
  }
  // Past a sequence's end, nothing has a gradient.
  for (int row = 0; row < kRows; ++row) {
    const Sequence sequence(sequences, first_row + row);
    if (sequence.b < 0) continue;
    const int count =
        (sequences.steps - sequence.length) * kSlots * BLOCK_UNITS;
    for (int i = thread; i < count; i += kThreads) {
      const int unit = rank * BLOCK_UNITS + i % BLOCK_UNITS;
      if (unit >= NUM_UNITS) continue;
      const int slot = i / BLOCK_UNITS % kSlots;
      const long long to =
          (sequence.length + i / BLOCK_UNITS / kSlots) *
              static_cast<long long>(sequences.time_stride) +
          sequence.b * static_cast<long long>(sequences.batch_stride);
      gates[(to * kSlots + slot) * NUM_UNITS + unit] = FromFloat(0.0f);
    }
  }
  // A peer's memory must outlive the stores to it.
  SynchronizeCluster();
}
