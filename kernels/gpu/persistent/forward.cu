// All steps of a recurrent layer, forward, with the recurrent weights in the
// registers and the shared memory of clusters.
//
// A warp computes the gates of four words of units for the cluster's sequences.
// Of a tile's 16 rows, rows 0 to 7 are the first two gates of four units by
// turns, and rows 8 to 15 the other two: two shuffles bring a cell's gates into
// one lane. The cell's new state goes to every block of the cluster by
// asynchronous stores, 16 bytes of one sequence at a time, which a barrier at
// the receiver counts. There is no other barrier in the loop: nobody begins a
// step before all warps of all blocks have sent the last one's states, so
// nobody still reads the half of the buffer that the step's stores overwrite.
//
// Who compiles also defines IS_TRAINING or not.
#include "common.cuh"

using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::ForwardDirection;

constexpr int kPairs = kShape.forward_pairs();
constexpr int kPitch = Shape::Pitch(kPairs);
// Independent sums of one tile hide the latency of the tensor cores.
constexpr int kChains = kItems * ROW_TILES >= 2 ? 2 : 4;
// Where words are whole and aligned, and where there are no units but the
// layer's.
constexpr bool kHasWords = NUM_UNITS % kItems == 0;
constexpr bool kAllExist = NUM_UNITS == kShape.all_units();
#ifndef AHEAD
#define AHEAD 2
#endif
// A step is shorter than a load from memory takes.
constexpr int kAhead = AHEAD;

// Four words of a row of the weights; what is past the last column is zero.
static __device__ Chunk LoadOperands(const Item* row, int column) {
  Chunk chunk = {};
  const bool is_aligned = NUM_UNITS * sizeof(Item) % 16 == 0 &&
                          reinterpret_cast<unsigned long long>(row) % 16 == 0;
  if (is_aligned) {
    if (column < NUM_UNITS) chunk = LoadChunk(row + column);
  } else {
    for (int j = 0; j < 4; ++j) {
      float values[kItems];
      for (int i = 0; i < kItems; ++i) {
        const int at = column + j * kItems + i;
        values[i] = at < NUM_UNITS ? ToFloat(row[at]) : 0.0f;
      }
      chunk.word[j] = ToWord(values);
    }
  }
  for (int j = 0; j < 4; ++j) chunk.word[j] = ToOperand(chunk.word[j]);
  return chunk;
}

// A word of units from `unit` on, of which those that do not exist are zero.
static __device__ Word LoadWord(const Item* row, int unit) {
  if constexpr (kHasWords) {
    return kAllExist || unit < NUM_UNITS
               ? *reinterpret_cast<const Word*>(row + unit)
               : 0;
  } else {
    float values[kItems];
    for (int i = 0; i < kItems; ++i) {
      values[i] = unit + i < NUM_UNITS ? ToFloat(row[unit + i]) : 0.0f;
    }
    return ToWord(values);
  }
}

static __device__ void StoreWord(Item* row, int unit, Word word) {
  if constexpr (kHasWords) {
    if (kAllExist || unit < NUM_UNITS) {
      *reinterpret_cast<Word*>(row + unit) = word;
    }
  } else {
    float values[kItems];
    FromWord(word, values);
    for (int i = 0; i < kItems; ++i) {
      if (unit + i < NUM_UNITS) row[unit + i] = FromFloat(values[i]);
    }
  }
}

// The four words that the lanes of one sequence have.
static __device__ Chunk Gather(Word word, int quad) {
  const Word other = ShuffleXor(word, 8);
  const Word low = quad & 1 ? other : word, high = quad & 1 ? word : other;
  const Word far_low = ShuffleXor(low, 16), far_high = ShuffleXor(high, 16);
  return quad & 2 ? Chunk{{far_low, far_high, low, high}}
                  : Chunk{{low, high, far_low, far_high}};
}

