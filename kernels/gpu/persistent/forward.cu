// A kernel that runs all steps of a recurrent layer forward, with the recurrent
// weights in the registers and the shared memory of teams of blocks.
//
// A block's warps multiply its rows of the weights by h; the sums go through
// shared memory to its threads, which compute the cells, unless these have the
// sums already, as in clusters of warpgroups. A cell's new state
// goes to every block of the team, 16 bytes of one sequence at a time: in a
// cluster by asynchronous stores, which a barrier at the receiver counts, in
// other teams through memory. There is no other barrier between blocks in the
// loop. None is needed, since a block begins a step only after all warps of all
// blocks have sent the states of the step before: then nobody still reads the
// copy of h that the step's stores overwrite, or the sums of the step before.
//
// If a team has bands, blocks exchange twice in a step: sums within the band,
// and then h. Blocks send both through memory.
//
// In a stack, all layers run at the same time, and other clusters multiply the
// output of the layer below by the input weights, in the same way.
//
// Whoever compiles also defines IS_TRAINING if it is for training.
#include "stack.cuh"
#include "warpgroup_weights.cuh"

constexpr bool kHoldsCells = kShape.forward_holds_cells();
using Cell = DealtCell<kHoldsCells>;
constexpr int kRounds = Cell::kRounds, kOwnUnits = Cell::kOwnUnits;
#if NORMS
#include "norms.cuh"
#endif

using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::ForwardDirection;

constexpr int kPairs = kShape.forward_warp_pairs();
constexpr int kTiles = kShape.forward_warp_tiles();
constexpr int kPitch = kShape.forward_pitch();
constexpr int kColumn = kShape.column_pitch();
constexpr int kCopy = kShape.operand_bytes(kPairs * SPLITS);
constexpr int kSumsPitch = kShape.forward_sums_pitch();
using Weights = decltype(WeightsOfShape<kPairs, kTiles, IS_CLUSTER ? 1 : 2>());
static_assert(kTiles <= Weights::kAtOnce, "tiles are multiplied once");
// The number of steps by which the products of the input side are loaded ahead,
// since a step may be shorter than a load from memory takes.
constexpr int kAhead = kHasBands || Weights::kLoadsLate ? 1 : 2;
// The slots of a unit, as 16 bytes if they are as many.
static void LoadSlots(const float* from, float* slots) {
  if (SLOTS == 4) {
    const Chunk chunk = *reinterpret_cast<const Chunk*>(from);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = __uint_as_float(chunk.word[i]);
  } else {
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = from[i];
  }
}

// Loads a chunk of operands of a row of the weights. `scale` is that of the
// row.
static Chunk LoadOperands(const Item* row, int column, float scale) {
  Chunk chunk, data[kOperands / kItems];
  LoadOfRow(row, column, 4 * kItems, data);
#pragma unroll
  for (int i = 0; i < kOperands / kItems; ++i) {
    const Operands part(data[i], scale);
    constexpr int kWords = sizeof(part.word) / sizeof(Word);
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      chunk.word[i * kWords + j] = part.word[j];
    }
  }
  return chunk;
}

// Collects 16 bytes of h, of which a lane and its neighbours have one operand
// each.
static Chunk Gather(float h, int lane) {
  constexpr int kLanes = kShape.chunk_units();
  const float pair[2] = {h, ShuffleXor(h, 1)};
  const Word word = ToOperands(kOperands == 1 ? &h : pair);
  Chunk chunk;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    chunk.word[j] = ShuffleFrom(word, lane / kLanes * kLanes + j * kOperands);
  }
  return chunk;
}

