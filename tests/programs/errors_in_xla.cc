// Checks what XLA is told of a handler's failures.
#include <cstdio>
#include <new>
#include <stdexcept>

#include "kernels/xla/handler.h"

int main() {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  using Code = RnnStatus::Code;
  int failures = Handle([] { return RnnStatus(); }).success() ? 0 : 1;
  const auto check = [&](const ffi::Error& error, ffi::ErrorCode code,
                         const char* message) {
    if (error.errc() == code && error.message() == message) return;
    std::printf("expected error %d '%s', but received another: '%s'\n",
                static_cast<int>(code), message, error.message().c_str());
    ++failures;
  };
  const std::pair<Code, ffi::ErrorCode> codes[] = {
      {Code::kInvalidArgument, ffi::ErrorCode::kInvalidArgument},
      {Code::kResourceExhausted, ffi::ErrorCode::kResourceExhausted},
      {Code::kFailedPrecondition, ffi::ErrorCode::kFailedPrecondition},
      {Code::kUnimplemented, ffi::ErrorCode::kUnimplemented},
      {Code::kInternal, ffi::ErrorCode::kInternal}};
  for (const auto& [code, expected] : codes) {
    const RnnStatus status = {code, "why"};
    check(Handle([&] { return status; }), expected, "why");
  }
  check(Handle([]() -> RnnStatus { throw std::bad_alloc(); }),
        ffi::ErrorCode::kResourceExhausted, "out of memory");
  check(Handle([]() -> RnnStatus { throw std::invalid_argument("few"); }),
        ffi::ErrorCode::kInvalidArgument, "few");
  check(Handle([]() -> RnnStatus { throw std::runtime_error("why"); }),
        ffi::ErrorCode::kInternal, "why");
  if (failures == 0) std::puts("well");
  return failures;
}