// A cell's step: `sums` are the recurrent products, `inputs` what is added to
// them, a GRU's candidate's on the recurrent side and, fourth, on the input
// side; `gates` are what a backward pass wants.
static __device__ void ComputeCell(const float* sums, const float* inputs,
                                   float* h, float* c, float* gates) {
#if defined(IS_LSTM)
  gates[0] = Sigmoid(sums[0] + inputs[0]);
  gates[1] = Sigmoid(sums[1] + inputs[1]);
  gates[2] = Tanh(sums[2] + inputs[2]);
  gates[3] = Sigmoid(sums[3] + inputs[3]);
  *c = gates[1] * *c + gates[0] * gates[2];
  *h = gates[3] * Tanh(*c);
#elif defined(IS_GRU)
  gates[0] = Sigmoid(sums[0] + inputs[0]);
  gates[1] = Sigmoid(sums[1] + inputs[1]);
  gates[3] = sums[2] + inputs[2];
  gates[2] = Tanh(inputs[3] + gates[0] * gates[3]);
  *h = gates[2] + gates[1] * (*h - gates[2]);
#elif defined(IS_TANH)
  *h = gates[0] = Tanh(sums[0] + inputs[0]);
#else
  // A comparison that NaN passes.
  const float sum = sums[0] + inputs[0];
  *h = gates[0] = sum < 0.0f ? 0.0f : sum;
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    forward(const ForwardArguments all) {
  const Sequences& sequences = all.sequences;
  const ForwardDirection& my = all.direction[blockIdx.y];
  const bool is_reversed = blockIdx.y == 1;
  const int first_row = blockIdx.x / CLUSTER * kRows;
  const int rank = BlockOfCluster();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4, is_odd = g % 2, quad = g / 2;
  const int warp_unit = rank * BLOCK_UNITS + warp * kShape.warp_units();
  const int unit = warp_unit + quad * kItems;

  Barrier* const barriers = reinterpret_cast<Barrier*>(SharedMemory());
  char* const states = SharedMemory() + Shape::kBarrierBytes;
  Chunk* const shared_weights =
      reinterpret_cast<Chunk*>(states + kShape.forward_h_bytes()) +
      warp * kItems * 2 * 32 + lane;
  // Tile i has the units `unit + i` of all four lanes.
  const auto shared_at = [&](int pair, int i, int half) -> Chunk& {
    return shared_weights[(((pair - RESIDENT_PAIRS) * WARPS * kItems + i) * 2 +
                           half) *
                          32];
  };
  const auto load_weights = [&](int pair, int i, int half) {
    const int gate = is_odd + 2 * half;
    if (gate >= kGates || unit + i >= NUM_UNITS) return Chunk{};
    return LoadOperands(
        static_cast<const Item*>(my.recurrent_weights) +
            static_cast<long long>(gate * NUM_UNITS + unit + i) * NUM_UNITS,
        (pair * 16 + t * 4) * kItems);
  };
  constexpr int kHeld = RESIDENT_PAIRS > 0 ? RESIDENT_PAIRS : 1;
  Chunk weights[kHeld][kItems][2];
#pragma unroll
  for (int pair = 0; pair < RESIDENT_PAIRS; ++pair) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      weights[pair][i][0] = load_weights(pair, i, 0);
      weights[pair][i][1] = load_weights(pair, i, 1);
    }
  }
#pragma unroll 2
  for (int pair = RESIDENT_PAIRS; pair < kPairs; ++pair) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      shared_at(pair, i, 0) = load_weights(pair, i, 0);
      shared_at(pair, i, 1) = load_weights(pair, i, 1);
    }
  }

  // A GRU's candidate has its biases in two slots.
  float bias[kItems][kSlots] = {};
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (unit + i >= NUM_UNITS) continue;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const int at = gate * NUM_UNITS + unit + i;
      const Item* const of_input = static_cast<const Item*>(my.input_bias);
      const Item* const of_recurrent =
          static_cast<const Item*>(my.recurrent_bias);
      const float input = of_input != nullptr ? ToFloat(of_input[at]) : 0.0f;
      const float recurrent =
          of_recurrent != nullptr ? ToFloat(of_recurrent[at]) : 0.0f;
      bias[i][gate] = input + recurrent;
#if defined(IS_GRU)
      if (gate == 2) {
        bias[i][2] = recurrent;
        bias[i][3] = input;
      }
