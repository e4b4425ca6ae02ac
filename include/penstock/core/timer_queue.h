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

#include <array>
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
  std::size_t place_ = kNowhere;  // In the heap, or the slot of the wheel whose list it is in.
  Timer* previous_ = nullptr;     // In that list.
  Timer* next_ = nullptr;
};

class TimerQueue {
 public:
  TimerQueue() = default;
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // Due at `due`, also when that is in the past. A driver that sleeps for longer has to be woken.
  void Arm(Timer& timer, TimePoint due);

  // True when it was armed: it will not be handed out by TakeDue().
  bool Disarm(Timer& timer) noexcept;

  // The next timer that is due at `now`, disarmed; null when there is none.
  Timer* TakeDue(TimePoint now) noexcept;

  // When the first timer is due; TimePoint::max() when there is none.
  TimePoint NextDue() noexcept;

  std::size_t size() const noexcept { return size_; }

 private:
  // Two parts. What is due before the current step of time ends lies in a heap, in its exact order. All else lies in a wheel of
  // four levels, unsorted: each has 1,024 slots, each as long as a whole turn of the level below, each a list. A slot that
  // time has reached is taken apart, into the heap or the levels below. So a timer that is cancelled long before it is due,
  // as nearly all are, costs two list operations, however many there are. (After G. Varghese and A. Lauck, Hashed and
  // Hierarchical Timing Wheels, 1987.)
  static constexpr int kStepBits = 26;  // 67 ms, in nanoseconds
  static constexpr int kSlotBits = 10;
  static constexpr std::size_t kSlots = std::size_t{1} << kSlotBits;
  static constexpr int kLevels = 4;  // 26 + 4 * 10 bits: all there are
  static constexpr std::size_t kInWheel = std::size_t{1} << 62;

  struct Level {
    std::vector<Timer*> slots;                         // kSlots, once one was used
    std::array<std::uint64_t, kSlots / 64> used{};  // a bit a slot
  };

  void Put(Timer& timer);
  void Unlink(Timer& timer) noexcept;
  // Begins the next step or slot that has timers, if it begins by `until`.
  bool Turn(std::int64_t until);

  bool Before(const Timer& left, const Timer& right) const noexcept;
  void Place(Timer& timer, std::size_t at) noexcept;
  void SiftUp(std::size_t at) noexcept;
  void SiftDown(std::size_t at) noexcept;
  void RemoveAt(std::size_t at) noexcept;

  std::int64_t step_ = 0;     // Where the current step begins; all that is due before its end is in the heap.
  std::vector<Timer*> heap_;  // Four children to a node.
  std::array<Level, kLevels> levels_;
  std::size_t size_ = 0;
  std::uint64_t next_order_ = 0;
};

}  // namespace penstock::inline v0
