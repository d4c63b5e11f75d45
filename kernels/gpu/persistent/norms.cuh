// What cells that normalise their sums add to the persistent kernels: means and
// variances are over all units of a layer, so all blocks of a team tell each
// other of their own units, twice in a step.
//
// There is no other barrier for this. A block sends for a step only after it
// has received the h or, in the backward pass, the parts of gradients that all
// warps of all blocks sent after they had read what they received in the step
// before. So in a cluster, each exchange has one place in shared memory.
//
// Whoever includes this file says which cells a thread has: Cell, kRounds and
// kOwnUnits.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_

#include "exchange.cuh"

static_assert(!kHasBands && !IS_STACK && NORMS == CellType::kNorms);
constexpr int kNorms = NORMS, kLast = kNorms - 1;
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

// The units of a part, which such lanes have, that are in the layer.
static float UnitsOf(int part) {
  return static_cast<float>(Within(NUM_UNITS - part * kRowLanes, kRowLanes));
}

// An exchange of n numbers of each part. All threads of a block call its
// functions together, with the numbers of all of their cells, since what one
// cell waits for hides what another one does.
template <int n>
class PartsOfRows {
  static constexpr int kChunks = (n + 3) / 4;
  static constexpr int kBytes = kChunks * kRows * kParts * 16;
  static constexpr int kAtOnce = IS_CLUSTER ? kParts : 1;

