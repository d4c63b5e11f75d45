// The functions with which the persistent kernels use a GPU: of compute
// capability 8.0 or newer or, in float16 and float32, of 7.5. Tests define the
// same functions for a CPU.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DEVICE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DEVICE_CUH_

#include "items.cuh"
#include "shape.h"

using cudnn_rnn_tf::persistent::Shape;

// Returns zeros if the chunk does not exist. There is no branch, at which the
// loads that come later would wait.
static Chunk LoadChunk(const void* from, bool exists) {
  Chunk chunk = {};
  asm("{\n"
      ".reg .pred exists;\n"
      "setp.ne.u32 exists, %5, 0;\n"
      "@exists ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(chunk.word[0]), "+r"(chunk.word[1]), "+r"(chunk.word[2]),
        "+r"(chunk.word[3])
      : "l"(from), "r"(exists ? 1u : 0u));
  return chunk;
}

// Packs the numbers that FromWord takes out of a word.
static Word ToWord(const float* values) {
#if defined(IS_FLOAT)
  return __float_as_uint(values[0]);
#else
  Word word;
#if defined(IS_BFLOAT16)
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
#elif defined(IS_FLOAT16) && __CUDA_ARCH__ < 800
  asm("{.reg .b16 low, high; cvt.rn.f16.f32 high, %1; cvt.rn.f16.f32 low, %2;"
      "mov.b32 %0, {low, high};}"
#elif defined(IS_FLOAT16)
  asm("cvt.rn.f16x2.f32 %0, %1, %2;"
#else
#error "the type has no words"
#endif
      : "=r"(word)
      : "f"(values[1]), "f"(values[0]));
  return word;
#endif
}

// Packs numbers as products read them, as many as a word holds. The tensor
// cores cut off the bits of a float that TF32 lacks, so the float is rounded
// first unless it is to be split.
static Word ToOperands(const float* values) {
#if defined(IS_FLOAT)
  Word word = 0;
  if constexpr (PRODUCTS == Shape::kDirect) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(values[0]));
    return word;
  } else if constexpr (PRODUCTS == Shape::kHalves) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;"
        : "=r"(word)
        : "f"(values[1]), "f"(values[0]));
    return word;
  }
#endif
  return ToWord(values);
}

// Multiplies eight numbers in float16, to which floats are rounded, by a power
// of two.
[[maybe_unused]] static void MultiplyHalves(Chunk* chunk, float power) {
  const float pair[2] = {power, power};
  const Word factors = ToOperands(pair);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(chunk->word[j]) : "r"(factors));
  }
}

// Rounds a float to TF32 where it stands: weights must not be split before the
// loop over the steps, since there are no registers for the parts of all.
static Word ToTf32(Word word) {
  asm volatile("cvt.rna.tf32.f32 %0, %1;"
               : "=r"(word)
               : "f"(__uint_as_float(word)));
  return word;
}

