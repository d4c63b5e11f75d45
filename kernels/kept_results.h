// Results that ops on CPUs keep from call to call, as of packed weights.
#ifndef CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_
#define CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/rnn_spec.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {

// What was made lately of tensors that hold a network's parameters. The tensors
// that an entry was made of are held. While somebody else holds a tensor, an
// update of a TensorFlow variable takes new memory rather than write to it. So
// a call that gets the same memory again gets the same numbers. (Reference
// variables of TensorFlow 1 do not keep to this; the ops' attribute
// may_keep_params is false for them.)
//
// All functions may be called by several threads at the same time.
template <typename Result>
class KeptResults {
 public:
  // Returns what was kept for these tensors, which hold the parameters of the
  // network `spec`; no value if nothing was.
  std::optional<Result> Find(const std::vector<tensorflow::Tensor>& tensors,
                             const RnnSpec& spec) {
    const std::lock_guard<std::mutex> lock(mutex_);
    RemoveUnused();
    const auto found = EntryOf(tensors, spec);
    if (found == entries_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found);
    return found->result;
  }

  // Keeps a result, unless another call has kept one in the meantime.
  void Keep(const std::vector<tensorflow::Tensor>& tensors, const RnnSpec& spec,
            const Result& result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (EntryOf(tensors, spec) != entries_.end()) return;
    Entry entry = {{}, spec, result};
    for (const tensorflow::Tensor& tensor : tensors) {
      entry.tensors.push_back(Held(tensor, entry));
    }
    entries_.push_front(std::move(entry));
    if (entries_.size() > kMostEntries) entries_.pop_back();
  }

  // Drops the entries of which nobody else has a tensor any more: a variable
  // took new memory, or is gone. Find does so as well. This is for calls that
  // look for nothing, as in training, since no other call may come for long.
  void DropUnused() {
    const std::lock_guard<std::mutex> lock(mutex_);
    RemoveUnused();
  }

 private:
  // Entries that are made of the same tensor share one reference to it.
  // Otherwise they would take each other's references for somebody else's.
  using HeldTensor = std::shared_ptr<const tensorflow::Tensor>;
  struct Entry {
    std::vector<HeldTensor> tensors;
    RnnSpec spec;
    Result result;
  };
  static constexpr size_t kMostEntries = 64;

  typename std::list<Entry>::iterator EntryOf(
      const std::vector<tensorflow::Tensor>& tensors, const RnnSpec& spec) {
    return std::find_if(
        entries_.begin(), entries_.end(), [&](const Entry& one) {
          return Alike(one.spec, spec) &&
                 std::equal(one.tensors.begin(), one.tensors.end(),
                            tensors.begin(), tensors.end(), IsSame);
        });
  }
  void RemoveUnused() {
    entries_.remove_if([](const Entry& entry) {
      return std::any_of(
          entry.tensors.begin(), entry.tensors.end(),
          [](const HeldTensor& held) { return held->RefCountIsOne(); });
    });
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
    return std::make_shared<const tensorflow::Tensor>(tensor);
  }
  static bool IsSame(const HeldTensor& held, const tensorflow::Tensor& tensor) {
    return held->SharesBufferWith(tensor) && held->data() == tensor.data() &&
           held->dtype() == tensor.dtype();
  }
  // Tells whether networks have the same parameters.
  static bool Alike(const RnnSpec& a, const RnnSpec& b) {
    return a.rnn_mode == b.rnn_mode && a.num_layers == b.num_layers &&
           a.num_units == b.num_units && a.num_proj == b.num_proj &&
           a.input_size == b.input_size && a.input_mode == b.input_mode &&
           a.direction == b.direction && a.bias_mode == b.bias_mode;
  }

  std::mutex mutex_;
  std::list<Entry> entries_;  // The most recently used come first.
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_
