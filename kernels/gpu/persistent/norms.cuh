// What cells that normalise their sums add to the persistent kernels: means and
// variances are over all units of a layer, so all blocks of a cluster tell each
// other of their own units, twice in a step.
//
// There is no other barrier for this, and each exchange has one place in shared
// memory: a block sends for a step only after it has received the h or, in the
// backward pass, the parts of gradients that all warps of all blocks sent after
// they had read what they received in the step before.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_

#include "common.cuh"

static_assert(IS_CLUSTER && !IS_STACK && NORMS == CellType::kNorms);
constexpr int kNorms = NORMS, kLast = kNorms - 1;
constexpr int kRowLanes = kShape.row_lanes(), kParts = kShape.norm_parts();
constexpr float kPerUnit = 1.0f / NUM_UNITS;

// Adds up the numbers of the lanes that share a sequence. The order of the
// terms is the same in all of them.
template <int n>
static void AddUp(float (&numbers)[n]) {
#pragma unroll
  for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int i = 0; i < n; ++i) numbers[i] += ShuffleXor(numbers[i], lanes);
  }
}

// The units of a part, which such lanes have, that are in the layer.
static float UnitsOf(int part) {
  return static_cast<float>(Within(NUM_UNITS - part * kRowLanes, kRowLanes));
}

// An exchange of n numbers of each part. All lanes of a warp call its functions
// together.
template <int n>
class PartsOfRows {
 public:
  PartsOfRows(char* memory, Barrier* barrier)
      : memory_(memory), barrier_(barrier) {}
  char* end() const { return memory_ + kBytes; }
  void Arm() const { ArmBarrier(barrier_, kBytes); }
  void Wait(int turn, int thread) const {
    WaitForBarrier(barrier_, turn % 2);
    if (thread == 0) Arm();
  }

  // All lanes of a part call this with the same numbers.
  void Send(const Cell& cell, int rank, int lane,
            const float (&numbers)[n]) const {
    if (!cell.exists) return;
    const int part = (rank * BLOCK_UNITS + cell.unit) / kRowLanes;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Chunk sent = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 4 * chunk + j;
        if (i < n) sent.word[j] = __float_as_uint(numbers[i < n ? i : 0]);
      }
      for (int peer = lane % kRowLanes; peer < TEAM; peer += kRowLanes) {
        StoreToPeer(MemoryOfPeer(peer), At(chunk, cell.row, part), barrier_,
                    sent);
      }
    }
  }
  // Calls use(units, numbers) with parts of a sequence, the first and each one
  // that is `step` parts later.
  template <typename Use>
  void ForParts(const Cell& cell, int first, int step, const Use& use) const {
    if (!cell.exists) return;
    for (int part = first; part < kParts; part += step) {
      float numbers[4 * kChunks];
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const Chunk sent = *At(chunk, cell.row, part);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          numbers[4 * chunk + j] = __uint_as_float(sent.word[j]);
        }
      }
      use(UnitsOf(part), numbers);
    }
  }

 private:
  static constexpr int kChunks = (n + 3) / 4;
  static constexpr int kBytes = kChunks * kRows * kParts * 16;

  Chunk* At(int chunk, int row, int part) const {
    return reinterpret_cast<Chunk*>(memory_) + (chunk * kRows + row) * kParts +
           part;
  }

  char* const memory_;
  Barrier* const barrier_;
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

// Sends the moments of a part's numbers.
template <int n>
static void SendMoments(const PartsOfRows<2 * n>& to, const Cell& cell,
                        int rank, int lane, const float (&numbers)[n]) {
  const int unit = rank * BLOCK_UNITS + cell.unit;
  float first[n], sums[2 * n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    first[i] = __uint_as_float(
        ShuffleFrom(__float_as_uint(numbers[i]), lane / kRowLanes * kRowLanes));
    const float d = unit < NUM_UNITS ? numbers[i] - first[i] : 0.0f;
    sums[2 * i] = d;
    sums[2 * i + 1] = d * d;
  }
  AddUp(sums);
  const float per_unit = 1.0f / fmaxf(UnitsOf(unit / kRowLanes), 1.0f);
#pragma unroll
  for (int i = 0; i < n; ++i) MakeMoments(first[i], per_unit, sums + 2 * i);
  to.Send(cell, rank, lane, sums);
}

// Finds the norms of numbers whose moments all blocks have sent.
template <int n>
static void FindNorms(const PartsOfRows<2 * n>& from, const Cell& cell,
                      int lane, float epsilon, Norm<float>* norms) {
  float first[n] = {}, sums[2 * n] = {};
  from.ForParts(cell, 0, kParts, [&](float, const float* part) {
#pragma unroll
    for (int i = 0; i < n; ++i) first[i] = part[2 * i];
  });
  from.ForParts(cell, lane % kRowLanes, kRowLanes,
                [&](float units, const float* part) {
#pragma unroll
                  for (int i = 0; i < n; ++i) {
                    const float d = part[2 * i] - first[i];
                    sums[2 * i] += units * d;
                    sums[2 * i + 1] += part[2 * i + 1] + units * d * d;
                  }
                });
  AddUp(sums);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    MakeMoments(first[i], kPerUnit, sums + 2 * i);
    norms[i] = {sums[2 * i], rsqrtf(sums[2 * i + 1] * kPerUnit + epsilon)};
  }
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
    SetInner(functions, in.c_before);
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

