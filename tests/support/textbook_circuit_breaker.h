#pragma once

// The circuit breaker as a textbook has it: a mutex, a ring of results, a state.
//
// It follows the rules B1 to B9 in the plainest way, so that a reader can check it against them. The tests hold the
// lock-free breaker to it step by step, and the benchmarks measure against it.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/core/circuit_breaker_settings.h"
#include "penstock/core/clock.h"
#include "penstock/core/detail/failure_ratio.h"

namespace penstock::inline v0 {

class TextbookCircuitBreaker {
 public:
  static constexpr std::uint32_t kNoSlot = 0xffffffff;

  // What Acquire() says: a ticket (number: the generation, or the lease of a probe), or a rejection.
  struct Pass {
    bool admitted;
    std::uint64_t number;
    std::uint32_t slot;
    Duration rejected_for;
  };

  explicit TextbookCircuitBreaker(CircuitBreakerSettings settings)
      : settings_(std::move(settings)),
        clock_(settings_.clock != nullptr ? *settings_.clock : SteadyClock()),
        ratio_(settings_.failure_ratio),
        ring_(settings_.window),
        slots_(settings_.probes) {}

  Pass Acquire() {
    std::unique_lock lock(mutex_);
    if (state_ == CircuitState::kOpen) {
      const Duration rest = open_until_ - clock_.Now();
      if (rest > Duration::zero()) {
        ++totals_.rejected;
        return {false, 0, kNoSlot, rest};
      }
      Enter(CircuitState::kHalfOpen);
    }
    Pass pass{false, 0, kNoSlot, Duration::zero()};
    if (state_ == CircuitState::kHalfOpen) pass = AcquireProbe();
    if (state_ == CircuitState::kClosed) pass = {true, generation_, kNoSlot, Duration::zero()};
    if (!pass.admitted) ++totals_.rejected;
    Report(lock);
    return pass;
  }

  void Settle(std::uint64_t number, std::uint32_t slot, Outcome outcome) {
    std::unique_lock lock(mutex_);
    if (slot == kNoSlot) {
      if (state_ == CircuitState::kClosed && number == generation_) SettleClosed(outcome);
    } else if (state_ == CircuitState::kHalfOpen && slots_[slot].lease == number) {
      SettleProbe(slots_[slot], outcome);
    }
    Report(lock);
  }

  CircuitState state() const {
    std::lock_guard lock(mutex_);
    return state_ == CircuitState::kOpen && clock_.Now() >= open_until_ ? CircuitState::kHalfOpen : state_;
  }

  Counts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

  CircuitTotals totals() const {
    std::lock_guard lock(mutex_);
    return totals_;
  }

 private:
  struct Slot {
    std::uint64_t lease = 0;  // 0: free
    TimePoint until{};
  };

  Pass AcquireProbe() {
    const TimePoint now = clock_.Now();
    for (Slot& slot : slots_) {
      if (slot.lease != 0 && now < slot.until) continue;
      const bool timed_out = slot.lease != 0;
      slot = {++leases_, SaturatingAdd(now, settings_.probe_timeout)};
      if (timed_out) {
        ++counts_.timed_out;
        DecideProbe();
        if (state_ == CircuitState::kOpen) return {false, 0, kNoSlot, open_until_ - now};
      }
      return {true, slot.lease, static_cast<std::uint32_t>(&slot - slots_.data()), Duration::zero()};
    }
    return {false, 0, kNoSlot, Duration::zero()};
  }

  void SettleClosed(Outcome outcome) {
    switch (outcome) {
      case Outcome::kIgnored:
        ++totals_.ignored;
        return;
      case Outcome::kSuccess:
        Record(false);
        return;
      case Outcome::kFailure:
        Record(true);
        if (IsTripped()) Enter(CircuitState::kOpen);
        return;
    }
  }

  void SettleProbe(Slot& slot, Outcome outcome) {
    if (clock_.Now() >= slot.until) return;  // the Acquire() that takes the slot will notice the time-out
    slot.lease = 0;
    switch (outcome) {
      case Outcome::kIgnored:
        ++totals_.ignored;
        return;
      case Outcome::kSuccess:
      case Outcome::kFailure:
        Count(outcome == Outcome::kFailure);
        DecideProbe();
        return;
    }
  }

