#pragma once

// A clock, with timers that fire by it.
//
// Clients and servers wait for deadlines, backoffs, drains and graces. In production those timers run on penstock's one
// loop thread; in a test they fire when the test moves a manual clock (testing::ManualTime).
//
//     struct Timeout final : Timer { void Fire() noexcept override { ... } } timeout;
//     ProcessTime()->Arm(timeout, ProcessTime()->clock().Now() + 10s);
//     if (!ProcessTime()->Disarm(timeout)) { /* it has fired, or is firing now */ }
//
// Threads: every member may be called from any thread, from Fire() too.
// Ownership: intrusive; whoever arms a timer keeps it alive until Disarm() has returned true or Fire() has returned.
// Time: monotonic. A timer fires at its time or later: by at most 2 ms on an idle machine for ProcessTime().
// Errors: none.

#include <memory>

#include "penstock/core/clock.h"
#include "penstock/core/timer_queue.h"

namespace penstock::inline v0 {

class TimeSource {
 public:
  virtual ~TimeSource() = default;

  // Valid for as long as the time source.
  virtual const Clock& clock() const noexcept = 0;

  // Fires the timer once at `due`, at once when that is past. Arming an armed timer moves it.
  virtual void Arm(Timer& timer, TimePoint due) noexcept = 0;

  // True when the timer was armed and will not fire. False when it has fired, is firing, or was not armed. Never waits, so
  // that it may be called under a lock and from Fire().
  virtual bool Disarm(Timer& timer) noexcept = 0;
};

// The real time, with timers on penstock's loop thread, which starts with the first use. Never null, never destroyed.
const std::shared_ptr<TimeSource>& ProcessTime();

}  // namespace penstock::inline v0