// Computes sums += a * b for a tile of 16 rows, a step of 8 words and 8
// columns. Lane 4 g + t has the words t and t + 4 of the step. Of `a`, it has
// the rows g (words 0 and 2) and g + 8 (words 1 and 3); of `b`, the column
// g; of the sums, the columns 2 t and 2 t + 1 of row g, then those of row g +
// 8.
static void MultiplyAdd(float* sums, const Word* a, const Word* b) {
  asm volatile(
#if __CUDA_ARCH__ < 800
      // The tensor cores of Turing multiply steps of four words.
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%8}, {%0, %1, %2, %3};"
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%6, %7}, {%9}, {%0, %1, %2, %3};"
#else
#if WORD_OPERANDS == 1
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
#elif defined(IS_BFLOAT16)
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if WARPGROUPS
// An operand of a warpgroup's products in shared memory, in columns of 16 bytes
// that are `pitch` bytes apart.
struct WideOperand {
  unsigned long long descriptor;
  // The address in the block, without the bits that say which block of a
  // cluster this is. A warp's lanes have the same one. In clusters, PTX's
  // compiler must not see that, but that all of them get it from one lane: it
  // then computes descriptors once for a warp, which takes half of the
  // instructions. In other teams, backward steps took up to 1.05 times as long.
  WideOperand(const void* first, int pitch) {
    Word address = static_cast<Word>(__cvta_generic_to_shared(first));
    if (IS_CLUSTER) {
      asm volatile(
          "{.reg .b32 a; mov.u32 a, %%laneid; add.u32 a, a, %0;"
          "shfl.sync.idx.b32 %0, a, 0, 31, -1;}"
          : "+r"(address));
    }
    descriptor = (address & 0x3FFFF) >> 4 |
                 static_cast<unsigned long long>(pitch >> 4) << 16 | 8ull << 32;
  }
  // The operand that begins so many bytes later.
  WideOperand(const WideOperand& other, int bytes)
      : descriptor(other.descriptor + bytes / 16) {}
};
// The compiler then has the sums in their registers, before what follows.
template <typename Sums>
static void SettleSums(Sums& sums) {
#pragma unroll
  for (auto& of_rows : sums) {
#pragma unroll
    for (auto& products : of_rows) {
#pragma unroll
      for (float& sum : products.sums) asm volatile("" : "+f"(sum)::"memory");
    }
  }
}
template <typename Sums>
static void BeginWide(Sums& sums) {
  SettleSums(sums);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static void EndWide() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all products so far.
template <typename Sums>
static void WaitForWide(Sums& sums) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  SettleSums(sums);
}

#define SUMS(n)                                       \
  "+f"(sums[n][i].sums[0]), "+f"(sums[n][i].sums[1]), \
      "+f"(sums[n][i].sums[2]), "+f"(sums[n][i].sums[3])
#if ROW_TILES == 2
#define WIDE(a) WIDE_OF("16", "", a)
#define ALL_SUMS SUMS(0), SUMS(1)
#define A_WORDS "{%8, %9, %10, %11}, %12, 1, 1, 1, 0"
#define A_IN_MEMORY "%8, %9, 1, 1, 1, 0, 0"
#elif ROW_TILES == 3
#define WIDE(a) WIDE_OF("24", ", %8, %9, %10, %11", a)
#define ALL_SUMS SUMS(0), SUMS(1), SUMS(2)
#define A_WORDS "{%12, %13, %14, %15}, %16, 1, 1, 1, 0"
#define A_IN_MEMORY "%12, %13, 1, 1, 1, 0, 0"
#elif ROW_TILES == 4
#define WIDE(a) WIDE_OF("32", ", %8, %9, %10, %11, %12, %13, %14, %15", a)
#define ALL_SUMS SUMS(0), SUMS(1), SUMS(2), SUMS(3)
#define A_WORDS "{%16, %17, %18, %19}, %20, 1, 1, 1, 0"
#define A_IN_MEMORY "%16, %17, 1, 1, 1, 0, 0"
#else
#define WIDE(a) \
  WIDE_OF("40", ", %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19", a)
#define ALL_SUMS SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4)
#define A_WORDS "{%20, %21, %22, %23}, %24, 1, 1, 1, 0"
#define A_IN_MEMORY "%20, %21, 1, 1, 1, 0, 0"
#endif
#if defined(IS_BFLOAT16)
#define WIDE_TYPES "k16.f32.bf16.bf16 "
#else
#define WIDE_TYPES "k16.f32.f16.f16 "
#endif
#define WIDE_OF(rows, more, a)                        \
  "wgmma.mma_async.sync.aligned.m64n" rows WIDE_TYPES \
  "{%0, %1, %2, %3, %4, %5, %6, %7" more "}, " a ";"
