// A kernel that runs all steps of a recurrent layer backward, with the
// recurrent weights in the registers and the shared memory of teams of blocks.
//
// A block has the gates' rows of its units, as in the forward pass. In a step,
// its threads first compute the gradients of its cells' gates. These go to
// memory, for the matrix products that follow this kernel, and to shared
// memory. The block's warps multiply them by the transposed rows, which gives a
// partial gradient of h for all units. The parts go to the units' owners, in
// the type of the data, and each sender has a place of its own there. The
// owners add the parts in a fixed order, so that the result does not depend on
// which part came first.
//
// If a team has bands, blocks exchange twice in a step: first the gradients of
// the gates within the band, so that a block multiplies those of the band's
// units for a slice of h alone, and then the parts.
#include "exchange.cuh"
#include "powers.cuh"
#include "warpgroup_weights.cuh"

using Cell = DealtCell</*kInTiles=*/false>;
constexpr int kRounds = Cell::kRounds, kOwnUnits = Cell::kOwnUnits;
#if NORMS
#include "norms.cuh"
#endif

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::BackwardDirection;

constexpr int kPairs = kShape.backward_pairs();
constexpr int kPitch = kShape.operand_pitch(kPairs);
constexpr int kColumn = kShape.column_pitch();
constexpr int kCopy = kShape.operand_bytes(kPairs);
constexpr int kGroups = kShape.backward_warp_groups();
constexpr int kTiles = kShape.backward_warp_tiles();
constexpr int kSlotPitch = kShape.backward_slot_pitch();
constexpr int kAdders = kShape.backward_adders();
// The units whose sums a lane has at once.
constexpr int kLaneUnits = kShape.data_chunk_units();
constexpr int kLanesOfRow = kShape.row_lanes();
constexpr bool kIsInWarp = kLanesOfRow == BLOCK_UNITS;
using Weights = decltype(WeightsOfShape<kPairs, kTiles, 1>());

// Returns the largest of the numbers of these lanes, none of which is negative.
static float LargestOfRow(float number) {
#if PRODUCTS == 3
  if (kLanesOfRow == 32) {
    return __uint_as_float(LargestOfWarp(__float_as_uint(number)));
  }
#endif
#pragma unroll
  for (int lanes = kLanesOfRow / 2; lanes > 0; lanes /= 2) {
    number = fmaxf(number, ShuffleXor(number, lanes));
  }
  return number;
}