// Returns chunk t of four chunks of which lane t of a quad, as each of its
// lanes, has word t.
static Chunk ChunkOfQuad(const Word (&words)[4], int lane) {
  Chunk chunk;
#pragma unroll
  for (int other = 0; other < 4; ++other) {
    const int t = (lane ^ other) % 4;
    const Word word = ShuffleFrom(
        t < 2 ? words[t == 0 ? 0 : 1] : words[t == 2 ? 2 : 3], lane ^ other);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j == t) chunk.word[j] = word;
    }
  }
  return chunk;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    forward(const ForwardArguments all) {
  const Sequences& sequences = all.sequences;
#if IS_STACK
  const int ticket = TakeTicket(all.part.ring), teams = gridDim.x / TEAM;
  const int stage = ticket / teams, my_direction = (stage + 1) / 2;
  int first_row = ticket % teams * kRows;
  const bool is_product = stage % 2 == 1, is_upper = my_direction > 0;
  const bool is_awaited = stage + 1 < static_cast<int>(gridDim.y);
  constexpr bool is_reversed = false;
#else
  const int my_direction = all.part.first_direction + blockIdx.y;
  int first_row = FirstRowOf(0);
  const bool is_reversed = my_direction == 1;
  constexpr bool is_product = false, is_upper = false, is_awaited = false;
#endif
  const ForwardDirection& my = all.direction[my_direction];
  const int rank = blockIdx.x % TEAM;
  const int band = rank / SLICES, slice = rank % SLICES;
  constexpr int kSliceUnits = kShape.slice_units();
  ClearedRing<kShape.forward_step_bytes()> ring(
      RingOfTeam(all.part, kShape.forward_ring_bytes()));
  MarkedRing<kShape.forward_sums_step_bytes()> ring_of_sums(ring.end());
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4;
  // The warp's tiles, and the first of its pairs. Warps that multiply together
  // have neighbouring tiles.
  constexpr int kGroup = Weights::kWarps;
  const int group = warp / kGroup;
  const auto tile_of = [&](int i) {
    return (group / SPLITS * kTiles + i) * kGroup + warp % kGroup;
  };
  const int split = group % SPLITS, first_pair = split * kPairs;

  Barrier* const barriers = reinterpret_cast<Barrier*>(SharedMemory());
  // [SLICES][BLOCK_UNITS][SLOTS], then [kRows].
  float* const row_powers =
      reinterpret_cast<float*>(SharedMemory() + Shape::kBarrierBytes);
  float* const sequence_powers = row_powers + kShape.band_rows();
  char* const of_norms =
      SharedMemory() + Shape::kBarrierBytes + kShape.powers_bytes();
  char* const states = of_norms + kShape.norm_shared_bytes();
#if NORMS
  ForwardNorms norms(IS_CLUSTER ? of_norms : ring_of_sums.end(), barriers + 2);
#endif
  // [SPLITS][kRows], where a row has the sums by unit and then by slot; [kRows]
  // in a band.
  float* const sums_of_block =
      reinterpret_cast<float*>(states + kShape.forward_h_bytes());
  const Weights weights(
      reinterpret_cast<char*>(sums_of_block) + kShape.forward_sums_bytes(),
      thread);
  const auto row_of = [&](int i) -> const Item* {
    const int unit = band * (SLICES * BLOCK_UNITS) + i / SLOTS;
    const int gate = i % SLOTS;
    if (gate >= kGates || unit >= NUM_UNITS) return nullptr;
    return static_cast<const Item*>(is_product ? my.input_weights
                                               : my.recurrent_weights) +
           static_cast<long long>(gate * NUM_UNITS + unit) * NUM_UNITS;
  };
  if (kHasPowers) {
    FindRowPowers(row_of, band, slice, ring_of_sums.end(), thread, row_powers);
  }
  // A tile's rows g and g + 8 are neighbours among those of the weights. If a
  // warp's lanes hold cells, its two tiles have all rows of eight units.
  const auto load_weights = [&](int pair, int i, int half) {
    const int at = kHoldsCells ? (warp * 8 + g) * SLOTS + 2 * i + half
                               : tile_of(i) * 16 + 2 * g + half;
    const int column = ((first_pair + pair) * 16 + t * 4) * kOperands;
    const Item* const row = at < kShape.band_rows() ? row_of(at) : nullptr;
    if (row == nullptr || column >= kSliceUnits) return Chunk{};
    return LoadOperands(row, slice * kSliceUnits + column,
                        kHasPowers ? ScaleOf(row_powers[at]) : 1.0f);
  };
  Weights::Held held;
  weights.Load<2>(load_weights, held);

  int share = 0;
  do {
    // The states before the first step. Places that stand for no unit stay
    // zero.
    for (int i = thread; i < kShape.forward_h_bytes() / 16; i += kThreads) {
      reinterpret_cast<Chunk*>(states)[i] = {};
    }
    SynchronizeBlock();
    const Item* const first_h = static_cast<const Item*>(my.first_h);
    if (kHasPowers) {
      // What a stack's cluster multiplies is the h of the layer below.
      const Item* const bounds = static_cast<const Item*>(
          all.direction[is_product ? my_direction - 1 : my_direction].first_h);
      const auto bound_of = [&](int row) -> const Item* {
        const int b = Sequence(sequences, first_row + row).b;
        return b < 0 ? nullptr : bounds + b * all.state_stride;
      };
      FindPowers<kRows>(bound_of, kKeepsPowers ? 1.0f : 0.0f, thread,
                        sequence_powers);
      SynchronizeBlock();
    }
    constexpr int kUnits = kHasBands ? kSliceUnits : NUM_UNITS;
    constexpr int kWords = (kUnits + kOperands - 1) / kOperands;
    for (int i = thread; i < kRows * kWords; i += kThreads) {
      const int row = i / kWords, word = i % kWords;
      const int b = Sequence(sequences, first_row + row).b;
      // Here, a faster warp may have put the first step of the layer below.
      if (b < 0 || is_product) continue;
      float values[kOperands];
#pragma unroll
      for (int e = 0; e < kOperands; ++e) {
        const int at = slice * kSliceUnits + word * kOperands + e;
        values[e] =
            at < NUM_UNITS ? ToFloat(first_h[b * all.state_stride + at]) : 0.0f;
        if (kHasPowers) values[e] *= ScaleOf(sequence_powers[row]);
      }
      reinterpret_cast<Word*>(states + row * kPitch +
                              word / 4 * kColumn)[word % 4] =
          ToOperands(values);
    }
    if (IS_CLUSTER && thread == 0) {
      InitializeBarriers(barriers, NORMS ? 4 : 2);
      ArmBarrier(barriers, kShape.forward_step_bytes());
      ArmBarrier(barriers + 1, kShape.forward_step_bytes());
#if NORMS
      norms.Arm();
#endif
    }

    // The thread's cells. A GRU's candidate has its biases in two slots.
    const auto sequence_of = [&](int round) {
      const Cell cell(round, thread);
      Sequence sequence(sequences, first_row + cell.row);
      if (!cell.exists || rank * BLOCK_UNITS + cell.unit >= NUM_UNITS) {
        sequence.Clear();
      }
      return sequence;
    };
    int unit_of[kRounds], length[kRounds], row_of[kRounds];
    float h[kRounds], c[kRounds], bias[kOwnUnits][kSlots];
    Functions functions[kOwnUnits];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Sequence sequence = sequence_of(round);
      unit_of[round] = rank * BLOCK_UNITS + Cell(round, thread).unit;
      length[round] = sequence.length;
      row_of[round] = sequence.RowAt(sequences, 0, is_reversed);
      h[round] = c[round] = 0.0f;
      if (sequence.b >= 0) {
        const long long at = sequence.b * all.state_stride + unit_of[round];
        h[round] = ToFloat(first_h[at]);
        if constexpr (CellType::kHasC) {
          c[round] = ToFloat(static_cast<const Item*>(my.first_c)[at]);
        }
        if (sequence.is_invalid) h[round] = c[round] = InvalidValue();
      }
      if (round >= kOwnUnits) continue;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) bias[round][slot] = 0.0f;
      if (unit_of[round] >= NUM_UNITS) continue;
      functions[round].ReadVectors(my.vectors, NUM_UNITS, unit_of[round]);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const Item* const of_input = static_cast<const Item*>(my.input_bias);
        const Item* const of_recurrent =
            static_cast<const Item*>(my.recurrent_bias);
        const int at = gate * NUM_UNITS + unit_of[round];
        if (of_recurrent != nullptr) {
          bias[round][CellType::RecurrentSlot(gate)] +=
              ToFloat(of_recurrent[at]);
        }
        if (of_input != nullptr) {
          bias[round][gate] += ToFloat(of_input[at]);
        }
      }
    }
    // Sequences are ordered by their lengths, so the first row's is the
    // longest.
    const int steps = Sequence(sequences, first_row).length;
    const int row_step =
        is_reversed ? -sequences.time_stride : sequences.time_stride;
    // Only the last layer has the caller's cell states.
    const auto store_c = [&](long long row, int unit, Item value) {
      if (kCellSequencesPitch == 0 || my.all_c == nullptr) return;
      static_cast<Item*>(my.all_c)[row * kCellSequencesPitch + unit] = value;
    };
    Item* const gates = static_cast<Item*>(my.gates);
    const auto gate_at = [&](int round, int step, int slot) -> Item& {
      const long long row = row_of[round] + step * row_step;
      return gates[(row * kSlots + slot) * NUM_UNITS + unit_of[round]];
    };
    // The input side's products of this step and of the next ones.
    Item inputs[kAhead][kRounds][kGates];
    const auto load_inputs = [&](int step, Item(*to)[kGates]) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          to[round][gate] = step >= length[round] ? Item(0)
                            : is_upper
                                ? LoadOfOthers(&gate_at(round, step, gate))
                                : gate_at(round, step, gate);
        }
      }
    };
    // `multiply` multiplies this block's rows of the weights by numbers in
    // shared memory, and `read_sums` reads the sums for a thread's cell. The
    // numbers have the sequences' powers or, if not, the power 1. Within a
    // band, sums are sent, and `receive_sums` adds what was sent.
    const auto store_sums = [&](int of_split, int n, int tile,
                                const float* sums) {
      float* const to = sums_of_block +
                        (of_split * kRows + n * 8 + 2 * t) * kSumsPitch +
                        tile * 16 + 2 * g;
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        StorePair(to + column * kSumsPitch, sums[column], sums[2 + column]);
      }
    };
    // The tiles of a block's own units. A sender's chunks are those of lanes,
    // [ROW_TILES][kOwnTiles][32].
    constexpr int kOwnTiles = BLOCK_UNITS * SLOTS / 16;
    constexpr int kChunks = kShape.forward_sums_chunks();
    const auto multiply = [&](const char* numbers, int step,
                              const auto& receive, const auto& meanwhile,
                              Weights::Sums& sums) {
#pragma unroll
      for (int piece = 0; piece < Weights::kPieces; ++piece) {
        receive(piece);
        weights.Multiply(held, numbers + first_pair * 4 * kColumn, kPitch, lane,
                         0, piece, sums, meanwhile);
      }
      if (kHoldsCells) return;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int tile = tile_of(i);
        if (tile * 16 + 2 * g >= kShape.band_rows()) continue;
        const int owner = kHasBands ? tile / kOwnTiles : slice;
        const int own_tile = tile - owner * kOwnTiles;
        const int sender = slice * SPLITS + split;
        char* const place = ring_of_sums.PlaceOf(step, band * SLICES + owner) +
                            (sender * kChunks + own_tile * 32 + lane) * 16;
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
          float total[4];
          sums[n][i].Total(lane, total);
          if (!kHasBands) {
            store_sums(split, n, own_tile, total);
          } else {
            Chunk chunk;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              chunk.word[j] = __float_as_uint(total[j]);
            }
            ring_of_sums.Mark(step, &chunk);
            StoreForOthers(place + n * (kOwnTiles * 512), chunk);
          }
        }
      }
    };
    const auto receive_sums = [&](int step) {
      constexpr int kSenders = SLICES * SPLITS;
      constexpr int kOfThread = (kChunks + kThreads - 1) / kThreads;
      constexpr int kMost = kSenders > 8 ? 1 : 8 / kSenders;
      constexpr int kAtOnce = kOfThread < kMost ? kOfThread : kMost;
      const char* const place = ring_of_sums.PlaceOf(step, rank);
      const auto is_there = [&](const Chunk& chunk) {
        return ring_of_sums.HasMark(step, chunk);
      };
#pragma unroll 1
      for (int first = thread; first < kChunks; first += kAtOnce * kThreads) {
        const char* from[kAtOnce * kSenders];
        Chunk chunks[kAtOnce * kSenders];
#pragma unroll
        for (int i = 0; i < kAtOnce * kSenders; ++i) {
          const int at = first + i / kSenders * kThreads;
          from[i] = at < kChunks ? place + (i % kSenders * kChunks + at) * 16
                                 : nullptr;
        }
        Receive(from, is_there, chunks);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i * kThreads;
          float sums[4] = {};
          if (at >= kChunks) continue;
#pragma unroll
          for (int sender = 0; sender < kSenders; ++sender) {
            const Chunk sent = Unmarked(chunks[i * kSenders + sender]);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              sums[j] += __uint_as_float(sent.word[j]);
            }
          }
          store_sums(0, at / (32 * kOwnTiles), at / 32 % kOwnTiles, sums);
        }
      }
    };
    const auto read_sums = [&](const auto& sums, int round, bool has_powers,
                               float* of_cell) {
      const Cell cell(round, thread);
      if (!cell.exists) return;
      if constexpr (kHoldsCells) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
          of_cell[slot] =
              sums[round / 2][slot / 2].sums[slot % 2 * 2 + round % 2];
        }
      }
