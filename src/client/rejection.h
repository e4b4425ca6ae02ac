#pragma once

// What calls and streams end with that end without a server's word.

#include <grpcpp/support/status.h>

#include "penstock/client/detail/live_call.h"
#include "penstock/core/circuit_breaker.h"

namespace penstock::inline v0::detail {

// Turned away by the breaker (L6): UNAVAILABLE, with `call rejected: circuit open for another 4.2s` or `call rejected: half-open and every probe slot is taken`.
grpc::Status RejectionStatus(const Admission& admission);

// Ended by its caller, its parent, its client's closing (CANCELLED) or its deadline (DEADLINE_EXCEEDED).
grpc::Status CancelledStatus(CancelReason reason);

}  // namespace penstock::inline v0::detail