// Stores the numbers of a chunk, two units with four slots each in 16 bits,
// with SLOTS slots to a unit.
static void StoreGates(const Chunk& chunk, char* to) {
  const Word* const from = chunk.word;
  Word* const words = reinterpret_cast<Word*>(to);
  if (SLOTS == 4) {
    *reinterpret_cast<Chunk*>(to) = chunk;
  } else if (SLOTS == 3) {
    words[0] = from[0];
    words[1] = (from[1] & 0xFFFFu) | from[2] << 16;
    words[2] = from[2] >> 16 | from[3] << 16;
  } else {
    words[0] = (from[0] & 0xFFFFu) | from[2] << 16;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    backward(const BackwardArguments all) {
  const Sequences& sequences = all.sequences;
  const int my_direction = all.part.first_direction + blockIdx.y;
  const BackwardDirection& my = all.direction[my_direction];
  const bool is_reversed = my_direction == 1;
  int first_row = FirstRowOf(0);
  const int rank = blockIdx.x % TEAM;
  const int band = rank / SLICES, slice = rank % SLICES;
  constexpr int kSliceUnits = kShape.slice_units();
  MarkedRing<kShape.backward_step_bytes()> ring(
      RingOfTeam(all.part, kShape.backward_ring_bytes()));
  constexpr int kGatesBytes = kShape.backward_gates_step_bytes();
  ClearedRing<TEAM * kGatesBytes> ring_of_gates(ring.end());
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4, is_odd = g % 2, quad = g / 2;

  Barrier* const barriers = reinterpret_cast<Barrier*>(SharedMemory());
  // [SLICES][BLOCK_UNITS][SLOTS]; then [2][kRows], the largest gradients.
  float* const row_powers =
      reinterpret_cast<float*>(SharedMemory() + Shape::kBarrierBytes);
  Word* const largest_of_rows =
      reinterpret_cast<Word*>(row_powers + kShape.band_rows());
  // [2][kRows], the largest powers in the band; then [SLICES][kRows], all.
  Word* const largest_of_band = largest_of_rows + 2 * kRows;
  Word* const powers_of_band = largest_of_band + 2 * kRows;
  // In a cluster, this is [2][TEAM][kRows][kSlotPitch]. In another team, it is
  // [kAdders][kRows][BLOCK_UNITS] floats.
  char* const of_norms =
      SharedMemory() + Shape::kBarrierBytes + kShape.powers_bytes();
  Item* const parts =
      reinterpret_cast<Item*>(of_norms + kShape.norm_shared_bytes());
  float* const sums_of_parts = reinterpret_cast<float*>(parts);
  // [2][kRows], where a row has the block's gradients by unit and then by slot;
  // [kRows] in a band, with the gradients of all its blocks.
  char* const gradients =
      reinterpret_cast<char*>(parts) + kShape.backward_slots_bytes();
  const Weights weights(gradients + kShape.backward_gradient_bytes(), thread);
  // The rows of a group's tiles are dealt so that a pair of lanes, each with
  // the rows g and g + 8, has consecutive units of the slice, four of each
  // tile.
  const auto first_unit_of = [&](int group, int quad) {
    return ((warp * kGroups + group) * 4 + quad) * kLaneUnits;
  };
  // The rows of the weights, by unit and then by slot.
  const auto row_of = [&](int i) -> const Item* {
    const int unit = band * (SLICES * BLOCK_UNITS) + i / SLOTS;
    const int gate = i % SLOTS;
    if (gate >= kGates || unit >= NUM_UNITS) return nullptr;
    return static_cast<const Item*>(my.recurrent_weights) +
           static_cast<long long>(gate * NUM_UNITS + unit) * NUM_UNITS;
  };
  if (kHasPowers) {
    FindRowPowers(row_of, band, slice, ring_of_gates.end(), thread, row_powers);
  }
  const auto load_weights = [&](int pair, int i, int half) {
    Chunk chunk = {};
    const int of_slice =
        first_unit_of(i / kItems, quad) + i % kItems * 4 + is_odd * 2 + half;
    const int unit = slice * kSliceUnits + of_slice;
    if (of_slice >= kSliceUnits || unit >= NUM_UNITS) return chunk;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float values[kOperands];
#pragma unroll
      for (int e = 0; e < kOperands; ++e) {
        const int k = ((pair * 4 + t) * 4 + j) * kOperands + e;
        const Item* const row = row_of(k);
        values[e] = row == nullptr ? 0.0f : ToFloat(row[unit]);
        if (kHasPowers) values[e] *= ScaleOf(row_powers[k]);
      }
      chunk.word[j] = ToOperands(values);
    }
    return chunk;
  };
  Weights::Held held;
  weights.Load<1>(load_weights, held);
#if NORMS
  BackwardNorms norms(IS_CLUSTER ? of_norms : ring_of_gates.end(),
                      barriers + 2);
#endif
  if (IS_CLUSTER && thread == 0) {
    InitializeBarriers(barriers, NORMS ? 4 : 2);
    ArmBarrier(barriers, kShape.backward_step_bytes());
    ArmBarrier(barriers + 1, kShape.backward_step_bytes());
#if NORMS
    norms.Arm();
#endif
  }

  int share = 0;
  do {
    // The thread's cells.
    const auto sequence_of = [&](int round) {
      const Cell cell(round, thread);
      Sequence sequence(sequences, first_row + cell.row);
      if (!cell.exists || rank * BLOCK_UNITS + cell.unit >= NUM_UNITS) {
        sequence.Clear();
      }
      return sequence;
    };
    int unit_of[kRounds], length[kRounds], row_of[kRounds];
    float carry_h[kRounds], carry_c[kRounds], bias_sums[kOwnUnits][kSlots];
    Functions functions[kOwnUnits];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Sequence sequence = sequence_of(round);
      unit_of[round] = rank * BLOCK_UNITS + Cell(round, thread).unit;
      length[round] = sequence.length;
      row_of[round] = sequence.RowAt(sequences, 0, is_reversed);
      carry_h[round] = carry_c[round] = 0.0f;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        if (round < kOwnUnits) bias_sums[round][slot] = 0.0f;
      }
#if NORMS
      for (float& sum : norms.vector_sums[round % kOwnUnits]) {
        if (round < kOwnUnits) sum = 0.0f;
      }
#endif
      if (round < kOwnUnits && unit_of[round] < NUM_UNITS) {
        functions[round].ReadVectors(my.vectors, NUM_UNITS, unit_of[round]);
      }
      if (sequence.b < 0) continue;
      const long long at = sequence.b * all.state_stride + unit_of[round];
      carry_h[round] =
          ToFloat(static_cast<const Item*>(my.last_h_backprop)[at]);
      if constexpr (CellType::kHasC) {
        carry_c[round] =
            ToFloat(static_cast<const Item*>(my.last_c_backprop)[at]);
      }
      if (!sequence.is_invalid) continue;
      carry_h[round] = carry_c[round] = InvalidValue();
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        bias_sums[round % kOwnUnits][slot] = InvalidValue();
      }
#if NORMS
      for (float& sum : norms.vector_sums[round % kOwnUnits]) {
        sum = InvalidValue();
      }
#endif
    }
    const int steps = Sequence(sequences, first_row).length;
    const int row_step =
        is_reversed ? -sequences.time_stride : sequences.time_stride;
    Item* const gates = static_cast<Item*>(my.gates);
    CellInputs inputs[kRounds];
