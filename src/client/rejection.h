#pragma once

// What a call that the breaker turns away ends with (behaviour.md L6).

#include <grpcpp/support/status.h>

#include "penstock/core/circuit_breaker.h"

namespace penstock::inline v0::detail {

// UNAVAILABLE, with `call rejected: circuit open for another 4.2s` or `call rejected: half-open and every probe slot is taken`.
grpc::Status RejectionStatus(const Admission& admission);

}  // namespace penstock::inline v0::detail
