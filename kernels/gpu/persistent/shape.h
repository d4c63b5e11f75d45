// How a layer is divided among a GPU's thread blocks. The host chooses a Shape,
// and both the host and the kernels lay out a block's memory by the functions
// here. The device's compiler reads this file too, so it includes nothing.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SHAPE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SHAPE_H_

namespace cudnn_rnn_tf {
namespace persistent {

// The division of a layer among the blocks of teams. Each team runs some of the
// sequences with all of the recurrent weights; each of its blocks has the
// gates' rows of `block_units` units. If a team is a cluster, its blocks store
// to each other's shared memory. Any other team exchanges through the L2 cache;
// it may be larger, and leaves no multiprocessor idle.
//
// What products read is in words of 32 bits: two of a half type, or one float.
// The tensor cores multiply tiles of 16 rows by steps of 8 words; a lane loads
// the operands of two such steps, a pair, at once.
//
// F(name, macro) for each field of a Shape, all of which are ints. Kernels are
// compiled with the macros.
#define CRNN_SHAPE_FIELDS(F)                                                 \
  /* H, of the layer. */                                                     \
  F(units, NUM_UNITS)                                                        \
  /* Numbers in a word of what products read. */                             \
  F(word_operands, WORD_OPERANDS)                                            \
  /* Blocks in a team, and whether it is a cluster. */                       \
  F(team, TEAM)                                                              \
  F(is_cluster, IS_CLUSTER)                                                  \
  /* A multiple of chunk_units(). */                                         \
  F(block_units, BLOCK_UNITS)                                                \
  /* In a block. */                                                          \
  F(warps, WARPS)                                                            \
  /* Parts of the forward sums, each by different warps. In one part, on an  \
     H200, LSTMs of 1024 units and 4 sequences in float16 and of 768 and 16  \
     in float32 took 1.3 and 1.5 times as long forward. */                   \
  F(splits, SPLITS)                                                          \
  /* Groups of 8 sequences in a team. */                                     \
  F(row_tiles, ROW_TILES)                                                    \
  /* Pairs in registers; shared memory has the others. */                    \
  F(resident_pairs, RESIDENT_PAIRS)                                          \
  /* 1 if one launch of the forward kernel runs all layers of a stack at the \
     same time, each some steps behind the one below. Teams are clusters     \
     then. */                                                                \
  F(is_stack, IS_STACK)                                                      \
  /* How the products are computed, such as kDirect. */                      \
  F(products, PRODUCTS)                                                      \
  /* 1, or the blocks of a band, which have the rows of all their units in   \
     common: each of them has a slice of the columns of these rows. So it    \
     reads a slice of h alone, and the sums of a band's blocks are added. */ \
  F(slices, SLICES)                                                          \
  /* Rows of the weights for each unit. Some stand for no gate. */           \
  F(slots, SLOTS)                                                            \
  /* 1 if four warps multiply 64 rows together, as Hopper's do. */           \
  F(has_warpgroups, WARPGROUPS)                                              \
  /* Of a cell that normalises its sums; otherwise 0. */                     \
  F(norms, NORMS)

struct Shape {
#define CRNN_FIELD(name, macro) int name;
  CRNN_SHAPE_FIELDS(CRNN_FIELD)
#undef CRNN_FIELD

  // Half types are multiplied directly. So are floats, where TF32 is allowed:
  // as they are or, if h has a bound, as numbers in float16 (powers.cuh).
  // products.cuh has what the others stand for.
  static constexpr int kDirect = 0, kSplit = 1, kFused = 2, kHalves = 3;
  // Tells whether floats keep all their digits.
  constexpr bool is_exact() const {
    return products == kSplit || products == kFused;
  }

