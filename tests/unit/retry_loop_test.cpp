// What follows an attempt's end: every gate of L5, in its order, by a table; and the walk through a whole call.

#include "penstock/client/detail/retry_loop.h"

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace penstock::inline v0::detail {
namespace {

using namespace std::chrono_literals;
using Action = RetryStep::Action;

constexpr TimePoint kStart{1h};
constexpr std::uint64_t kLongest = std::numeric_limits<std::uint64_t>::max();  // Random bits that draw the whole bound.

std::unique_ptr<RetryBudget> Budget(double tokens = 100) { return *RetryBudget::Create({.max_tokens = tokens, .token_ratio = 0.1}); }

RetryRules Rules() { return {.max_attempts = 3, .backoff = {.base = 100ms, .max = 5s}, .deadline = kStart + 10s}; }

AttemptReport Retry(std::optional<Duration> retry_after = {}) {
  return {.classification = {Decision::kRetry, Outcome::kFailure, retry_after}};
}
AttemptReport Stop() { return {.classification = {Decision::kStop, Outcome::kSuccess, {}}}; }
AttemptReport Killed() {
  return {.classification = {Decision::kStop, Outcome::kIgnored, {}}, .killed_at_shutdown = true};
}

RetryLoop Running(const RetryRules& rules) {
  RetryLoop loop;
  REQUIRE(loop.Begin(rules, kStart).action == Action::kAdmit);
  REQUIRE(loop.OnAdmitted().action == Action::kStart);
  return loop;
}

// The step after the first attempt's end.
RetryStep After(const RetryRules& rules, const AttemptReport& report, RetryBudget& budget, std::uint64_t random = kLongest) {
  RetryLoop loop = Running(rules);
  return loop.OnAttemptEnded(report, budget, kStart, random);
}

constexpr RetryStep End(EndReason reason, RetryDecision decision) { return {.action = Action::kEnd, .reason = reason, .decision = decision}; }
constexpr RetryStep kStopped = End(EndReason::kStopped, RetryDecision::kStopped);
constexpr RetryStep kExhausted = End(EndReason::kExhausted, RetryDecision::kExhausted);
constexpr RetryStep kThrottled = End(EndReason::kThrottled, RetryDecision::kThrottled);
constexpr RetryStep kExpired = End(EndReason::kExpired, RetryDecision::kExpired);
constexpr RetryStep kCancelled = End(EndReason::kCancelled, RetryDecision::kStopped);
constexpr RetryStep kAnswered = End(EndReason::kAnswered, RetryDecision::kSucceeded);
constexpr RetryStep Wait(Duration wait) { return {.action = Action::kWait, .decision = RetryDecision::kRetried, .wait = wait}; }
constexpr RetryStep kAtOnce{.action = Action::kAdmit, .decision = RetryDecision::kRetried};

}  // namespace

TEST_CASE("L5: the gates, each just before, at and just after its bound") {
  struct Case {
    const char* what;
    RetryRules rules;
    AttemptReport report;
    double tokens;  // In the budget of 100 before the attempt ends.
    RetryStep expected;
  };
  RetryRules once_only = Rules();
  once_only.repeatability = Repeatability::kOnceOnly;
  RetryRules repeatable = Rules();
  repeatable.repeatability = Repeatability::kRepeatable;
  RetryRules strict = Rules();
  strict.retry_unmarked = false;
  RetryRules strict_repeatable = strict;
  strict_repeatable.repeatability = Repeatability::kRepeatable;
  RetryRules one_attempt = Rules();
  one_attempt.max_attempts = 1;
  const auto ending_in = [](Duration left) {
    RetryRules rules = Rules();
    rules.deadline = kStart + left;
    return rules;
  };
  const auto killed_ending_in = [&](Duration left) {
    RetryRules rules = ending_in(left);
    rules.repeatability = Repeatability::kRepeatable;
    return rules;
  };
  RetryRules impatient = repeatable;
  impatient.backoff = {.base = 1ms, .max = 3ms};
  RetryRules endless = Rules();
  endless.deadline = TimePoint::max();
  AttemptReport not_sent = Retry();
  not_sent.reached = Reached::kNotSent;
  AttemptReport deadline = Stop();
  deadline.deadline_passed = true;
  AttemptReport cancelled = Retry();
  cancelled.cancelled = true;
  AttemptReport too_late = cancelled;
  too_late.deadline_passed = true;

  const std::vector<Case> cases = {
      {"success", Rules(), {.classification = {Decision::kSuccess, Outcome::kSuccess, {}}}, 100, kAnswered},
      {"stop", Rules(), Stop(), 100, kStopped},
      {"the call's own deadline", Rules(), deadline, 100, kExpired},
      {"its caller's side, whatever Classify would say", Rules(), cancelled, 100, kCancelled},
      {"its caller's side, and the deadline", Rules(), too_late, 100, kExpired},
      {"retry: the whole bound", Rules(), Retry(), 100, Wait(100ms)},
      // C9
      {"unmarked", Rules(), Retry(), 100, Wait(100ms)},
      {"unmarked, not to be retried", strict, Retry(), 100, kStopped},
      {"unmarked, not to be retried, not sent", strict, not_sent, 100, Wait(100ms)},
      {"repeatable, unmarked not to be retried", strict_repeatable, Retry(), 100, Wait(100ms)},
      {"once-only, maybe sent", once_only, Retry(), 100, kStopped},
      {"once-only, not sent", once_only, not_sent, 100, Wait(100ms)},
      // Attempts come before the budget, C9 before both.
      {"exhausted", one_attempt, Retry(), 100, kExhausted},
      {"exhausted and throttled", one_attempt, Retry(), 10, kExhausted},
      // U3: one token is taken first; more than half must be left.
      {"51.001 tokens", Rules(), Retry(), 51.001, Wait(100ms)},
      {"51 tokens", Rules(), Retry(), 51, kThrottled},
      {"0 tokens", Rules(), Retry(), 0, kThrottled},
      // C5
      {"pushback of 0", Rules(), Retry(0ms), 100, Wait(100ms)},
      {"pushback below the backoff", Rules(), Retry(99ms), 100, Wait(100ms)},
      {"pushback above the backoff", Rules(), Retry(101ms), 100, Wait(101ms)},
      {"pushback of backoff_max", Rules(), Retry(5s), 100, Wait(5s)},
      {"pushback over backoff_max", Rules(), Retry(5s + 1ns), 100, kStopped},
      {"pushback without end", endless, Retry(Duration::max()), 100, kStopped},
      {"throttled comes before the pushback", Rules(), Retry(6s), 10, kThrottled},
      // K3
      {"the wait ends before the deadline", ending_in(100ms + 1ns), Retry(), 100, Wait(100ms)},
      {"the wait ends at the deadline", ending_in(100ms), Retry(), 100, kExpired},
      {"the wait ends after the deadline", ending_in(50ms), Retry(), 100, kExpired},
      {"the pushback ends at the deadline", ending_in(3s), Retry(3s), 100, kExpired},
      {"no deadline", endless, Retry(), 100, Wait(100ms)},
      // C3
      {"killed at shutdown, unmarked", Rules(), Killed(), 100, kStopped},
      {"killed at shutdown, once-only", once_only, Killed(), 100, kStopped},
      {"killed at shutdown, repeatable", repeatable, Killed(), 100, Wait(30ms)},
      {"killed at shutdown, the wait ends before the deadline", killed_ending_in(30ms + 1ns), Killed(), 100, Wait(30ms)},
      {"killed at shutdown, the wait ends at the deadline", killed_ending_in(30ms), Killed(), 100, kExpired},
      {"killed at shutdown, backoff_max is shorter", impatient, Killed(), 100, Wait(3ms)},
      {"killed at shutdown, throttled", repeatable, Killed(), 51, kThrottled},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.what);
    auto budget = Budget();
    while (budget->milli_tokens() > 0 && budget->milli_tokens() >= tried.tokens * 1000 + 1000) budget->OnRetryable();
    // The last fraction of a token is given back in tenths.
    if (tried.tokens == 51.001) {
      budget = *RetryBudget::Create({.max_tokens = 100, .token_ratio = 0.001});
      for (int i = 0; i < 49; ++i) budget->OnRetryable();
      budget->OnSuccess();
    }
    REQUIRE(budget->milli_tokens() == doctest::Approx(tried.tokens * 1000));
    CHECK(After(tried.rules, tried.report, *budget) == tried.expected);
  }
}

