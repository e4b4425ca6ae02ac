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

}  // namespace penstock::inline v0::detail
