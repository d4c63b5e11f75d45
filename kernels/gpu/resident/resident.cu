// A kernel that runs steps of a layer in inference, with the recurrent weights
// in registers and shared memory. kernel.cc compiles and launches it.
//
// Whoever compiles it sets the macros NUM_UNITS, BATCH, UNITS, WARPS,
// IN_REGISTERS, IN_SHARED, AHEAD and KEPT, fields of a ResidentShape, and those
// of cell_functions.cuh.
#define HAS_EXACT_FUNCTIONS
#include "cell_functions.cuh"
#include "resident_shape.h"

using cudnn_rnn_tf::ResidentShape;

constexpr ResidentShape kShape = {NUM_UNITS, BATCH, kGates,       sizeof(Item),
                                  UNITS,     WARPS, IN_REGISTERS, IN_SHARED,
                                  AHEAD,     KEPT};
constexpr int kThreads = kShape.threads();
constexpr int kRows = kShape.rows(), kGroups = kShape.groups();
constexpr int kItemsOfChunk = sizeof(Chunk) / sizeof(Item);
constexpr int kItemsOfSlice = 4 * kItemsOfChunk;
constexpr int kSlices = kShape.slices(), kOwnSlices = kShape.own_slices();
constexpr int kResident = kShape.resident(), kStreamed = kShape.streamed();
constexpr int kFetched = AHEAD > 0 ? AHEAD : 1;
static_assert(AHEAD == 0 || (kStreamed % kFetched == 0 && AHEAD >= kGroups));
constexpr int kLanesOfCell = ResidentShape::kLanesOfCell;
constexpr int kCells = kShape.cells(), kRounds = kShape.rounds();
constexpr int kPitch = kShape.pitch();

constexpr Word kAbsent = 0xFFFFFFFF;

// Never returns a number with all bits set, which marks an output as absent. In
// float32, NaN is replaced here; conversions to the half types make it 0x7FFF.
static Item PresentItem(float value) {
#if defined(IS_FLOAT)
  if (isnan(value)) return __uint_as_float(0x7FC00000);
#endif
  return FromFloat(value);
}

static Chunk LoadWeights(const char* from) {
  Chunk chunk;
  // Without `volatile`, the compiler would move the load out of the loop over
  // steps.
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]),
                 "=r"(chunk.word[3])
               : "l"(from));
  return chunk;
}

static void FetchWeights(Chunk* to, const char* from,
                         unsigned long long policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
          static_cast<Word>(__cvta_generic_to_shared(to))),
      "l"(from), "l"(policy)
      : "memory");
}

// Loads outputs that other blocks may be writing. Each word is read as a whole.
static Chunk LoadOutputs(const Item* from) {
  Chunk chunk;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]),
                 "=r"(chunk.word[3])
               : "l"(from)
               : "memory");
  return chunk;
}

static void StoreOutputs(Item* to, Word word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word)
               : "memory");
}

static bool IsAbsent(const Chunk& chunk) {
  return max(max(chunk.word[0], chunk.word[1]),
             max(chunk.word[2], chunk.word[3])) == kAbsent;
}