  // The units of a chunk: 16 bytes, which go from block to block at once.
  constexpr int chunk_units() const { return 4 * word_operands; }
  // Those of a chunk in the type of the data, in which parts of gradients go.
  constexpr int data_chunk_units() const {
    return products == kHalves ? 4 : chunk_units();
  }
  constexpr int data_bytes() const { return 16 / data_chunk_units(); }
  constexpr int rows() const { return 8 * row_tiles; }
  constexpr int threads() const { return 32 * warps; }
  // The cells of a thread, if they are dealt out one by one.
  constexpr int rounds() const {
    return (block_units * rows() + threads() - 1) / threads();
  }
  constexpr int operand_item_bytes() const { return 4 / word_operands; }
  constexpr int all_units() const { return team * block_units; }
  constexpr bool has_bands() const { return slices > 1; }
  constexpr int bands() const { return team / slices; }
  constexpr int slice_units() const { return all_units() / slices; }
  // The rows of the weights of which a block has a slice.
  constexpr int band_rows() const { return slices * block_units * slots; }

  // Bytes from one row of `pairs` pairs to the next. Odd multiples of 64 keep
  // the eight rows that a warp reads at once in different banks.
  static constexpr int Pitch(int pairs) { return (pairs / 2 * 2 + 1) * 64; }
  // What the weights are multiplied by has chunks of 16 bytes; these are the
  // bytes from a sequence's chunk to the next sequence's, and to the sequence's
  // next chunk. Warpgroups read the chunks of eight sequences at once.
  constexpr int operand_pitch(int pairs) const {
    return has_warpgroups ? 16 : Pitch(pairs);
  }
  constexpr int column_pitch() const {
    return has_warpgroups ? rows() * 16 + 16 : 16;
  }
  constexpr int operand_bytes(int pairs) const {
    return has_warpgroups ? pairs * 4 * column_pitch() : rows() * Pitch(pairs);
  }
  // The independent sums of each of a warp's tiles. There are enough of them to
  // hide the latency of the tensor cores.
  constexpr int Chains(int tiles) const {
    return has_warpgroups ? 1
                          : (4 + tiles * row_tiles - 1) / (tiles * row_tiles);
  }
  // The bytes of one operand of a pair, for all lanes of a warp.
  static constexpr int kChunkBytes = 32 * 16;

  // So many consecutive lanes have cells of the same sequence, and perhaps all
  // of the sequence's cells in the block.
  static constexpr int LanesOf(int units) {
    return units % 32 == 0 ? 32 : units % 16 == 0 ? 16 : units % 8 == 0 ? 8 : 4;
  }
  constexpr int row_lanes() const { return LanesOf(block_units); }
  // If a cell normalises, blocks get from each other what the lanes of each
  // such part know of a sequence, in the two exchanges of a step: in a cluster,
  // in shared memory.
  constexpr int norm_parts() const { return all_units() / row_lanes(); }
  constexpr int norm_bytes() const {
    return norms == 0 ? 0 : (norms / 2 + 1) * rows() * norm_parts() * 16;
  }