#endif
    }
  }

  // The states before the first step; what stands for no unit stays zero.
  for (int i = thread; i < kShape.forward_h_bytes() / 16; i += kThreads) {
    reinterpret_cast<Chunk*>(states)[i] = {};
  }
  SynchronizeBlock();
  const Item* const first_h = static_cast<const Item*>(my.first_h);
  for (int i = thread; i < kRows * NUM_UNITS; i += kThreads) {
    const int row = i / NUM_UNITS, at = i % NUM_UNITS;
    const int b = Sequence(sequences, first_row + row).b;
    if (b < 0) continue;
    Item* const to = reinterpret_cast<Item*>(states + row * kPitch) + at;
    *to = first_h[b * all.state_stride + at];
#if defined(IS_FLOAT)
    *to = __uint_as_float(ToOperand(__float_as_uint(*to)));
#endif
  }
  if (thread == 0) {
    InitializeBarriers(barriers, 2);
    ArmBarrier(barriers, kShape.forward_step_bytes());
    ArmBarrier(barriers + 1, kShape.forward_step_bytes());
  }

  // The lane's cells: one word of units of one sequence for each row tile.
  int b_of[ROW_TILES], length[ROW_TILES], row_of[ROW_TILES];
  float h[ROW_TILES][kItems], c[ROW_TILES][kItems];
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    const Sequence sequence(sequences, first_row + n * 8 + 2 * t + is_odd);
    b_of[n] = sequence.b;
    length[n] = sequence.length;
    row_of[n] = sequence.RowAt(sequences, 0, is_reversed);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool exists = sequence.b >= 0 && unit + i < NUM_UNITS;
      const long long at = sequence.b * all.state_stride + unit + i;
      h[n][i] = exists ? ToFloat(first_h[at]) : 0.0f;
#if defined(IS_LSTM)
      c[n][i] =
          exists ? ToFloat(static_cast<const Item*>(my.first_c)[at]) : 0.0f;
#else
      c[n][i] = 0.0f;
#endif
    }
  }
  // The first row's sequence is the longest.
  const int steps = Sequence(sequences, first_row).length;
  const int row_step =
      is_reversed ? -sequences.time_stride : sequences.time_stride;
  Item* const gates = static_cast<Item*>(my.gates);
  const auto gates_at = [&](int row, int slot) {
    return gates + (static_cast<long long>(row) * kSlots + slot) * NUM_UNITS;
  };
  // The input side's products of this step and of the next ones.
  Word inputs[kAhead][ROW_TILES][kGates];
  const auto load_inputs = [&](int step, Word(*to)[kGates]) {
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        to[n][gate] =
            step < length[n]
                ? LoadWord(gates_at(row_of[n] + step * row_step, gate), unit)
                : 0;
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_inputs(i, inputs[i]);
  // Each lane stores to every fourth peer.
  constexpr int kPeers = (CLUSTER + 3) / 4;
  PeerMemory peers[kPeers];
#pragma unroll
  for (int i = 0; i < kPeers; ++i) {
    peers[i] = MemoryOfPeer(4 * i + quad < CLUSTER ? 4 * i + quad : 0);
  }
  // From here on peers may store to this block.
  SynchronizeCluster();

  for (int step = 0; step < steps; ++step) {
    const int current = step % 2, next = 1 - current;
    float added[ROW_TILES][kItems][kSlots];
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
      float input[kGates][kItems];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        FromWord(inputs[0][n][gate], input[gate]);
#pragma unroll
        for (int ahead = 1; ahead < kAhead; ++ahead) {
          inputs[ahead - 1][n][gate] = inputs[ahead][n][gate];
        }
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          added[n][i][slot] = bias[i][slot];
        }
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          added[n][i][SlotOfInput(gate)] += input[gate][i];
        }
      }
    }
    load_inputs(step + kAhead, inputs[kAhead - 1]);
    if (step > 0) {
      WaitForBarrier(barriers + current, (step - 1) / 2 % 2);
      if (thread == 0) {
        ArmBarrier(barriers + current, kShape.forward_step_bytes());
      }
    }

    float sums[ROW_TILES][kItems][kChains][4] = {};
#pragma unroll
    for (int position = 0; position < kPairs; ++position) {
      const PairAt at(position, kPairs);
      const int pair = at.pair;
      Chunk of_h[ROW_TILES];
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) {
        of_h[n] = *reinterpret_cast<const Chunk*>(
            states + (current * kRows + n * 8 + g) * kPitch + pair * 64 +
            t * 16);
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        Chunk upper, lower;
        if (at.is_shared) {
          upper = shared_at(pair, i, 0);
          lower = shared_at(pair, i, 1);
        } else {
          upper = weights[pair < kHeld ? pair : 0][i][0];
          lower = weights[pair < kHeld ? pair : 0][i][1];
        }
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int w = 2 * half;
            MultiplyAdd(sums[n][i][(2 * pair + half) % kChains], upper.word[w],
                        lower.word[w], upper.word[w + 1], lower.word[w + 1],
                        of_h[n].word[w], of_h[n].word[w + 1]);
          }
        }
      }
    }