#if NORMS
    Norm<float> loaded[kRounds][kNorms];
#endif
    const auto load_inputs = [&](int step) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        CellInputs& in = inputs[round];
        in = {};
#if NORMS
        for (Norm<float>& norm : loaded[round]) norm = {};
#endif
        if (step < 0 || step >= length[round]) continue;
        const long long row = row_of[round] + step * row_step;
        const int unit = unit_of[round];
        const long long first_state =
            step > 0 ? 0 : sequence_of(round).b * all.state_stride;
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          in.gates[slot] = gates[(row * kSlots + slot) * NUM_UNITS + unit];
        }
#if NORMS
        for (int k = 0; k < kNorms; ++k) {
          loaded[round][k] =
              static_cast<const Norm<float>*>(my.norms)[row * kNorms + k];
        }
#endif
        in.output_backprop = static_cast<const Item*>(
            my.output_backprop)[row * all.output_stride + unit];
        if constexpr (CellType::kHasC) {
          const Item* const cells = static_cast<const Item*>(my.cells);
          in.c = cells[row * NUM_UNITS + unit];
          in.c_before =
              step > 0
                  ? cells[(row - row_step) * NUM_UNITS + unit]
                  : static_cast<const Item*>(my.first_c)[first_state + unit];
          if (kHasResets && StartsAnew(sequences, step, row, is_reversed)) {
            in.c_before = FromFloat(0.0f);
          }
          // Only the last layer has the caller's cell states.
          if (kCellSequencesPitch > 0 && my.all_c_backprop != nullptr) {
            in.c_backprop = static_cast<const Item*>(
                my.all_c_backprop)[row * kCellSequencesPitch + unit];
          }
        }
        if constexpr (CellType::kReadsH) {
          in.h_before =
              step > 0
                  ? static_cast<const Item*>(
                        my.output)[(row - row_step) * all.output_stride + unit]
                  : static_cast<const Item*>(my.first_h)[first_state + unit];
          if (kHasResets && StartsAnew(sequences, step, row, is_reversed)) {
            in.h_before = FromFloat(0.0f);
          }
        }
      }
    };
    load_inputs(steps - 1);
    if (kHasPowers) {
      for (int i = thread; i < (kHasBands ? 4 : 2) * kRows; i += kThreads) {
        largest_of_rows[i] = 0;
      }
      SynchronizeBlock();
    }
    PeerMemory peers[kGroups];
    if (IS_CLUSTER) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int unit = first_unit_of(group, quad);
        peers[group] =
            MemoryOfPeer(unit < kShape.all_units() ? unit / BLOCK_UNITS : 0);
      }
      // From here on peers may store to this block.
      SynchronizeCluster();
    }

    const auto receive_parts = [&](int turn) {
      // Each thread adds the same chunk of some senders, in the senders'
      // order. There is one in each band.
      constexpr int kChunks = kShape.backward_sender_chunks();
      constexpr int kSenders = (kShape.bands() + kAdders - 1) / kAdders;
      constexpr int kAtOnce = kSenders < 8 ? kSenders : 8;
      const char* const place = ring.PlaceOf(turn, rank);
      const auto is_there = [&](const Chunk& chunk) {
        return ring.HasMark(turn, chunk);
      };
#pragma unroll 1
      for (int at = thread; at < kChunks * kAdders; at += kThreads) {
        const int chunk_of_sender = at % kChunks;
        const int adder = at / kChunks, first_sender = adder * kSenders;
        float sums[kLaneUnits] = {};
#pragma unroll 1
        for (int first = 0; first < kSenders; first += kAtOnce) {
          const char* from[kAtOnce];
          Chunk chunks[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int sender = first_sender + first + i;
            from[i] = first + i < kSenders && sender < kShape.bands()
                          ? place + (sender * kChunks + chunk_of_sender) * 16
                          : nullptr;
          }
          Receive(from, is_there, chunks);
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if (from[i] == nullptr) continue;
            const Chunk part = Unmarked(chunks[i]);
#pragma unroll
            for (int word = 0; word < 4; ++word) {
              float values[kItems];
              FromWord(part.word[word], values);
#pragma unroll
              for (int e = 0; e < kItems; ++e) {
                sums[word * kItems + e] += values[e];
              }
            }
          }
        }
        // The chunks of a sender are in order, row by row.
#pragma unroll
        for (int i = 0; i < kLaneUnits; i += 2) {
          StorePair(sums_of_parts +
                        (adder * kChunks + chunk_of_sender) * kLaneUnits + i,
                    sums[i], sums[i + 1]);
        }
      }
      SynchronizeBlock();
    };
    // These receive the gradients of the band's gates and, before that, the
    // powers by which its blocks have divided them, so that all are divided by
    // the largest one. A chunk has the gradients of kOperands units.
    constexpr int kOfBlock = kShape.backward_gates_chunks();
    const auto receive_powers = [&](int turn) {
      for (int at = thread; at < SLICES * kRows; at += kThreads) {
        const int block = at / kRows, row = at % kRows;
        const char* const from[1] = {ring_of_gates.PlaceOf(turn) +
                                     (band * SLICES + block) * kGatesBytes +
                                     (kOfBlock + row) * 16};
        Chunk chunk[1];
        Receive(from, IsFull, chunk);
        const Word power = chunk[0].word[0];
        powers_of_band[block * kRows + row] = power;
        Raise(largest_of_band + turn % 2 * kRows + row, power);
      }
    };
    const auto receive_gates = [&](int turn) {
      constexpr int kAll = SLICES * kOfBlock;
      constexpr int kOfRow = BLOCK_UNITS / kOperands;
      constexpr int kOfThread = (kAll + kThreads - 1) / kThreads;
      constexpr int kAtOnce = kOfThread < 8 ? kOfThread : 8;
      const char* const place =
          ring_of_gates.PlaceOf(turn) + band * SLICES * kGatesBytes;
#pragma unroll 1
      for (int first = thread; first < kAll; first += kAtOnce * kThreads) {
        const char* from[kAtOnce];
        Chunk chunks[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i * kThreads;
          from[i] = at < kAll ? place + at / kOfBlock * kGatesBytes +
                                    at % kOfBlock * 16
                              : nullptr;
        }
        Receive(from, IsFull, chunks);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i * kThreads;
          if (from[i] == nullptr) continue;
          const int block = at / kOfBlock, row = at % kOfBlock / kOfRow;
          const int unit = block * BLOCK_UNITS + at % kOfRow * kOperands;
          Chunk gates = chunks[i];
#if PRODUCTS == 3
          const int power = powers_of_band[block * kRows + row] -
                            largest_of_band[turn % 2 * kRows + row];
          MultiplyHalves(
              &gates, __uint_as_float(Within(power + (127 << 23), 127 << 23)));
#endif
          const int at_byte = unit * SLOTS * 2;
          StoreGates(gates, gradients + row * kPitch + at_byte / 16 * kColumn +
                                at_byte % 16);
        }
      }
    };

    // One turn more than there are steps adds up the gradients of the first
    // states.
    for (int turn = 0; turn <= steps; ++turn) {
      const int step = steps - 1 - turn, current = turn % 2, next = 1 - current;
      // Work that does not depend on what peers send comes before the wait.
      float output_backprop[kRounds], c_backprop[kRounds];
      float of_slots[kRounds][kSlots];
#if NORMS
      NormedCell cells[kRounds];
      float h_before[kRounds], c_before[kRounds];
#else
      CellType::Factors<Sum> factors[kRounds];
#endif
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const CellInputs& in = inputs[round];
#if NORMS
        cells[round].Set(loaded[round], in, functions[round % kOwnUnits]);
        h_before[round] = ToFloat(in.h_before);
        c_before[round] = ToFloat(in.c_before);
#else
        factors[round] = MakeFactors(in, functions[round % kOwnUnits]);
#endif
        output_backprop[round] = ToFloat(in.output_backprop);
        c_backprop[round] = ToFloat(in.c_backprop);
      }
      if (!Weights::kLoadsLate) load_inputs(step - 1);
      if (turn > 0 && IS_CLUSTER) {
        WaitForBarrier(barriers + current, (turn - 1) / 2 % 2);
        if (thread == 0) {
          ArmBarrier(barriers + current, kShape.backward_step_bytes());
        }
      }
      // The gradients of the gates' recurrent sides. What the rows of the
      // weights were divided by, they are multiplied by.
      const auto operands_of = [&](int round, float* operands) {
        const float* const powers =
            row_powers +
            (slice * BLOCK_UNITS + Cell(round, thread).unit) * SLOTS;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          operands[gate] = of_slots[round][CellType::RecurrentSlot(gate)];
          if (kHasPowers) operands[gate] *= powers[gate];
        }
      };
      const auto power_of = [&](int row) {
        return PowerOf(largest_of_rows[current * kRows + row]);
      };
      const auto power_of_sums = [&](int row) {
        return kHasBands
                   ? __uint_as_float(largest_of_band[current * kRows + row])
                   : power_of(row);
      };
      if (turn > 0 && !IS_CLUSTER) receive_parts(turn - 1);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const Cell cell(round, thread);
        if (!cell.exists) continue;
        float dh = carry_h[round];
        if (turn > 0 && !IS_CLUSTER) {
#pragma unroll
          for (int adder = 0; adder < kAdders; ++adder) {
            dh += sums_of_parts[(adder * kRows + cell.row) * BLOCK_UNITS +
                                cell.unit];
          }
        } else if (turn > 0) {
          const Item* const part = parts + current * TEAM * kRows * kSlotPitch +
                                   cell.row * kSlotPitch + cell.unit;
#pragma unroll
          for (int peer = 0; peer < TEAM; ++peer) {
            dh += ToFloat(part[peer * kRows * kSlotPitch]);
          }
        }
        if (kHasResets && step + 1 < length[round] &&
            StartsAnew(sequences, step + 1,
                       row_of[round] + (step + 1) * row_step, is_reversed)) {
          dh = carry_c[round] = 0.0f;
        }
        if (step < 0) {
          carry_h[round] = dh;
          continue;
        }
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) of_slots[round][slot] = 0.0f;
        if (step < length[round]) {
          carry_h[round] = 0.0f;
          if (kCellSequencesPitch > 0) carry_c[round] += c_backprop[round];
#if NORMS
          output_backprop[round] += dh;
#else
          CellType::Backward(factors[round], dh + output_backprop[round],
                             &carry_h[round], &carry_c[round], of_slots[round]);
#endif
        }
      }
      if (step < 0) break;
