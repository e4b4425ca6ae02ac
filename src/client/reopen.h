#pragma once

// When a subscription opens its next stream (behaviour.md S8). Events in, steps out; no gRPC, no clock, no timer.
//
//     streaming --OnStreamEnded--> telling --OnGapTold--> waiting --Look--> streaming
//                     |               |                  |   ^ |
//                     v               v                  v   +-+ (the budget is low, or OnRejected)
//                   ended           ended              ended
//
// A gap is the time in which the user hears nothing because there is no stream that delivers. It begins when a stream that
// had delivered a message, or had been open for backoff.max at least, ends; and with the subscription itself. Streams that
// end before they have delivered belong to the gap that they were to close.

#include <atomic>
#include <cstdint>
#include <optional>

#include "penstock/core/backoff.h"
#include "penstock/core/clock.h"
#include "penstock/core/retry_budget.h"

namespace penstock::inline v0::detail {

// How many subscriptions of one client may be opening at once while the retry budget is low. Reopening then goes at the
// dependency's own pace instead of stopping for good: what opens gives tokens back.
class OpeningSlots {
 public:
  static constexpr std::uint32_t kSlots = 16;

  bool Take() noexcept {
    // relaxed, both: a number that bounds, nothing is published with it.
    if (taken_.fetch_add(1, std::memory_order_relaxed) < kSlots) return true;
    taken_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  void Give() noexcept { taken_.fetch_sub(1, std::memory_order_relaxed); }  // relaxed: see Take()

 private:
  std::atomic<std::uint32_t> taken_{0};
};

struct ReopenRules {
  Backoff backoff{};
  // Of a gap; Duration::max() for never.
  Duration give_up_after = Duration::max();
  // Of the whole subscription; TimePoint::max() for none.
  TimePoint deadline = TimePoint::max();
};

// How a stream of the subscription ended.
struct StreamReport {
  // S8 lets the subscription go on: UNAVAILABLE, CANCELLED by the server before the opening, or Classify said retry.
  bool reopenable = false;
  bool delivered = false;
  // How long it had been open; zero if it never opened.
  Duration open_for{};
  std::optional<Duration> retry_after = {};
};

struct ReopenStep {
  enum class Action : std::uint8_t {
    kTell,    // the user of the gap: it has lasted for `lasted`, after `attempts` openings; then OnGapTold()
    kWait,    // until `until`, then Look()
    kOpen,    // the next stream; `slot` says that an OpeningSlot was taken, to be given back when it has opened or ended
    kEnd,     // with the last status, which stands
    kGiveUp,  // with the last status: give_up_after has passed
    kExpire,  // the deadline has passed
  };
  Action action = Action::kEnd;
  TimePoint until{};
  Duration lasted{};
  std::uint32_t attempts = 0;
  bool slot = false;

  friend bool operator==(const ReopenStep&, const ReopenStep&) = default;
};

class Reopening {
 public:
  // The first stream may be opened at once.
  void Begin(const ReopenRules& rules, TimePoint now) noexcept;

  // kTell, kEnd.
  ReopenStep OnStreamEnded(const StreamReport& report, TimePoint now, std::uint64_t random) noexcept;

  // The user has heard of the gap, and wants to go on or not. kWait, kOpen, kEnd, kGiveUp, kExpire.
  ReopenStep OnGapTold(bool go_on, TimePoint now, const RetryBudget& budget, OpeningSlots& slots, std::uint64_t random) noexcept;

  // A wait is over, or may be. kWait, kOpen, kGiveUp, kExpire.
  ReopenStep Look(TimePoint now, const RetryBudget& budget, OpeningSlots& slots, std::uint64_t random) noexcept;

  // The breaker turned the opening down; it stays open for so much longer, or is half-open with every slot taken (0). kWait, or
  // as Look().
  ReopenStep OnRejected(Duration rejected_for, TimePoint now, std::uint64_t random) noexcept;

  // Openings since the gap began.
  std::uint32_t attempts() const noexcept { return attempts_; }

 private:
  ReopenStep WaitUntil(TimePoint due, TimePoint now) noexcept;
  TimePoint GiveUpAt() const noexcept { return SaturatingAdd(gap_began_, rules_.give_up_after); }

  ReopenRules rules_;
  TimePoint gap_began_{};
  TimePoint due_{};
  // 1 while the first stream of all is being opened, 0 right after one that delivered.
  std::uint32_t attempts_ = 1;
  std::uint32_t rejections_ = 0;
  std::uint32_t waits_ = 0;  // For the budget, in this gap.
};

}  // namespace penstock::inline v0::detail