// Sums over the lanes of a cell.
static float SumOfWarp(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    resident(const Item* weights, const Item* input_bias,
             const Item* recurrent_bias, const float* projected,
             const Item* first_h, const Item* first_c, Item* output,
             Item* last_h, Item* last_c, int first, int steps, int num_steps,
             int stride, int is_reversed) {
  extern __shared__ Chunk shared[];  // [IN_SHARED][kThreads]
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  Chunk* const held_in_shared = shared + thread;
  Chunk* const slots = held_in_shared + IN_SHARED * kThreads;  // [AHEAD]
  // [2][WARPS][kPitch]; the steps use the halves by turns.
  float* const sums_of_warps =
      reinterpret_cast<float*>(shared + (IN_SHARED + AHEAD) * kThreads);
#if defined(IS_FLOAT)
  // [2][BATCH][4] for each warp, whose slices use the halves by turns.
  Chunk* const staged =
      reinterpret_cast<Chunk*>(sums_of_warps + 2 * WARPS * kPitch) +
      warp * 2 * BATCH * 4;
#endif
  const int g = lane / 4, t = lane % 4;
  const int first_unit = blockIdx.x * UNITS;
  const auto has_slice = [&](int i) {
#if !defined(IS_FLOAT)
    if (kSlices % WARPS == 0) return true;
#endif
    // In float32 there is a branch even if it is always taken. Without it, the
    // compiler loads the weights of several slices early and runs out of
    // registers.
    return warp + i * WARPS < kSlices;
  };

  // Rows that do not exist stand for other rows, and nobody reads their sums.
  Word row_offset[kGroups];  // In bytes.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int row = group * 8 + g < kRows ? group * 8 + g : 0;
    const int unit = min(first_unit + row % UNITS, NUM_UNITS - 1);
    row_offset[group] = (row / UNITS * NUM_UNITS + unit) *
                        static_cast<Word>(NUM_UNITS * sizeof(Item));
  }
  const char* const own_columns =
      reinterpret_cast<const char*>(weights) + warp * 64 + t * 16;
  const auto weights_at = [&](int slice, int group) {
    return own_columns + row_offset[group] + slice * WARPS * 64;
  };

  Chunk held[IN_REGISTERS > 0 ? IN_REGISTERS : 1];
#pragma unroll
  for (int i = 0; i < kOwnSlices; ++i) {
    if (!has_slice(i)) continue;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int n = i * kGroups + group;
      if (n < IN_REGISTERS) {
        held[n] = LoadWeights(weights_at(i, group));
      } else if (n < kResident) {
        held_in_shared[(n - IN_REGISTERS) * kThreads] =
            LoadWeights(weights_at(i, group));
      }
    }
  }

  unsigned long long policy = 0;
  // Fetches the streamed chunk `n` into its slot, if the warp has its slice.
  const auto fetch = [&](int n) {
    const int slice = (kResident + n) / kGroups;
    const int group = (kResident + n) % kGroups;
    if (has_slice(slice)) {
      FetchWeights(slots + n % kFetched * kThreads, weights_at(slice, group),
                   policy);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  if (AHEAD > 0) {
    asm volatile(
        "createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;"
        : "=l"(policy)
        : "f"(KEPT / 1000.0f));
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) fetch(n);
  }

  // The states of the thread's cells, and the biases that are added to their
  // products. A GRU's candidate has its biases in two slots.
  float h_of[kRounds], c_of[kRounds], bias[kRounds][kSlots];
  const auto cell_at = [&](int round) {
    return (round * kThreads + thread) / kLanesOfCell;
  };
  const auto exists = [&](int cell) {
    return cell < kCells && first_unit + cell % UNITS < NUM_UNITS;
  };
  const auto outputs_at = [&](int step) {
    const int time = is_reversed ? num_steps - 1 - step : step;
    return output + static_cast<size_t>(time) * BATCH * stride;
  };
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int cell = cell_at(round);
    if (!exists(cell)) continue;
    const int b = cell / UNITS, unit = first_unit + cell % UNITS;
    h_of[round] =
        ToFloat(first == 0 ? first_h[b * NUM_UNITS + unit]
                           : outputs_at(first - 1)[b * stride + unit]);
    if constexpr (CellType::kHasC) {
      c_of[round] =
          ToFloat((first == 0 ? first_c : last_c)[b * NUM_UNITS + unit]);
    }
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const int at = gate * NUM_UNITS + unit;
      // With branches that add to zeros, the compiler runs out of registers.
      const int slot = CellType::RecurrentSlot(gate);
      bias[round][slot] =
          recurrent_bias == nullptr ? 0.0f : ToFloat(recurrent_bias[at]);
      const float of_input =
          input_bias == nullptr ? 0.0f : ToFloat(input_bias[at]);
      bias[round][gate] = of_input + (slot == gate ? bias[round][gate] : 0.0f);
    }
  }
  __syncthreads();

  for (int s = 0; s < steps; ++s) {
    const int step = first + s;
    // The input side depends on no other block, so it is loaded before the
    // wait.
    float inputs[kRounds][kGates];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int cell = cell_at(round);
      const int time = is_reversed ? steps - 1 - s : s;
      const float* const row =
          projected +
          (static_cast<size_t>(time) * BATCH + cell / UNITS) *
              (kGates * NUM_UNITS) +
          first_unit + cell % UNITS;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        inputs[round][gate] = exists(cell) ? row[gate * NUM_UNITS] : 0.0f;
      }
    }

    // The lane loads h of the step before: for sequence g, its quarter of the
    // warp's slices. It loads again what another block has not written yet.
    const Item* const h = step == 0 ? first_h : outputs_at(step - 1);
    const Item* const own_h = h + g * (step == 0 ? NUM_UNITS : stride) +
                              warp * kItemsOfSlice + t * kItemsOfChunk;
    Chunk of_h[kOwnSlices];
    bool is_absent[kOwnSlices];
