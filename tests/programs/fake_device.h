// The persistent kernels' device on a CPU. This file takes the place of
// kernels/gpu/persistent/device.cuh: it has that file's include guard, and
// types and functions of the same names.
//
// Each thread of a team is a coroutine. Where threads wait for each other, as
// in products of warps, they give way to others, in a random order. Memory is
// plain memory, so AddressSanitizer sees every access out of bounds. Floats
// stay floats where the tensor cores would round them to TF32, unless they are
// split into such parts.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DEVICE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DEVICE_CUH_

// With it, longjmp takes a jump to another thread's stack for an error.
#undef _FORTIFY_SOURCE
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#define __global__
#define __launch_bounds__(...)

using Barrier = unsigned long long;

struct Dim {
  unsigned int x = 0, y = 0;
};
inline Dim blockIdx, threadIdx, blockDim, gridDim;

inline uint32_t __float_as_uint(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  return word;
}
inline float __uint_as_float(uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

#define HAS_OWN_HALVES
inline float OfHalf(uint16_t item) {
  _Float16 value;
  std::memcpy(&value, &item, sizeof(value));
  return static_cast<float>(value);
}
inline uint16_t ToHalf(float value) {
  const _Float16 rounded = static_cast<_Float16>(value);
  uint16_t item;
  std::memcpy(&item, &rounded, sizeof(item));
  return item;
}

using std::max;

#include "kernels/gpu/items.cuh"
#include "kernels/gpu/persistent/shape.h"

using cudnn_rnn_tf::persistent::Shape;
#if !defined(PRODUCTS)  // As in kernels of single steps.
#define PRODUCTS Shape::kDirect
#endif

inline Word __umulhi(Word a, Word b) {
  return static_cast<Word>(static_cast<uint64_t>(a) * b >> 32);
}
inline Word ToWord(const float* values) {
#if defined(IS_FLOAT)
  return __float_as_uint(values[0]);
#else
  return static_cast<Word>(FromFloat(values[0])) |
         static_cast<Word>(FromFloat(values[1])) << 16;
#endif
}
inline Word ToOperands(const float* values) {
#if defined(IS_FLOAT)
  if (PRODUCTS == Shape::kHalves) {
    return static_cast<Word>(ToHalf(values[0])) |
           static_cast<Word>(ToHalf(values[1])) << 16;
  }
#endif
  return ToWord(values);
}
inline void MultiplyHalves(Chunk* chunk, float power) {
  for (Word& word : chunk->word) {
    word = ToHalf(OfHalf(word) * power) |
           static_cast<Word>(ToHalf(OfHalf(word >> 16) * power)) << 16;
  }
}
inline Word ToTf32(Word word) { return (word + 0x1000u) & ~0x1FFFu; }
// Takes the numbers out of a word as the tensor cores read it: of a float that
// is a part, they cut off the last bits.
inline void Read(Word word, float* values) {
  if (PRODUCTS == Shape::kHalves) {
    for (int i = 0; i < 2; ++i) values[i] = OfHalf(word >> 16 * i);
    return;
  }
#if !defined(IS_FLOAT64)
  FromWord(PRODUCTS == Shape::kSplit ? word & ~0x1FFFu : word, values);
#endif
}
inline Chunk LoadChunk(const void* from, bool exists) {
  return exists ? *static_cast<const Chunk*>(from) : Chunk{};
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// Kernels may bring functions of their own, which are no templates.
template <typename T>
T Sigmoid(T x) {
  return 1.0f / (1.0f + std::exp(-x));
}
template <typename T>
T Tanh(T x) {
  return std::tanh(x);
}

// The teams of a launch, each of `blocks` blocks. There is one, unless the
// launch runs a stack.
class FakeTeam {
 public:
  // A place where threads wait for each other. The last to arrive lets all go
  // on.
  struct Meeting {
    int arrived = 0;
    int64_t generation = 0;
  };
  struct Thread {
    Dim block, index;
    int rank, lane, warp;
    ucontext_t beginning;
    jmp_buf place;  // Where it goes on.
    std::unique_ptr<char[]> stack;
    bool has_begun = false, is_done = false;
    // What the thread waits for. It need not run until that has come, which
    // spares most changes of contexts, and thus most of the time.
    const Meeting* meeting = nullptr;
    int64_t generation = 0;

    bool Waits() const {
      return meeting != nullptr && meeting->generation == generation;
    }
  };
  struct Warp : Meeting {
    Word values[32];
    float* sums[32];
    Word a[32][4], b[32][2];
  };
  // A barrier of a block, as the hardware counts it.
  struct Count {
    int64_t phase = 0;
    int arrivals_left = 1;
    int64_t bytes_left = 0;
  };

  static FakeTeam*& Current() {
    static FakeTeam* team = nullptr;
    return team;
  }

  FakeTeam(int blocks, int threads, int shared_bytes, unsigned int seed,
           Dim teams = {1, 1})
      : threads_(threads),
        team_blocks_(blocks),
        teams_(teams),
        random_(seed),
        of_team_(teams.x * teams.y),
        of_block_(teams.x * teams.y * blocks) {
    for (size_t i = 0; i < of_block_.size(); ++i) {
      // The memory is exactly as large as was asked for, and full of NaN.
      void* memory = std::aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
      std::memset(memory, 0xFF, shared_bytes);
      shared_.push_back({static_cast<char*>(memory), std::free});
    }
    warps_.resize(of_block_.size() * threads / 32);
    counts_.resize(of_block_.size() * 4);
  }

  // The blocks' indices begin with `first`.
  void Run(const std::function<void()>& kernel, Dim first = {}) {
    Current() = this;
    gridDim = {teams_.x * team_blocks_, teams_.y};
    kernel_ = kernel;
    const int blocks = static_cast<int>(shared_.size());
    for (int i = 0; i < blocks * threads_; ++i) {
      auto thread = std::make_unique<Thread>();
      thread->rank = i / threads_;
      thread->block = {first.x + thread->rank % gridDim.x,
                       first.y + thread->rank / gridDim.x};
      thread->index.x = i % threads_;
      thread->lane = i % 32;
      thread->warp = i / 32;
      thread->stack.reset(new char[kStackBytes]);
      getcontext(&thread->beginning);
      thread->beginning.uc_stack.ss_sp = thread->stack.get();
      thread->beginning.uc_stack.ss_size = kStackBytes;
      makecontext(&thread->beginning, &FakeTeam::Begin, 0);
      all_.push_back(std::move(thread));
    }
    // In half of the launches, a block goes on until it waits for others, which
    // fall far behind.
    const bool in_turns = random_() % 2 == 0;
    int64_t idle_rounds = 0;
    for (size_t left = all_.size(); left > 0;) {
      const int64_t before = events_;
      // Whole warps run in a random order, as a scheduler might choose it. Some
      // do not run in a round, so that blocks are not equally fast.
      std::vector<int> order(warps_.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
      if (!in_turns) std::shuffle(order.begin(), order.end(), random_);
      for (const int warp : order) {
        if (in_turns && events_ != before && warp * 32 % threads_ == 0) break;
        if (random_() % 4 == 0) continue;
        for (int lane = 0; lane < 32; ++lane) {
          Thread* const thread = all_[warp * 32 + lane].get();
          if (thread->is_done || thread->Waits()) continue;
          GoOn(thread);
          if (thread->is_done) --left;
        }
      }
      idle_rounds = events_ == before ? idle_rounds + 1 : 0;
      if (idle_rounds > 40) {
        std::fprintf(stderr, "the threads wait for each other for ever\n");
        std::abort();
      }
    }
    all_.clear();
  }

  // Unlike swapcontext, these jumps make no call of the system.
  void GiveWay() {
    if (_setjmp(running_->place) == 0) longjmp(scheduler_, 1);
  }

  // The thread that arrives last runs `last`.
  template <typename Last>
  void Meet(Meeting* meeting, int members, const Last& last) {
    running_->meeting = meeting;
    running_->generation = meeting->generation;
    ++events_;
    if (++meeting->arrived == members) {
      last();
      meeting->arrived = 0;
      ++meeting->generation;
      return;
    }
    GiveWay();
  }

  Thread& me() { return *running_; }
  Warp& warp() { return warps_[running_->warp]; }
  Meeting& block() { return of_block_[running_->rank]; }
  Meeting& team() { return of_team_[running_->rank / team_blocks_]; }
  int threads() const { return threads_; }
  int team_threads() const { return threads_ * team_blocks_; }
  char* shared() { return shared_[running_->rank].get(); }
  // Returns the rank in the launch of a peer in the team.
  int RankOf(int peer) const {
    if (peer < 0 || peer >= team_blocks_) {
      std::fprintf(stderr, "there is no block %d in the team\n", peer);
      std::abort();
    }
    return running_->rank / team_blocks_ * team_blocks_ + peer;
  }
  char* shared_of(int rank) { return shared_[rank].get(); }
  Count& count(const Barrier* barrier, int rank) {
    const size_t at = reinterpret_cast<const char*>(barrier) - shared();
    return counts_[rank * 4 + at / sizeof(Barrier)];
  }
  void NoteEvent() { ++events_; }
  void Settle(Count* count) {
    ++events_;
    if (count->arrivals_left > 0 || count->bytes_left != 0) return;
    ++count->phase;
    count->arrivals_left = 1;
  }

 private:
  static constexpr size_t kStackBytes = 1 << 17;

  static void Begin() {
    FakeTeam* const team = Current();
    team->kernel_();
    team->running_->is_done = true;
    ++team->events_;
    longjmp(team->scheduler_, 1);
  }

  // Runs a thread until it gives way or is done.
  void GoOn(Thread* thread) {
    running_ = thread;
    blockIdx = thread->block;
    threadIdx = thread->index;
    if (_setjmp(scheduler_) != 0) return;
    if (thread->has_begun) longjmp(thread->place, 1);
    thread->has_begun = true;
    setcontext(&thread->beginning);
  }

  const int threads_, team_blocks_;
  const Dim teams_;
  std::mt19937 random_;
  std::function<void()> kernel_;
  std::vector<std::unique_ptr<char, void (*)(void*)>> shared_;
  std::vector<std::unique_ptr<Thread>> all_;
  std::vector<Warp> warps_;
  std::vector<Count> counts_;
  std::vector<Meeting> of_team_;
  std::vector<Meeting> of_block_;
  jmp_buf scheduler_;
  Thread* running_ = nullptr;
  int64_t events_ = 0;
};

inline FakeTeam& Fake() { return *FakeTeam::Current(); }

inline Word ShuffleFrom(Word word, int lane) {
  auto& warp = Fake().warp();
  warp.values[Fake().me().lane] = word;
  Fake().Meet(&warp, 32, [] {});
  const Word result = warp.values[lane];
  Fake().Meet(&warp, 32, [] {});
  return result;
}
inline Word ShuffleXor(Word word, int lanes) {
  return ShuffleFrom(word, Fake().me().lane ^ lanes);
}
inline float ShuffleXor(float value, int lanes) {
  return __uint_as_float(ShuffleXor(__float_as_uint(value), lanes));
}

inline Word Transposed(Word word) {
  Word transposed = 0;
  for (int i = 0; i < 2; ++i) {
    const int row = Fake().me().lane % 4 * 2 + i, column = Fake().me().lane / 4;
    const Word of_column = ShuffleFrom(word, row * 4 + column / 2);
    transposed |= (of_column >> column % 2 * 16 & 0xFFFFu) << 16 * i;
  }
  return transposed;
}

inline Word LargestOfWarp(Word word) {
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    word = std::max(word, ShuffleFrom(word, Fake().me().lane ^ lanes));
  }
  return word;
}

inline void StorePair(float* to, float first, float second) {
  to[0] = first;
  to[1] = second;
}

#if !defined(IS_FLOAT64)
inline void MultiplyAdd(float* sums, const Word* a, const Word* b) {
  auto& warp = Fake().warp();
  const int lane = Fake().me().lane;
  std::copy_n(a, 4, warp.a[lane]);
  std::copy_n(b, 2, warp.b[lane]);
  warp.sums[lane] = sums;
  Fake().Meet(&warp, 32, [&warp] {
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        float* const sum =
            warp.sums[row % 8 * 4 + column / 2] + row / 8 * 2 + column % 2;
        for (int k = 0; k < 8; ++k) {
          float of_a[2] = {}, of_b[2] = {};
          Read(warp.a[row % 8 * 4 + k % 4][k / 4 * 2 + row / 8], of_a);
          Read(warp.b[column * 4 + k % 4][k / 4], of_b);
          *sum += of_a[0] * of_b[0] + of_a[1] * of_b[1];
        }
      }
    }
  });
}