TEST_CASE("U2: an attempt to be retried takes a token whether or not another follows; one held back and others take none") {
  struct Case {
    const char* what;
    RetryRules rules;
    AttemptReport report;
    std::uint32_t taken;
  };
  RetryRules once_only = Rules();
  once_only.repeatability = Repeatability::kOnceOnly;
  RetryRules repeatable = Rules();
  repeatable.repeatability = Repeatability::kRepeatable;
  RetryRules one_attempt = Rules();
  one_attempt.max_attempts = 1;
  RetryRules expiring = Rules();
  expiring.deadline = kStart + 1ms;
  AttemptReport held = Retry();
  held.takes_token = false;
  const std::vector<Case> cases = {
      {"retried", Rules(), Retry(), 1000},          {"not repeatable", once_only, Retry(), 1000},
      {"exhausted", one_attempt, Retry(), 1000},    {"expired", expiring, Retry(), 1000},
      {"pushback too long", Rules(), Retry(1h), 1000}, {"held back by C10", Rules(), held, 0},
      {"stopped", Rules(), Stop(), 0},              {"killed at shutdown", repeatable, Killed(), 1000},
      {"killed at shutdown, unmarked", Rules(), Killed(), 0},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.what);
    auto budget = Budget();
    After(tried.rules, tried.report, *budget);
    CHECK(100'000 - budget->milli_tokens() == tried.taken);
  }
}

