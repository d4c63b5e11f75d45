// The exchange between the layers of a stack, which run in one launch. Each
// cluster has some of the sequences in one stage: a layer's recurrence, or the
// products of an upper layer's input weights with the output of the layer
// below. A stage fetches the steps of the stage before it as they appear in
// memory, where all bits set mark a number that is not there yet. Tickets make
// sure that clusters of earlier stages have begun before those of later ones.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STACK_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STACK_CUH_

#include "block_sums.cuh"

// Returns the number of clusters that have begun before this one. All bits of
// the counter are set at first, which stands for -1.
static int TakeTicket(void* counter) {
  Word* const ticket =
      reinterpret_cast<Word*>(SharedMemory() + 2 * sizeof(Barrier));
  if (blockIdx.x % TEAM == 0 && threadIdx.x == 0) {
    *ticket = CountUp(counter) + 1;
  }
  SynchronizeCluster();
  return static_cast<int>(LoadOfPeer(MemoryOfPeer(0), ticket));
}

static bool IsThere(Item item) {
#if defined(IS_FLOAT)
  return __float_as_uint(item) != 0xFFFFFFFF;
#else
  return item != 0xFFFF;
#endif
}

// Tells whether all numbers of a chunk are there. They are stored one by one.
static bool AreThere(const Chunk& chunk) {
  bool are_there = true;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#if defined(IS_FLOAT)
    are_there &= IsThere(__uint_as_float(chunk.word[j]));
#else
    are_there &= IsThere(static_cast<Item>(chunk.word[j])) &&
                 IsThere(static_cast<Item>(chunk.word[j] >> 16));
#endif
  }
  return are_there;
}

// Waits for the number at `from`. `item` is the result of an earlier load,
// which may have been too early.
static void Receive(const Item* from, Item* item) {
  for (int polls = 0; !IsThere(*item); ++polls) {
    if (polls > kMaxPolls) Abort();
    *item = LoadOfOthers(from);
  }
}

// What a block runs: a direction of a layer, from its first share of the batch
// on, or a stage of a stack.
struct Stage {
  int direction, first_row;
  bool is_reversed = false;
  // In a stack: whether the stage is the products with the layer below,
  // whether it is of an upper layer, and whether another one waits for it.
  bool is_product = false, is_upper = false, is_awaited = false;
};
static Stage StageOfBlock(const PassArguments& all) {
  if constexpr (IS_STACK) {
    const int ticket = TakeTicket(all.team_memory), teams = gridDim.x / TEAM;
    const int stage = ticket / teams, direction = (stage + 1) / 2;
    return {direction,     ticket % teams * kRows,
            false,         stage % 2 == 1,
            direction > 0, stage + 1 < static_cast<int>(gridDim.y)};
  } else {
    const int direction = all.first_direction + blockIdx.y;
    return {direction, FirstRowOf(0), direction == 1};
  }
}

// A thread's share of the layer below's steps.
class LayerBelow {
 public:
  LayerBelow(const void* output, const Sequences& sequences, int first_row)
      : step_bytes_(sequences.time_stride * kRowBytes) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Place place(i);
      Sequence sequence(sequences, first_row + place.row);
      if (place.row >= kRows || place.chunk * kLanes >= NUM_UNITS) {
        sequence.Clear();
      }
      length_[i] = sequence.length;
      first_[i] = static_cast<const char*>(output) +
                  sequence.RowAt(sequences, 0, false) * kRowBytes +
                  place.chunk * 16;
    }
  }

  // Loads a step, which may not be there yet. A sequence that has ended gets
  // zeros.
  void Load(int step) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ahead_[i] = {};
      if (step < length_[i]) ahead_[i] = LoadOfOthers(At(i, step));
    }
  }
  // Waits for the step that was loaded last, and stores it to `to`, the rows of
  // states in shared memory.
  void Store(int step, const ForwardMemory& memory, char* to) {
    const char* missing[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool is_missing = step < length_[i] && !AreThere(ahead_[i]);
      missing[i] = is_missing ? At(i, step) : nullptr;
    }
    Receive(missing, AreThere, ahead_);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Place place(i);
      if (place.row >= kRows) continue;
      reinterpret_cast<Operands*>(to + place.row * kPitch)[place.chunk] =
          Operands(ahead_[i], memory.ScaleOfH(place.row));
    }
  }

 private:
  static constexpr int kLanes = kShape.data_chunk_units();
  static constexpr int kOfRow = kShape.all_units() / kLanes;
  static constexpr int kCount = kShape.forward_thread_chunks();
  static constexpr long long kRowBytes = NUM_UNITS * sizeof(Item);

  struct Place {
    int row, chunk;
    explicit Place(int i)
        : row((threadIdx.x + i * kThreads) / kOfRow),
          chunk((threadIdx.x + i * kThreads) % kOfRow) {}
  };

  const char* At(int i, int step) const {
    return first_[i] + step * step_bytes_;
  }

  const long long step_bytes_;
  const char* first_[kCount];
  int length_[kCount];
  Chunk ahead_[kCount];
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STACK_CUH_
