// What cells that normalise their sums add to the persistent kernels: means and
// variances are over all units of a layer, so all blocks of a team tell each
// other of their own units, twice in a step.
//
// There is no other barrier for this. A block sends for a step only after it
// has received the h or, in the backward pass, the parts of gradients that all
// warps of all blocks sent after they had read what they received in the step
// before. So in a cluster, each exchange has one place in shared memory.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_

#include "exchange.cuh"
#include "norm_cells.cuh"

static_assert(!kHasBands && !IS_STACK && NORMS == CellType::kNorms);
constexpr int kRowLanes = kShape.row_lanes(), kParts = kShape.norm_parts();
constexpr float kPerUnit = 1.0f / NUM_UNITS;

// Adds up each of n numbers over the lanes that share a sequence; all of them
// get the sums. Half of the lanes add up half of the numbers, and so on.
template <int n, int lanes = kRowLanes>
static void AddUp(float* numbers, int lane) {
  constexpr int kOthers = lanes / 2, kHalf = n / 2;
  if constexpr (lanes > 1 && n % 2 == 0) {
    const bool is_upper = lane & kOthers;
    float half[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float lower = numbers[i], upper = numbers[kHalf + i];
      half[i] = (is_upper ? upper : lower) +
                ShuffleXor(is_upper ? lower : upper, kOthers);
    }
    AddUp<kHalf, kOthers>(half, lane);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float other = ShuffleXor(half[i], kOthers);
      numbers[i] = is_upper ? other : half[i];
      numbers[kHalf + i] = is_upper ? half[i] : other;
    }
  } else if constexpr (lanes > 1) {
#pragma unroll
    for (int i = 0; i < n; ++i) numbers[i] += ShuffleXor(numbers[i], kOthers);
    AddUp<n, kOthers>(numbers, lane);
  }
}

// The numbers of all rounds, one after the other.
template <int n>
static float* AllOf(float (&numbers)[kRounds][n]) {
  return reinterpret_cast<float*>(&numbers);
}

// The units of a part, which such lanes have, that are in the layer.
static float UnitsOf(int part) {
  return static_cast<float>(Within(NUM_UNITS - part * kRowLanes, kRowLanes));
}

// The chunks of an exchange, `kBytes` in each step: in a cluster, in the peers'
// shared memory.
template <int kBytes>
class ClusterChunks {
 public:
  ClusterChunks(char* shared, Barrier* barrier, TeamMemory&)
      : shared_(shared), barrier_(barrier) {}
  void Arm() const { ArmBarrier(barrier_, kBytes); }
  // Sends chunk i of a part, which all of its lanes have. They divide the peers
  // among themselves.
  void SendChunk(int, int lane, int, int at, const Chunk& sent) const {
#pragma unroll
    for (int peer = 0; peer < TEAM; peer += kRowLanes) {
      if (peer + lane >= TEAM) continue;
      StoreToPeer(MemoryOfPeer(peer + lane), shared_ + at, barrier_, sent);
    }
  }
  void EndStep(int) const {}
  // Waits until all blocks have sent what they have for a step.
  void Await(int turn, int thread) const {
    WaitForBarrier(barrier_, turn % 2);
    if (thread == 0) Arm();
  }
  // Loads the chunks whose places are not negative.
  template <int kCount>
  void Load(int, const int (&at)[kCount], Chunk (&chunks)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (at[i] < 0) continue;
      chunks[i] = *reinterpret_cast<const Chunk*>(shared_ + at[i]);
    }
  }
  void EndShare(int) {}

 private:
  char* const shared_;
  Barrier* const barrier_;
};

// In another team, in a ring, of which they are loaded once they are there.
template <int kBytes>
class GridChunks : public ClearedRing<kBytes> {
 public:
  GridChunks(char*, Barrier*, TeamMemory& of_team)
      : ClearedRing<kBytes>(of_team) {}
  void Arm() const {}
  void SendChunk(int turn, int lane, int i, int at, const Chunk& sent) const {
    if (lane == i) this->Send(turn, at, sent);
  }
  void Await(int, int) const {}
  template <int kCount>
  void Load(int turn, const int (&at)[kCount], Chunk (&chunks)[kCount]) const {
    const char* from[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      from[i] = at[i] < 0 ? nullptr : this->PlaceOf(turn) + at[i];
    }
    ::Receive(from, IsSent, chunks);
  }
};

template <int kBytes>
using ChunksOfTeam = typename Choice<IS_CLUSTER, ClusterChunks<kBytes>,
                                     GridChunks<kBytes>>::Type;

// Those of n numbers of each part of each sequence.
template <int n>
constexpr int kBytesOfParts = (n + 3) / 4 * kRows * kParts * 16;

