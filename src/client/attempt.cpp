#include "client/attempt.h"

#include <fmt/format.h>

#include <algorithm>

#include "penstock/runtime/callback_thread.h"
#include "runtime/baggage.h"
#include "runtime/grpc_quirks.h"
#include "runtime/inbound_deadline.h"
#include "runtime/metadata.h"
#include "runtime/trace_context.h"

namespace penstock::inline v0::detail {

namespace {

grpc::Status Refused(std::string message) { return {grpc::StatusCode::INVALID_ARGUMENT, std::move(message)}; }

// As gRPC takes it: its monotonic clock is the steady clock. A manual clock's deadline is as far away on it.
std::optional<gpr_timespec> WireDeadline(const ClientState& state, TimePoint deadline) {
  if (deadline == TimePoint::max()) return std::nullopt;
  TimePoint real = deadline;
  if (!state.real_time()) {
    const Duration left = std::max(Duration::zero(), deadline - state.clock().Now());
    real = SaturatingAdd(SteadyClock().Now(), left);
  }
  const std::int64_t nanoseconds = real.time_since_epoch().count();
  constexpr std::int64_t kSecond = 1'000'000'000;
  // Further than anything that is meant (G3): nothing is sent, the call's own timer holds.
  constexpr std::int64_t kFarthest = std::chrono::nanoseconds(kFarthestDeadline).count();
  if (nanoseconds > kFarthest) return std::nullopt;
  return gpr_timespec{nanoseconds / kSecond, static_cast<std::int32_t>(nanoseconds % kSecond), GPR_CLOCK_MONOTONIC};
}

bool IsRelayedKey(std::string_view key) noexcept {
  return key == kTraceparentKey || key == kTracestateKey || key == kBaggageKey;
}

// The parent's and the call's own, as one header.
std::string BaggageOf(const CallOptions& options) {
  std::string baggage;
  const auto add = [&](std::string_view key, std::string_view value) {
    if (key != kBaggageKey) return;
    if (!baggage.empty()) baggage += ',';
    baggage += value;
  };
  if (const CallScope* parent = options.parent.relaying()) {
    for (const auto& [key, value] : parent->relayed()) add(key, value);
  }
  for (const auto& [key, value] : options.metadata) add(key, value);
  return baggage;
}

// What of a relayed header fits into `room`: all of it, or the members that do.
std::string Fitting(std::string_view key, std::string_view value, std::size_t room) {
  const std::size_t overhead = HeaderSize(key, "");
  if (room <= overhead) return {};
  if (key == kBaggageKey) return CombineBaggage({value}, room - overhead);
  if (key == kTracestateKey) return CombineTracestate({value}, room - overhead);
  return {};
}

// Adds trace and baggage, the trace first, as far as the request does not grow beyond what servers take (G2): one caller's
// baggage must not end a connection that others use. `legal`: all of it can be sent (G1).
void AddRelayed(const CallScope::Metadata& relayed, bool legal, const AttemptContext& attempt, grpc::ClientContext& context) {
  const CallOptions& options = attempt.options;
  const bool credentials = options.credentials != nullptr || attempt.state.settings().credentials != nullptr;
  std::size_t used = attempt.method.info->path.size() + (credentials ? kCredentialsBytes : 0);
  for (const auto& [key, value] : options.metadata) {
    if (!IsRelayedKey(key)) used += HeaderSize(key, value);  // the others are in `relayed`
  }
  for (const bool baggage : {false, true}) {
    for (const auto& [key, value] : relayed) {
      if ((key == kBaggageKey) != baggage || (!legal && MetadataProblem(key, value))) continue;
      const std::size_t room = kMostRequestHeaders - std::min(used, kMostRequestHeaders);
      if (HeaderSize(key, value) <= room) {
        context.AddMetadata(key, value);
        used += HeaderSize(key, value);
      } else if (const std::string part = Fitting(key, value, room); !part.empty()) {
        context.AddMetadata(key, part);
        used += HeaderSize(key, part);
      }
    }
  }
}

}  // namespace

std::optional<grpc::Status> RefuseOptions(const CallOptions& options) {
  for (const auto& [key, value] : options.metadata) {
    if (std::optional<std::string> problem = MetadataProblem(key, value)) return Refused("metadata: " + *problem);
  }
  if (!options.authority.empty() && !LegalMetadataValue("authority", options.authority)) {
    return Refused("authority: holds a character that cannot be sent");
  }
  if (options.compression && (*options.compression < 0 || *options.compression >= GRPC_COMPRESS_ALGORITHMS_COUNT)) {
    return Refused("compression: not one of gRPC's algorithms");
  }
  if (options.timeout && *options.timeout <= Duration::zero()) return Refused("timeout: must be more than 0");
  if (options.max_attempts && *options.max_attempts == 0) return Refused("max_attempts: must be 1 or more");
  if (options.detached && !options.deadline.set() && !options.timeout) {
    return Refused("detached: a detached call needs a deadline or a timeout of its own");
  }
  return std::nullopt;
}

TimePoint DeadlineOf(const CallOptions& options, TimePoint now, Duration timeout) {
  TimePoint deadline = SaturatingAdd(now, timeout);
  if (options.deadline.set()) deadline = std::min(deadline, options.deadline.At(now));
  if (options.detached || !options.parent.set()) return deadline;
  if (const std::shared_ptr<CallScope>& scope = options.parent.scope()) return std::min(deadline, scope->deadline());
  if (std::optional<TimePoint> inherited = InboundDeadline(options.parent.context()->raw_deadline(), now)) {
    deadline = std::min(deadline, *inherited);
  }
  return deadline;
}

OutgoingMetadata RelayedBy(const CallOptions& options, FaultInjector* faults) {
  // One header each, whoever brings it: two traceparents are none. The state of a trace goes with that trace alone.
  const bool own_trace = std::any_of(options.metadata.begin(), options.metadata.end(),
                                     [](const auto& pair) { return pair.first == kTraceparentKey; });
  OutgoingMetadata outgoing;
  if (const CallScope* const parent = options.parent.relaying()) {
    for (const auto& [key, value] : parent->relayed()) {
      if (key != kBaggageKey && !(own_trace && key == kTracestateKey)) outgoing.Set(key, value);
    }
  }
  for (const auto& [key, value] : options.metadata) {
    if (IsRelayedKey(key) && key != kBaggageKey) outgoing.Set(key, value);
  }
  std::string baggage = BaggageOf(options);
  if (faults != nullptr) baggage = faults->Forwarded(baggage);
  if (!baggage.empty()) outgoing.Set(kBaggageKey, std::move(baggage));
  return outgoing;
}

std::unique_ptr<AttemptObservation> FillContext(const AttemptContext& attempt, grpc::ClientContext& context) {
  const CallOptions& options = attempt.options;
  if (std::optional<gpr_timespec> deadline = WireDeadline(attempt.state, attempt.deadline))
    context.set_deadline(*deadline);
  if (options.credentials) context.set_credentials(options.credentials);
  if (options.compression) context.set_compression_algorithm(*options.compression);
  if (!options.authority.empty()) context.set_authority(options.authority);
  const std::optional<bool>& waits = options.wait_for_ready ? options.wait_for_ready : attempt.method.wait_for_ready;
  if (waits) context.set_wait_for_ready(*waits);

  const CallScope* const parent = options.parent.relaying();
  ClientObserver* const observer = attempt.state.observer();
  FaultInjector* const faults = attempt.state.settings().faults.get();
  bool own_relayed = false;
  for (const auto& [key, value] : options.metadata) {
    if (IsRelayedKey(key)) {
      own_relayed = true;
    } else {
      context.AddMetadata(key, value);
    }
  }
  if (observer == nullptr && faults == nullptr && !own_relayed) {
    if (parent != nullptr) AddRelayed(parent->relayed(), true, attempt, context);
    return nullptr;
  }

  OutgoingMetadata outgoing = RelayedBy(options, faults);
  std::unique_ptr<AttemptObservation> observation;
  if (observer != nullptr) {
    UserCodeScope in_user_code;
    observation = observer->OnAttempt(
        {.method = attempt.method.info->path, .attempt = attempt.attempt, .stream = attempt.stream, .parent = parent},
        outgoing);
  }
  AddRelayed(outgoing.pairs(), false, attempt, context);
  return observation;
}

Fault FaultFor(ClientState& state, const MethodEntry& method, const CallOptions& options) {
  return state.settings().faults->Evaluate(method.info->path, BaggageOf(options));
}

bool SettleAttempt(ClientState& state, BrokenAttempt& attempt, const grpc::ClientContext& context, CircuitTicket& ticket,
                   const AttemptSettlement& end) noexcept {
  const bool unavailable = end.code == grpc::StatusCode::UNAVAILABLE;
  BrokenConnections& connections = state.broken_connections();
  if (!end.decided && unavailable && end.outcome == Outcome::kFailure) {
    return connections.EndedUnavailable(attempt, context, end.status, end.has_metadata, std::move(ticket));
  }
  bool takes_token = true;
  if (end.killed_at_shutdown) {
    takes_token = connections.Killed(attempt, context);
  } else if (end.decided || unavailable) {
    connections.Withdrawn(attempt);
  } else {
    connections.Ended(attempt, context);
  }
  if (ticket.held()) state.Settle(ticket, end.outcome, end.observation);
  return takes_token;
}

bool CertainlyOverLimit(const ClientSettings& settings, const grpc::Status& status, std::size_t request_bytes) {
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return false;
  if (settings.max_send_bytes != 0 && request_bytes > settings.max_send_bytes) return true;
  return LooksOverReceiveLimit(status, settings.max_receive_bytes, request_bytes);
}

Reached ReachOf(const grpc::ClientContext& context, const grpc::Status& status, const void* connection) {
  if (!context.GetServerInitialMetadata().empty() || !context.GetServerTrailingMetadata().empty())
    return Reached::kResponded;
  switch (status.error_code()) {
    // gRPC itself ends calls with these, also when no server has answered.
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::UNAUTHENTICATED:
      return connection == nullptr ? Reached::kNotSent : Reached::kMaybeProcessed;
    default:
      return connection == nullptr ? Reached::kNotSent : Reached::kResponded;
  }
}

}  // namespace penstock::inline v0::detail
