// The order in which the network holds the steps of its sequences.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_PACKED_ROWS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PACKED_ROWS_H_

#include <cstdint>
#include <vector>

namespace cudnn_rnn_tf {

// The sequences are dealt into blocks. Within a block the longest come first,
// so that the sequences which have a step t are its first ones. A packed matrix
// has one row for each step that a sequence has; padding is neither stored nor
// computed. Rows are ordered by block, then time, then sequence. After them,
// each sequence has one more row for its initial states.
//
// The order depends on the problem alone and not on the number of threads,
// because a backward pass reads the rows that a forward pass has left.
class PackedRows {
 public:
  static int64_t NumBlocks(int64_t batch_size);
  static int64_t MaxBlockSize(int64_t batch_size);

  struct Block {
    int64_t first_sequence = 0;  // Its position in sequences().
    int64_t num_sequences = 0;
    int64_t longest = 0;
    std::vector<int64_t> first_row;  // [longest + 1]; the last is the end.

    int64_t Active(int64_t t) const {
      return t < 0 || t >= longest ? 0 : first_row[t + 1] - first_row[t];
    }
  };

  // Every `stride`-th sequence of a block, beginning with number `offset`. They
  // go through time together. Since a block is sorted by length, each of its
  // strands has its share of the long sequences.
  struct Strand {
    const Block* block = nullptr;
    int64_t offset = 0, stride = 1;
    int64_t num_sequences = 0;
    int64_t longest = 0;
    // [longest + 1]: if the strand's own rows are numbered by time, then by
    // sequence, this is the number of the first one at each time.
    std::vector<int64_t> first;

    // Returns how many of its sequences have a step t. They are its first ones.
    int64_t Active(int64_t t) const {
      return t < 0 || t >= longest ? 0 : first[t + 1] - first[t];
    }
    // Returns the row of step t of its sequence r.
    int64_t Row(int64_t t, int64_t r) const {
      return block->first_row[t] + offset + r * stride;
    }
    int64_t Position(int64_t r) const {
      return block->first_sequence + offset + r * stride;
    }
    // Returns all its rows, ordered by time, then by sequence.
    std::vector<int64_t> Rows() const;
  };

  // If `sequence_lengths` is null, all sequences have max_time steps.
  PackedRows(int64_t max_time, int64_t batch_size,
             const int32_t* sequence_lengths);

  // Splits each block into the given number of strands, or into one for each
  // sequence if it has fewer. The strands must not outlive this object.
  std::vector<Strand> Strands(int64_t strands_of_block) const;

  // The number of rows that belong to steps. The rows of the initial states
  // follow them.
  int64_t num_rows() const { return num_rows_; }
  // By position, the number of the sequence in the caller's batch.
  const std::vector<int64_t>& sequences() const { return sequences_; }
  int64_t length(int64_t position) const { return lengths_[position]; }

  // Returns the row of the step that direction `dir` takes before step t of the
  // strand's sequence r. Before its first step, that is the row of its initial
  // states.
  int64_t PreviousRow(const Strand& strand, int64_t t, int64_t r,
                      int64_t dir) const {
    const int64_t before = dir == 0 ? t - 1 : t + 1;
    return r < strand.Active(before) ? strand.Row(before, r)
                                     : num_rows_ + strand.Position(r);
  }
  // Returns the index of every row's step in a caller's [T, B] or [B, T]
  // tensor.
  std::vector<int64_t> CallerRows(bool time_major) const;
  // Returns PreviousRow for every row.
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
