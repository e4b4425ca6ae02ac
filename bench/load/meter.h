#pragma once

// What one run cost: how many calls or messages, how fast, how much CPU, how many allocations.
//
// A Meter says when a run is over, by count or by time, and gathers each slot's latencies; a slot is one of the
// outstanding calls, or one stream, and is never used by two threads at once.
//
// Threads: Meter's members from any thread; a Slot belongs to whoever runs its call.
// Ownership: the Meter outlives its slots.
// Time: the steady clock, read once before and once after each call.
// Errors: a failed call is counted and told; the run's numbers are void then.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <semaphore>
#include <thread>
#include <vector>

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

// One of the outstanding calls, or a stream.
class Slot {
 public:
  // `waited_for`: a thread of its own makes the calls and waits for each.
  explicit Slot(Meter& meter, bool waited_for = false) : meter_(meter), waited_for_(waited_for) {}

  bool waited_for() const { return waited_for_; }

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
  // For a completion: whether it has to start the next call, which has begun then.
  bool EndAndContinue(bool ok) {
    End(ok);
    if (!waited_for_) return Begin();
    done_.release();
    return false;
  }
  void AwaitEnd() { done_.acquire(); }

  // Of a stream: another message, without a latency. False: the run is over; Finished() is said once the stream has ended.
  bool Count() {
    ++calls_;
    return meter_.Continue(Clock::now());
  }
  void Finished(bool ok) {
    if (!ok) meter_.Failed();
    meter_.Finished();
  }
  // Of a stream with one message under way: likewise, with its latency.
  bool EndAndGoOn(bool ok) {
    End(ok);
    Restart();
    return meter_.Continue(started_);
  }
  void Restart() { started_ = Clock::now(); }
  bool Continue() { return meter_.Continue(Clock::now()); }
  // Of a stream that is to stay as it is.
  void Opened() {
    ++calls_;
    meter_.Finished();
  }

  std::int64_t calls() const { return calls_; }
  const Histogram& latencies() const { return latencies_; }

 private:
  Meter& meter_;
  const bool waited_for_;
  std::binary_semaphore done_{0};
  Clock::time_point started_;
  std::int64_t calls_ = 0;
  Histogram latencies_;
};

// A thread a slot, which makes its calls and waits for each.
template <class Callers>
void RunWaiting(Callers& callers, std::deque<Slot>& slots) {
  const auto make_calls = [](auto& caller, Slot& slot) {
    while (slot.Begin()) {
      caller.Call();
      slot.AwaitEnd();
    }
  };
  if (slots.size() == 1) return make_calls(callers.front(), slots.front());
  std::vector<std::jthread> threads;
  auto slot = slots.begin();
  for (auto& caller : callers) threads.emplace_back([&, &own = *slot++] { make_calls(caller, own); });
}

// Allocations of this process so far (malloc, calloc, realloc, new), on all threads; -1 where they are not counted (in a
// sanitizer's build).
std::int64_t Allocations() noexcept;
// User and system time of this process so far.
std::chrono::microseconds CpuTime();
// Bytes that this process has from malloc and has not given back.
std::int64_t HeapBytes() noexcept;
void PinToCore(int core);

// Whether instructions can be counted here: callgrind's header was there when this was built, and valgrind is installed.
bool CanCount();
// Between the two a callgrind above this process counts; nothing without one.
void StartCounting();
void StopCounting();

}  // namespace load
