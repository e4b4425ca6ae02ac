#pragma once

// A clock that a test moves by hand.

#include <atomic>
#include <cstdint>

#include "penstock/core/clock.h"

namespace penstock_test {

class HandClock final : public penstock::Clock {
 public:
  explicit HandClock(penstock::Duration start = std::chrono::hours(1)) : now_(start.count()) {}

  penstock::TimePoint Now() const noexcept override {
    reads_.fetch_add(1, std::memory_order_relaxed);
    return penstock::TimePoint(penstock::Duration(now_.load(std::memory_order_relaxed)));
  }

  penstock::TimePoint CoarseNow() const noexcept override { return Now() - lag_; }

  // Wraps at the end of the clock's range, as the number of a real one would.
  void Advance(penstock::Duration length) {
    now_.fetch_add(length.count(), std::memory_order_relaxed);  // atomics wrap, by definition
  }

  // How far CoarseNow() is behind.
  void set_lag(penstock::Duration lag) { lag_ = lag; }

  std::uint64_t reads() const { return reads_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> now_;
  mutable std::atomic<std::uint64_t> reads_{0};
  penstock::Duration lag_{};
};

}  // namespace penstock_test
