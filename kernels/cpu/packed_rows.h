// The order in which the network holds the steps of its sequences.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_PACKED_ROWS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PACKED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cudnn_rnn_tf {

// The sequences are dealt into blocks. Within a block the longest come first,
// so that the sequences which have a step t are its first ones, and the rows of
// a packed matrix are those steps alone: padding is neither stored nor
// computed. Rows are ordered by block, then time, then sequence. A step before
// the first, with the initial states, has a row behind all others for every
// sequence.
//
// Depends on the problem alone, not on the number of threads: one pass leaves
// rows for another.
class PackedRows {
 public:
  static int64_t NumBlocks(int64_t batch_size);
  static int64_t MaxBlockSize(int64_t batch_size);

  struct Block {
    int64_t first_sequence = 0;  // Position among all sequences, as dealt.
    int64_t num_sequences = 0;
    int64_t longest = 0;
    std::vector<int64_t> first_row;  // [longest + 1]: the end is the last.

    int64_t Active(int64_t t) const {
      return t < 0 || t >= longest ? 0 : first_row[t + 1] - first_row[t];
    }
  };

  // Every `stride`-th sequence of a block, from one on: what is carried through
  // time together. All strands of a block have their share of the long ones.
  struct Strand {
    const Block* block = nullptr;
    int64_t offset = 0, stride = 1;
    int64_t num_sequences = 0;
    int64_t longest = 0;
    // Where among its rows, ordered by time, then sequence, a step's begin,
    // [longest + 1].
    std::vector<int64_t> first;

    // How many of its sequences, the first ones, have a step t.
    int64_t Active(int64_t t) const {
      return t < 0 || t >= longest ? 0 : first[t + 1] - first[t];
    }
    // The row of its sequence r.
    int64_t Row(int64_t t, int64_t r) const {
      return block->first_row[t] + offset + r * stride;
    }
    int64_t Position(int64_t r) const {
      return block->first_sequence + offset + r * stride;
    }
    // All its rows.
    std::vector<int64_t> Rows() const;
  };

  // sequence_lengths may be null: all sequences have max_time steps.
  PackedRows(int64_t max_time, int64_t batch_size,
             const int32_t* sequence_lengths);

  // Splits each block into so many strands, or into one for each sequence if it
  // has fewer.
  std::vector<Strand> Strands(int64_t strands_of_block) const;

  // Rows of steps; those of the initial states follow.
  int64_t num_rows() const { return num_rows_; }
  // Which of the caller's sequences stands at a position.
  const std::vector<int64_t>& sequences() const { return sequences_; }
  int64_t length(int64_t position) const { return lengths_[position]; }

  // The row of the step that direction `dir` takes before step t of the
  // strand's sequence r.
  int64_t PreviousRow(const Strand& strand, int64_t t, int64_t r,
                      int64_t dir) const {
    const int64_t before = dir == 0 ? t - 1 : t + 1;
    return r < strand.Active(before) ? strand.Row(before, r)
                                     : num_rows_ + strand.Position(r);
  }
  // The place of every row's step in a caller's tensor.
  std::vector<int64_t> CallerRows(bool time_major) const;
  // The row before every row.
  std::vector<int64_t> PreviousRows(int64_t dir) const;

 private:
  template <typename Body>
  void ForEachRow(const Body& body) const;

  int64_t max_time_, batch_size_;
  std::vector<int64_t> sequences_;
  std::vector<int64_t> lengths_;  // One for each position.
  std::vector<Block> blocks_;
  int64_t num_rows_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PACKED_ROWS_H_
