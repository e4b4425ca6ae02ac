#pragma once

// What is done with an attempt: its context is filled, its end read and settled.

#include <grpcpp/client_context.h>
#include <grpcpp/security/auth_context.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "client/client_state.h"
#include "client/judge.h"
#include "penstock/client/call.h"
#include "penstock/client/detail/broken_attempt.h"
#include "penstock/client/detail/method_entry.h"
#include "penstock/client/detail/retry_loop.h"
#include "penstock/faults.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0::detail {

// Why the options cannot be used, as the status of the call: what gRPC would abort on, and a detached call without a
// deadline.
std::optional<grpc::Status> RefuseOptions(const CallOptions& options);

// The deadline of a call that begins `now`: the earliest of the options', the parent's and `timeout` (TimePoint::max() for none).
TimePoint DeadlineOf(const CallOptions& options, TimePoint now, Duration timeout);

// What an attempt of the call carries of trace and baggage: its parent's, and instead of it the call's own. `faults`: null or the
// settings' injector, which takes its scenario out.
OutgoingMetadata RelayedBy(const CallOptions& options, FaultInjector* faults);

// Puts deadline, metadata and options into the context of an attempt, and tells the observer.
struct AttemptContext {
  ClientState& state;
  const MethodEntry& method;
  const CallOptions& options;
  TimePoint deadline;
  std::uint32_t attempt;
  bool stream;
};
std::unique_ptr<AttemptObservation> FillContext(const AttemptContext& attempt, grpc::ClientContext& context);

// What strikes an attempt of this call; only where the settings have an injector.
Fault FaultFor(ClientState& state, const MethodEntry& method, const CallOptions& options);

// The end of an attempt as it is read once.
struct EndedAttempt {
  TimePoint now{};
  AttemptFacts facts;
  // The connection it used, by its identity; null where none was picked, and for OK. Valid while the context's own is held.
  const void* connection = nullptr;
  std::shared_ptr<const grpc::AuthContext> auth_context;
};

// How the end of an attempt is settled. `decided`: it was ended by the client's side, or says nothing of the connection for
// another reason, and Classify was not asked.
struct AttemptSettlement {
  grpc::StatusCode code;  // The attempt's own, whatever the call ends with.
  const grpc::Status& status;
  bool has_metadata;  // Headers or trailers of the server's.
  Outcome outcome;
  bool decided;
  bool killed_at_shutdown = false;
  AttemptObservation* observation;
};

// Settles the ticket, unless a stream has settled it as it opened; now, or once it is known whether the attempt's connection
// has died (C10). True where the end takes a token of the budget, if it is one to retry.
bool SettleAttempt(ClientState& state, BrokenAttempt& attempt, const grpc::ClientContext& context, CircuitTicket& ticket,
                   const AttemptSettlement& end) noexcept;

// Whether the status is certainly gRPC's refusal of a message over one of this client's limits (C7). `request_bytes` is the size of
// the request as sent.
bool CertainlyOverLimit(const ClientSettings& settings, const grpc::Status& status, std::size_t request_bytes);

// How far an attempt got that ended other than OK.
Reached ReachOf(const grpc::ClientContext& context, const grpc::Status& status, const void* connection);

}  // namespace penstock::inline v0::detail
