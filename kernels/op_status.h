// How ops and kernels report errors to TensorFlow.
#ifndef CUDNN_RNN_TF_KERNELS_OP_STATUS_H_
#define CUDNN_RNN_TF_KERNELS_OP_STATUS_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cudnn_rnn_tf {

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Returns what `body` returns, or a status if it throws. An exception must not
// pass through TensorFlow's own functions: it would leave locks held or end the
// process. So every shape function and every kernel is called by way of this.
template <typename Body>
absl::Status WithoutExceptions(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_OP_STATUS_H_