  // The forward pass multiplies a block's rows of the weights by h.
  constexpr int forward_tiles() const {
    return has_warpgroups ? (band_rows() + 63) / 64 * 4
                          : (band_rows() + 15) / 16;
  }
  // In clusters, a warp of a warpgroup has all rows of eight units, two tiles,
  // or of sixteen, a tile for each slot. So its lanes have all sums of their
  // cells.
  constexpr bool forward_holds_cells() const {
    return has_warpgroups && is_cluster;
  }
  constexpr bool forward_has_tile_of_slot() const {
    return forward_holds_cells() && block_units > 8 * warps;
  }
  // A thread of such grid teams has the cells of two neighbouring units, whose
  // numbers it loads and stores together, if all threads have as many.
  constexpr bool has_pairs_of_cells() const {
    return !is_cluster && !has_warpgroups && !has_bands() && norms == 0 &&
           word_operands == 2 && block_units * rows() % (2 * threads()) == 0;
  }
  constexpr int forward_neighbours() const {
    return forward_has_tile_of_slot() || has_pairs_of_cells() ? 2 : 1;
  }
  constexpr int forward_warp_tiles() const {
    return forward_has_tile_of_slot() ? 4
           : forward_holds_cells()
               ? 2
               : (forward_tiles() * splits + warps - 1) / warps;
  }
  constexpr int forward_warp_pairs() const {
    return (slice_units() / word_operands + 16 * splits - 1) / (16 * splits);
  }
  // A cluster's peers store to one copy while a block reads the other.
  constexpr int copies() const { return is_cluster ? 2 : 1; }
  constexpr int forward_h_bytes() const {
    return copies() * operand_bytes(forward_warp_pairs() * splits);
  }
  // The floats from the sums for one sequence to those for the next. With this
  // pitch, the stores of a warp go to different banks.
  constexpr int forward_sums_pitch() const { return slots * block_units + 4; }
  // In a band, a block receives so many chunks of sums from each split of each
  // block, itself too.
  constexpr int forward_sums_chunks() const {
    return block_units * slots / 4 * rows();
  }
  constexpr int forward_sums_step_bytes() const {
    return has_bands() ? slices * splits * forward_sums_chunks() * 16 : 0;
  }
  // The chunks of a step of the layer below that a thread of a stack fetches.
  constexpr int forward_thread_chunks() const {
    return (rows() * all_units() / data_chunk_units() + threads() - 1) /
           threads();
  }
  // The bytes that a block receives in a step.
  constexpr int forward_step_bytes() const {
    return rows() * all_units() * operand_item_bytes();
  }

  // Each layer of a stack has a stage. Each but the lowest has another stage
  // before it, which multiplies the output of the layer below by the input
  // weights.
  constexpr int Stages(int layers) const {
    return is_stack ? 2 * layers - 1 : 1;
  }

  // The backward pass multiplies the transposed rows of the weights by the
  // gradients of the gates.
  constexpr int backward_pairs() const {
    return (band_rows() + 16 * word_operands - 1) / (16 * word_operands);
  }
  // A group's tiles give a lane the sums of consecutive units, 16 bytes of
  // them.
  constexpr int group_tiles() const { return data_chunk_units() / 4; }
  constexpr int backward_groups() const {
    return (slice_units() + 16 * group_tiles() - 1) / (16 * group_tiles());
  }
  constexpr int backward_warp_groups() const {
    return (backward_groups() + warps - 1) / warps;
  }
  constexpr int backward_warp_tiles() const {
    return backward_warp_groups() * group_tiles();
  }
  // In clusters of warpgroups, too, a thread has the cells of neighbouring
  // units. Where these are few, two blocks share a multiprocessor.
  constexpr int backward_neighbours() const {
    return (has_warpgroups && is_cluster) || has_pairs_of_cells() ? 2 : 1;
  }
  constexpr bool backward_has_few_cells() const {
    return has_warpgroups && is_cluster && row_tiles == 2 && rounds() <= 4;
  }
  // The lanes that share a sequence, and whether its cells in the block are
  // all theirs.
  constexpr int backward_row_lanes() const {
    return LanesOf(block_units / backward_neighbours());
  }
  constexpr bool backward_is_in_warp() const {
    return backward_row_lanes() * backward_neighbours() == block_units;
  }
  // A cluster's peers store parts of gradients, each sender one. A part has
  // tiles of eight sequences and so many units, row by row, so that what a warp
  // stores fills whole lines.
  constexpr int backward_part_units() const {
    const int of_block = LanesOf(block_units), of_warp = 16 * group_tiles();
    return of_block < of_warp ? of_block : of_warp;
  }
  // In other teams, threads fetch the parts of some senders each and add them.
  // A group of threads that has all of a block's units and sequences is an
  // adder, and shared memory has the sums of each adder.
  constexpr int backward_sender_chunks() const {
    return rows() * block_units / data_chunk_units();
  }
  constexpr int backward_adders() const {
    const int most = threads() / backward_sender_chunks();
    return most < 1 ? 1 : most < bands() ? most : bands();
  }
  constexpr int backward_step_bytes() const {
    return bands() * rows() * block_units * data_bytes();
  }
  // In a band, a block sends so many chunks of gradients of its gates, four of
  // each unit, and then a chunk with the power of each sequence.
  constexpr int backward_gates_chunks() const {
    return block_units / word_operands * rows();
  }
  constexpr int backward_gates_step_bytes() const {
    const int powers = products == kHalves ? rows() : 0;
    return has_bands() ? (backward_gates_chunks() + powers) * 16 : 0;
  }