// An exchange of n numbers of each part. All threads of a block call its
// functions together, with the numbers of all of their cells, since what one
// cell waits for hides what another one does.
template <int n>
class PartsOfRows : public ChunksOfTeam<kBytesOfParts<n>> {
  static constexpr int kChunks = (n + 3) / 4;
  using Chunks = ChunksOfTeam<kBytesOfParts<n>>;

 public:
  using Chunks::Chunks;

  // All lanes of a part call this with the same numbers.
  void Send(int turn, const Thread& me,
            const float (&numbers)[kRounds][n]) const {
#pragma unroll
    for (int i = 0; i < kRounds * kChunks; ++i) {
      const int round = i / kChunks, chunk = i % kChunks;
      const Cell cell(round, me.index);
      if (!cell.exists) continue;
      Chunk sent = {};
#pragma unroll
      for (int j = 0; j < 4 && 4 * chunk + j < n; ++j) {
        sent.word[j] = __float_as_uint(numbers[round][4 * chunk + j]);
      }
      const int part = (me.rank * BLOCK_UNITS + cell.unit) / kRowLanes;
      this->SendChunk(turn, me.index % kRowLanes, chunk,
                      PlaceOf(chunk, cell, part), sent);
    }
    this->EndStep(turn);
  }
  // Calls use(round, units, numbers) with a lane's share of the parts of each
  // sequence, once all blocks have sent them.
  template <typename Use>
  void Receive(int turn, const Thread& me, const Use& use) const {
    constexpr int kPartsAtOnce = IS_CLUSTER ? kParts : 1;
    this->Await(turn, me.index);
#pragma unroll kPartsAtOnce
    for (int first = 0; first < kParts; first += kRowLanes) {
      const int part = first + me.index % kRowLanes;
      int at[kRounds * kChunks];
      Chunk chunks[kRounds * kChunks];
#pragma unroll
      for (int i = 0; i < kRounds * kChunks; ++i) {
        const Cell cell(i / kChunks, me.index);
        at[i] = cell.exists && part < kParts ? PlaceOf(i % kChunks, cell, part)
                                             : -1;
      }
      this->Load(turn, at, chunks);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        if (at[round * kChunks] < 0) continue;
        float numbers[4 * kChunks];
#pragma unroll
        for (int i = 0; i < 4 * kChunks; ++i) {
          numbers[i] =
              __uint_as_float(chunks[round * kChunks + i / 4].word[i % 4]);
        }
        use(round, UnitsOf(part), numbers);
      }
    }
  }

 private:
  static int PlaceOf(int chunk, const Cell& cell, int part) {
    return ((chunk * kRows + cell.row) * kParts + part) * 16;
  }
};

// Of some numbers, `sums` has the sum of the differences from the first one,
// and that of their squares. This makes the mean of it, and the sum of squares
// about the mean. Few digits are lost: that sum is at least the given one's
// share of the first number.
static void MakeMoments(float first, float per_unit, float* sums) {
  const float mean = sums[0] * per_unit;
  sums[1] -= mean * sums[0];
  sums[0] = first + mean;
}

// Finds the norms of n numbers of each cell, from number `norm` on, by the
// moments of parts that all blocks send.
template <int n>
static void FindNorms(const PartsOfRows<2 * n>& parts, int step,
                      const Thread& me, const float (&numbers)[kRounds][n],
                      int norm, float epsilon, NormedCell (&cells)[kRounds]) {
  float first[kRounds * n], own[kRounds][2 * n], sums[kRounds][2 * n] = {};
#pragma unroll
  for (int i = 0; i < kRounds * n; ++i) {
    const int unit = me.rank * BLOCK_UNITS + Cell(i / n, me.index).unit;
    // What units past the layer's have may be NaN.
    const bool is_unit = unit < NUM_UNITS;
    const float number = is_unit ? numbers[i / n][i % n] : 0.0f;
    first[i] = __uint_as_float(
        ShuffleFrom(__float_as_uint(number), me.lane / kRowLanes * kRowLanes));
    const float d = is_unit ? number - first[i] : 0.0f;
    own[i / n][2 * (i % n)] = d;
    own[i / n][2 * (i % n) + 1] = d * d;
  }
  AddUp<2 * n * kRounds>(AllOf(own), me.lane);
#pragma unroll
  for (int i = 0; i < kRounds * n; ++i) {
    const int unit = me.rank * BLOCK_UNITS + Cell(i / n, me.index).unit;
    MakeMoments(first[i], 1.0f / fmaxf(UnitsOf(unit / kRowLanes), 1.0f),
                own[i / n] + 2 * (i % n));
  }
  parts.Send(step, me, own);
  parts.Receive(step, me, [&](int round, float units, const float* part) {
#pragma unroll
    for (int i = 0; i < 2 * n; i += 2) {
      const float d = part[i] - own[round][i];
      sums[round][i] += units * d;
      sums[round][i + 1] += part[i + 1] + units * d * d;
    }
  });
  AddUp<2 * n * kRounds>(AllOf(sums), me.lane);
#pragma unroll
  for (int i = 0; i < kRounds * n; ++i) {
    float* const moments = sums[i / n] + 2 * (i % n);
    MakeMoments(own[i / n][2 * (i % n)], kPerUnit, moments);
    cells[i / n].norms[norm + i % n] = {
        moments[0], rsqrtf(moments[1] * kPerUnit + epsilon)};
  }
}