TEST_CASE("U2: a success gives back the ratio") {
  auto budget = Budget();
  for (int i = 0; i < 3; ++i) budget->OnRetryable();
  After(Rules(), {.classification = {Decision::kSuccess, Outcome::kSuccess, {}}}, *budget);
  CHECK(budget->milli_tokens() == 97'100);
  RetryLoop loop = Running(Rules());
  CHECK(loop.OnAnswered(*budget) == kAnswered);
  CHECK(budget->milli_tokens() == 97'200);
  CHECK(loop.reached() == Reached::kResponded);
}

TEST_CASE("K1, L4: waits double, and the third attempt is the last") {
  auto budget = Budget();
  RetryLoop loop = Running(Rules());
  CHECK(loop.OnAttemptEnded(Retry(), *budget, kStart, kLongest) == Wait(100ms));
  CHECK(loop.OnWaitOver().action == Action::kAdmit);
  CHECK(loop.OnAdmitted().action == Action::kStart);
  CHECK(loop.OnAttemptEnded(Retry(), *budget, kStart + 100ms, kLongest) == Wait(200ms));
  CHECK(loop.OnWaitOver().action == Action::kAdmit);
  CHECK(loop.OnAdmitted().action == Action::kStart);
  CHECK(loop.OnAttemptEnded(Retry(), *budget, kStart + 300ms, kLongest) == kExhausted);
  CHECK(loop.attempts() == 3);
}

TEST_CASE("K2: a drawn wait of nothing starts the next attempt at once") {
  auto budget = Budget();
  CHECK(After(Rules(), Retry(), *budget, 0) == kAtOnce);
  CHECK(After(Rules(), Retry(7ms), *budget, 0) == Wait(7ms));
}

TEST_CASE("C3: a call killed at shutdown is repeated once the GOAWAY is there, with backoff if it is killed again, as often as attempts are left") {
  auto budget = Budget();
  RetryRules rules = Rules();
  rules.repeatability = Repeatability::kRepeatable;
  rules.max_attempts = 4;
  RetryLoop loop = Running(rules);
  AttemptReport again = Killed();
  again.takes_token = false;  // The same shutdown.
  CHECK(loop.OnAttemptEnded(Killed(), *budget, kStart, kLongest) == Wait(30ms));
  loop.OnWaitOver();
  loop.OnAdmitted();
  CHECK(loop.OnAttemptEnded(again, *budget, kStart, kLongest) == Wait(200ms));
  loop.OnWaitOver();
  loop.OnAdmitted();
  // Full jitter may draw nothing; the server's gap is waited for all the same.
  CHECK(loop.OnAttemptEnded(again, *budget, kStart, 0) == Wait(10ms));
  loop.OnWaitOver();
  loop.OnAdmitted();
  CHECK(loop.OnAttemptEnded(again, *budget, kStart, kLongest) == kExhausted);
  CHECK(loop.attempts() == 4);
  CHECK(budget->milli_tokens() == 99'000);
}

TEST_CASE("L3: a deadline that has passed makes no attempt") {
  for (const Duration left : {Duration(-1h), Duration(-1ns), Duration(0)}) {
    RetryLoop loop;
    RetryRules rules = Rules();
    rules.deadline = kStart + left;
    CHECK(loop.Begin(rules, kStart) == kExpired);
    CHECK(loop.attempts() == 0);
    CHECK(loop.reached() == Reached::kNotSent);
  }
  RetryLoop loop;
  RetryRules rules = Rules();
  rules.deadline = kStart + 1ns;
  CHECK(loop.Begin(rules, kStart).action == Action::kAdmit);
}

TEST_CASE("L4, L6: a rejection ends the call, also after attempts, and what they reached stays") {
  auto budget = Budget();
  RetryLoop first;
  first.Begin(Rules(), kStart);
  CHECK(first.OnRejected() == End(EndReason::kRejected, RetryDecision::kStopped));
  CHECK(first.attempts() == 0);
  CHECK(first.reached() == Reached::kNotSent);

  RetryLoop later = Running(Rules());
  AttemptReport report = Retry();
  report.reached = Reached::kMaybeProcessed;
  later.OnAttemptEnded(report, *budget, kStart, kLongest);
  later.OnWaitOver();
  CHECK(later.OnRejected() == End(EndReason::kRejected, RetryDecision::kStopped));
  CHECK(later.attempts() == 1);
  CHECK(later.reached() == Reached::kMaybeProcessed);
}

TEST_CASE("L14: reached is the most that any attempt reached") {
  auto budget = Budget();
  RetryLoop loop = Running(Rules());
  AttemptReport report = Retry();
  report.reached = Reached::kResponded;
  loop.OnAttemptEnded(report, *budget, kStart, 0);
  loop.OnAdmitted();
  report.reached = Reached::kNotSent;
  loop.OnAttemptEnded(report, *budget, kStart, 0);
  CHECK(loop.reached() == Reached::kResponded);
}

TEST_CASE("L8: a cancel ends the loop in each state, the deadline as expired") {
  auto budget = Budget();
  for (const CancelReason reason :
       {CancelReason::kCaller, CancelReason::kParent, CancelReason::kClosed, CancelReason::kDeadline}) {
    const RetryStep expected =
        reason == CancelReason::kDeadline ? kExpired : End(EndReason::kCancelled, RetryDecision::kStopped);
    RetryLoop idle;
    CHECK(idle.OnCancelled(reason) == expected);
    RetryLoop running = Running(Rules());
    CHECK(running.OnCancelled(reason) == expected);
    RetryLoop waiting = Running(Rules());
    waiting.OnAttemptEnded(Retry(), *budget, kStart, kLongest);
    CHECK(waiting.OnCancelled(reason) == expected);
  }
}

}  // namespace penstock::inline v0::detail