// Computes sums[...][i] += a * b for 64 rows, a step of 8 words and all
// sequences. The lanes of a warp have the operands and the sums of 16 rows, as
// MultiplyAdd has them.
template <typename Sums>
static void MultiplyWide(Sums& sums, int i, Word a0, Word a1, Word a2, Word a3,
                         const WideOperand& b) {
  asm volatile(WIDE(A_WORDS)
               : ALL_SUMS
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b.descriptor));
}
template <typename Sums>
static void MultiplyWide(Sums& sums, int i, const WideOperand& a,
                         const WideOperand& b) {
  asm volatile(WIDE(A_IN_MEMORY)
               : ALL_SUMS
               : "l"(a.descriptor), "l"(b.descriptor));
}
#endif

template <typename T>
static T ShuffleXor(T value, int lanes) {
  return __shfl_xor_sync(~0u, value, lanes);
}
// Returns the largest word of the warp's.
static Word LargestOfWarp(Word word) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, word);
#else
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const Word other = ShuffleXor(word, lanes);
    word = other > word ? other : word;
  }
  return word;
#endif
}
static Word ShuffleFrom(Word word, int lane) {
  return __shfl_sync(~0u, word, lane);
}
// Lane 4 g + t has the columns 2 t and 2 t + 1 of row g of a matrix of numbers
// in 16 bits, and gets those of the transposed matrix.
static Word Transposed(Word word) {
  Word transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(transposed)
               : "r"(word));
  return transposed;
}

static void StorePair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

// These functions are exact to about 1e-6, and to 5e-4 in bfloat16, in which
// results are rounded to eight bits. Floats that are not multiplied in TF32 get
// a tanh that is exact near zero too.
#if defined(IS_BFLOAT16)
static float Tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
static float Sigmoid(float x) { return fmaf(0.5f, Tanh(0.5f * x), 0.5f); }
#else
static float Sigmoid(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * -1.4426950409f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + y));
  return y;
}
static float Tanh(float x) {
  constexpr bool kIsExact =
      PRODUCTS == Shape::kSplit || PRODUCTS == Shape::kFused;
  return kIsExact ? tanhf(x) : fmaf(2.0f, Sigmoid(2.0f * x), -1.0f);
}
#endif

static char* SharedMemory() {
  extern __shared__ __align__(128) char shared_memory[];
  return shared_memory;
}

static Word SharedAddress(const void* pointer) {
  return static_cast<Word>(__cvta_generic_to_shared(pointer));
}

static void SynchronizeBlock() { __syncthreads(); }
// Shows what this thread has stored, or found to be stored, to tensor cores
// that read shared memory on their own.
static void ShowOperands() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
static void SynchronizeWarp() { __syncwarp(); }

#if __CUDA_ARCH__ < 900
// These GPUs have no clusters but those of one block. For the exchange of such
// a block, its own barrier is enough: all its threads wait at it, and find what
// all of them have stored before.
static void SynchronizeCluster() { SynchronizeBlock(); }
using Barrier = unsigned long long;
static void InitializeBarriers(Barrier*, int) {}
static void ArmBarrier(Barrier*, int) {}
static void WaitForBarrier(const Barrier*, int) { SynchronizeBlock(); }
struct PeerMemory {};
static PeerMemory MemoryOfPeer(int) { return {}; }
static void StoreToPeer(PeerMemory, void* to, Barrier*, const Chunk& chunk) {
  *static_cast<Chunk*>(to) = chunk;
}
static Word LoadOfPeer(PeerMemory, const void* from) {
  return *static_cast<const Word*>(from);
}
#else
static void SynchronizeCluster() {
  asm volatile(
      "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::
          : "memory");
}

// A barrier that one thread arms for as many bytes as peers will store.
using Barrier = unsigned long long;

