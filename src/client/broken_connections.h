#pragma once

// One broken connection is one failure (behaviour.md C10).
//
// Every attempt that is admitted reports its beginning and its end here. The end takes the attempt's ticket and settles it,
// at once or once it is known whether the connection had died.

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "penstock/client/detail/broken_attempt.h"
#include "penstock/core/circuit_breaker.h"

namespace penstock::inline v0::detail {

class BrokenConnections {
 public:
  // One relaxed load while no connection is marked, here and in Ended().
  void Began(BrokenAttempt& /*attempt*/) noexcept {}

  // The end of an attempt that says nothing against its connection: any but those for EndedUnavailable().
  void Ended(BrokenAttempt& /*attempt*/, const grpc::ClientContext& /*context*/) noexcept {}

  // The end of a stream's attempt with UNAVAILABLE that is neutral (S3): it says neither that its connection is broken nor that it
  // lives.
  void Withdrawn(BrokenAttempt& /*attempt*/, const grpc::ClientContext& /*context*/) noexcept {}

  // The end of an attempt with UNAVAILABLE that was classified a failure. Settles the ticket, now or later. `connection` is null
  // where none was picked. True: it counts now (and takes a token); false: it is held back or ignored.
  bool EndedUnavailable(BrokenAttempt& /*attempt*/, const grpc::ClientContext& /*context*/, const void* /*connection*/,
                        const grpc::Status& /*status*/, CircuitTicket ticket) noexcept {
    ticket.Settle(Outcome::kFailure);
    return true;
  }
};

}  // namespace penstock::inline v0::detail
