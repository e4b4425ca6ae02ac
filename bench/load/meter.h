#pragma once

// What one run of calls cost: how many, how fast, how much CPU, how many allocations.
//
// A Meter says when a run is over, by count or by time, and gathers each slot's latencies; a slot is one of the
// outstanding calls and is never used by two threads at once.
//
// Threads: Meter::Continue and Finished from any thread; a Slot belongs to whoever runs its call.
// Ownership: the Meter outlives its slots.
// Time: the steady clock, read once before and once after each call.
// Errors: a failed call is counted and told; the run's numbers are void then.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "bench/histogram.h"

namespace load {

using Clock = std::chrono::steady_clock;
using bench::Histogram;

class Meter {
 public:
  // Ends when `calls` were begun, or, where that is 0, at `end`.
  Meter(std::int64_t calls, Clock::time_point end) : counted_(calls > 0), left_(calls), end_(end) {}

  bool Continue(Clock::time_point now) noexcept {
    // relaxed: only a count; what the calls share passes through gRPC's own synchronisation.
    return counted_ ? left_.fetch_sub(1, std::memory_order_relaxed) > 0 : now < end_;
  }
  void Failed() noexcept { failed_.fetch_add(1, std::memory_order_relaxed); }
  std::int64_t failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

  void Started(int slots) { running_ = slots; }
  void Finished();  // one slot
  void Wait();      // for all slots

 private:
  const bool counted_;
  std::atomic<std::int64_t> left_;
  const Clock::time_point end_;
  std::atomic<std::int64_t> failed_{0};
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
};

// One of the outstanding calls.
class Slot {
 public:
  explicit Slot(Meter& meter) : meter_(meter) {}

  // False: the run is over, and this slot has said so.
  bool Begin() {
    started_ = Clock::now();
    if (meter_.Continue(started_)) return true;
    meter_.Finished();
    return false;
  }
  void End(bool ok) {
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count();
    latencies_.Add(static_cast<std::uint64_t>(took));
    ++calls_;
    if (!ok) meter_.Failed();
  }
  std::int64_t calls() const { return calls_; }
  const Histogram& latencies() const { return latencies_; }

 private:
  Meter& meter_;
  Clock::time_point started_;
  std::int64_t calls_ = 0;
  Histogram latencies_;
};

// Allocations of this process so far (malloc, calloc, realloc, new), on all threads; -1 where they are not counted (in a
// sanitizer's build).
std::int64_t Allocations() noexcept;
// User and system time of this process so far.
std::chrono::microseconds CpuTime();
void PinToCore(int core);

}  // namespace load
