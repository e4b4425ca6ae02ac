#pragma once

// Stops calling a dependency that is down, and finds out when it is back.
//
// Calls to a dependency that does not answer cost their callers a whole timeout each, and keep it from getting up. A
// circuit breaker counts how calls end: while too many fail it rejects further ones at once, and after a while lets a few
// through to see whether the dependency is back. It guards any dependency: a gRPC service, a database, a disk.
//
//     auto breaker = penstock::CircuitBreaker::Create({.open_for = 10s});
//     if (!breaker.ok()) return Fail(breaker.error().message());
//     auto admission = (*breaker)->Acquire();
//     if (!admission.admitted()) return Busy(admission.rejected_for());
//     admission.ticket().Settle(Query() ? Outcome::kSuccess : Outcome::kFailure);
//
// Threads: every member may be called from any thread; lock-free, no allocation after Create(). A ticket is a plain value:
// it may travel between threads, but is used by one at a time.
// Ownership: one breaker for one dependency; it must outlive its tickets, and no callback may destroy it.
// Time: monotonic, from settings.clock. While closed, neither admitting nor settling a success reads it.
// Errors: Create() refuses settings out of range, all of them in one message. Nothing else fails; what a policy or the
// observer throws is caught and told to settings.error_observer.

#include <cassert>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"

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
// not cut by it. Half-open: since it became so, each saturating at 16,777,215. Open: all zero.
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

  // How many transitions before this one were not reported because the observer was too slow: usually 0. The breaker
  // remembers kReportedTransitions of them.
  std::uint64_t missed = 0;
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

  // The failures in a row must also span at least this long, from the first of them; 0 or more.
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
  std::function<bool(const Counts&)> trip;

  // Replaces the rules for the half-open state: called when a probe is settled with success or failure, or noticed to have
  // timed out. As pure as `trip`. If it throws the breaker stays half-open and the result is recorded.
  std::function<ProbeDecision(const Counts&)> probe;

  // Told of every change of state, once each and in order, on the thread of a call that made one, outside any critical
  // section: it may call the breaker. Calls are never kept waiting by it, except the one that it runs on.
  std::function<void(const CircuitTransition&)> observer;

  // Told what `trip`, `probe` or `observer` threw. Called from any thread, several at once; what it throws is dropped.
  std::function<void(std::exception_ptr)> error_observer;

  // Null: SteadyClock(). Must outlive the breaker.
  const Clock* clock = nullptr;
};

// Appends a sentence for each setting out of range, its name preceded by `prefix` ("circuit_breaker.").
void CheckSettings(const CircuitBreakerSettings& settings, std::string_view prefix, std::vector<std::string>& problems);

class CircuitBreaker;

// The right to make one call, to be settled once with how it ended.
class [[nodiscard]] CircuitTicket {
 public:
  // Holds nothing: settling it is an error, destroying it is fine.
  CircuitTicket() noexcept = default;

  CircuitTicket(CircuitTicket&& other) noexcept
      : breaker_(std::exchange(other.breaker_, nullptr)), word_(other.word_), slot_(other.slot_) {}
  CircuitTicket& operator=(CircuitTicket&& other) noexcept {
    CircuitTicket dropped(std::move(*this));
    breaker_ = std::exchange(other.breaker_, nullptr);
    word_ = other.word_;
    slot_ = other.slot_;
    return *this;
  }

  // A ticket that was not settled counts as ignored.
  ~CircuitTicket() {
    if (breaker_ != nullptr) Settle(Outcome::kIgnored);
  }

  // Says how the call ended; the ticket holds nothing afterwards. Settling one that holds nothing (settled before, moved
  // from) is a programming error: an assertion, and without assertions no effect.
  void Settle(Outcome outcome) noexcept;

  // True until it is settled or moved from.
  bool held() const noexcept { return breaker_ != nullptr; }

  // True for a call that was admitted half-open.
  bool is_probe() const noexcept { return slot_ != kNoSlot; }

 private:
  friend class CircuitBreaker;
  static constexpr std::uint32_t kNoSlot = 0xffffffff;

  CircuitTicket(CircuitBreaker* breaker, std::uint64_t word, std::uint32_t slot) noexcept
      : breaker_(breaker), word_(word), slot_(slot) {}

  CircuitBreaker* breaker_ = nullptr;
  std::uint64_t word_ = 0;
  std::uint32_t slot_ = kNoSlot;
};
static_assert(sizeof(CircuitTicket) <= 32);

// Whether a call may be made.
class [[nodiscard]] Admission {
 public:
  bool admitted() const noexcept { return ticket_.held(); }
  explicit operator bool() const noexcept { return admitted(); }

  // Only where admitted.
  CircuitTicket& ticket() noexcept { return ticket_; }
  CircuitTicket TakeTicket() noexcept { return std::move(ticket_); }

  // Rejected by an open breaker: how much longer it stays open (above 0). Otherwise zero.
  Duration rejected_for() const noexcept { return rejected_for_; }

  // Rejected because the breaker is half-open and every probe slot is taken.
  bool probes_taken() const noexcept { return probes_taken_; }

 private:
  friend class CircuitBreaker;
  explicit Admission(CircuitTicket ticket) noexcept : ticket_(std::move(ticket)) {}
  explicit Admission(Duration rejected_for) noexcept
      : rejected_for_(rejected_for), probes_taken_(rejected_for == Duration::zero()) {}

  CircuitTicket ticket_;
  Duration rejected_for_{};
  bool probes_taken_ = false;
};

class TextbookCircuitBreaker;

class CircuitBreaker {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CircuitBreaker>> Create(CircuitBreakerSettings settings = {});
  ~CircuitBreaker();
  CircuitBreaker(const CircuitBreaker&) = delete;
  CircuitBreaker& operator=(const CircuitBreaker&) = delete;

  // Admits a call or rejects it; makes and reports the change to half-open if open_for has passed.
  Admission Acquire() noexcept;

  // The state as of now: half-open once open_for has passed, though only the next Acquire() makes the change.
  CircuitState state() const noexcept;

  // What was recorded in the current state. Exact while no other thread settles, else as of some moment during the call.
  Counts counts() const noexcept;

  CircuitTotals totals() const noexcept;

 private:
  friend class CircuitTicket;
  explicit CircuitBreaker(CircuitBreakerSettings settings);
  void Settle(std::uint64_t word, std::uint32_t slot, Outcome outcome) noexcept;

  std::unique_ptr<TextbookCircuitBreaker> impl_;
};

inline void CircuitTicket::Settle(Outcome outcome) noexcept {
  assert(breaker_ != nullptr && "a circuit ticket is settled once");
  if (CircuitBreaker* breaker = std::exchange(breaker_, nullptr)) breaker->Settle(word_, slot_, outcome);
}

}  // namespace penstock::inline v0