#pragma unroll
      for (int i = 0; i < (kHoldsCells ? 0 : kHasBands ? 1 : SPLITS); ++i) {
        float part[SLOTS];
        LoadSlots(sums_of_block + (i * kRows + cell.row) * kSumsPitch +
                      cell.unit * SLOTS,
                  part);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) of_cell[slot] += part[slot];
      }
      if (!kHasPowers) return;
      float of_rows[SLOTS];
      LoadSlots(row_powers + (slice * BLOCK_UNITS + cell.unit) * SLOTS,
                of_rows);
      const float of_sequence = has_powers ? sequence_powers[cell.row] : 1.0f;
#pragma unroll
      for (int slot = 0; slot < kGates; ++slot) {
        const float of_row = kOfProduct * of_rows[slot];
        // With the smaller one first, only what is too large overflows.
        of_cell[slot] *= has_powers ? fminf(of_row, of_sequence) : of_row;
        if (has_powers) of_cell[slot] *= fmaxf(of_row, of_sequence);
      }
    };
#if IS_STACK
    if (is_product) {
      LayerBelow below(my.input, sequences, first_row);
      below.Load(0);
      for (int step = 0; step < steps; ++step) {
        char* const numbers = states + step % 2 * kCopy;
        below.Store(step, sequence_powers, numbers);
        below.Load(step + 1);
        SynchronizeBlock();
        Weights::Sums sums;
        multiply(numbers, step, [](int) {}, [] {}, sums);
        SynchronizeBlock();
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          if (step >= length[round]) continue;
          float products[SLOTS] = {};
          read_sums(sums, round, kKeepsPowers, products);
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            StoreForOthers(&gate_at(round, step, gate),
                           FromFloat(products[gate]));
          }
        }
      }
      // Peers may still read the ticket in this block's shared memory.
      SynchronizeCluster();
      return;
    }
