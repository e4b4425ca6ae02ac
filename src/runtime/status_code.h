#pragma once

// A status code that is one of gRPC's (C8).
//
// A peer may send `grpc-status: 99`, and gRPC hands it on. Whatever lies outside 0 to 16 is UNKNOWN from here on, so
// that nobody who switches over the codes meets a seventeenth.
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: none.

#include <grpcpp/support/status.h>

#include <utility>

namespace penstock::inline v0::detail {

constexpr grpc::StatusCode NormalCode(int code) noexcept {
  return code >= grpc::StatusCode::OK && code <= grpc::StatusCode::UNAUTHENTICATED ? static_cast<grpc::StatusCode>(code)
                                                                                   : grpc::StatusCode::UNKNOWN;
}

// The status itself where its code is one of gRPC's; else UNKNOWN with the same message and details.
inline grpc::Status NormalStatus(grpc::Status status) {
  const int code = static_cast<int>(status.error_code());
  if (NormalCode(code) == code) return status;
  return grpc::Status(grpc::StatusCode::UNKNOWN, status.error_message(), status.error_details());
}

}  // namespace penstock::inline v0::detail
