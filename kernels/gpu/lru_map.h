#ifndef CUDNN_RNN_TF_KERNELS_GPU_LRU_MAP_H_
#define CUDNN_RNN_TF_KERNELS_GPU_LRU_MAP_H_

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

namespace cudnn_rnn_tf {

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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_LRU_MAP_H_
