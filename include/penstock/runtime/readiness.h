#pragma once

// Whether something that a service needs is there.
//
// A service turns ready when its dependencies can be reached: a server takes any number of monitors and reports SERVING
// once all of them are ready. Never tie liveness to one: restarting a pod does not mend its dependency.
//
//     Server::Create({.address = ":9090", .readiness = {ledger->Connected()}, ...}, {&service});
//
// Threads: every member may be called from any thread.
// Ownership: shared by whoever made it and whoever reads it.
// Time: Check() ends by its deadline, on the clock of the monitor's client or server.
// Errors: none; what cannot be reached is not ready.

#include <functional>

#include "penstock/core/clock.h"

namespace penstock::inline v0 {

class ReadinessMonitor {
 public:
  virtual ~ReadinessMonitor() = default;

  // As last known: no I/O, never blocks.
  virtual bool ready() const noexcept = 0;

  // Finds out, and calls `done` once, from any thread and also in here: true as soon as it is ready, false at the deadline or
  // before, where there is nothing to wait for. A server asks one that was not ready again a second later, and one that never calls
  // `done` never again.
  virtual void Check(TimePoint deadline, std::function<void(bool)> done) = 0;
};

}  // namespace penstock::inline v0
