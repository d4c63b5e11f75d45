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
// each sequence has one more row for its initial states. With resets, there is
// one more, of zeros, for the states before a step that starts anew.
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

  // If `sequence_lengths` is null, all sequences have max_time steps. `resets`,
  // booleans [T, B] or [B, T], must outlive this object; null for none.
  PackedRows(int64_t max_time, int64_t batch_size,
             const int32_t* sequence_lengths, const void* resets = nullptr,
             bool time_major = true);

  // Splits each block into the given number of strands, or into one for each
  // sequence if it has fewer. The strands must not outlive this object.
  std::vector<Strand> Strands(int64_t strands_of_block) const;

  // The number of rows that belong to steps. The rows of the initial states
  // follow them.
  int64_t num_rows() const { return num_rows_; }
  // By position, the number of the sequence in the caller's batch.
  const std::vector<int64_t>& sequences() const { return sequences_; }
  int64_t length(int64_t position) const { return lengths_[position]; }

  // Tells whether direction `dir` starts anew at step t of a sequence: the
  // second one does at a segment's last step.
  bool StartsAnew(int64_t position, int64_t t, int64_t dir) const {
    if (resets_ == nullptr || t < 0 || t + dir >= lengths_[position]) {
      return false;
    }
    return resets_[CallerRow(position, t + dir, time_major_)];
  }
  // Returns the row of the states before direction `dir` takes step t of the
  // strand's sequence r: that of the step before, of the initial states, or of
  // zeros.
  int64_t PreviousRow(const Strand& strand, int64_t t, int64_t r,
                      int64_t dir) const {
    if (StartsAnew(strand.Position(r), t, dir)) return num_rows_ + batch_size_;
    const int64_t before = dir == 0 ? t - 1 : t + 1;
    return r < strand.Active(before) ? strand.Row(before, r)
                                     : num_rows_ + strand.Position(r);
  }
  // Returns the index of a step in a caller's [T, B] or [B, T] tensor.
  int64_t CallerRow(int64_t position, int64_t t, bool time_major) const {
    const int64_t sequence = sequences_[position];
    return time_major ? t * batch_size_ + sequence : sequence * max_time_ + t;
  }
  // Returns that of every row's step.
  std::vector<int64_t> CallerRows(bool time_major) const;
  // Returns PreviousRow for every row.
  std::vector<int64_t> PreviousRows(int64_t dir) const;

 private:
  int64_t max_time_, batch_size_;
  std::vector<int64_t> sequences_;
  std::vector<int64_t> lengths_;  // One for each position.
  std::vector<Block> blocks_;
  int64_t num_rows_ = 0;
  const bool* const resets_;
  const bool time_major_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PACKED_ROWS_H_