 public:
  // In a cluster, `memory` is shared memory; in another team, it is a ring's.
  PartsOfRows(char* memory, Barrier* barrier)
      : memory_(memory), barrier_(barrier), ring_(memory) {}
  char* end() const { return IS_CLUSTER ? memory_ + kBytes : ring_.end(); }
  void Arm() const { ArmBarrier(barrier_, kBytes); }
  void EndShare(int turns) { ring_.EndShare(turns); }

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
      const int at = PlaceOf(chunk, cell, part), own = me.index % kRowLanes;
      if (!IS_CLUSTER && own == chunk) ring_.Send(turn, at, sent);
#pragma unroll
      for (int peer = 0; IS_CLUSTER && peer < TEAM; peer += kRowLanes) {
        if (peer + own >= TEAM) continue;
        StoreToPeer(MemoryOfPeer(peer + own), memory_ + at, barrier_, sent);
      }
    }
    if (!IS_CLUSTER) ring_.EndStep(turn);
  }
  // Calls use(round, units, numbers) with a lane's share of the parts of each
  // sequence, once all blocks have sent them.
  template <typename Use>
  void Receive(int turn, const Thread& me, const Use& use) const {
    if (IS_CLUSTER) {
      WaitForBarrier(barrier_, turn % 2);
      if (me.index == 0) Arm();
    }
#pragma unroll kAtOnce
    for (int first = 0; first < kParts; first += kRowLanes) {
      const int part = first + me.index % kRowLanes;
      const char* from[kRounds * kChunks];
      Chunk chunks[kRounds * kChunks];
#pragma unroll
      for (int i = 0; i < kRounds * kChunks; ++i) {
        const Cell cell(i / kChunks, me.index);
        const int at = PlaceOf(i % kChunks, cell, part);
        if (!cell.exists || part >= kParts) {
          from[i] = nullptr;
        } else if (IS_CLUSTER) {
          chunks[i] = *reinterpret_cast<const Chunk*>(memory_ + at);
        } else {
          from[i] = ring_.PlaceOf(turn) + at;
        }
      }
      if (!IS_CLUSTER) ::Receive(from, IsFull, chunks);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        if (!Cell(round, me.index).exists || part >= kParts) continue;
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

  char* const memory_;
  Barrier* const barrier_;
  ClearedRing<kBytes> ring_;
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

// Sends the moments of the parts of n numbers of each cell, and sets `own` to
// those of the cell's part.
template <int n>
static void SendMoments(const PartsOfRows<2 * n>& to, int step,
                        const Thread& me, const float (&numbers)[kRounds][n],
                        float (&own)[kRounds][2 * n]) {
  float first[kRounds * n];
#pragma unroll
  for (int i = 0; i < kRounds * n; ++i) {
    const float number = numbers[i / n][i % n];
    const int unit = me.rank * BLOCK_UNITS + Cell(i / n, me.index).unit;
    first[i] = __uint_as_float(
        ShuffleFrom(__float_as_uint(number), me.lane / kRowLanes * kRowLanes));
    const float d = unit < NUM_UNITS ? number - first[i] : 0.0f;
    own[0][2 * i] = d;
    own[0][2 * i + 1] = d * d;
  }
  AddUp<2 * n * kRounds>(own[0], me.lane);
#pragma unroll
  for (int i = 0; i < kRounds * n; ++i) {
    const int unit = me.rank * BLOCK_UNITS + Cell(i / n, me.index).unit;
    MakeMoments(first[i], 1.0f / fmaxf(UnitsOf(unit / kRowLanes), 1.0f),
                own[0] + 2 * i);
  }
  to.Send(step, me, own);
}

// The result of norm k for a sum.
static float Normalised(const Norm<float>* norms, const Functions& functions,
                        int k, float sum) {
  return norms[k].Of(sum, functions.OfVector(2 * k),
                     functions.OfVector(2 * k + 1));
}

// The numbers of a cell at a step.
struct NormedCell {
  Norm<float> norms[kNorms];
  float z[kSlots], y[kLast], inner, last;

  // Of what the backward pass has loaded.
  void Set(const Norm<float> (&loaded)[kNorms], const CellInputs& in,
           const Functions& functions) {
#pragma unroll
    for (int k = 0; k < kNorms; ++k) norms[k] = loaded[k];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) z[slot] = ToFloat(in.gates[slot]);
    SetInner(functions, ToFloat(in.c_before));
    SetLast(functions);
  }
  void SetInner(const Functions& functions, float c) {
#pragma unroll
    for (int k = 0; k < kLast; ++k) {
      y[k] = Normalised(norms, functions, k, z[k]);
    }
    inner = CellType::Inner(functions, y, z, c);
  }
  void SetLast(const Functions& functions) {
    last = Normalised(norms, functions, kLast, inner);
  }
};

// Finds n norms of each cell, from the given one on, of numbers whose moments
// all blocks send.
template <int n>
static void FindNorms(const PartsOfRows<2 * n>& from, int step,
                      const Thread& me, const float (&own)[kRounds][2 * n],
                      int norm, float epsilon, NormedCell (&cells)[kRounds]) {
  float sums[kRounds][2 * n] = {};
  from.Receive(step, me, [&](int round, float units, const float* part) {
#pragma unroll
    for (int i = 0; i < 2 * n; i += 2) {
      const float d = part[i] - own[round][i];
      sums[round][i] += units * d;
      sums[round][i + 1] += part[i + 1] + units * d * d;
    }
  });
  AddUp<2 * n * kRounds>(sums[0], me.lane);
#pragma unroll
  for (int i = 0; i < kRounds * n; ++i) {
    float* const moments = sums[0] + 2 * i;
    MakeMoments(own[0][2 * i], kPerUnit, moments);
    cells[i / n].norms[norm + i % n] = {
        moments[0], rsqrtf(moments[1] * kPerUnit + epsilon)};
  }
}

// Takes the place of PlainForwardStep.
class NormedForwardStep {
 public:
  static constexpr int kBarriers = 2;
  NormedForwardStep(char* memory, Barrier* barriers)
      : of_gates_(memory, barriers), of_inner_(of_gates_.end(), barriers + 1) {}
  void Arm() const {
    of_gates_.Arm();
    of_inner_.Arm();
  }
  void EndShare(int steps) {
    of_gates_.EndShare(steps);
    of_inner_.EndShare(steps);
  }
  // Computes all of the cells but the next states.
  template <typename Cells, typename Add>
  void Begin(int step, const Thread& me, float epsilon, const Cells& of_thread,
             const Add& add) {
    float sums[kRounds][kLast], inner[kRounds][1];
    float own[kRounds][2 * kLast], own_inner[kRounds][2];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      add(round);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        cells_[round].z[slot] = of_thread.z()[round][slot];
        if (slot < kLast) sums[round][slot] = cells_[round].z[slot];
      }
    }
    SendMoments(of_gates_, step, me, sums, own);
    FindNorms<kLast>(of_gates_, step, me, own, 0, epsilon, cells_);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      cells_[round].SetInner(of_thread.functions[round % kOwnUnits],
                             of_thread.c[round]);
      inner[round][0] = cells_[round].inner;
    }
    SendMoments(of_inner_, step, me, inner, own_inner);
    FindNorms<1>(of_inner_, step, me, own_inner, kLast, epsilon, cells_);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      cells_[round].SetLast(of_thread.functions[round % kOwnUnits]);
    }
  }
  template <typename Add>
  void BeginCell(int, const Add&) const {}
  void Next(int round, const Functions& functions, const float*, float* h,
            float* c) const {
    CellType::Outer(functions, cells_[round].y, cells_[round].last, h, c);
  }
  float Kept(int round, int slot) const { return cells_[round].z[slot]; }
  void StoreNorms(int round, long long row, void* to) const {
    for (int k = 0; k < kNorms; ++k) {
      static_cast<Norm<float>*>(to)[row * kNorms + k] = cells_[round].norms[k];
    }
  }

 private:
  PartsOfRows<2 * kLast> of_gates_;
  PartsOfRows<2> of_inner_;
  NormedCell cells_[kRounds];
};

