// The products of a warp's tiles: 16 rows of the weights, the words of a pair,
// and 8 sequences. Shape::products says how they are computed. All forms have
// the same operands in the same lanes, and leave the sums in the same lanes, as
// MultiplyAdd has them. A lane's operands in a tile are two chunks, of the rows
// g and g + 8; Arrange brings them into the order in which a form takes them.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_PRODUCTS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_PRODUCTS_CUH_

#include "common.cuh"

// The tensor cores multiply the numbers as they are.
template <int kChains>
struct DirectProducts {
  // Each chunk has the operands of one of the two steps of a pair.
  static void Arrange(Chunk (&chunks)[2]) {
    const Chunk upper = chunks[0], lower = chunks[1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int w = 2 * half;
      chunks[half] = {
          {upper.word[w], lower.word[w], upper.word[w + 1], lower.word[w + 1]}};
    }
  }
  struct Tile {
    Chunk step[2];
    explicit Tile(const Chunk (&steps)[2]) : step{steps[0], steps[1]} {}
  };
  // A lane's words of a pair for the 8 sequences, whose rows begin at `rows`.
  // The lane is number t of the quad g.
  struct Columns {
    Chunk chunk;
    void Load(const char* rows, int g, int t) {
      chunk = *reinterpret_cast<const Chunk*>(rows + g * kPitch + t * 16);
    }
  };

  float sums[kChains][4] = {};

  // Products that follow one another go to different chains.
  void Add(const Tile& a, const Columns& b, int position) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      MultiplyAdd(sums[(2 * position + half) % kChains], a.step[half].word,
                  b.chunk.word + 2 * half);
    }
  }
  // All lanes call this together.
  void Total(int, float* total) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      total[j] = 0.0f;
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) total[j] += sums[chain][j];
    }
  }
};

// Floats as sums of two numbers that TF32 holds but for a few last bits. The
// tensor cores multiply these parts; products of two low parts, of at most
// 2^-22 of the whole, are left out. The tensor cores cut off what a sum has too
// many bits, so they only add up the products of one step, from the least to
// the greatest; sums over steps are rounded as those of other floats. The
// splitting makes no number of what is infinite.
template <int kChains>
struct SplitProducts : DirectProducts<kChains> {
  struct Parts {
    Word high[4], low[4];
    void Set(const Chunk& chunk) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        high[j] = ToTf32(chunk.word[j]);
        low[j] = __float_as_uint(__uint_as_float(chunk.word[j]) -
                                 __uint_as_float(high[j]));
      }
    }
  };
  static void Arrange(Chunk (&)[2]) {}
  struct Tile {
    Parts upper, lower;
    explicit Tile(const Chunk (&rows)[2]) {
      upper.Set(rows[0]);
      lower.Set(rows[1]);
    }
  };
  struct Columns {
    Parts parts;
    void Load(const char* rows, int g, int t) {
      parts.Set(*reinterpret_cast<const Chunk*>(rows + g * kPitch + t * 16));
    }
  };

  // The two steps of a pair have sums of their own, so that their products need
  // not wait for each other.
  void Add(const Tile& a, const Columns& b, int position) {
    float sum[2][4] = {};
    const auto add = [&](const Word* upper, const Word* lower,
                         const Word* columns) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int w = 2 * half;
        const Word rows[] = {upper[w], lower[w], upper[w + 1], lower[w + 1]};
        MultiplyAdd(sum[half], rows, columns + w);
      }
    };
    add(a.upper.low, a.lower.low, b.parts.high);
    add(a.upper.high, a.lower.high, b.parts.low);
    add(a.upper.high, a.lower.high, b.parts.high);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      this->sums[position % kChains][j] += sum[0][j] + sum[1][j];
    }
  }
};

// Each lane multiplies its own words by those of all 8 sequences, with fused
// multiply-adds. The sums of a quad's lanes are added at the end.
struct FusedProducts {
  static void Arrange(Chunk (&)[2]) {}
  struct Tile {
    Chunk row[2];
    explicit Tile(const Chunk (&rows)[2]) : row{rows[0], rows[1]} {}
  };
  struct Columns {
    Chunk chunk[8];
    void Load(const char* rows, int, int t) {
#pragma unroll
      for (int column = 0; column < 8; ++column) {
        chunk[column] =
            *reinterpret_cast<const Chunk*>(rows + column * kPitch + t * 16);
      }
    }
  };

  float sums[2][8] = {};

  void Add(const Tile& a, const Columns& b, int) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int column = 0; column < 8; ++column) {
          sums[half][column] = fmaf(__uint_as_float(a.row[half].word[w]),
                                    __uint_as_float(b.chunk[column].word[w]),
                                    sums[half][column]);
        }
      }
    }
  }
  // Lane t of a quad ends up with the columns 2 t and 2 t + 1. First it shares
  // four columns with the lane t ^ 2, then two of these with the lane t ^ 1.
  void Total(int lane, float* total) const {
    const bool has_second_half = lane & 2, is_odd = lane & 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float shared[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float first = sums[half][j], second = sums[half][4 + j];
        shared[j] = (has_second_half ? second : first) +
                    ShuffleXor(has_second_half ? first : second, 2);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        total[2 * half + j] = (is_odd ? shared[2 + j] : shared[j]) +
                              ShuffleXor(is_odd ? shared[j] : shared[2 + j], 1);
      }
    }
  }
};

// Only the type of the result matters.
template <int kChains>
auto ProductsOfShape() {
  if constexpr (kShape.products == Shape::kSplit) {
    return SplitProducts<kChains>();
  } else if constexpr (kShape.products == Shape::kFused) {
    return FusedProducts();
  } else {
    return DirectProducts<kChains>();
  }
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_PRODUCTS_CUH_
