// The plans that a device keeps from call to call.
#ifndef CUDNN_RNN_TF_KERNELS_PLAN_CACHE_H_
#define CUDNN_RNN_TF_KERNELS_PLAN_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/maps.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Keeps the most recently used plans, for any thread. No lock is held while
// somebody makes one.
class PlanCache {
 public:
  // What came of making a plan.
  struct Made {
    RnnStatus status;
    std::shared_ptr<const RnnPlan> plan;  // Null after a failure.
    // True if a better one, or one at all, may be had later: there was no
    // memory, for example. The next use makes it again, and after each further
    // failure twice as many uses as before get this one first.
    bool is_provisional = false;
  };

  // Returns false if the plan is to be made.
  bool Find(const std::string& key, Made* made) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = Use(key);
    if (!entry.is_kept || (entry.made.is_provisional && entry.uses_left == 0)) {
      return false;
    }
    if (entry.made.is_provisional) --entry.uses_left;
    *made = entry.made;
    return true;
  }
  void Keep(const std::string& key, const Made& made) {
    constexpr int64_t kMostUses = int64_t{1} << 20;
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = Use(key);
    entry.is_kept = true;
    entry.made = made;
    entry.uses_left = entry.next_uses;
    entry.next_uses = std::clamp<int64_t>(2 * entry.next_uses, 1, kMostUses);
  }

 private:
  // Programs whose shapes keep changing make ever more plans.
  static constexpr size_t kMostPlans = 2048;

  struct Entry {
    bool is_kept = false;
    Made made;
    int64_t uses_left = 0, next_uses = 0;  // Of a provisional plan.
  };

  Entry& Use(const std::string& key) {
    Entry& entry = entries_.Use(key);
    if (entries_.size() > kMostPlans) entries_.DropOldest();
    return entry;
  }

  std::mutex mutex_;
  LruMap<Entry> entries_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_PLAN_CACHE_H_
