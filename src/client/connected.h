#pragma once

// Whether a client has been connected (behaviour.md R1).
//
// A latch: false until a connection was first ready, TLS included, then true until the client is closed, whatever
// happens to the connection after. It is set by watching the channels' state from their making on, on one thread of the
// process's that sleeps in a completion queue; once it is set nothing is watched.
//
//     auto connected = std::make_shared<ConnectedMonitor>(channels, time);
//     connected->Start();
//
// Threads: every member may be called from any thread. `done` runs on a gRPC callback thread.
// Ownership: shared; holds the channels until Close().
// Time: a check's deadline is on the clock of `time`; connecting is real.
// Errors: none; what a check's function throws is logged.

#include <grpcpp/channel.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/runtime/readiness.h"
#include "penstock/runtime/time_source.h"

namespace penstock::inline v0::detail {

class ConnectedMonitor final : public ReadinessMonitor, public std::enable_shared_from_this<ConnectedMonitor> {
 public:
  ConnectedMonitor(std::vector<std::shared_ptr<grpc::Channel>> channels, std::shared_ptr<TimeSource> time);
  ~ConnectedMonitor() override;

  // Begins to watch the channels; dials nothing.
  void Start();

  // Ends every check with false, and lets go of the channels.
  void Close() noexcept;

  bool ready() const noexcept override;
  void Check(TimePoint deadline, std::function<void(bool)> done) override;

 private:
  struct Waiter;

  void Watch(std::size_t place, grpc_connectivity_state last);
  void OnChange(std::size_t place);
  void Expire(Waiter* waiter) noexcept;

  const std::shared_ptr<TimeSource> time_;
  // release as it is set, acquire as it is read: whoever sees it sees what the connection's making did.
  mutable std::atomic<bool> ready_{false};
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  bool closed_ = false;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::shared_ptr<Waiter>> waiters_;
};

}  // namespace penstock::inline v0::detail
