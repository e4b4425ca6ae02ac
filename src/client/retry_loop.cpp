#include "penstock/client/detail/retry_loop.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

namespace penstock::inline v0::detail {

namespace {

// C3: for how long a call that a shutdown killed keeps off that connection. The server sends its GOAWAY about a millisecond after it
// begins to kill, behind the kill on the same TCP stream, so no delay of the network comes in between; until the channel has read
// it, it goes on picking the connection.
constexpr Duration kShortestAfterKill = std::chrono::milliseconds(10);
constexpr Backoff kSpreadAfterKill{.base = std::chrono::milliseconds(20), .max = std::chrono::milliseconds(20)};

}  // namespace

RetryStep RetryLoop::Begin(const RetryRules& rules, TimePoint now) noexcept {
  rules_ = rules;
  killed_before_ = false;
  reached_ = Reached::kNotSent;
  attempts_ = 0;
  if (now >= rules_.deadline) return End(EndReason::kExpired, RetryDecision::kExpired);
  state_ = State::kAdmitting;
  return {.action = RetryStep::Action::kAdmit};
}

RetryStep RetryLoop::OnAdmitted() noexcept {
  assert(state_ == State::kAdmitting);
  state_ = State::kRunning;
  ++attempts_;
  return {.action = RetryStep::Action::kStart};
}

RetryStep RetryLoop::OnRejected() noexcept {
  assert(state_ == State::kAdmitting);
  return End(EndReason::kRejected, RetryDecision::kStopped);
}

RetryStep RetryLoop::OnAnswered(RetryBudget& budget) noexcept {
  assert(state_ == State::kRunning);
  budget.OnSuccess();
  reached_ = Reached::kResponded;
  return End(EndReason::kAnswered, RetryDecision::kSucceeded);
}

RetryStep RetryLoop::OnAttemptEnded(const AttemptReport& report, RetryBudget& budget, TimePoint now,
                                    std::uint64_t random) noexcept {
  assert(state_ == State::kRunning);
  const Classification& classification = report.classification;
  if (classification.decision == Decision::kSuccess) {
    return OnAnswered(budget);
  }
  reached_ = std::max(reached_, report.reached);
  if (report.deadline_passed) return End(EndReason::kExpired, RetryDecision::kExpired);
  if (report.cancelled) return End(EndReason::kCancelled, RetryDecision::kStopped);

  // C3: only where running twice is known to be harmless.
  const bool repeats_killed = report.killed_at_shutdown && rules_.repeatability == Repeatability::kRepeatable;
  if (classification.decision != Decision::kRetry && !repeats_killed) {
    return End(EndReason::kStopped, RetryDecision::kStopped);
  }
  // U2: it takes its token whether or not another attempt follows.
  if (report.takes_token) budget.OnRetryable();

  if (!repeats_killed && !MayRepeat(report)) return End(EndReason::kStopped, RetryDecision::kStopped);
  if (attempts_ >= rules_.max_attempts) return End(EndReason::kExhausted, RetryDecision::kExhausted);
  if (!budget.RetryAllowed()) return End(EndReason::kThrottled, RetryDecision::kThrottled);

  Duration wait{};
  if (repeats_killed) {
    wait = WaitAfterKill(random);
  } else {
    wait = rules_.backoff.Draw(attempts_, random);
    if (classification.retry_after) {
      if (*classification.retry_after > rules_.backoff.max) return End(EndReason::kStopped, RetryDecision::kStopped);
      wait = WithRetryAfter(wait, *classification.retry_after);
    }
  }
  // K3: a wait that would end at or after the deadline is not started.
  if (!EndsBefore(now, wait, rules_.deadline)) return End(EndReason::kExpired, RetryDecision::kExpired);
  if (wait == Duration::zero()) {
    state_ = State::kAdmitting;
    return {.action = RetryStep::Action::kAdmit, .decision = RetryDecision::kRetried};
  }
  state_ = State::kWaiting;
  return {.action = RetryStep::Action::kWait, .decision = RetryDecision::kRetried, .wait = wait};
}

Duration RetryLoop::WaitAfterKill(std::uint64_t random) noexcept {
  Duration wait = kShortestAfterKill + kSpreadAfterKill.Draw(1, random);
  // Killed again: the server took longer than that.
  if (std::exchange(killed_before_, true)) wait = std::max(wait, rules_.backoff.Draw(attempts_, random));
  return std::min(wait, rules_.backoff.max);
}

RetryStep RetryLoop::OnWaitOver() noexcept {
  assert(state_ == State::kWaiting);
  state_ = State::kAdmitting;
  return {.action = RetryStep::Action::kAdmit};
}

RetryStep RetryLoop::OnCancelled(CancelReason reason) noexcept {
  assert(state_ != State::kEnded);
  if (reason == CancelReason::kDeadline) return End(EndReason::kExpired, RetryDecision::kExpired);
  return End(EndReason::kCancelled, RetryDecision::kStopped);
}

RetryStep RetryLoop::End(EndReason reason, RetryDecision decision) noexcept {
  state_ = State::kEnded;
  return {.action = RetryStep::Action::kEnd, .reason = reason, .decision = decision};
}

bool RetryLoop::MayRepeat(const AttemptReport& report) const noexcept {
  if (report.reached == Reached::kNotSent) return true;
  switch (rules_.repeatability) {
    case Repeatability::kRepeatable:
      return true;
    case Repeatability::kFromProto:
    case Repeatability::kUnmarked:
      return rules_.retry_unmarked;
    case Repeatability::kOnceOnly:
      return false;
  }
  return false;
}

}  // namespace penstock::inline v0::detail