#endif
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_inputs(i, inputs[i]);
    // The lanes that have the same 16 bytes divide the peers among themselves.
    constexpr int kLanes = kShape.chunk_units();
    constexpr int kPeers = IS_CLUSTER ? (TEAM + kLanes - 1) / kLanes : 1;
    PeerMemory peers[kPeers];
    if (IS_CLUSTER) {
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        const int peer = i * kLanes + lane % kLanes;
        peers[i] = MemoryOfPeer(peer < TEAM ? peer : 0);
      }
      Weights::ShowOperands();
      // From here on peers may store to this block.
      SynchronizeCluster();
    } else {
      Weights::SynchronizeOperands();
    }
    // Receives a part of the slice of h, of [kRows, all units]. Other rows than
    // those of sequences stay zero.
    const auto receive_h = [&](int step, int piece) {
      constexpr int kInRow = kSliceUnits / kLanes;
      constexpr int kOfRow =
          Weights::kPieces == 1 ? kInRow : kPairs / Weights::kPieces * 4;
      constexpr int kOfThread = (kRows * kOfRow + kThreads - 1) / kThreads;
      // Beside the weights, the registers have room for this many chunks.
      constexpr int kMost = kItems == 1 ? 4 : 8;
      constexpr int kAtOnce = kOfThread < kMost ? kOfThread : kMost;
      const int end = Within(sequences.batch - first_row, kRows) * kOfRow;
      const char* const place = ring.PlaceOf(step) + slice * (kInRow * 16);
#pragma unroll 1
      for (int first = thread; first < end; first += kAtOnce * kThreads) {
        const char* from[kAtOnce];
        Chunk chunks[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i * kThreads;
          const int column = piece * kOfRow + at % kOfRow;
          const int chunk = kOfRow == kInRow && !kHasBands
                                ? at
                                : at / kOfRow * (SLICES * kInRow) + column;
          from[i] = at < end && column < kInRow ? place + chunk * 16 : nullptr;
        }
        Receive(from, IsFull, chunks);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i * kThreads;
          if (from[i] == nullptr) continue;
          *reinterpret_cast<Chunk*>(states + at / kOfRow * kPitch +
                                    (piece * kOfRow + at % kOfRow) * kColumn) =
              chunks[i];
        }
      }
      Weights::SynchronizeOperands();
    };

    for (int step = 0; step < steps; ++step) {
      const int current = IS_CLUSTER ? step % 2 : 0, next = 1 - current;
      float added[kRounds][kSlots];
      bool is_anew[kRounds];
      const auto take_inputs = [&] {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          is_anew[round] =
              kHasResets && step < length[round] &&
              StartsAnew(sequences, step, row_of[round] + step * row_step,
                         is_reversed);
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            added[round][slot] = bias[round % kOwnUnits][slot];
          }
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
#if IS_STACK
            if (is_upper && step < length[round]) {
              Receive(&gate_at(round, step, gate), &inputs[0][round][gate]);
            }
#endif
            added[round][gate] += ToFloat(inputs[0][round][gate]);
#pragma unroll
            for (int ahead = 1; ahead < kAhead; ++ahead) {
              inputs[ahead - 1][round][gate] = inputs[ahead][round][gate];
            }
          }
        }
        load_inputs(step + kAhead, inputs[kAhead - 1]);
      };
      // Work that does not depend on what peers send comes before the wait, if
      // there are registers for that.
      if (!Weights::kLoadsLate) take_inputs();
      if (step > 0 && IS_CLUSTER) {
        WaitForBarrier(barriers + current, (step - 1) / 2 % 2);
        Weights::ShowOperands();
        if (thread == 0) {
          ArmBarrier(barriers + current, kShape.forward_step_bytes());
        }
      }
      Weights::Sums sums;
      const auto receive = [&](int piece) {
        if (step > 0 && !IS_CLUSTER) receive_h(step - 1, piece);
      };
      const auto meanwhile = [&] {
        if (Weights::kLoadsLate && IS_CLUSTER) take_inputs();
      };
      multiply(states + current * kCopy, step, receive, meanwhile, sums);
      if constexpr (kHasBands) receive_sums(step);
      if (!kHoldsCells) SynchronizeBlock();
      if (Weights::kLoadsLate && !IS_CLUSTER) take_inputs();

      const auto add_sums = [&](int round) {
        float of_cell[SLOTS] = {};
        read_sums(sums, round, kKeepsPowers || step == 0, of_cell);
        if (is_anew[round]) {
          h[round] = c[round] = 0.0f;
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) of_cell[gate] = 0.0f;
        }
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          added[round][CellType::RecurrentSlot(gate)] += of_cell[gate];
        }
      };
