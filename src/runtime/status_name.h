#pragma once

// The names of gRPC's status codes, as its documentation writes them: what telemetry carries and fault scenarios say.
//
// Threads: pure functions.
// Ownership: the names live for ever.
// Time: none.
// Errors: a code outside 0 to 16 is named UNKNOWN (C8).

#include <grpcpp/support/status.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace penstock::inline v0::detail {

inline constexpr std::array<std::string_view, 17> kStatusNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

constexpr std::string_view StatusName(int code) noexcept {
  return code >= 0 && code < static_cast<int>(kStatusNames.size()) ? kStatusNames[static_cast<std::size_t>(code)]
                                                                   : kStatusNames[grpc::StatusCode::UNKNOWN];
}

// Whether a call that ended so is an error to whoever made it; and to the server, of which what a caller asked wrongly is none
// (OpenTelemetry's conventions for gRPC).
constexpr bool IsErrorAtClient(int code) noexcept { return code != grpc::StatusCode::OK; }
constexpr bool IsErrorAtServer(int code) noexcept {
  switch (code) {
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

constexpr std::optional<grpc::StatusCode> StatusNamed(std::string_view name) noexcept {
  for (std::size_t code = 0; code < kStatusNames.size(); ++code) {
    if (kStatusNames[code] == name) return static_cast<grpc::StatusCode>(code);
  }
  return std::nullopt;
}

}  // namespace penstock::inline v0::detail