  // These are the above, of one of the passes.
  constexpr int neighbours(bool is_backward) const {
    return is_backward ? backward_neighbours() : forward_neighbours();
  }
  constexpr int warp_tiles(bool is_backward) const {
    return is_backward ? backward_warp_tiles() : forward_warp_tiles();
  }
  constexpr int pairs(bool is_backward) const {
    return is_backward ? backward_pairs() : forward_warp_pairs();
  }
  constexpr int step_bytes(bool is_backward) const {
    return is_backward ? backward_step_bytes() : forward_step_bytes();
  }
  // Whether a round's cells are whole rows, so that a thread has cells of the
  // same units in all rounds.
  constexpr bool has_whole_rows(bool is_backward) const {
    return threads() * neighbours(is_backward) % block_units == 0;
  }

  // The rooms of a block's shared memory: the byte at which each of them
  // begins, and the first one past all of them.
  struct Rooms {
    int barriers;  // And, in a stack, a cluster's ticket.
    // Where floats are multiplied in float16: the powers of the rows of the
    // weights, those of the sequences' numbers, for two steps, and in a band
    // the largest of these, for two steps, and those of each of its blocks.
    int row_powers, sequence_powers, band_powers;
    int norms;             // Chunks that a cluster's peers store.
    int states, sums;      // Of a forward pass.
    int parts, gradients;  // Of a backward pass.
    int weights;           // Those that registers do not hold.
    int end;
  };
  constexpr Rooms rooms(bool is_backward) const {
    Rooms at = {};
    const auto take = [&at](int bytes) {
      at.end += bytes;
      return at.end - bytes;
    };
    const int power_bytes = products == kHalves ? 4 : 0;
    at.barriers = take(128);
    at.row_powers = take(band_rows() * power_bytes);
    at.sequence_powers = take(2 * rows() * power_bytes);
    at.band_powers =
        take(has_bands() ? (2 + slices) * rows() * power_bytes : 0);
    at.norms = take(is_cluster ? norm_bytes() : 0);
    if (is_backward) {
      at.parts =
          take(rows() * block_units *
               (is_cluster ? 2 * team * data_bytes() : 4 * backward_adders()));
      at.gradients =
          take((has_bands() ? 1 : 2) * operand_bytes(backward_pairs()));
    } else {
      at.states = take(forward_h_bytes());
      const int copies = forward_holds_cells() ? 0 : has_bands() ? 1 : splits;
      at.sums = take(copies * rows() * forward_sums_pitch() * 4);
    }
    at.weights = take((pairs(is_backward) - resident_pairs) * warps *
                      warp_tiles(is_backward) * 2 * kChunkBytes);
    return at;
  }
  constexpr int shared_bytes(bool is_backward) const {
    return rooms(is_backward).end;
  }

  // Teams that are no clusters send through memory, with places for this many
  // steps: in a ring whose places are cleared, what several blocks read, and in
  // one with marks, what is for one block.
  static constexpr int kClearedRing = 32, kMarkedRing = 2;
  constexpr int team_memory_bytes(bool is_backward) const {
    const int cleared =
        is_backward ? team * backward_gates_step_bytes() : forward_step_bytes();
    const int marked =
        is_backward ? backward_step_bytes() : forward_sums_step_bytes();
    // A band's blocks tell each other the powers of rows of the weights.
    const bool has_powers = has_bands() && products == kHalves;
    return kClearedRing * (cleared + norm_bytes()) +
           kMarkedRing * team * marked +
           (has_powers ? bands() * band_rows() * 4 : 0);
  }
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SHAPE_H_
