// Checks what XLA is told of a handler's failures.
#include <cstdio>
#include <new>
#include <stdexcept>

#include "kernels/xla/call_buffers.h"

int main() {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  int failures = Handle([] { return RnnStatus(); }).success() ? 0 : 1;
  const auto check = [&](const ffi::Error& error, ffi::ErrorCode code,
                         const char* message) {
    if (error.errc() == code && error.message() == message) return;
    std::printf("expected error %d '%s', but received another: '%s'\n",
                static_cast<int>(code), message, error.message().c_str());
    ++failures;
  };
  check(Handle([] {
          return RnnStatus{RnnStatus::Code::kFailedPrecondition, "why"};
        }),
        ffi::ErrorCode::kFailedPrecondition, "why");
  check(Handle([]() -> RnnStatus { throw std::bad_alloc(); }),
        ffi::ErrorCode::kResourceExhausted, "out of memory");
  check(Handle([]() -> RnnStatus { throw std::invalid_argument("few"); }),
        ffi::ErrorCode::kInvalidArgument, "few");
  check(Handle([]() -> RnnStatus { throw std::runtime_error("why"); }),
        ffi::ErrorCode::kInternal, "why");
  if (failures == 0) std::puts("well");
  return failures;
}
