#pragma once

// What all calls of one client share. Lives from Create() until the client is gone and the last of its calls has completed.
//
// Threads: every member may be used from any thread.
// Ownership: counted. The Client holds a reference; a call need not (once the client is closed the registry holds one for each
// shard that has calls); whoever else outlives the client holds one of its own.

#include <grpcpp/channel.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/broken_connections.h"
#include "client/call_registry.h"
#include "client/connected.h"
#include "client/connection_samples.h"
#include "client/method_table.h"
#include "client/reopen.h"
#include "penstock/client/settings.h"
#include "penstock/core/backoff.h"
#include "penstock/core/circuit_breaker.h"
#include "penstock/core/result.h"
#include "penstock/core/retry_budget.h"
#include "penstock/runtime/time_source.h"
#include "penstock/telemetry.h"
#include "runtime/grpc_quirks.h"

namespace penstock::inline v0::detail {

class ClientState final : private CallRegistry::Owner {
 public:
  // With one reference, the caller's.
  static Result<ClientState*> Create(ClientSettings settings);

  void AddReference() noexcept;
  void Release() noexcept;

  // Refuses further calls and cancels those that are in flight. More than once is fine.
  void Close() noexcept;

  const ClientSettings& settings() const noexcept { return settings_; }
  const Clock& clock() const noexcept { return *clock_; }
  TimeSource& time() const noexcept { return *time_; }
  // Whether the client's clock is the real one, so that its deadlines are gRPC's.
  bool real_time() const noexcept { return real_time_; }
  CircuitBreaker& breaker() noexcept { return *breaker_; }
  RetryBudget& budget() noexcept { return *budget_; }
  const Backoff& backoff() const noexcept { return backoff_; }
  MethodTable& methods() noexcept { return methods_; }
  CallRegistry& registry() noexcept { return registry_; }
  BrokenConnections& broken_connections() noexcept { return broken_connections_; }
  const std::shared_ptr<ConnectedMonitor>& connected() const noexcept { return connected_; }
  OpeningSlots& opening_slots() noexcept { return opening_slots_; }
  // Null where nobody observes.
  ClientObserver* observer() const noexcept { return settings_.observer.get(); }
  const std::vector<std::shared_ptr<grpc::Channel>>& channels() const noexcept { return channels_; }

  // A method's stub, and the channel that it is on.
  struct Lane {
    void* async;
    const std::shared_ptr<grpc::Channel>& channel;
  };
  // The next channel's in turn.
  Lane NextLane(const MethodEntry& method) noexcept {
    const std::uint32_t index = NextChannel(method);
    return {method.asyncs[index], channels_[index]};
  }

  // Where every call fails at once, through gRPC as a real one would; only where the settings have an injector.
  static Lane LameLane(const MethodEntry& method) noexcept { return {method.asyncs[method.channels], LameChannel()}; }

  // A fault in what the program gave the client (C6, C11): told to the observer, and logged.
  void ReportFault(std::string_view method, std::string_view what) noexcept;

  // What calls have been seen to use of late (D4).
  std::vector<ClientConnection> connections() const;
  // An attempt has had a connection.
  void NoteConnected() noexcept { connected_->Saw(); }
  // An attempt of a sampled call has ended on its connection, and not with it; or a stream has opened.
  void NoteConnection(const grpc::ClientContext& context);

  // Asks the breaker for a call that is made for `parent` (null: none).
  Admission Acquire(const CallScope* parent) noexcept;

  // Settles with the attempt as the cause of a state change that it may make.
  void Settle(CircuitTicket& ticket, Outcome outcome, AttemptObservation* cause) noexcept;

 private:
  class View;

  std::uint32_t NextChannel(const MethodEntry& method) noexcept {
    // relaxed: any fair number will do.
    return method.channels == 1 ? 0 : next_channel_.fetch_add(1, std::memory_order_relaxed) % method.channels;
  }

  explicit ClientState(ClientSettings settings);
  ~ClientState();
  void OnShardBusy() noexcept override { AddReference(); }
  void OnShardIdle() noexcept override { Release(); }

  const ClientSettings settings_;
  std::shared_ptr<TimeSource> time_;
  const Clock* clock_ = nullptr;
  bool real_time_ = true;
  Backoff backoff_;
  std::shared_ptr<View> view_;
  CircuitBreaker* breaker_ = nullptr;     // view_'s
  ConnectionSamples* samples_ = nullptr;  // view_'s
  std::unique_ptr<RetryBudget> budget_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::shared_ptr<ConnectedMonitor> connected_;
  MethodTable methods_;
  BrokenConnections broken_connections_;
  OpeningSlots opening_slots_;
  CallRegistry registry_;
  std::atomic<std::uint32_t> next_channel_{0};
  std::atomic<std::uint32_t> references_{1};
};

// Appends a line for each setting of a client that makes no sense.
void CheckSettings(const ClientSettings& settings, std::vector<std::string>& problems);

// Stands around what may change the breaker's state, and says what makes it.
class CauseScope {
 public:
  explicit CauseScope(const TransitionCause& cause) noexcept : previous_(std::exchange(current_, cause)) {}
  ~CauseScope() { current_ = previous_; }
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;

  static const TransitionCause& Current() noexcept { return current_; }

 private:
  inline static constinit thread_local TransitionCause current_{};
  TransitionCause previous_;
};

}  // namespace penstock::inline v0::detail