#pragma unroll
    for (int i = 0; i < kOwnSlices; ++i) {
      of_h[i] = {};
      is_absent[i] = g < BATCH && has_slice(i);
    }
    bool waits = true;
    // A poll takes about half a microsecond. All blocks run at the same time,
    // so a wait of some seconds means that something is wrong.
    for (int polls = 0; waits; ++polls) {
      if (polls > 1 << 24) asm volatile("trap;");
      waits = false;
#pragma unroll
      for (int i = 0; i < kOwnSlices; ++i) {
        if (is_absent[i]) {
          of_h[i] = LoadOutputs(own_h + i * WARPS * kItemsOfSlice);
        }
      }
#pragma unroll
      for (int i = 0; i < kOwnSlices; ++i) {
        is_absent[i] = is_absent[i] && step > 0 && IsAbsent(of_h[i]);
        waits = waits || is_absent[i];
      }
    }
    __syncwarp();

    // The warp sums the products of its slices of the columns.
    float* const sums = sums_of_warps + (s % 2 * WARPS + warp) * kPitch;
#if defined(IS_FLOAT)
    float products[kGroups][BATCH] = {};
#else
    // mma decides the order of the sums: rows g and g + 8 of a tile of 16 rows,
    // for the sequences 2 t and 2 t + 1.
    constexpr int kTiles = (kGroups + 1) / 2;
    float products[kTiles][4] = {};
#endif
#pragma unroll
    for (int i = 0; i < kOwnSlices; ++i) {
      if (AHEAD > 0 && (i + 1) * kGroups > kResident) {
        asm volatile("cp.async.wait_group %0;" ::"n"(
                         AHEAD > kGroups ? AHEAD - kGroups : 0)
                     : "memory");
      }
      if (has_slice(i)) {
        Chunk w[kGroups + 1];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int n = i * kGroups + group;
          w[group] = n < IN_REGISTERS ? held[n < IN_REGISTERS ? n : 0]
                     : n < kResident
                         ? held_in_shared[(n - IN_REGISTERS) * kThreads]
                     : AHEAD > 0 ? slots[(n - kResident) % kFetched * kThreads]
                                 : LoadWeights(weights_at(i, group));
        }
#if defined(IS_FLOAT)
        // A lane needs its quarter of every sequence, and has loaded that of
        // one.
        Chunk* const stage = staged + i % 2 * BATCH * 4;
        if (g < BATCH) stage[g * 4 + t] = of_h[i];
        __syncwarp();
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
          const Chunk x = stage[b * 4 + t];
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              products[group][b] =
                  fmaf(__uint_as_float(w[group].word[j]),
                       __uint_as_float(x.word[j]), products[group][b]);
            }
          }
        }
