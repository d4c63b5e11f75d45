// Maps of what is kept from one call to the next.
#ifndef CUDNN_RNN_TF_KERNELS_MAPS_H_
#define CUDNN_RNN_TF_KERNELS_MAPS_H_

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

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

// Values by key, in the order of their last use. Values stay in their places.
template <typename Value>
class LruMap {
 public:
  // Returns the value of the key, from now on the most recently used one, and
  // makes it if there is none.
  Value& Use(const std::string& key) {
    const auto [found, is_new] = places_.try_emplace(key);
    if (is_new) {
      // If there is no memory for a value, a key without one must not stay.
      try {
        entries_.emplace_front();
      } catch (...) {
        places_.erase(found);
        throw;
      }
      found->second = entries_.begin();
      found->second->first = &found->first;
    } else {
      entries_.splice(entries_.begin(), entries_, found->second);
    }
    return entries_.front().second;
  }
  // Returns null if there is none.
  Value* Find(const std::string& key) {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second->second;
  }
  size_t size() const { return entries_.size(); }
  Value& oldest() { return entries_.back().second; }
  void DropOldest() {
    places_.erase(places_.find(*entries_.back().first));
    entries_.pop_back();
  }
  // Calls `visit` with each value, the least recently used one first, until it
  // returns false.
  template <typename Visit>
  void VisitFromOldest(const Visit& visit) {
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (!visit(entry->second)) return;
    }
  }

 private:
  // The keys are those of `places_`, which do not move.
  using Entries = std::list<std::pair<const std::string*, Value>>;

  Entries entries_;
  std::unordered_map<std::string, typename Entries::iterator> places_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_MAPS_H_