#if NORMS
      NormedCell cells[kRounds];
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        add_sums(round);
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          cells[round].z[slot] = added[round][slot];
        }
      }
      norms.Run(step, thread, rank, all.epsilon, functions, c, cells);
#endif
      [[maybe_unused]] float gate_values[kRounds][kSlots];
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const Cell cell(round, thread);
#if NORMS
        float new_h = h[round], new_c = c[round];
        CellType::Outer(functions[round % kOwnUnits], cells[round].y,
                        cells[round].last, &new_h, &new_c);
#else
        add_sums(round);
        float new_h = h[round], new_c = c[round];
        CellType::Forward(functions[round % kOwnUnits], added[round], &new_h,
                          &new_c, gate_values[round]);
#endif
        if (step < length[round]) {
          h[round] = new_h;
          c[round] = new_c;
        }
        if (!kHoldsCells && step + 1 < steps) {
          // All lanes take part in the shuffles, those without a cell too.
          const float power = kKeepsPowers && kHasPowers && cell.exists
                                  ? sequence_powers[cell.row]
                                  : 1.0f;
          const Chunk chunk =
              Gather(kHasPowers ? ScaleOf(power) * h[round] : h[round], lane);
          const int chunk_of_row = (rank * BLOCK_UNITS + cell.unit) / kLanes;
          if (IS_CLUSTER) {
            char* const to = states + next * kCopy + cell.row * kPitch +
                             chunk_of_row * kColumn;
#pragma unroll
            for (int i = 0; i < kPeers; ++i) {
              if (cell.exists && i * kLanes + lane % kLanes < TEAM) {
                StoreToPeer(peers[i], to, barriers + next, chunk);
              }
            }
          } else if (cell.exists && lane % kLanes == 0 &&
                     first_row + cell.row < sequences.batch) {
            ring.Send(step,
                      (cell.row * kShape.all_units() + rank * BLOCK_UNITS +
                       cell.unit) *
                          kShape.item_bytes(),
                      chunk);
          }
        }
      }
      if constexpr (kHoldsCells) {
        // Eight units of a sequence are a chunk.
#pragma unroll
        for (int first = 0; first < ROW_TILES; first += 4) {
          Word words[4] = {};
#pragma unroll
          for (int n = first; n < ROW_TILES && n < first + 4; ++n) {
            float pair[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int row = n * 8 + 2 * t + e;
              const float power =
                  kKeepsPowers && kHasPowers ? sequence_powers[row] : 1.0f;
              pair[e] = h[2 * n + e] * (kHasPowers ? ScaleOf(power) : 1.0f);
            }
            words[n - first] = Transposed(ToOperands(pair));
          }
          const Chunk chunk = ChunkOfQuad(words, lane);
          const int n = first + t, column = rank * (BLOCK_UNITS / 8) + warp;
          if (n >= ROW_TILES || warp * 8 >= BLOCK_UNITS || step + 1 == steps) {
            continue;
          }
          char* const to =
              states + next * kCopy + (n * 8 + g) * kPitch + column * kColumn;
#pragma unroll
          for (int peer = 0; peer < TEAM; ++peer) {
            StoreToPeer(MemoryOfPeer(peer), to, barriers + next, chunk);
          }
        }
      }
      if (!IS_CLUSTER) ring.EndStep(step);
      // No block of the team waits for these stores, so they come last.
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        if (step >= length[round]) continue;
        const long long row = row_of[round] + step * row_step;
        Item* const output = static_cast<Item*>(my.output) +
                             row * all.output_stride + unit_of[round];
        if (is_awaited) {
          StoreForOthers(output, FromFloat(h[round]));
        } else {
          *output = FromFloat(h[round]);
        }
        store_c(row, unit_of[round], FromFloat(c[round]));