static void InitializeBarriers(Barrier* barriers, int count) {
  for (int i = 0; i < count; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(
                     SharedAddress(barriers + i))
                 : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static void ArmBarrier(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}

// Waits for the end of the phase with this parity. The phases have the parities
// 0, 1, 0, ...
static void WaitForBarrier(const Barrier* barrier, int parity) {
  Word is_done;
  do {
    asm volatile(
        "{.reg .pred q;"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 "
        "q, [%1], %2; selp.u32 %0, 1, 0, q;}"
        : "=r"(is_done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (!is_done);
}

// The beginning of the shared memory of a block of the cluster, for StoreToPeer
// and LoadOfPeer.
using PeerMemory = Word;
static PeerMemory MemoryOfPeer(int peer) {
  PeerMemory memory;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(memory)
      : "r"(SharedAddress(SharedMemory())), "r"(peer));
  return memory;
}

// Stores to the place in the peer's shared memory that `to` is in this block's,
// and counts the bytes off the peer's barrier.
static void StoreToPeer(PeerMemory peer, void* to, Barrier* barrier,
                        const Chunk& chunk) {
  const Word own = SharedAddress(SharedMemory());
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(peer + (SharedAddress(to) - own)),
      "r"(chunk.word[0]), "r"(chunk.word[1]), "r"(chunk.word[2]),
      "r"(chunk.word[3]), "r"(peer + (SharedAddress(barrier) - own))
      : "memory");
}

static Word LoadOfPeer(PeerMemory peer, const void* from) {
  Word word;
  asm volatile(
      "ld.shared::cluster.u32 %0, [%1];"
      : "=r"(word)
      : "r"(peer + (SharedAddress(from) - SharedAddress(SharedMemory())))
      : "memory");
  return word;
}
#endif

// Returns the number. The compiler does not know that, so what follows from it
// is computed where it is used, and takes no registers elsewhere.
static int Recomputed(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// Keeps the compiler from moving a number's computation behind assembler that
// follows, such as a wait. It orders no memory.
static void ComputeHere(float* number) { asm volatile("" : "+f"(*number)); }

// Sets a word in shared memory to a greater one.
static void Raise(Word* word, Word to) { atomicMax(word, to); }

// Adds one to a word in memory, and returns what it was.
static Word CountUp(void* word) {
  return atomicAdd(static_cast<Word*>(word), 1u);
}

// These store and load 16 bytes as a whole. The memory is shared with blocks
// that run on other multiprocessors at the same time.
static void StoreForOthers(void* to, const Chunk& chunk) {
  asm volatile(
      "{.reg .b64 a, b; .reg .b128 c; mov.b64 a, {%1, %2}; mov.b64 b, {%3, %4};"
      "mov.b128 c, {a, b}; st.relaxed.gpu.global.b128 [%0], c;}" ::"l"(to),
      "r"(chunk.word[0]), "r"(chunk.word[1]), "r"(chunk.word[2]),
      "r"(chunk.word[3])
      : "memory");
}
static Chunk LoadOfOthers(const void* from) {
  Chunk chunk;
  asm volatile(
      "{.reg .b64 a, b; .reg .b128 c; ld.relaxed.gpu.global.b128 c, [%4];"
      "mov.b128 {a, b}, c; mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b;}"
      : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]),
        "=r"(chunk.word[3])
      : "l"(from)
      : "memory");
  return chunk;
}
// These do the same for one number.
static void StoreForOthers(Item* to, Item item) {
#if defined(IS_FLOAT)
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(item)
               : "memory");
#else
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to), "h"(item)
               : "memory");
#endif
}
static Item LoadOfOthers(const Item* from) {
  Item item;
#if defined(IS_FLOAT)
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];"
               : "=f"(item)
#else
  asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];"
               : "=h"(item)
#endif
               : "l"(from)
               : "memory");
  return item;
}
// If another thread sees a store that this one makes after the fence, and then
// has a fence of its own, it also sees what this one stored before.
static void FenceForOthers() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// Ends the kernel with an error.
static void Abort() { asm volatile("trap;"); }

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DEVICE_CUH_