class ForwardNorms {
 public:
  ForwardNorms(char* memory, Barrier* barriers)
      : of_gates_(memory, barriers), of_inner_(of_gates_.end(), barriers + 1) {}
  void Arm() const {
    of_gates_.Arm();
    of_inner_.Arm();
  }
  // Computes the cells of a step, whose z are known, but not the next states.
  void Run(int step, int thread, int rank, float epsilon,
           const Functions* functions, const float* c,
           NormedCell (&cells)[kRounds]) const {
    const int lane = thread % 32;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      float sums[kLast];
#pragma unroll
      for (int k = 0; k < kLast; ++k) sums[k] = cells[round].z[k];
      SendMoments(of_gates_, Cell(round, thread), rank, lane, sums);
    }
    of_gates_.Wait(step, thread);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Cell cell(round, thread);
      NormedCell& normed = cells[round];
      FindNorms<kLast>(of_gates_, cell, lane, epsilon, normed.norms);
      normed.SetInner(functions[round % kOwnUnits], c[round]);
      const float inner[1] = {normed.inner};
      SendMoments(of_inner_, cell, rank, lane, inner);
    }
    of_inner_.Wait(step, thread);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      FindNorms<1>(of_inner_, Cell(round, thread), lane, epsilon,
                   cells[round].norms + kLast);
      cells[round].SetLast(functions[round % kOwnUnits]);
    }
  }

 private:
  const PartsOfRows<2 * kLast> of_gates_;
  const PartsOfRows<2> of_inner_;
};

class BackwardNorms {
 public:
  // The sums of the gradients of the vectors of a thread's units.
  float vector_sums[kOwnUnits][kVectors] = {};

  BackwardNorms(char* memory, Barrier* barriers)
      : of_outer_(memory, barriers),
        of_others_(of_outer_.end(), barriers + 1) {}
  void Arm() const {
    of_outer_.Arm();
    of_others_.Arm();
  }
  // Computes the gradients of what is in the slots from those of h and c, which
  // are replaced as cells.h says. Cells that are not active have none.
  template <typename IsActive>
  void Run(int turn, int thread, int rank, const Functions* functions,
           const NormedCell (&cells)[kRounds], const IsActive& is_active,
           const float* h_before, const float* c_before, const float* dh,
           float* carry_h, float* carry_c, float (*of_slots)[kSlots]) {
    const int lane = thread % 32;
    // The gradients of results times gamma; and sums over the units of these,
    // and of their products with what is standardized.
    float d_of[kRounds][kNorms];
    const auto meet = [&](int round, int k, float sum, float d, float* sums) {
      const float standard = cells[round].norms[k].Standard(sum);
      float* const of_vectors = vector_sums[round % kOwnUnits] + 2 * k;
      of_vectors[0] += d * standard;
      of_vectors[1] += d;
      d *= functions[round % kOwnUnits].OfVector(2 * k);
      d_of[round][k] = d;
      sums[0] = d;
      sums[1] = d * standard;
    };
    const auto through = [&](int round, int k, float sum, const float* sums) {
      return cells[round].norms[k].Through(
          d_of[round][k], sum, sums[0] * kPerUnit, sums[1] * kPerUnit);
    };
    constexpr int kOuter = CellType::kOuterGate;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const NormedCell& cell = cells[round];
      float dy[kLast], sums[4] = {};
      if (is_active(round)) {
        const float d = CellType::OuterBackward(
            functions[round % kOwnUnits], cell.y, cell.last, h_before[round],
            dh[round], carry_c[round], carry_h + round, dy);
        meet(round, kLast, cell.inner, d, sums);
        meet(round, kOuter, cell.z[kOuter], dy[kOuter], sums + 2);
      }
      AddUp(sums);
      of_outer_.Send(Cell(round, thread), rank, lane, sums);
    }
    of_outer_.Wait(turn, thread);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const NormedCell& cell = cells[round];
      float dy[kLast], totals[4], sums[2 * kLast - 2] = {};
      Total(of_outer_, round, thread, totals);
      if (is_active(round)) {
        const float d = through(round, kLast, cell.inner, totals);
        CellType::InnerBackward(functions[round % kOwnUnits], cell.y, cell.z,
                                c_before[round], d, carry_c + round, dy,
                                of_slots[round]);
        of_slots[round][kOuter] =
            through(round, kOuter, cell.z[kOuter], totals + 2);
#pragma unroll
        for (int k = 0; k < kLast; ++k) {
          if (k == kOuter) continue;
          meet(round, k, cell.z[k], dy[k], sums + 2 * (k - (k > kOuter)));
        }
      }
      AddUp(sums);
      of_others_.Send(Cell(round, thread), rank, lane, sums);
    }
    of_others_.Wait(turn, thread);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      float sums[2 * kLast - 2];
      Total(of_others_, round, thread, sums);
      if (!is_active(round)) continue;
#pragma unroll
      for (int k = 0; k < kLast; ++k) {
        if (k == kOuter) continue;
        of_slots[round][k] =
            through(round, k, cells[round].z[k], sums + 2 * (k - (k > kOuter)));
      }
    }
  }

 private:
  template <int n>
  static void Total(const PartsOfRows<n>& from, int round, int thread,
                    float (&sums)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] = 0.0f;
    from.ForParts(Cell(round, thread), thread % kRowLanes, kRowLanes,
                  [&](float, const float* part) {
#pragma unroll
                    for (int i = 0; i < n; ++i) sums[i] += part[i];
                  });
    AddUp(sums);
  }

  const PartsOfRows<4> of_outer_;
  const PartsOfRows<2 * kLast - 2> of_others_;
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NORMS_CUH_