#if NORMS
      norms.Run(
          turn, thread, rank, functions, cells,
          [&](int round) { return step < length[round]; }, h_before, c_before,
          output_backprop, carry_h, carry_c, of_slots);
#endif
      if (kHasPowers) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          const Cell cell(round, thread);
          float largest = 0.0f, operands[4] = {};
          if (cell.exists) operands_of(round, operands);
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            largest = fmaxf(largest, fabsf(operands[gate]));
          }
          largest = LargestOfRow(largest);
          if (!cell.exists || lane % kLanesOfRow > 0) continue;
          Word* const to = largest_of_rows + current * kRows + cell.row;
          if (kIsInWarp) {
            *to = __float_as_uint(largest);
          } else {
            Raise(to, __float_as_uint(largest));
          }
        }
        if (kIsInWarp) {
          SynchronizeWarp();
        } else {
          SynchronizeBlock();
          if (thread < kRows) largest_of_rows[next * kRows + thread] = 0;
        }
      }
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const Cell cell(round, thread);
        float operands[4] = {};
        if (cell.exists) operands_of(round, operands);
        const float scale =
            kHasPowers && cell.exists ? ScaleOf(power_of(cell.row)) : 1.0f;
        constexpr int kWords = 4 / kOperands;
        Word words[kWords];
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          float values[kOperands];
#pragma unroll
          for (int e = 0; e < kOperands; ++e) {
            values[e] = scale * operands[j * kOperands + e];
          }
          words[j] = ToOperands(values);
        }
        if constexpr (kHasBands) {
          // An even lane sends those of the next one, too.
          Chunk chunk = {{words[0], words[1], ShuffleFrom(words[0], lane ^ 1),
                          ShuffleFrom(words[1], lane ^ 1)}};
          if (!cell.exists || lane % 2 == 1) continue;
          const int of_block = rank * kGatesBytes;
          ring_of_gates.Send(turn,
                             of_block + (cell.row * BLOCK_UNITS + cell.unit) *
                                            (16 / kOperands),
                             chunk);
          if (kHasPowers && cell.unit == 0) {
            ring_of_gates.Send(turn, of_block + (kOfBlock + cell.row) * 16,
                               {{__float_as_uint(power_of(cell.row))}});
          }
        } else if (cell.exists) {
          Word* const to = reinterpret_cast<Word*>(
              gradients + current * kCopy + cell.row * kPitch +
              cell.unit / kOperands * kColumn +
              cell.unit % kOperands * (16 / kOperands));
#pragma unroll
          for (int j = 0; j < kWords; ++j) to[j] = words[j];
        }
      }
      if (kHasBands) ring_of_gates.EndStep(turn);
      if constexpr (kHasBands) {
        if (kHasPowers) {
          receive_powers(turn);
          SynchronizeBlock();
          if (thread < kRows) {
            largest_of_band[next * kRows + thread] = 0;
          }
        }
        receive_gates(turn);
      }
      // No block waits for these stores, so they come last, if there are
      // registers for that.
      const auto store_gates = [&] {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          if (step >= length[round]) continue;
          const long long row = row_of[round] + step * row_step;
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            gates[(row * kSlots + slot) * NUM_UNITS + unit_of[round]] =
                FromFloat(of_slots[round][slot]);
            bias_sums[round % kOwnUnits][slot] += of_slots[round][slot];
          }
        }
      };
      Weights::SynchronizeOperands();
      const auto store_and_load = [&] {
        store_gates();
        load_inputs(step - 1);
      };
      if (Weights::kLoadsLate && !IS_CLUSTER) store_and_load();

      constexpr int kAtOnce = Weights::kAtOnce;
      const int copy = kHasBands ? 0 : current;
