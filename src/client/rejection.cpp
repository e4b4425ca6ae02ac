#include "client/rejection.h"

#include <fmt/format.h>

namespace penstock::inline v0::detail {

grpc::Status RejectionStatus(const Admission& admission) {
  if (admission.probes_taken()) {
    return {grpc::StatusCode::UNAVAILABLE, "call rejected: half-open and every probe slot is taken"};
  }
  const double seconds = std::chrono::duration<double>(admission.rejected_for()).count();
  return {grpc::StatusCode::UNAVAILABLE, fmt::format("call rejected: circuit open for another {:.1f}s", seconds)};
}

grpc::Status CancelledStatus(CancelReason reason) {
  switch (reason) {
    case CancelReason::kParent:
      return {grpc::StatusCode::CANCELLED, "the call that this one was made for has ended"};
    case CancelReason::kClosed:
      return {grpc::StatusCode::CANCELLED, "the client was closed"};
    case CancelReason::kDeadline:
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "deadline exceeded"};
    case CancelReason::kNone:
    case CancelReason::kCaller:
    case CancelReason::kServerFault:
      break;
  }
  return {grpc::StatusCode::CANCELLED, "cancelled by the caller"};
}

}  // namespace penstock::inline v0::detail