#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
      const bool is_live = step < length[n];
      const int row = row_of[n] + step * row_step;
      const Word before = ToWord(h[n]);
      float gate_values[kSlots][kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        float sum[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[j] = sums[n][i][0][j];
#pragma unroll
          for (int chain = 1; chain < kChains; ++chain) {
            sum[j] += sums[n][i][chain][j];
          }
        }
        // An even lane has the first gate of each pair and keeps the first
        // column; it gets its cell's other gates for the second column's.
        const float other = ShuffleXor(is_odd ? sum[0] : sum[1], 4);
        const float far = ShuffleXor(is_odd ? sum[2] : sum[3], 4);
        const float of_cell[4] = {is_odd ? other : sum[0],
                                  is_odd ? sum[1] : other,
                                  is_odd ? far : sum[2], is_odd ? sum[3] : far};
        float new_h = h[n][i], new_c = c[n][i], values[kSlots];
        ComputeCell(of_cell, added[n][i], &new_h, &new_c, values);
        if (is_live) {
          h[n][i] = new_h;
          c[n][i] = new_c;
        }
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          gate_values[slot][i] = values[slot];
        }
      }
      const Word after = ToWord(h[n]);
      if (step + 1 < steps) {
        char* const to = states +
                         (next * kRows + n * 8 + 2 * t + is_odd) * kPitch +
                         warp_unit * static_cast<int>(sizeof(Item));
        const Chunk chunk = Gather(ToOperand(after), quad);
#pragma unroll
        for (int i = 0; i < kPeers; ++i) {
          if (4 * i + quad < CLUSTER) {
            StoreToPeer(peers[i], to, barriers + next, chunk);
          }
        }
      }
      if (is_live) {
        StoreWord(static_cast<Item*>(my.output) + row * all.output_stride, unit,
                  after);
#if defined(IS_TRAINING)
        StoreWord(static_cast<Item*>(my.previous_h) +
                      static_cast<long long>(row) * NUM_UNITS,
                  unit, before);
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          StoreWord(gates_at(row, slot), unit, ToWord(gate_values[slot]));
        }
#if defined(IS_LSTM)
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (kAllExist || unit + i < NUM_UNITS) {
            my.cells[static_cast<long long>(row) * NUM_UNITS + unit + i] =
                c[n][i];
          }
        }
#endif
#endif
      }
    }
  }

#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    if (b_of[n] < 0) continue;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (unit + i >= NUM_UNITS) continue;
      const long long at = b_of[n] * all.state_stride + unit + i;
      static_cast<Item*>(my.last_h)[at] = FromFloat(h[n][i]);
#if defined(IS_LSTM)
      static_cast<Item*>(my.last_c)[at] = FromFloat(c[n][i]);
#endif
    }
  }
  // Past a sequence's end, outputs are zero. One whose length was out of range
  // has no other steps, and shows it.
  for (int row = 0; row < kRows; ++row) {
    const Sequence sequence(sequences, first_row + row);
    if (sequence.b < 0) continue;
    const Item fill =
        FromFloat(sequence.is_invalid ? __uint_as_float(0x7FC00000) : 0.0f);
    const int count = (sequences.steps - sequence.length) * BLOCK_UNITS;
    for (int i = thread; i < count; i += kThreads) {
      const int at = rank * BLOCK_UNITS + i % BLOCK_UNITS;
      if (at >= NUM_UNITS) continue;
      const long long to =
          (sequence.length + i / BLOCK_UNITS) *
              static_cast<long long>(sequences.time_stride) +
          sequence.b * static_cast<long long>(sequences.batch_stride);
      static_cast<Item*>(my.output)[to * all.output_stride + at] = fill;
#if defined(IS_TRAINING)
      static_cast<Item*>(my.previous_h)[to * NUM_UNITS + at] = FromFloat(0.0f);
#endif
    }
  }
  // A peer's memory must outlive the stores to it.
  SynchronizeCluster();
}
