// Helpers for programs that draw random numbers and let calls fail, by chance
// or one after the other.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_DRAWS_AND_FAILURES_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_DRAWS_AND_FAILURES_H_

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

inline std::mt19937 generator;

inline int64_t Draw(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(generator() % (most - least + 1));
}

// The number of fake calls since an attempt began, the number of the call that
// is to fail, and the name of the one that did.
inline int num_calls = 0, failing_call = -1;
inline std::string failed_call;

// Counts a fake call, and returns whether it is to fail. Each fake call asks
// this first.
inline bool Fails(const char* call) {
  if (num_calls++ != failing_call) return false;
  failed_call = call;
  return true;
}

// Makes one attempt for each call that can fail, in which that call fails, and
// then one in which none does.
inline void FailEachCall(
    const std::function<RnnStatus()>& attempt,
    const std::function<void(const RnnStatus&)>& check_failure) {
  for (int call = 0;; ++call) {
    failed_call.clear();
    num_calls = 0;
    failing_call = call;
    const RnnStatus status = attempt();
    failing_call = -1;
    if (failed_call.empty()) {
      Check(status.ok(), status.message);
      return;
    }
    Check(!status.ok(), "an outcome after " + failed_call + " failed");
    Check(num_calls == call + 1, "calls after " + failed_call + " failed");
    check_failure(status);
  }
}

inline bool Names(const RnnStatus& status, const std::string& what) {
  return status.message.find(what) != std::string::npos;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_DRAWS_AND_FAILURES_H_