#if defined(IS_TRAINING)
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          gate_at(round, step, slot) =
              FromFloat(NORMS ? added[round][slot] : gate_values[round][slot]);
        }
#if NORMS
        for (int k = 0; k < kNorms && unit_of[round] == 0; ++k) {
          static_cast<Norm<float>*>(my.norms)[row * kNorms + k] =
              cells[round].norms[k];
        }
#endif
        if constexpr (CellType::kHasC) {
          static_cast<Item*>(my.cells)[row * NUM_UNITS + unit_of[round]] =
              FromFloat(c[round]);
        }
#endif
      }
    }

#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      // To keep it would take a register.
      const int b = sequence_of(round).b;
      if (b < 0) continue;
      const long long at = b * all.state_stride + unit_of[round];
      static_cast<Item*>(my.last_h)[at] = FromFloat(h[round]);
      if constexpr (CellType::kHasC) {
        static_cast<Item*>(my.last_c)[at] = FromFloat(c[round]);
      }
    }
    // Past a sequence's end, outputs and c are zero. A sequence whose length
    // was out of range has no steps, so all its outputs are set here, to NaN,
    // which its states have been from the start.
    for (int row = 0; row < kRows; ++row) {
      const Sequence sequence(sequences, first_row + row);
      if (sequence.b < 0) continue;
      const Item fill = FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      const int count = (sequences.steps - sequence.length) * BLOCK_UNITS;
      for (int i = thread; i < count; i += kThreads) {
        const int at = rank * BLOCK_UNITS + i % BLOCK_UNITS;
        if (at >= NUM_UNITS) continue;
        const long long to =
            RowOfTime(sequences, sequence.length + i / BLOCK_UNITS, sequence.b);
        static_cast<Item*>(my.output)[to * all.output_stride + at] = fill;
        store_c(to, at, fill);
      }
    }
    ring.EndShare(steps > 0 ? steps - 1 : 0);
    ring_of_sums.EndShare(steps);
#if NORMS
    norms.EndShare(steps);
#endif
    first_row = FirstRowOf(++share);
  } while (!IS_CLUSTER && first_row < sequences.batch);
  // A block's shared memory must outlive its peers' stores to it.
  if (IS_CLUSTER) SynchronizeCluster();
}
