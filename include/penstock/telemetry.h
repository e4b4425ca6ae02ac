#pragma once

// Where telemetry hangs on: what a client does and decides, told as it happens.
//
// penstock depends on no telemetry library. An adapter (penstock/otel, penstock/prometheus, one of your own) implements
// ClientObserver; a client without one pays a null check.
//
//     struct Printer final : ClientObserver {
//       void OnDecision(std::string_view method, RetryDecision decision) noexcept override { ... }
//     };
//     Client::Create({.address = "ledger:9090", .plaintext = true, .observer = std::make_shared<Printer>()});
//
// Threads: members are called from gRPC's callback threads and from the threads that make calls, several at once.
// Ownership: held by the client until its last call has ended.
// Time: none given; take your own.
// Errors: members must not throw and must not block.

#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/circuit_breaker.h"
#include "penstock/runtime/call_scope.h"

namespace penstock::inline v0 {

// Upper bounds of histograms of call durations, in seconds: those of OpenTelemetry's conventions for RPC, and some below
// them, since a call within a cluster takes well under 5 ms.
inline constexpr double kDurationBuckets[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                              0.25,   0.5,   0.75,   1,     2.5,  5,     7.5,  10};

// What follows for the call after an attempt (behaviour.md O4).
enum class RetryDecision : unsigned char {
  kRetried,    // Another attempt follows.
  kSucceeded,  // It is answered; a stream has opened.
  kStopped,    // The status is the call's; also a rejection by the breaker.
  kExhausted,  // max_attempts were made.
  kThrottled,  // The retry budget is low.
  kExpired,    // The deadline has passed, or would before the next attempt.
};

// Headers to be sent with an attempt. A pair that gRPC could not send is dropped.
class OutgoingMetadata {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  // Replaces every earlier value of the key.
  void Set(std::string_view key, std::string value);
  const Pairs& pairs() const noexcept { return pairs_; }

 private:
  Pairs pairs_;
};

struct AttemptStart {
  std::string_view method;  // "/package.Service/Method"; until the call of the observer returns
  std::uint32_t attempt;    // 1 for a call's first.
  bool stream;
  // Of the server call that the call is made for; null: none.
  const CallScope* parent;
};

struct AttemptEnd {
  // As the call sees it: an attempt ended by the call's own deadline shows DEADLINE_EXCEEDED.
  const grpc::Status& status;
  Outcome outcome;
};

// One attempt, from its start to its end.
class AttemptObservation {
 public:
  virtual ~AttemptObservation() = default;
  // Once, before the call's completion and before what follows is decided.
  virtual void End(const AttemptEnd& end) noexcept = 0;
};

// A connection that a client has.
struct ClientConnection {
  std::string peer;  // ip:port, IPv6 in brackets; or unix:path
  TimePoint since;   // when the client first saw it, on the client's clock
  double share = 0;  // of the calls of late, about; from a sample
};

// What can be read of a client from its creation until ClientObserver::OnEnded() has returned, by any thread.
class ClientView {
 public:
  virtual ~ClientView() = default;
  virtual const std::string& address() const noexcept = 0;
  virtual CircuitState state() const noexcept = 0;
  virtual CircuitTotals totals() const noexcept = 0;
  // Those that calls have used of late (D4).
  virtual std::vector<ClientConnection> connections() const { return {}; }
};

// What made a change of the breaker's state.
struct TransitionCause {
  // The attempt whose end it was; null: the beginning of a call, or nothing is known.
  AttemptObservation* attempt = nullptr;
  // Of the server call that it was made for; null: none, or nothing is known.
  const CallScope* parent = nullptr;
};

class ClientObserver {
 public:
  virtual ~ClientObserver() = default;

  // Once, as the client is created.
  virtual void OnCreated(std::shared_ptr<const ClientView> /*client*/) noexcept {}
  // Once, as the client is closed or destroyed; calls may still be ending.
  virtual void OnClosed() noexcept {}
  // Once, after everything else: the last call has ended. The view must not be used any more, nor held: it holds this
  // observer.
  virtual void OnEnded() noexcept {}

  // Before each attempt; `metadata` holds what is relayed of the parent (traceparent, tracestate, baggage) and may be changed. Null:
  // nothing to be told of this one.
  virtual std::unique_ptr<AttemptObservation> OnAttempt(const AttemptStart& /*start*/, OutgoingMetadata& /*metadata*/) noexcept {
    return nullptr;
  }
  // A call that the breaker turned away, instead of an attempt; `metadata` is what the attempt would have been told with.
  virtual void OnRejected(const AttemptStart& /*start*/, const OutgoingMetadata& /*metadata*/,
                          const grpc::Status& /*status*/) noexcept {}
  // After each attempt and each rejection.
  virtual void OnDecision(std::string_view /*method*/, RetryDecision /*decision*/) noexcept {}
  // A state change of the breaker, in order.
  virtual void OnTransition(const CircuitTransition& /*transition*/, const TransitionCause& /*cause*/) noexcept {}
  // A fault in what the program gave the client: a Classify or a completion that threw or made no sense (C6, C11).
  virtual void OnError(std::string_view /*message*/) noexcept {}
};

}  // namespace penstock::inline v0