  // The consecutive counts and the totals, the same in both states.
  void Count(bool failed) {
    if (failed) {
      if (counts_.consecutive_failures++ == 0 && settings_.consecutive_span > Duration::zero()) run_began_ = clock_.Now();
      counts_.consecutive_successes = 0;
      ++counts_.failures;
      ++totals_.failures;
    } else {
      counts_.consecutive_failures = 0;
      ++counts_.consecutive_successes;
      ++counts_.successes;
      ++totals_.successes;
    }
  }

  void Record(bool failed) {
    if (results_ == settings_.window) {
      --(ring_[next_] ? counts_.failures : counts_.successes);
    } else {
      ++results_;
    }
    ring_[next_] = failed;
    if (++next_ == settings_.window) next_ = 0;
    Count(failed);
  }

  bool IsTripped() {
    if (settings_.trip) return Ask(settings_.trip, false);
    if (counts_.consecutive_failures >= settings_.consecutive_failures &&
        (settings_.consecutive_span == Duration::zero() || clock_.Now() - run_began_ >= settings_.consecutive_span)) {
      return true;
    }
    return results_ >= settings_.min_results && ratio_.IsReached(counts_.failures, results_);
  }

  void DecideProbe() {
    ProbeDecision decision = ProbeDecision::kKeep;
    if (settings_.probe) {
      decision = Ask(settings_.probe, ProbeDecision::kKeep);
    } else if (counts_.failures != 0) {
      decision = ProbeDecision::kOpen;
    } else if (counts_.successes >= settings_.successes_to_close) {
      decision = ProbeDecision::kClose;
    }
    if (decision == ProbeDecision::kOpen) Enter(CircuitState::kOpen);
    if (decision == ProbeDecision::kClose) Enter(CircuitState::kClosed);
  }

  template <class Policy, class Answer>
  Answer Ask(const Policy& policy, Answer when_it_throws) {
    try {
      return policy(counts_);
    } catch (...) {
      Tell(std::current_exception());
      return when_it_throws;
    }
  }

  void Tell(std::exception_ptr error) {
    try {
      if (settings_.error_observer) settings_.error_observer(std::move(error));
    } catch (...) {
    }
  }

  void Enter(CircuitState to) {
    if (settings_.observer) unreported_.push_back({state_, to, counts_, 0});
    state_ = to;
    ++generation_;
    counts_ = {};
    switch (to) {
      case CircuitState::kClosed:
        results_ = next_ = 0;
        ++totals_.entered_closed;
        break;
      case CircuitState::kOpen:
        open_until_ = SaturatingAdd(clock_.Now(), settings_.open_for);
        ++totals_.entered_open;
        break;
      case CircuitState::kHalfOpen:
        for (Slot& slot : slots_) slot = {};
        ++totals_.entered_half_open;
        break;
    }
  }

  void Report(std::unique_lock<std::mutex>& lock) {
    if (reporting_) return;
    reporting_ = true;
    while (!unreported_.empty()) {
      const CircuitTransition transition = unreported_.front();
      unreported_.pop_front();
      lock.unlock();
      try {
        settings_.observer(transition);
      } catch (...) {
        Tell(std::current_exception());
      }
      lock.lock();
    }
    reporting_ = false;
  }

  const CircuitBreakerSettings settings_;
  const Clock& clock_;
  const detail::FailureRatio ratio_;
  mutable std::mutex mutex_;
  CircuitState state_ = CircuitState::kClosed;
  std::uint64_t generation_ = 1;
  Counts counts_;
  CircuitTotals totals_;
  std::vector<bool> ring_;
  std::uint32_t results_ = 0;
  std::uint32_t next_ = 0;
  TimePoint run_began_{};
  TimePoint open_until_{};
  std::vector<Slot> slots_;
  std::uint64_t leases_ = 0;
  bool reporting_ = false;
  std::deque<CircuitTransition> unreported_;
};

}  // namespace penstock::inline v0