#pragma unroll
      for (int first = 0; first < kTiles; first += kAtOnce) {
        Weights::Sums sums;
        weights.Multiply(
            held, gradients + copy * kCopy, kPitch, lane, first, 0, sums, [&] {
              if (Weights::kLoadsLate && IS_CLUSTER && first == 0) {
                store_and_load();
              }
            });
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
          const int row = n * 8 + 2 * t + is_odd;
#pragma unroll
          for (int group = 0; group < kAtOnce / kItems; ++group) {
            if (first / kItems + group >= kGroups) continue;
            Chunk chunk;
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
              float sum[4];
              sums[n][group * kItems + i].Total(lane, sum);
              const float other = ShuffleXor(is_odd ? sum[0] : sum[1], 4);
              const float far = ShuffleXor(is_odd ? sum[2] : sum[3], 4);
              float of_units[4] = {
                  is_odd ? other : sum[0], is_odd ? far : sum[2],
                  is_odd ? sum[1] : other, is_odd ? sum[3] : far};
#pragma unroll
              for (int j = 0; kHasPowers && j < 4; ++j) {
                of_units[j] *= kOfProduct * power_of_sums(row);
              }
#pragma unroll
              for (int j = 0; j < 4 / kItems; ++j) {
                chunk.word[i * (4 / kItems) + j] =
                    ToWord(of_units + j * kItems);
              }
            }
            const int unit = first_unit_of(
                first / kItems + group, kHasPowers ? Recomputed(quad) : quad);
            if (unit >= kSliceUnits) continue;
            if (IS_CLUSTER) {
              Item* const to =
                  parts + ((next * TEAM + rank) * kRows + row) * kSlotPitch +
                  unit % BLOCK_UNITS;
              StoreToPeer(peers[first / kItems + group], to, barriers + next,
                          chunk);
            } else {
              ring.Mark(turn, &chunk);
              const int owner = slice * kShape.bands() + unit / BLOCK_UNITS;
              Item* const to =
                  reinterpret_cast<Item*>(ring.PlaceOf(turn, owner)) +
                  (band * kRows + row) * BLOCK_UNITS + unit % BLOCK_UNITS;
              StoreForOthers(to, chunk);
            }
          }
        }
      }
      if (!Weights::kLoadsLate) store_gates();
    }

