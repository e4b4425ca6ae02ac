#pragma once

// What a circuit breaker is told, and what it tells: its settings, outcomes, counts and transitions.
//
// Apart from the breaker itself, so that code that only passes them on (a client's settings, telemetry) need not know it.
//
//     CircuitBreakerSettings settings{.open_for = 5s, .probes = 2};
//     std::vector<std::string> problems;
//     CheckSettings(settings, "circuit_breaker.", problems);
//
// Threads: plain values.
// Ownership: settings.clock is borrowed, the rest is owned.
// Time: lengths; each says its range.
// Errors: CheckSettings() names each setting out of range, its value and what is allowed.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/clock.h"

namespace penstock::inline v0 {

enum class CircuitState : std::uint8_t {
  kClosed,    // admits everything
  kOpen,      // rejects everything for open_for
  kHalfOpen,  // admits a few probes at a time
};

// What the end of a call says about the dependency.
enum class Outcome : std::uint8_t {
  kSuccess,
  kFailure,
  kIgnored,  // nothing: the caller's own fault, a cancel
};

// What a probe policy decides.
enum class ProbeDecision : std::uint8_t { kKeep, kClose, kOpen };

// What was recorded in the current state. Closed: successes and failures are those of the window, the consecutive ones are
// not cut by it. Half-open: since it became so, at most 16,777,215 (half of that for
// the consecutive ones). Open: all zero.
struct Counts {
  std::uint64_t successes = 0;
  std::uint64_t failures = 0;
  std::uint64_t consecutive_successes = 0;
  std::uint64_t consecutive_failures = 0;
  std::uint64_t timed_out = 0;  // probes that outlived probe_timeout

  bool operator==(const Counts&) const = default;
};

struct CircuitTransition {
  CircuitState from;
  CircuitState to;
  Counts counts;  // of the state left, with the result that made the change

  // How many transitions just before this one were not reported, because the observer kept its thread while more of them
  // came than the breaker remembers (512): usually 0.
  std::uint64_t missed = 0;

  // Whether the call that the observer runs within has made it. Else it is told for another one: of another thread, or made by
  // the observer itself.
  bool own = true;
};

// Since the breaker was made. Read piece by piece while calls go on, so that the pieces may differ by what happens meanwhile.
struct CircuitTotals {
  std::uint64_t successes = 0;
  std::uint64_t failures = 0;
  std::uint64_t ignored = 0;
  std::uint64_t rejected = 0;
  std::uint64_t entered_closed = 0;  // transitions, by the state entered
  std::uint64_t entered_open = 0;
  std::uint64_t entered_half_open = 0;
};

struct CircuitBreakerSettings {
  // Closed: this many failures in a row open the breaker; at least 1.
  std::uint32_t consecutive_failures = 5;

  // Closed: or this share of the results in the window being failures, in (0, 1] (nine decimals are kept), ...
  double failure_ratio = 0.5;

  // ... once the window holds this many results; at least 1. Above `window` the share never counts.
  std::uint32_t min_results = 20;

  // The window is the last so many results; 1 to 1,048,576.
  std::uint32_t window = 100;

  // The failures in a row must also span at least this long, from the first of the run; 0 to 1 year.
  Duration consecutive_span{};

  // How long the breaker stays open; above 0, at most 100 years.
  Duration open_for = std::chrono::seconds(10);

  // When a probe that has not been settled gives its slot up; above 0, at most 100 years.
  Duration probe_timeout = std::chrono::seconds(10);

  // Half-open: how many calls are admitted at a time; 1 to 4,096.
  std::uint32_t probes = 1;

  // Half-open: so many successful probes close the breaker, a failed one opens it; 1 to 1,000,000.
  std::uint32_t successes_to_close = 3;

  // Replaces the rules for the closed state: called when a failure is recorded, true opens the breaker. A pure function
  // of the counts: it may be called again for one failure, and from several threads at once; it must not block. Always
  // false turns the breaker off. If it throws the breaker stays closed and the failure is recorded.
  std::function<bool(const Counts&)> trip{};

  // Replaces the rules for the half-open state: called when a probe is settled with success or failure, or noticed to have
  // timed out. As pure as `trip`. If it throws, or returns none of the three (which is told as if it had thrown), the breaker
  // stays half-open and the result is recorded.
  std::function<ProbeDecision(const Counts&)> probe{};

  // Told of every change of state, once each and in order, on the thread of a call that made one, outside any critical
  // section: it may call the breaker. Calls are never kept waiting by it, except the one that it runs on.
  std::function<void(const CircuitTransition&)> observer{};

  // Told what `trip`, `probe` or `observer` threw, and a std::out_of_range for a `probe` that returns none of its decisions. Called from any thread, several at once; what it throws is dropped.
  std::function<void(std::exception_ptr)> error_observer{};

  // Null: SteadyClock(). Must outlive the breaker.
  const Clock* clock = nullptr;
};

// Appends a sentence for each setting out of range, its name preceded by `prefix` ("circuit_breaker.").
void CheckSettings(const CircuitBreakerSettings& settings, std::string_view prefix, std::vector<std::string>& problems);

}  // namespace penstock::inline v0