// An operand of a warpgroup's products, whose columns are `pitch` bytes apart.
struct WideOperand {
  const char* first;
  int pitch;
  WideOperand(const void* first, int pitch)
      : first(static_cast<const char*>(first)), pitch(pitch) {}
  WideOperand(const WideOperand& other, int bytes)
      : first(other.first + bytes), pitch(other.pitch) {}
  Word At(int row, int column) const {
    Word word;
    std::memcpy(&word,
                first + column * pitch + row * 16 + Fake().me().lane % 4 * 4,
                sizeof(word));
    return word;
  }
};
template <typename Sums>
void BeginWide(Sums&) {}
inline void EndWide() {}
template <typename Sums>
void WaitForWide(Sums&) {}
template <typename Sums>
void MultiplyWide(Sums& sums, int i, Word a0, Word a1, Word a2, Word a3,
                  const WideOperand& b) {
  const int g = Fake().me().lane / 4;
  const Word a[] = {a0, a1, a2, a3};
  for (size_t n = 0; n < std::extent_v<Sums>; ++n) {
    const Word of_b[] = {b.At(n * 8 + g, 0), b.At(n * 8 + g, 1)};
    MultiplyAdd(sums[n][i].sums, a, of_b);
  }
}
template <typename Sums>
void MultiplyWide(Sums& sums, int i, const WideOperand& a,
                  const WideOperand& b) {
  const int row = Fake().me().warp % 4 * 16 + Fake().me().lane / 4;
  MultiplyWide(sums, i, a.At(row, 0), a.At(row + 8, 0), a.At(row, 1),
               a.At(row + 8, 1), b);
}
#endif