#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Cell cell(round, thread);
      if (!cell.exists || unit_of[round] >= NUM_UNITS) continue;
      float* const sums =
          my.bias_sums +
          static_cast<long long>(first_row + cell.row) * (kSlots * NUM_UNITS);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        sums[slot * NUM_UNITS + unit_of[round]] =
            round < kOwnUnits ? bias_sums[round % kOwnUnits][slot] : 0.0f;
      }
#if NORMS
      float* const of_vectors =
          my.vector_sums +
          static_cast<long long>(first_row + cell.row) * (kVectors * NUM_UNITS);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        of_vectors[v * NUM_UNITS + unit_of[round]] =
            round < kOwnUnits ? norms.vector_sums[round % kOwnUnits][v] : 0.0f;
      }
#endif
      const int b = sequence_of(round).b;
      if (b < 0) continue;
      const long long at = b * all.state_stride + unit_of[round];
      static_cast<Item*>(my.first_h_backprop)[at] = FromFloat(carry_h[round]);
      if constexpr (CellType::kHasC) {
        static_cast<Item*>(my.first_c_backprop)[at] = FromFloat(carry_c[round]);
      }
    }
    // Steps past a sequence's end have no gradient. Of a sequence whose length
    // was out of range, all gradients are NaN, and through the products that
    // follow so are those of the weights.
    for (int row = 0; row < kRows; ++row) {
      const Sequence sequence(sequences, first_row + row);
      if (sequence.b < 0) continue;
      const Item fill = FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      const int count =
          (sequences.steps - sequence.length) * kSlots * BLOCK_UNITS;
      for (int i = thread; i < count; i += kThreads) {
        const int unit = rank * BLOCK_UNITS + i % BLOCK_UNITS;
        if (unit >= NUM_UNITS) continue;
        const int slot = i / BLOCK_UNITS % kSlots;
        const long long to = RowOfTime(
            sequences, sequence.length + i / BLOCK_UNITS / kSlots, sequence.b);
        gates[(to * kSlots + slot) * NUM_UNITS + unit] = fill;
      }
    }
    ring.EndShare(steps);
    ring_of_gates.EndShare(steps);
#if NORMS
    norms.EndShare(steps);
#endif
    first_row = FirstRowOf(++share);
  } while (!IS_CLUSTER && first_row < sequences.batch);
  // A block's shared memory must outlive its peers' stores to it.
  if (IS_CLUSTER) SynchronizeCluster();
}
