// The exchange between the blocks of a team that is no cluster. It goes through
// memory, which the L2 cache holds. Chunks are stored and loaded as a whole,
// and a chunk's words tell whether it is the one that is waited for, so there
// are no flags, which would take a second trip. Places are used again, in
// rings.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_EXCHANGE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_EXCHANGE_CUH_

#include "common.cuh"

// A poll takes about half a microsecond, so this is some seconds. The blocks of
// a team run at the same time, so a longer wait means that something is wrong.
constexpr int kMaxPolls = 1 << 24;

// Waits for the chunks at those of `from` that are not null. `is_there` tells
// whether a loaded chunk is the one that is waited for. All loads of a round
// are under way before the first result is looked at.
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

// Returns the address of the team's ring.
static char* RingOfTeam(const Part& part, long long bytes) {
  const int team = blockIdx.y * (gridDim.x / TEAM) + blockIdx.x / TEAM;
  return static_cast<char*>(part.ring) + team * bytes;
}

// Sends h, [kRows, all units] for each step. All bits set mark a place as
// empty: no arithmetic and no conversion gives such a word.
//
// Steps are counted on from one share of the batch to the next, of which each
// sends the states of all its steps but the last. So a block still sends a
// state only after it has received the one before from all blocks.
//
// The sender of a state clears its place two steps later. By then, it has
// received data that each block sent after it had read the state. A receiver
// must see that the place is empty before it polls it for the next state, after
// the ring has gone round. To make sure of that, each thread has a fence in
// every kFenceSteps-th step. The sender clears the place, has a fence, and then
// sends a state; a receiver reads that state and then has a fence of its own.
// All of this happens before the ring has gone round.
class ForwardRing {
 public:
  explicit ForwardRing(const Part& part)
      : first_(RingOfTeam(part, kShape.forward_ring_bytes())) {}

  char* PlaceOf(int step) const {
    return first_ +
           (sent_ + step) % Shape::kForwardRing * kShape.forward_step_bytes();
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
  static bool IsThere(const Chunk& chunk) { return chunk.word[0] != kOnes; }
  // All threads call this after they have sent.
  void EndStep(int step) const {
    if ((sent_ + step) % kFenceSteps == kFenceSteps - 1) FenceForOthers();
  }
  // Begins the team's next share of the batch after one of `steps` steps.
  void EndShare(int steps) {
    if (steps > 0) sent_ += steps - 1;
  }

 private:
  static constexpr Word kOnes = 0xFFFFFFFF;
  static constexpr int kFenceSteps = Shape::kForwardRing / 4;

  char* first_;
  int sent_ = 0;  // States that earlier shares have sent.
};

// Sends parts of gradients, [TEAM, TEAM, kRows, BLOCK_UNITS] for each turn, by
// owner and by sender. The lowest bit of a chunk, which is the least
// significant one of its first number, tells two turns with the same place
// apart: it is the parity of the number of times that the ring has gone round.
// That number is first rounded to one bit less, and the receiver clears the
// mark. So the mark is no part of the number: zero stays zero, and the same
// gradients give the same bits whatever their turn.
// A block sends a turn's parts only after it has received those of the turn
// before from all blocks, which then have read the parts that are overwritten.
// Turns are counted on from one share of the batch to the next.
class BackwardRing {
 public:
  explicit BackwardRing(const Part& part)
      : first_(RingOfTeam(part, kShape.backward_ring_bytes())) {}

  // Returns the address of the parts that the block `owner` receives.
  char* PlaceOf(int turn, int owner) const {
    return first_ + ((sent_ + turn) % Shape::kBackwardRing * TEAM + owner) *
                        kShape.backward_step_bytes();
  }
  void Mark(int turn, Chunk* chunk) const {
    // An odd number lies in the middle between two even ones. Of these, it is
    // rounded to the one whose second bit is set, which is above it as often as
    // below. There is no carry, which could make zero of what is no number.
    const Word word = chunk->word[0] | (chunk->word[0] << 1 & 2u);
    chunk->word[0] = (word & ~1u) | MarkOf(turn);
  }
  // Returns what the sender had before it set the mark.
  static Chunk Unmarked(Chunk chunk) {
    chunk.word[0] &= ~1u;
    return chunk;
  }
  bool HasMark(int turn, const Chunk& chunk) const {
    return (chunk.word[0] & 1u) == MarkOf(turn);
  }
  // Begins the team's next share of the batch after one that sent `turns`
  // turns.
  void EndShare(int turns) { sent_ += turns; }

 private:
  Word MarkOf(int turn) const {
    return (sent_ + turn) / Shape::kBackwardRing % 2;
  }

  char* first_;
  int sent_ = 0;  // Turns of earlier shares.
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_EXCHANGE_CUH_
