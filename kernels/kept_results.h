// Results that ops on CPUs keep from call to call, as of packed weights.
#ifndef CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_
#define CUDNN_RNN_TF_KERNELS_KEPT_RESULTS_H_

#include <algorithm>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/rnn_spec.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {

// What was made lately of tensors that hold a network's parameters. Each entry
// holds the tensors that it was made of. While somebody else holds a tensor,
// TensorFlow's variables do not write to its memory but take new memory. So a
// call that gets the same memory again gets the same numbers. (Reference
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
    DropUnused();
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) {
          return Alike(one.spec, spec) &&
                 std::equal(one.tensors.begin(), one.tensors.end(),
                            tensors.begin(), tensors.end(), IsSame);
        });
    if (found == entries_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found);
    return found->result;
  }

  // If two calls that come first at the same time both keep a result, the later
  // entry is the one that is dropped first.
  void Keep(const std::vector<tensorflow::Tensor>& tensors, const RnnSpec& spec,
            const Result& result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_front({tensors, spec, result});
    if (entries_.size() > kMostEntries) entries_.pop_back();
  }

 private:
  struct Entry {
    std::vector<tensorflow::Tensor> tensors;
    RnnSpec spec;
    Result result;
  };
  static constexpr size_t kMostEntries = 64;

  // Drops the entries of which nobody else has a tensor any more: a variable
  // took new memory, or is gone.
  void DropUnused() {
    entries_.remove_if([](const Entry& entry) {
      return std::any_of(
          entry.tensors.begin(), entry.tensors.end(),
          [](const auto& tensor) { return tensor.RefCountIsOne(); });
    });
  }
  static bool IsSame(const tensorflow::Tensor& a, const tensorflow::Tensor& b) {
    return a.SharesBufferWith(b) && a.data() == b.data() &&
           a.dtype() == b.dtype();
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
