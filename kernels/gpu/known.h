#ifndef CUDNN_RNN_TF_KERNELS_GPU_KNOWN_H_
#define CUDNN_RNN_TF_KERNELS_GPU_KNOWN_H_

#include <map>
#include <mutex>

namespace cudnn_rnn_tf {

// What the process has got, by name, for any thread. No lock is held while
// somebody gets it.
template <typename Name, typename Value>
class Known {
 public:
  bool Find(const Name& name, Value* value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = values_.find(name);
    if (found == values_.end()) return false;
    *value = found->second;
    return true;
  }
  // Sets `value` to what another thread has added meanwhile, if one has.
  void Add(const Name& name, Value* value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    *value = values_.emplace(name, *value).first->second;
  }
  // Replaces what may be known. So that names that keep changing do not fill
  // the memory, all are forgotten at times.
  void Replace(const Name& name, const Value& value) {
    constexpr size_t kMost = 4096;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (values_.size() >= kMost) values_.clear();
    values_[name] = value;
  }
  std::map<Name, Value> All() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_;
  }

 private:
  std::mutex mutex_;
  std::map<Name, Value> values_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_KNOWN_H_
