#pragma once

// Time that stands still until a test moves it. With it a client's timeout, backoff, open_for and probe_timeout and a
// server's drain and grace take microseconds to test, and each boundary is hit exactly.
//
//     auto time = std::make_shared<testing::ManualTime>();
//     auto client = penstock::Client::Create({.address = ..., .time = time});
//     ... a call that fails and is to be retried ...
//     REQUIRE(time->WaitForTimer(time->Now() + 100ms));      // the backoff is armed: no guess, no sleep
//     time->AdvanceToNext();
//
// What stays real, because it is gRPC's own or waits for the network: connecting and its backoff, DNS, keepalive, a connection's
// age, and in a server's shutdown all but drain and grace (docs/testing.md lists it).
//
// Threads: every member may be called from any thread; Advance, AdvanceTo, AdvanceToNext and the waits not from a timer.
// Timers fire one at a time, on the thread that advances; one that is armed when it is due already fires soon, on a thread
// of the kit's own.
// Ownership: shared by the test and what it tests. Timers are their owners', as TimeSource says.
// Time: never goes back. The clock stands at each timer's own time while it fires.
// Errors: advancing by a length below zero does nothing; a timer that arms itself again at once for ever stops Advance
// after a million firings, with a std::logic_error; where that happens on the kit's own thread, the next Advance throws it.

#include <chrono>
#include <cstddef>
#include <memory>

#include "penstock/core/clock.h"
#include "penstock/runtime/time_source.h"

namespace penstock::inline v0::testing {

class ManualTime final : public TimeSource {
 public:
  explicit ManualTime(TimePoint start = TimePoint(std::chrono::hours(24)));
  ~ManualTime() override;

  const Clock& clock() const noexcept override;
  void Arm(Timer& timer, TimePoint due) noexcept override;
  bool Disarm(Timer& timer) noexcept override;

  TimePoint Now() const noexcept { return clock().Now(); }

  // Fires what is due up to then, in order, timers that are armed meanwhile included, and leaves the clock there. Returns
  // how many fired. What a timer hands to another thread may still be under way then.
  std::size_t Advance(Duration length);
  std::size_t AdvanceTo(TimePoint time);

  // Moves to the first timer's time and fires all that are due then; 0 when no timer is armed.
  std::size_t AdvanceToNext();

  // When the first timer is due; TimePoint::max() when none is armed.
  TimePoint NextDue() const;
  std::size_t timers() const;

  // Blocks, in real time, until a timer is armed that is due at `latest` or before; false when the limit ended first.
  bool WaitForTimer(TimePoint latest, Duration limit = std::chrono::seconds(30)) const;

  // The same, until so many timers are armed.
  bool WaitForTimers(std::size_t count, Duration limit = std::chrono::seconds(30)) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace penstock::inline v0::testing
