// Results that ops on CPUs keep from call to call, as of packed weights.
#ifndef CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_
#define CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/rnn_spec.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {

// Returns a number of 64 bits that depends on all bytes of some tensors, and on
// their places. It takes as long as to read them, once.
inline uint64_t FingerprintOf(const std::vector<tensorflow::Tensor>& tensors) {
  // Lanes do not wait for each other's products.
  constexpr size_t kLanes = 8, kBlock = kLanes * 2 * sizeof(uint64_t);
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * kOdd;
  const auto mix = [](uint64_t a, uint64_t b) {
    __extension__ const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^
           static_cast<uint64_t>(product >> 64);
  };
  const auto take = [&](const char* block) {
    for (uint64_t& lane : lanes) {
      uint64_t words[2];
      std::memcpy(words, block, sizeof(words));
      block += sizeof(words);
      lane = mix(words[0] ^ kOdd, words[1] ^ lane);
    }
  };
  for (const tensorflow::Tensor& tensor : tensors) {
    const auto bytes = tensor.tensor_data();
    const size_t whole = bytes.size() / kBlock * kBlock;
    for (size_t at = 0; at < whole; at += kBlock) take(bytes.data() + at);
    char last[kBlock] = {};
    std::copy(bytes.begin() + whole, bytes.end(), last);
    take(last);
  }
  uint64_t all = 0;
  for (const uint64_t lane : lanes) all = mix(all ^ kOdd, lane);
  return all;
}

// What was made lately of tensors that hold a network's parameters. The tensors
// that an entry was made of are held. While somebody else holds a tensor, an
// update of a TensorFlow variable takes new memory rather than write to it. But
// others, to whom a program gave the memory by DLPack, may write to it between
// calls. So an entry also has the tensors' fingerprint. (Reference variables of
// TensorFlow 1 may be written to during a call; the ops' attribute
// may_keep_params is false for them.)
//
// An entry of which nobody else has a tensor any more is dropped by the next
// call of any op that may find one, since a variable took new memory, or is
// gone. Of all other entries, the most recently used are kept: up to
// kMostEntries, with results of up to kMostBytes together.
//
// All functions may be called by several threads at the same time.
template <typename Result>
class KeptResults {
 public:
  void DropUnused() {
    Entries unused;  // Is freed after the lock.
    const std::lock_guard<std::mutex> lock(mutex_);
    unused = TakeUnused();
  }

  // Returns what was kept for these tensors, which hold the parameters of the
  // network `spec`, and have this fingerprint; no value if nothing was.
  std::optional<Result> Find(const std::vector<tensorflow::Tensor>& tensors,
                             uint64_t fingerprint, const RnnSpec& spec) {
    DropUnused();
    Entries changed;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = EntryOf(tensors, spec);
    if (found == entries_.end()) return std::nullopt;
    if (found->fingerprint != fingerprint) {
      changed.splice(changed.end(), entries_, found);
      return std::nullopt;
    }
    entries_.splice(entries_.begin(), entries_, found);
    return found->result;
  }

  // Keeps a result of so many bytes, unless another call has kept one in the
  // meantime. The fingerprint is the one from before the result was made.
  void Keep(const std::vector<tensorflow::Tensor>& tensors,
            uint64_t fingerprint, const RnnSpec& spec, const Result& result,
            size_t bytes) {
    // It would take the place of all others and then be dropped itself.
    if (bytes > kMostBytes) return;
    Entries surplus;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (EntryOf(tensors, spec) != entries_.end()) return;
    Entry entry = {{}, fingerprint, spec, result, bytes};
    for (const tensorflow::Tensor& tensor : tensors) {
      entry.tensors.push_back(Held(tensor, entry));
    }
    entries_.push_front(std::move(entry));
    surplus = TakeSurplus();
  }

 private:
  // Entries that are made of the same tensor share one reference to it.
  // Otherwise they would take each other's references for somebody else's.
  using HeldTensor = std::shared_ptr<tensorflow::Tensor>;
  struct Entry {
    std::vector<HeldTensor> tensors;
    uint64_t fingerprint;
    RnnSpec spec;
    Result result;
    size_t bytes;
  };
  using Entries = std::list<Entry>;
  static constexpr size_t kMostEntries = 64;
  static constexpr size_t kMostBytes = size_t{1} << 30;

  typename Entries::iterator EntryOf(
      const std::vector<tensorflow::Tensor>& tensors, const RnnSpec& spec) {
    return std::find_if(
        entries_.begin(), entries_.end(), [&](const Entry& one) {
          return std::equal(one.tensors.begin(), one.tensors.end(),
                            tensors.begin(), tensors.end(), IsSame) &&
                 HaveSameParams(one.spec, spec);
        });
  }
  // Both return entries that were removed from the list. The caller frees their
  // memory when it no longer has the lock.
  Entries TakeUnused() {
    Entries taken;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (std::any_of(entry->tensors.begin(), entry->tensors.end(), IsUnused)) {
        taken.splice(taken.end(), entries_, entry);
      }
      entry = next;
    }
    return taken;
  }
  Entries TakeSurplus() {
    Entries taken;
    size_t count = 0, bytes = 0;
    const auto surplus =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
          bytes += entry.bytes;
          return ++count > kMostEntries || bytes > kMostBytes;
        });
    taken.splice(taken.end(), entries_, surplus, entries_.end());
    return taken;
  }
  // Tells whether only entries have the tensor. Tensor::RefCountIsOne is always
  // false if the memory is not TensorFlow's own, as that of a tensor made of an
  // aligned NumPy array.
  static bool IsUnused(const HeldTensor& held) {
    tensorflow::TensorBuffer* const buffer =
        tensorflow::DMAHelper::buffer(held.get());
    return buffer != nullptr && buffer->RefCountIsOne() &&
           buffer->root_buffer()->RefCountIsOne();
  }
  // Returns the reference that an entry, or the unfinished one, has to this
  // tensor; a new one if none has.
  HeldTensor Held(const tensorflow::Tensor& tensor,
                  const Entry& unfinished) const {
    for (const HeldTensor& held : unfinished.tensors) {
      if (IsSame(held, tensor)) return held;
    }
    for (const Entry& entry : entries_) {
      for (const HeldTensor& held : entry.tensors) {
        if (IsSame(held, tensor)) return held;
      }
    }
    return std::make_shared<tensorflow::Tensor>(tensor);
  }
  static bool IsSame(const HeldTensor& held, const tensorflow::Tensor& tensor) {
    return held->SharesBufferWith(tensor) && held->data() == tensor.data() &&
           held->dtype() == tensor.dtype();
  }
  std::mutex mutex_;
  Entries entries_;  // The most recently used come first.
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_
