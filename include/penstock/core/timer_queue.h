#pragma once

// Timers that fire when somebody says what time it is.
//
// The queue is passive: it has no thread and reads no clock. Its owner tells it the time and asks when to come back, so
// that an event loop in production and a manual clock in a test run the same code.
//
//     struct Timeout final : Timer { void Fire() noexcept override { ... } } timeout;
//     TimerQueue queue;
//     queue.Arm(timeout, now + 10s);
//     while (Timer* due = queue.TakeDue(now)) due->Fire();
//
// Threads: none of its own; not thread-safe, its owner locks (and lets go of the lock before it fires).
// Ownership: intrusive; a timer is the caller's and must be disarmed before it is destroyed.
// Time: timers are due in the order of their times, those of one time in the order in which they were armed.
// Errors: none; arming an armed timer moves it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/core/clock.h"

namespace penstock::inline v0 {

class TimerQueue;

// Embedded in what waits. Its address must not change while it is armed.
class Timer {
 public:
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Runs on the thread of whoever drives the queue, without any lock held; must not block. The timer is no longer armed
  // and may be armed again from here.
  virtual void Fire() noexcept = 0;

  // For the owner of the queue only: read under the lock that guards the queue.
  bool armed() const noexcept { return place_ != kNowhere; }

 protected:
  ~Timer() = default;

 private:
  friend class TimerQueue;

  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  TimePoint due_{};
  std::uint64_t order_ = 0;
  std::size_t place_ = kNowhere;
};

class TimerQueue {
 public:
  TimerQueue() = default;
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // Due at `due`, also when that is in the past. True when it is now the first to be due, so that the driver has to be
  // woken.
  bool Arm(Timer& timer, TimePoint due);

  // True when it was armed: it will not be handed out by TakeDue().
  bool Disarm(Timer& timer) noexcept;

  // The next timer that is due at `now`, disarmed; null when there is none.
  Timer* TakeDue(TimePoint now) noexcept;

  // When the first timer is due; TimePoint::max() when there is none.
  TimePoint NextDue() const noexcept;

  std::size_t size() const noexcept { return heap_.size(); }

 private:
  bool Before(const Timer& left, const Timer& right) const noexcept;
  void Place(Timer& timer, std::size_t at) noexcept;
  void SiftUp(std::size_t at) noexcept;
  void SiftDown(std::size_t at) noexcept;
  void RemoveAt(std::size_t at) noexcept;

  // A heap with four children to a node: the usual timer is later than all others, and is set with one comparison.
  std::vector<Timer*> heap_;
  std::uint64_t next_order_ = 0;
};

}  // namespace penstock::inline v0