inline char* SharedMemory() { return Fake().shared(); }
inline void SynchronizeBlock() {
  Fake().Meet(&Fake().block(), Fake().threads(), [] {});
}
inline void ShowOperands() {}
inline void ComputeHere(float*) {}
inline int Recomputed(int number) { return number; }
inline void Raise(Word* word, Word to) { *word = std::max(*word, to); }
inline void atomicMax(Word* word, Word to) { Raise(word, to); }
inline void SynchronizeWarp() {
  Fake().Meet(&Fake().warp(), 32, [] {});
}
inline Word CountUp(void* word) { return (*static_cast<Word*>(word))++; }

#if defined(IS_OF_OLD_GPU)
// This device has no clusters but those of one block.
inline void SynchronizeCluster() { SynchronizeBlock(); }
inline void InitializeBarriers(Barrier*, int) {}
inline void ArmBarrier(Barrier*, int) {}
inline void WaitForBarrier(const Barrier*, int) { SynchronizeBlock(); }
struct PeerMemory {};
inline PeerMemory MemoryOfPeer(int) { return {}; }
inline void StoreToPeer(PeerMemory, void* to, Barrier*, const Chunk& chunk) {
  std::memcpy(to, &chunk, sizeof(chunk));
}
inline Word LoadOfPeer(PeerMemory, const void* from) {
  return *static_cast<const Word*>(from);
}
#else
inline void SynchronizeCluster() {
  Fake().Meet(&Fake().team(), Fake().team_threads(), [] {});
}
inline void InitializeBarriers(Barrier* barriers, int count) {
  for (int i = 0; i < count; ++i) {
    Fake().count(barriers + i, Fake().me().rank) = {};
  }
}
inline void ArmBarrier(Barrier* barrier, int bytes) {
  FakeTeam::Count& count = Fake().count(barrier, Fake().me().rank);
  if (count.arrivals_left == 0) {
    std::fprintf(stderr, "a barrier is armed twice in a phase\n");
    std::abort();
  }
  count.bytes_left += bytes;
  --count.arrivals_left;
  Fake().Settle(&count);
}
inline void WaitForBarrier(const Barrier* barrier, int parity) {
  const FakeTeam::Count& count = Fake().count(barrier, Fake().me().rank);
  while (count.phase % 2 == parity) Fake().GiveWay();
}
using PeerMemory = int;
inline PeerMemory MemoryOfPeer(int peer) { return Fake().RankOf(peer); }
inline void StoreToPeer(PeerMemory peer, void* to, Barrier* barrier,
                        const Chunk& chunk) {
  const size_t at = static_cast<char*>(to) - Fake().shared();
  if (at % sizeof(Chunk) != 0) {
    std::fprintf(stderr, "a store to a peer is not aligned\n");
    std::abort();
  }
  std::memcpy(Fake().shared_of(peer) + at, &chunk, sizeof(chunk));
  FakeTeam::Count& count = Fake().count(barrier, peer);
  count.bytes_left -= sizeof(chunk);
  Fake().Settle(&count);
}
inline Word LoadOfPeer(PeerMemory peer, const void* from) {
  Word word;
  const size_t at = static_cast<const char*>(from) - Fake().shared();
  std::memcpy(&word, Fake().shared_of(peer) + at, sizeof(word));
  return word;
}
#endif

inline void StoreForOthers(void* to, const Chunk& chunk) {
  *static_cast<Chunk*>(to) = chunk;
  Fake().NoteEvent();
  Fake().GiveWay();
}
inline Chunk LoadOfOthers(const void* from) {
  Fake().GiveWay();
  return *static_cast<const Chunk*>(from);
}
inline void StoreForOthers(Item* to, Item item) {
  *to = item;
  Fake().NoteEvent();
}
inline Item LoadOfOthers(const Item* from) {
  Fake().GiveWay();
  return *from;
}
inline void FenceForOthers() {}
inline void Abort() {
  std::fprintf(stderr, "the kernel gives up\n");
  std::abort();
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DEVICE_CUH_
