#pragma once

// What a rollout did to those who called: counted by whoever sees it, read by the line a second and the verdict.
//
// Threads: every member may be called from any thread.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "bench/histogram.h"

namespace rollout {

// No order is asked of these counters: each stands for itself.
class Counter {
 public:
  void Add(std::int64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  std::int64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

struct Figures {
  Counter unary_begun;
  Counter unary_calls;     // ended
  Counter unary_failed;    // of them, with a status that is not OK, rejections not counted
  Counter unary_rejected;  // of them, by the breaker
  Counter streams_open;    // now
  Counter streams_opened;  // ever
  Counter streams_lost;    // ended for good, or without a successor for more than a second
  Counter landed_on_old;   // opened on a pod that had ended its streams already
  Counter breaker_opened;
  Counter replacements;

  // A stream had no successor for so long.
  void Reopened(std::chrono::nanoseconds gap) noexcept {
    std::int64_t longest = longest_gap_.load(std::memory_order_relaxed);
    while (gap.count() > longest && !longest_gap_.compare_exchange_weak(longest, gap.count(), std::memory_order_relaxed)) {
    }
  }
  std::chrono::nanoseconds longest_gap() const noexcept {
    return std::chrono::nanoseconds(longest_gap_.load(std::memory_order_relaxed));
  }
  void Answered(std::chrono::nanoseconds took) {
    std::lock_guard lock(mutex_);
    second_.Add(static_cast<std::uint64_t>(took.count()));
  }
  // The latencies since the last call; they join the whole.
  bench::Histogram TakeSecond() {
    std::lock_guard lock(mutex_);
    whole_.Merge(second_);
    return std::exchange(second_, {});
  }
  bench::Histogram Whole() {
    TakeSecond();
    std::lock_guard lock(mutex_);
    return whole_;
  }

 private:
  std::atomic<std::int64_t> longest_gap_{0};
  std::mutex mutex_;
  bench::Histogram second_;
  bench::Histogram whole_;
};

}  // namespace rollout
