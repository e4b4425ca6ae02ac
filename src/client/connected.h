#pragma once

// Whether a client has been connected (behaviour.md R1).
//
// A latch: false until a connection was first ready, TLS included, then true until the client is closed, whatever
// happens to the connection after. It is set by the first attempt that has had a connection; while a check waits, also by
// watching the channels' state, on one thread of the process's. Nothing is watched otherwise.
//
//     auto connected = std::make_shared<ConnectedMonitor>("ledger:9090", channels, time);
//     if (attempt_had_a_connection) connected->Saw();
//
// Threads: every member may be called from any thread. `done` runs on a gRPC callback thread.
// Ownership: shared; holds the channels until Close().
// Time: a check's deadline is on the clock of `time`; connecting is real.
// Errors: none. What a check's function throws is logged, and, once, that a check ended without a connection.

#include <grpcpp/channel.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/runtime/readiness.h"
#include "penstock/runtime/time_source.h"

namespace penstock::inline v0::detail {

class ConnectedMonitor final : public ReadinessMonitor, public std::enable_shared_from_this<ConnectedMonitor> {
 public:
  // `dependency` is how the log calls it.
  ConnectedMonitor(std::string dependency, std::vector<std::shared_ptr<grpc::Channel>> channels,
                   std::shared_ptr<TimeSource> time);
  ~ConnectedMonitor() override;

  // A connection has been seen.
  void Saw() noexcept {
    // relaxed: only whether there is anything left to do.
    if (!ready_.load(std::memory_order_relaxed)) [[unlikely]] Latch();
  }

  // Ends every check with false, and lets go of the channels.
  void Close() noexcept;

  bool ready() const noexcept override;
  void Check(TimePoint deadline, std::function<void(bool)> done) override;

 private:
  struct Waiter;

  void Watch(std::size_t place, grpc_connectivity_state last);
  std::vector<grpc_connectivity_state> Look() const;
  void Latch() noexcept;
  void OnChange(std::size_t place);
  void Expire(Waiter* waiter) noexcept;

  const std::string dependency_;
  const std::shared_ptr<TimeSource> time_;
  // release as it is set, acquire as it is read: whoever sees it sees what the connection's making did.
  mutable std::atomic<bool> ready_{false};
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  bool closed_ = false;
  bool expired_before_ = false;  // A check has ended without a connection, and the log has it.
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<bool> watched_;  // By channel: a watch has begun and has not been told of.
  std::vector<std::shared_ptr<Waiter>> waiters_;
};

}  // namespace penstock::inline v0::detail