// Takes the place of PlainBackwardStep.
class NormedBackwardStep {
 public:
  static constexpr int kBarriers = 2;
  struct Loaded {
    Norm<float> norms[kNorms];
    void Load(const void* from, long long row) {
      for (int k = 0; k < kNorms; ++k) {
        norms[k] = static_cast<const Norm<float>*>(from)[row * kNorms + k];
      }
    }
  };
  NormedBackwardStep(char* memory, Barrier* barriers)
      : of_outer_(memory, barriers),
        of_others_(of_outer_.end(), barriers + 1) {}
  void Arm() const {
    of_outer_.Arm();
    of_others_.Arm();
  }
  void EndShare(int steps) {
    of_outer_.EndShare(steps);
    of_others_.EndShare(steps);
  }
  // The sums of the gradients of the vectors of a thread's unit.
  void ClearSums(int own_unit, float to) {
    for (float& sum : vector_sums_[own_unit]) sum = to;
  }
  void StoreSums(int round, float* to, int unit) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      to[v * NUM_UNITS + unit] =
          round < kOwnUnits ? vector_sums_[round % kOwnUnits][v] : 0.0f;
    }
  }
  void Prepare(int round, const CellInputs& in, const Loaded& loaded,
               const Functions& functions) {
    cells_[round].Set(loaded.norms, in, functions);
    h_before_[round] = ToFloat(in.h_before);
    c_before_[round] = ToFloat(in.c_before);
  }
  void Compute(int round, float dh, float*, float*, float*) { dh_[round] = dh; }
  // Computes the gradients of what is in the slots from those of h and c, which
  // are replaced as cells.h says. Cells that are not active have none.
  template <typename IsActive>
  void Finish(int turn, const Thread& me, const Functions* functions,
              const IsActive& is_active, float* carry_h, float* carry_c,
              float (*of_slots)[kSlots]) {
    // The gradients of results times gamma; and sums over the units of these,
    // and of their products with what is standardized.
    float d_of[kRounds][kNorms];
    float of_outer[kRounds][4] = {}, of_others[kRounds][2 * kLast - 2] = {};
    const auto meet = [&](int round, int k, float sum, float d, float* sums) {
      const float standard = cells_[round].norms[k].Standard(sum);
      float* const of_vectors = vector_sums_[round % kOwnUnits] + 2 * k;
      of_vectors[0] += d * standard;
      of_vectors[1] += d;
      d *= functions[round % kOwnUnits].OfVector(2 * k);
      d_of[round][k] = d;
      sums[0] = d;
      sums[1] = d * standard;
    };
    const auto through = [&](int round, int k, float sum, const float* sums) {
      return cells_[round].norms[k].Through(
          d_of[round][k], sum, sums[0] * kPerUnit, sums[1] * kPerUnit);
    };
    constexpr int kOuter = CellType::kOuterGate;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_active(round)) continue;
      const NormedCell& cell = cells_[round];
      float dy[kLast];
      const float d = CellType::OuterBackward(
          functions[round % kOwnUnits], cell.y, cell.last, h_before_[round],
          dh_[round], carry_c[round], carry_h + round, dy);
      meet(round, kLast, cell.inner, d, of_outer[round]);
      meet(round, kOuter, cell.z[kOuter], dy[kOuter], of_outer[round] + 2);
    }
    Exchange(of_outer_, turn, me, of_outer);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_active(round)) continue;
      const NormedCell& cell = cells_[round];
      float dy[kLast];
      const float d = through(round, kLast, cell.inner, of_outer[round]);
      CellType::InnerBackward(functions[round % kOwnUnits], cell.y, cell.z,
                              c_before_[round], d, carry_c + round, dy,
                              of_slots[round]);
      of_slots[round][kOuter] =
          through(round, kOuter, cell.z[kOuter], of_outer[round] + 2);
#pragma unroll
      for (int k = 0; k < kLast; ++k) {
        if (k == kOuter) continue;
        meet(round, k, cell.z[k], dy[k], of_others[round] + PlaceOf(k));
      }
    }
    Exchange(of_others_, turn, me, of_others);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_active(round)) continue;
#pragma unroll
      for (int k = 0; k < kLast; ++k) {
        if (k == kOuter) continue;
        of_slots[round][k] = through(round, k, cells_[round].z[k],
                                     of_others[round] + PlaceOf(k));
      }
    }
  }

 private:
  // Of a norm's sums among those of all gates but the outer one.
  static constexpr int PlaceOf(int k) {
    return 2 * (k - (k > CellType::kOuterGate));
  }
  // Replaces sums of cells by those over all units.
  template <int n>
  static void Exchange(const PartsOfRows<n>& parts, int turn, const Thread& me,
                       float (&sums)[kRounds][n]) {
    AddUp<n * kRounds>(sums[0], me.lane);
    parts.Send(turn, me, sums);
#pragma unroll
    for (int i = 0; i < kRounds * n; ++i) sums[i / n][i % n] = 0.0f;
    parts.Receive(turn, me, [&](int round, float, const float* part) {
#pragma unroll
      for (int i = 0; i < n; ++i) sums[round][i] += part[i];
    });
    AddUp<n * kRounds>(sums[0], me.lane);
  }

  PartsOfRows<4> of_outer_;
  PartsOfRows<2 * kLast - 2> of_others_;
  NormedCell cells_[kRounds];
  float vector_sums_[kOwnUnits][kVectors];
  float dh_[kRounds], h_before_[kRounds], c_before_[kRounds];
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_
