#include "kernels/cpu/packed_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/cpu/schedule.h"

namespace cudnn_rnn_tf {
namespace {

// The most sequences of a block. They share each reading of the recurrent
// weights, which takes long if no near cache holds these.
constexpr int64_t kBlockSize = 64;

}  // namespace

int64_t PackedRows::NumBlocks(int64_t batch_size) {
  const int64_t blocks = CeilDiv(batch_size, kBlockSize);
  // An even number of blocks can be halved between threads.
  return std::min(batch_size, blocks > 1 ? CeilDiv(blocks, 2) * 2 : blocks);
}

int64_t PackedRows::MaxBlockSize(int64_t batch_size) {
  return CeilDiv(batch_size, NumBlocks(batch_size));
}

PackedRows::PackedRows(int64_t max_time, int64_t batch_size,
                       const int32_t* sequence_lengths, const void* resets,
                       bool time_major)
    : max_time_(max_time),
      batch_size_(batch_size),
      sequences_(batch_size),
      lengths_(batch_size, max_time),
      blocks_(NumBlocks(batch_size)),
      resets_(static_cast<const bool*>(resets)),
      time_major_(time_major) {
  const int64_t num_blocks = static_cast<int64_t>(blocks_.size());
  std::vector<int64_t> sorted(batch_size);
  std::iota(sorted.begin(), sorted.end(), int64_t{0});
  if (sequence_lengths != nullptr) {
    std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
      return sequence_lengths[a] > sequence_lengths[b];
    });
  }
  int64_t position = 0;
  for (int64_t i = 0; i < num_blocks; ++i) {
    Block& block = blocks_[i];
    block.first_sequence = position;
    // Sequences are dealt to the blocks by turns, so that every block has its
    // share of the long ones.
    for (int64_t next = i; next < batch_size; next += num_blocks) {
      sequences_[position] = sorted[next];
      if (sequence_lengths != nullptr) {
        lengths_[position] = sequence_lengths[sorted[next]];
      }
      ++position;
    }
    block.num_sequences = position - block.first_sequence;
    block.longest = lengths_[block.first_sequence];
    block.first_row.reserve(block.longest + 1);
    int64_t active = block.num_sequences;
    for (int64_t t = 0; t < block.longest; ++t) {
      while (lengths_[block.first_sequence + active - 1] <= t) --active;
      block.first_row.push_back(num_rows_);
      num_rows_ += active;
    }
    block.first_row.push_back(num_rows_);
  }
}

std::vector<PackedRows::Strand> PackedRows::Strands(
    int64_t strands_of_block) const {
  std::vector<Strand> strands;
  for (const Block& block : blocks_) {
    const int64_t stride = std::min(strands_of_block, block.num_sequences);
    for (int64_t offset = 0; offset < stride; ++offset) {
      Strand strand;
      strand.block = &block;
      strand.offset = offset;
      strand.stride = stride;
      strand.num_sequences = CeilDiv(block.num_sequences - offset, stride);
      strand.longest = lengths_[block.first_sequence + offset];
      strand.first.reserve(strand.longest + 1);
      int64_t rows = 0;
      for (int64_t t = 0; t <= strand.longest; ++t) {
        strand.first.push_back(rows);
        rows += CeilDiv(std::max<int64_t>(0, block.Active(t) - offset), stride);
      }
      strands.push_back(std::move(strand));
    }
  }
  return strands;
}

std::vector<int64_t> PackedRows::Strand::Rows() const {
  std::vector<int64_t> rows;
  rows.reserve(first.back());
  for (int64_t t = 0; t < longest; ++t) {
    for (int64_t r = 0; r < Active(t); ++r) rows.push_back(Row(t, r));
  }
  return rows;
}

std::vector<int64_t> PackedRows::CallerRows(bool time_major) const {
  std::vector<int64_t> rows;
  rows.reserve(num_rows_);
  for (const Block& block : blocks_) {
    for (int64_t t = 0; t < block.longest; ++t) {
      for (int64_t r = 0; r < block.Active(t); ++r) {
        rows.push_back(CallerRow(block.first_sequence + r, t, time_major));
      }
    }
  }
  return rows;
}

std::vector<int64_t> PackedRows::PreviousRows(int64_t dir) const {
  std::vector<int64_t> rows(num_rows_);
  for (const Strand& strand : Strands(1)) {
    for (int64_t t = 0; t < strand.longest; ++t) {
      for (int64_t r = 0; r < strand.Active(t); ++r) {
        rows[strand.Row(t, r)] = PreviousRow(strand, t, r, dir);
      }
    }
  }
  return rows;
}

}  // namespace cudnn_rnn_tf
