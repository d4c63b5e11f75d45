// How the blocks of a team that is no cluster exchange: by a ring of a few
// steps' messages in memory, which the L2 cache holds.
//
// A message is a chunk. Its words are never all ones, which no arithmetic and
// no conversion gives, so that who waits for it knows by its words whether it
// is there, and needs no flag and no second trip. Two steps after a message its
// sender clears its place: it has received by then what all blocks sent after
// they had read it. There are places for four steps, so that a step with a
// fence, which costs no time while one waits for others, lies between a place's
// being cleared and its being polled again.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_RING_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_RING_CUH_

#include "common.cuh"

class Ring {
 public:
  // A team's messages of a step have `step_bytes`.
  __device__ Ring(const Part& part, long long step_bytes) {
    const int teams = gridDim.x / TEAM;
    ring_bytes_ = gridDim.y * teams * step_bytes;
    first_ = static_cast<char*>(part.ring) +
             (blockIdx.y * teams + blockIdx.x / TEAM) * step_bytes;
  }

  __device__ void Send(int step, int at, const Chunk& chunk) const {
    StoreForOthers(PlaceOf(step) + at, chunk);
    if (step >= 2) {
      StoreForOthers(PlaceOf(step - 2) + at,
                     {{kNothing, kNothing, kNothing, kNothing}});
    }
  }

  // Waits for `kChunks` messages, which begin `at` bytes after a step's first,
  // and has `place` say where in shared memory each goes. All threads of the
  // block take part; they see the messages after the block's next barrier.
  template <int kChunks, typename Place>
  __device__ void Receive(int step, int at, const Place& place) const {
    const char* const from = PlaceOf(step) + at;
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int first = threadIdx.x; first < kChunks;
         first += kAtOnce * kThreads) {
      Chunk chunks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) chunks[i].word[0] = kNothing;
      bool is_waiting = true;
      for (int polls = 0; is_waiting; ++polls) {
        if (polls > kMaxPolls) Abort();
        is_waiting = false;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int chunk = first + i * kThreads;
          if (chunk < kChunks && !IsThere(chunks[i])) {
            chunks[i] = LoadOfOthers(from + chunk * 16);
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i * kThreads < kChunks && !IsThere(chunks[i])) {
            is_waiting = true;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int chunk = first + i * kThreads;
        if (chunk < kChunks) *place(chunk) = chunks[i];
      }
    }
  }

 private:
  static constexpr Word kNothing = 0xFFFFFFFF;
  // A poll takes about half a microsecond, so this is some seconds: blocks of a
  // team run at the same time, or something is wrong.
  static constexpr int kMaxPolls = 1 << 24;

  static __device__ bool IsThere(const Chunk& chunk) {
    return chunk.word[0] != kNothing && chunk.word[1] != kNothing &&
           chunk.word[2] != kNothing && chunk.word[3] != kNothing;
  }
  __device__ char* PlaceOf(int step) const {
    return first_ + step % Shape::kRingSteps * ring_bytes_;
  }

  char* first_;
  long long ring_bytes_;  // From a step's messages to the next's.
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_RING_CUH_
