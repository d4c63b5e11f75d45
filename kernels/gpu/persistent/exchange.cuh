// The exchange between the blocks of a team. In a cluster, they store to each
// other's shared memory, and barriers there count what has arrived: device.cuh
// has the functions. Other teams exchange through memory, which the L2 cache
// holds. Chunks are stored and loaded as a whole, and a chunk's words tell
// whether it is the one that is waited for, so there are no flags, which would
// take a second trip. Places are used again, in rings.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_EXCHANGE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_EXCHANGE_CUH_

#include "common.cuh"

// The first of two types if a condition holds, otherwise the second one.
template <bool kIsFirst, typename First, typename>
struct Choice {
  using Type = First;
};
template <typename First, typename Second>
struct Choice<false, First, Second> {
  using Type = Second;
};

// The rooms of shared memory that both kernels have. Two barriers count by
// turns what a cluster's peers store here in a step.
struct BlockMemory {
  char* const first = SharedMemory();
  Barrier* const barriers = reinterpret_cast<Barrier*>(first + kRooms.barriers);
  float* const row_powers = reinterpret_cast<float*>(first + kRooms.row_powers);
  char* const norms = first + kRooms.norms;
  char* const weights = first + kRooms.weights;

  void ArmBarriers() const {
    ArmBarrier(barriers, kStepBytes);
    ArmBarrier(barriers + 1, kStepBytes);
  }
  // Waits for what peers have stored for a step; nobody does for the first one.
  void AwaitPeers(int step, int thread) const {
    if (step == 0) return;
    Barrier* const barrier = barriers + step % 2;
    WaitForBarrier(barrier, (step - 1) / 2 % 2);
    if (thread == 0) ArmBarrier(barrier, kStepBytes);
  }
};

// A poll takes about half a microsecond, so this is some seconds. The blocks of
// a team run at the same time, so a longer wait means that something is wrong.
constexpr int kMaxPolls = 1 << 24;

// Waits for the chunks at those of `from` that are not null. `is_there` tells
// whether a loaded chunk is the one that is waited for. All loads of a round
// are under way before the first result is looked at. Callers have loops of
// their own around this: where one function had them all, forward steps of grid
// teams took up to 1.1 times as long on an H200.
template <int kCount, typename IsThere>
static void Receive(const char* const (&from)[kCount], const IsThere& is_there,
                    Chunk (&chunks)[kCount]) {
  bool is_missing[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) is_missing[i] = from[i] != nullptr;
  for (int polls = 0;; ++polls) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (is_missing[i]) chunks[i] = LoadOfOthers(from[i]);
    }
    bool is_waiting = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      is_missing[i] = is_missing[i] && !is_there(chunks[i]);
      is_waiting |= is_missing[i];
    }
    if (!is_waiting) return;
    if (polls > kMaxPolls) Abort();
  }
}

// The memory of a team that is no cluster. What exchanges through it takes its
// own part, in an order that is the same in all blocks.
class TeamMemory {
 public:
  explicit TeamMemory(const PassArguments& all) {
    const int team = blockIdx.y * (gridDim.x / TEAM) + blockIdx.x / TEAM;
    constexpr long long kBytes = kShape.team_memory_bytes(kIsBackward);
    free_ = static_cast<char*>(all.team_memory) + team * kBytes;
  }
  char* Take(int bytes) {
    char* const taken = free_;
    free_ += bytes;
    return taken;
  }

 private:
  char* free_;
};

constexpr Word kOnes = 0xFFFFFFFF;
static bool IsSent(const Chunk& chunk) { return chunk.word[0] != kOnes; }

// Sends `kBytes` bytes for each step, which several blocks read: h, [kRows, all
// units], gradients of a band's gates, or what parts of sequences have to say
// for norms. All bits set mark a place as empty: no arithmetic and no
// conversion gives such a word.
//
// Steps are counted on from one share of the batch to the next. A block sends
// what a step has only after it has received what the step before had from all
// blocks; with bands, from those of its band, which have heard from the others.
//
// The sender clears a place two steps later. By then, it has received data that
// each block sent after it had read the place. So that a receiver sees that the
// place is empty before it polls it again, threads have a fence in every
// kFenceSteps-th step: the sender clears the place, has a fence, and then sends
// a state; a receiver reads that state and then has a fence of its own. All of
// this happens before the ring has gone round.
template <int kBytes>
class ClearedRing {
 public:
  explicit ClearedRing(TeamMemory& memory)
      : first_(memory.Take(Shape::kClearedRing * kBytes)) {}

  char* PlaceOf(int step) const {
    return first_ + (sent_ + step) % Shape::kClearedRing * kBytes;
  }
  void Send(int step, int at, const Chunk& chunk) const {
    // A caller's float that is no number may have all bits set.
    Chunk sent = chunk;
    if (sent.word[0] == kOnes) sent.word[0] = kOnes - 1;
    StoreForOthers(PlaceOf(step) + at, sent);
    if (sent_ + step >= 2) {
      StoreForOthers(PlaceOf(step - 2) + at, {{kOnes, kOnes, kOnes, kOnes}});
    }
  }
  // All threads call this after they have sent.
  void EndStep(int step) const {
    if ((sent_ + step) % kFenceSteps == kFenceSteps - 1) FenceForOthers();
  }
  // Begins the team's next share of the batch after one that sent for `steps`
  // steps.
  void EndShare(int steps) { sent_ += steps; }

 private:
  static constexpr int kFenceSteps = Shape::kClearedRing / 4;

  char* const first_;
  unsigned sent_ = 0;  // Steps of earlier shares.
};

// Returns what the sender of a chunk had before it set the mark.
static Chunk Unmarked(Chunk chunk) {
  chunk.word[0] &= ~1u;
  return chunk;
}

// Sends numbers, which have a place of `kBytes` bytes for each turn and each
// block that receives them. The lowest bit of a chunk, which is the least
// significant one of its first number, tells two turns with the same place
// apart: it is the parity of the number of times that the ring has gone round.
// That number is first rounded to one bit less, and the receiver clears the
// mark. So the mark is no part of the number: zero stays zero, and the same
// numbers give the same bits whatever their turn. A block sends for a turn only
// after it has received what the turn before had for it from all blocks that
// read what is overwritten. Turns are counted on from one share of the batch to
// the next.
template <int kBytes>
class MarkedRing {
 public:
  explicit MarkedRing(TeamMemory& memory)
      : first_(memory.Take(Shape::kMarkedRing * TEAM * kBytes)) {}

  char* PlaceOf(int turn, int block) const {
    return first_ +
           ((sent_ + turn) % Shape::kMarkedRing * TEAM + block) * kBytes;
  }
  void Mark(int turn, Chunk* chunk) const {
    // An odd number lies in the middle between two even ones. Of these, it is
    // rounded to the one whose second bit is set, which is above it as often as
    // below. There is no carry, which could make zero of what is no number.
    const Word word = chunk->word[0] | (chunk->word[0] << 1 & 2u);
    chunk->word[0] = (word & ~1u) | MarkOf(turn);
  }
  bool HasMark(int turn, const Chunk& chunk) const {
    return (chunk.word[0] & 1u) == MarkOf(turn);
  }
  // Begins the team's next share of the batch after one that sent `turns`
  // turns.
  void EndShare(int turns) { sent_ += turns; }

 private:
  Word MarkOf(int turn) const {
    return (sent_ + turn) / Shape::kMarkedRing % 2;
  }

  char* const first_;
  int sent_ = 0;  // Turns of earlier shares.
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_EXCHANGE_CUH_
