#pragma once

// What time it is, from a source that a test can hold still.
//
// Everything in penstock that measures time asks a Clock, so that a test moves hours in microseconds and a rule such as
// "open for 10 s" is checked at 9.999 s and at 10 s.
//
//     const Clock& clock = SteadyClock();
//     TimePoint later = clock.Now() + std::chrono::seconds(10);
//
// Threads: every member may be called from any thread.
// Ownership: whoever takes a clock by pointer keeps it alive for as long as it is used; SteadyClock() lives for ever.
// Time: monotonic; not related to the time of day.
// Errors: none.

#include <chrono>

namespace penstock::inline v0 {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;

  virtual TimePoint Now() const noexcept = 0;

  // The time as of a few milliseconds ago at most, several times cheaper to read. Never ahead of Now().
  virtual TimePoint CoarseNow() const noexcept { return Now(); }
};

// CLOCK_MONOTONIC, and CLOCK_MONOTONIC_COARSE for CoarseNow() (at most one tick of the kernel, 1 to 10 ms, behind).
const Clock& SteadyClock() noexcept;

// The sum of a time and a length, held at the ends of the clock's range instead of overflowing.
constexpr TimePoint SaturatingAdd(TimePoint time, Duration length) noexcept {
  if (length > Duration::zero() && time > TimePoint::max() - length) return TimePoint::max();
  if (length < Duration::zero() && time < TimePoint::min() - length) return TimePoint::min();
  return time + length;
}

}  // namespace penstock::inline v0