// The two exchanges of a step, of n and of m numbers.
template <int n, int m>
class NormedStep {
 public:
  static constexpr int kBarriers = 2;
  NormedStep(const BlockMemory& memory, TeamMemory& of_team)
      : first_(memory.norms, memory.barriers + 2, of_team),
        second_(memory.norms + kBytesOfParts<n>, memory.barriers + 3, of_team) {
  }
  void Arm() const {
    first_.Arm();
    second_.Arm();
  }
  void EndShare(int steps) {
    first_.EndShare(steps);
    second_.EndShare(steps);
  }

 protected:
  const PartsOfRows<n>& PartsOf(Meeting<0>) const { return first_; }
  const PartsOfRows<m>& PartsOf(Meeting<1>) const { return second_; }

  PartsOfRows<n> first_;
  PartsOfRows<m> second_;
  NormedCell cells_[kRounds];
};

// Takes the place of PlainForwardStep.
class NormedForwardStep : public NormedStep<2 * kLast, 2> {
 public:
  using NormedStep::NormedStep;
  template <typename Cells>
  void Begin(int step, const Thread& me, float epsilon,
             const Cells& of_thread) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        cells_[round].z[slot] = of_thread.z()[round][slot];
      }
    }
    const auto find = [&](const auto& numbers, int norm, auto meeting) {
      constexpr int n = sizeof(numbers[0]) / sizeof(float);
      FindNorms<n>(PartsOf(meeting), step, me, numbers, norm, epsilon, cells_);
    };
    NormaliseCells(of_thread.functions, of_thread.c, find, cells_);
  }
  void Next(int round, const Functions& functions, const float*, float* h,
            float* c) const {
    CellType::Outer(functions, cells_[round], h, c);
  }
  float Kept(int round, int slot) const { return cells_[round].Kept(slot); }
  void StoreNorms(int round, long long row, void* to) const {
    cells_[round].StoreNorms(row, to);
  }
};

// Takes the place of PlainBackwardStep.
class NormedBackwardStep : public NormedStep<4, 2 * kLast - 2> {
 public:
  struct Loaded {
    Norm<float> norms[kNorms];
    void Load(const void* from, long long row) {
      for (int k = 0; k < kNorms; ++k) {
        norms[k] = static_cast<const Norm<float>*>(from)[row * kNorms + k];
      }
    }
  };
  using NormedStep::NormedStep;
  // The sums of the gradients of the vectors of a thread's unit.
  void ClearSums(int own_unit, float to) {
    for (float& sum : gradients_.vectors[own_unit]) sum = to;
  }
  void StoreSums(int round, float* to, int unit) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      to[v * NUM_UNITS + unit] =
          round < kOwnUnits ? gradients_.vectors[round % kOwnUnits][v] : 0.0f;
    }
  }
  void Prepare(int round, const CellInputs& in, const Loaded& loaded,
               const Functions& functions) {
    cells_[round].Set(loaded.norms, in, functions);
  }
  void Compute(int round, float dh, float*, float*, float*) {
    gradients_.dh[round] = dh;
  }
  template <typename IsActive>
  void Finish(int turn, const Thread& me, const Functions* functions,
              const IsActive& is_active, float* carry_h, float* carry_c,
              float (*of_slots)[kSlots]) {
    const auto add_up = [&](auto& sums, auto meeting) {
      constexpr int n = sizeof(sums[0]) / sizeof(float);
      const PartsOfRows<n>& parts = PartsOf(meeting);
      AddUp<n * kRounds>(AllOf(sums), me.lane);
      parts.Send(turn, me, sums);
#pragma unroll
      for (int i = 0; i < kRounds * n; ++i) sums[i / n][i % n] = 0.0f;
      parts.Receive(turn, me, [&](int round, float, const float* part) {
#pragma unroll
        for (int i = 0; i < n; ++i) sums[round][i] += part[i];
      });
      AddUp<n * kRounds>(AllOf(sums), me.lane);
    };
    gradients_.Compute(functions, cells_, is_active, kPerUnit, add_up, carry_h,
                       carry_c, of_slots);
  }

 private:
  NormedGradients gradients_;
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_
