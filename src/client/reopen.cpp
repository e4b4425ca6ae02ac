#include "client/reopen.h"

#include <algorithm>

namespace penstock::inline v0::detail {

void Reopening::Begin(const ReopenRules& rules, TimePoint now) noexcept {
  rules_ = rules;
  gap_began_ = now;
  due_ = now;
  attempts_ = 1;
  rejections_ = waits_ = 0;
}

ReopenStep Reopening::OnStreamEnded(const StreamReport& report, TimePoint now, std::uint64_t random) noexcept {
  if (!report.reopenable) return {.action = ReopenStep::Action::kEnd};
  // C5: a server that asks for more than the longest wait is taken at its word.
  if (report.retry_after && *report.retry_after > rules_.backoff.max) return {.action = ReopenStep::Action::kEnd};
  rejections_ = 0;
  if (report.delivered || report.open_for >= rules_.backoff.max) {
    gap_began_ = now;
    attempts_ = waits_ = 0;
  }
  // At once after a stream that had delivered: a rollout ends streams that were well, and their next server is there.
  Duration wait{};
  if (!report.delivered) wait = rules_.backoff.Draw(attempts_, random);
  if (report.retry_after) wait = WithRetryAfter(wait, *report.retry_after);
  due_ = SaturatingAdd(now, wait);
  return {.action = ReopenStep::Action::kTell, .lasted = now - gap_began_, .attempts = attempts_};
}

ReopenStep Reopening::OnGapTold(bool go_on, TimePoint now, const RetryBudget& budget, OpeningSlots& slots,
                                std::uint64_t random) noexcept {
  if (!go_on) return {.action = ReopenStep::Action::kEnd};
  return Look(now, budget, slots, random);
}

ReopenStep Reopening::Look(TimePoint now, const RetryBudget& budget, OpeningSlots& slots, std::uint64_t random) noexcept {
  if (now >= rules_.deadline) return {.action = ReopenStep::Action::kExpire};
  if (now >= GiveUpAt()) return {.action = ReopenStep::Action::kGiveUp};
  if (now < due_) return WaitUntil(due_, now);
  bool slot = false;
  // The first opening of a gap asks nobody; the others go by the budget while it lasts.
  if (attempts_ > 0 && !budget.RetryAllowed()) {
    slot = slots.Take();
    // Each wait is longer than the one before, as after an attempt: else all would be there at once when the budget has recovered.
    if (!slot) return WaitUntil(SaturatingAdd(now, rules_.backoff.Draw(attempts_ + waits_++, random)), now);
  }
  ++attempts_;
  return {.action = ReopenStep::Action::kOpen, .slot = slot};
}

ReopenStep Reopening::OnRejected(Duration rejected_for, TimePoint now, std::uint64_t random) noexcept {
  // No attempt was made. All who wait for the breaker would come at the same moment, so each comes a little later.
  if (attempts_ > 0) --attempts_;
  ++rejections_;
  return WaitUntil(SaturatingAdd(SaturatingAdd(now, rejected_for), rules_.backoff.Draw(rejections_, random)), now);
}

ReopenStep Reopening::WaitUntil(TimePoint due, TimePoint now) noexcept {
  if (now >= rules_.deadline) return {.action = ReopenStep::Action::kExpire};
  if (now >= GiveUpAt()) return {.action = ReopenStep::Action::kGiveUp};
  due_ = due;
  return {.action = ReopenStep::Action::kWait, .until = std::min({due_, rules_.deadline, GiveUpAt()})};
}

}  // namespace penstock::inline v0::detail
