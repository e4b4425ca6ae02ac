#pragma once

// The retry loop: what follows when an attempt has ended (behaviour.md L5, K, U2, U3, C5, C9).
//
// Events in, steps out, no I/O, no gRPC call and no clock: the same loop serves unary calls and the openings of streams, and a
// test walks through it with a table. It is driven by one party at a time (CallWord) and is not thread-safe; the budget
// that it draws on is.
//
//     idle --Begin--> admitting --OnAdmitted--> running --OnAttemptEnded--> waiting --OnWaitOver--> admitting
//                        |                         |
//                     OnRejected                OnAttemptEnded              (any but ended) --OnCancelled--> ended
//                        v                         v
//                      ended                     ended

#include <cstdint>
#include <optional>

#include "penstock/client/call.h"
#include "penstock/client/classify.h"
#include "penstock/core/backoff.h"
#include "penstock/core/clock.h"
#include "penstock/core/retry_budget.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0::detail {

// What holds for one call, its method's and its own options resolved.
struct RetryRules {
  std::uint32_t max_attempts = 3;
  Backoff backoff{};  // Its max is also what a server may ask for at most (C5).
  // Never kFromProto.
  Repeatability repeatability = Repeatability::kUnmarked;
  bool retry_unmarked = true;
  // TimePoint::max() for none.
  TimePoint deadline = TimePoint::max();
};

// What the loop needs to know of an attempt's end.
struct AttemptReport {
  Classification classification;
  Reached reached = Reached::kMaybeProcessed;
  // False for one that C10 holds back: it takes no token.
  bool takes_token = true;
  // C3, the call that a server killed as it shut down: another attempt for a repeatable method, once the server's GOAWAY is there.
  bool killed_at_shutdown = false;
  // C6, C11: Classify threw or made no sense.
  bool faulty = false;
  // C2c: the attempt ended by the call's own deadline.
  bool deadline_passed = false;
  // C2b: it ended by its caller's side: the caller, the parent, the client's closing.
  bool cancelled = false;
};

struct RetryStep {
  enum class Action : unsigned char {
    kAdmit,  // Ask the breaker, then OnAdmitted() or OnRejected().
    kStart,  // Start the attempt.
    kWait,   // For `wait`, then OnWaitOver().
    kEnd,    // For `reason`; `decision` is what is counted.
  };
  Action action = Action::kEnd;
  EndReason reason = EndReason::kStopped;
  RetryDecision decision = RetryDecision::kStopped;
  Duration wait{};

  friend bool operator==(const RetryStep&, const RetryStep&) = default;
};

class RetryLoop {
 public:
  // kAdmit, or kEnd with kExpired when the deadline has passed already.
  RetryStep Begin(const RetryRules& rules, TimePoint now) noexcept;

  // kStart.
  RetryStep OnAdmitted() noexcept;

  // kEnd with kRejected.
  RetryStep OnRejected() noexcept;

  // kEnd, kWait, or kAdmit where there is nothing to wait for. `random` are 64 random bits.
  RetryStep OnAttemptEnded(const AttemptReport& report, RetryBudget& budget, TimePoint now, std::uint64_t random) noexcept;

  // The same as OnAttemptEnded() for an attempt that was answered with OK, without its arguments.
  RetryStep OnAnswered(RetryBudget& budget) noexcept;

  // kAdmit.
  RetryStep OnWaitOver() noexcept;

  // kEnd: kExpired where the deadline did it, else kCancelled.
  RetryStep OnCancelled(CancelReason reason) noexcept;

  std::uint32_t attempts() const noexcept { return attempts_; }
  // The most that any attempt has reached.
  Reached reached() const noexcept { return reached_; }
  TimePoint deadline() const noexcept { return rules_.deadline; }

 private:
  enum class State : unsigned char { kIdle, kAdmitting, kRunning, kWaiting, kEnded };

  RetryStep End(EndReason reason, RetryDecision decision) noexcept;
  bool MayRepeat(const AttemptReport& report) const noexcept;
  Duration WaitAfterKill(std::uint64_t random) noexcept;

  RetryRules rules_;
  State state_ = State::kIdle;
  bool killed_before_ = false;  // C3, in this call.
  Reached reached_ = Reached::kNotSent;
  std::uint32_t attempts_ = 0;
};

}  // namespace penstock::inline v0::detail