#else
        // The order of the slice's 32 columns in mma does not matter, as long
        // as weights and h have the same order. The first mma takes words 0 and
        // 1 of each quarter, the second words 2 and 3.
        w[kGroups] = {};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const Chunk &upper = w[2 * tile], &lower = w[2 * tile + 1];
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
#if defined(IS_BFLOAT16)
#define CRNN_TYPES "bf16.bf16"
#else
#define CRNN_TYPES "f16.f16"
#endif
            asm("mma.sync.aligned.m16n8k16.row.col.f32." CRNN_TYPES
                ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(products[tile][0]), "+f"(products[tile][1]),
                  "+f"(products[tile][2]), "+f"(products[tile][3])
                : "r"(upper.word[j]), "r"(lower.word[j]),
                  "r"(upper.word[j + 1]), "r"(lower.word[j + 1]),
                  "r"(of_h[i].word[j]), "r"(of_h[i].word[j + 1]));
          }
        }
#endif
      }
      if (AHEAD > 0) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int n = i * kGroups + group - kResident;
          if (n >= 0) fetch((n + AHEAD) % (kStreamed > 0 ? kStreamed : 1));
        }
      }
    }
#if defined(IS_FLOAT)
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float own = 0.0f;
#pragma unroll
      for (int b = 0; b < BATCH; ++b) {
        const float sum = SumOfWarp(products[group][b]);
        if (t == b) own = sum;
      }
      const int row = group * 8 + g;
      if (row < kRows && t < BATCH) sums[t * kRows + row] = own;
    }
#else
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = tile * 16 + i / 2 * 8 + g, b = 2 * t + i % 2;
        if (row < kRows && b < BATCH) sums[b * kRows + row] = products[tile][i];
      }
    }
#endif
    __syncthreads();

#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int cell = cell_at(round);
      const int b = cell / UNITS, own = cell % UNITS;
      float of_gate[kGates];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        float sum = 0.0f;
        if (cell < kCells) {
#pragma unroll
          for (int w = 0; w < WARPS; w += kLanesOfCell) {
            sum += sums_of_warps[(s % 2 * WARPS + w + thread % kLanesOfCell) *
                                     kPitch +
                                 b * kRows + gate * UNITS + own];
          }
        }
        of_gate[gate] = SumOfWarp(sum);
      }
      float z[kSlots], values[kSlots];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const int slot = CellType::RecurrentSlot(gate);
        z[slot] = of_gate[gate] + (slot == gate ? inputs[round][gate] : 0.0f) +
                  bias[round][slot];
        if (slot != gate) z[gate] = bias[round][gate] + inputs[round][gate];
      }
      CellType::Forward(Functions(), z, &h_of[round], &c_of[round], values);
      const Item item = PresentItem(h_of[round]);
      h_of[round] = ToFloat(item);
      const bool writes = exists(cell) && thread % kLanesOfCell == 0;
      Item* const to = outputs_at(step) + b * stride + first_unit + own;
#if defined(IS_FLOAT)
      if (writes) StoreOutputs(to, __float_as_uint(item));
#else
      // A word holds two neighbouring units.
      const Word next = __shfl_down_sync(~0u, item, kLanesOfCell);
      if (writes && own % 2 == 0) StoreOutputs(to, item | next << 16);
#endif
    }
  }
  if (AHEAD > 0) asm volatile("cp.async.wait_all;" ::: "memory");

#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int cell = cell_at(round);
    if (!exists(cell) || thread % kLanesOfCell != 0) continue;
    const int at = cell / UNITS * NUM_UNITS + first_unit + cell % UNITS;
    last_h[at] = PresentItem(h_of[round]);
    if constexpr (CellType::kHasC) last_c[at] = PresentItem(c_of[round]);
  }
}
