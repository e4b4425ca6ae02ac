#pragma once

// One broken connection is one failure (behaviour.md C10): what ConnectionMarks decides, for gRPC's attempts.
//
// Every attempt that is admitted reports its beginning and its end here. The end takes the attempt's ticket and settles
// it, at once or once it is known whether the connection had died.
//
// Threads: every member may be called from any thread. What is read of a context is what nobody writes once its call has begun.
// Ownership: see ConnectionMarks.
// Time: real.
// Errors: none.

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <utility>

#include "client/connection_marks.h"
#include "penstock/client/detail/broken_attempt.h"
#include "penstock/client/settings.h"
#include "penstock/core/circuit_breaker.h"
#include "runtime/grpc_quirks.h"

namespace penstock::inline v0::detail {

class BrokenConnections {
 public:
  // `counted_late` is called for each attempt that was held back and counts as a failure after all.
  BrokenConnections(const ConnectionSettings& settings, std::function<void()> counted_late)
      : marks_({.reconnect_first = settings.reconnect_first,
                .reconnect_highest = settings.reconnect_highest,
                .late_answers = CallbackThreads() - 1,
                .text_of = &TransportTextOf,
                .counted_late = std::move(counted_late)}) {}

  void Began(BrokenAttempt& attempt) noexcept { attempt.began = marks_.Begin(); }

  // It was answered on its connection: any end but those for the other two. For a stream, when it opens. What ends
  // again, or has not begun, says nothing.
  void Ended(BrokenAttempt& attempt, const grpc::ClientContext& context) noexcept {
    const std::uint64_t began = std::exchange(attempt.began, 0);
    if (began == 0 || !marks_.End(began)) return;
    marks_.Answered(began, ConnectionUsed(context));
  }

  // It ended in a way that says neither that its connection is broken nor that it lives: cancelled, out of time, or a
  // stream's neutral end (S3).
  void Withdrawn(BrokenAttempt& attempt) noexcept {
    const std::uint64_t began = std::exchange(attempt.began, 0);
    if (began != 0 && marks_.End(began)) [[unlikely]]
      marks_.Withdrawn();
  }

  // It was killed by a server that shuts down (C3). True: it takes a token, as the first that met that shutdown.
  bool Killed(BrokenAttempt& attempt, const grpc::ClientContext& context) noexcept {
    const std::uint64_t began = std::exchange(attempt.began, 0);
    return began == 0 || marks_.Killed(began, ConnectionUsed(context));
  }

  // It ended with UNAVAILABLE that was classified a failure. Settles the ticket, now or later. True: it counts now (and
  // takes a token); false: it is held back or ignored.
  bool EndedUnavailable(BrokenAttempt& attempt, const grpc::ClientContext& context, const grpc::Status& status, bool has_metadata,
                        CircuitTicket ticket) noexcept {
    const std::uint64_t began = std::exchange(attempt.began, 0);
    ConnectionMarks::Fate fate = ConnectionMarks::Fate::kCounts;
    if (began != 0) fate = marks_.Broke(began, ConnectionUsed(context), status.error_message(), has_metadata, ticket);
    if (fate == ConnectionMarks::Fate::kHeld) return false;
    ticket.Settle(fate == ConnectionMarks::Fate::kCounts ? Outcome::kFailure : Outcome::kIgnored);
    return fate == ConnectionMarks::Fate::kCounts;
  }

 private:
  static ConnectionMarks::Connection ConnectionUsed(const grpc::ClientContext& context) {
    std::shared_ptr<const grpc::AuthContext> auth_context = AuthContextOf(context);
    const void* const identity = ConnectionOf(*auth_context);
    return {identity, std::move(auth_context)};
  }

  ConnectionMarks marks_;
};

}  // namespace penstock::inline v0::detail
