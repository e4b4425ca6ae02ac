#include "client/reopen.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "penstock/core/retry_budget.h"

using namespace penstock;
using namespace std::chrono_literals;
using penstock::detail::OpeningSlots;
using penstock::detail::Reopening;
using penstock::detail::ReopenStep;
using penstock::detail::StreamReport;
using Action = ReopenStep::Action;

namespace {

constexpr std::uint64_t kLongest = std::numeric_limits<std::uint64_t>::max();  // the longest wait that can be drawn
const TimePoint kStart{1h};

struct Fixture {
  Fixture() { reopening.Begin(rules, kStart); }
  explicit Fixture(detail::ReopenRules with) : rules(with) { reopening.Begin(rules, kStart); }

  ReopenStep Told(TimePoint now, std::uint64_t random = kLongest) { return reopening.OnGapTold(true, now, *budget, slots, random); }
  ReopenStep Look(TimePoint now, std::uint64_t random = kLongest) { return reopening.Look(now, *budget, slots, random); }
  void EmptyBudget() {
    while (budget->RetryAllowed()) budget->OnRetryable();
  }

  detail::ReopenRules rules{.backoff = {.base = 100ms, .max = 5s}};
  std::unique_ptr<RetryBudget> budget = *RetryBudget::Create();
  OpeningSlots slots;
  Reopening reopening;
};

constexpr StreamReport kDelivered{.reopenable = true, .delivered = true, .open_for = 1min};
constexpr StreamReport kNeverOpened{.reopenable = true};

}  // namespace

TEST_CASE("S8: a stream that had delivered is reopened at once, and the gap begins with its end") {
  Fixture f;
  CHECK(f.reopening.OnStreamEnded(kDelivered, kStart + 1min, kLongest) ==
        ReopenStep{.action = Action::kTell, .lasted = 0s, .attempts = 0});
  CHECK(f.Told(kStart + 1min) == ReopenStep{.action = Action::kOpen});
}

TEST_CASE("S8: what ends before its first message waits with full jitter, doubling up to backoff_max, without a limit of attempts") {
  Fixture f;
  TimePoint now = kStart + 1min;
  f.reopening.OnStreamEnded(kDelivered, now, kLongest);
  CHECK(f.Told(now).action == Action::kOpen);
  const std::vector<Duration> bounds{100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 5s, 5s};
  std::uint32_t attempts = 1;
  for (const Duration bound : bounds) {
    const ReopenStep told = f.reopening.OnStreamEnded(kNeverOpened, now, kLongest);
    CHECK(told.action == Action::kTell);
    CHECK(told.attempts == attempts++);
    CHECK(told.lasted == now - (kStart + 1min));
    const ReopenStep wait = f.Told(now);
    CHECK(wait == ReopenStep{.action = Action::kWait, .until = now + bound});
    CHECK(f.Look(now + bound - 1ns) == ReopenStep{.action = Action::kWait, .until = now + bound});
    now += bound;
    CHECK(f.Look(now) == ReopenStep{.action = Action::kOpen});
  }
  for (int i = 0; i < 1000; ++i) {
    f.reopening.OnStreamEnded(kNeverOpened, now, kLongest);
    f.Told(now);
    now += 5s;
    REQUIRE(f.Look(now).action == Action::kOpen);
  }
}

TEST_CASE("S8: the very first opening that fails waits at most backoff_base") {
  Fixture f;
  CHECK(f.reopening.OnStreamEnded(kNeverOpened, kStart, kLongest) == ReopenStep{.action = Action::kTell, .attempts = 1});
  CHECK(f.Told(kStart).until == kStart + 100ms);
  Fixture shortest;
  shortest.reopening.OnStreamEnded(kNeverOpened, kStart, 0);
  CHECK(shortest.Told(kStart).action == Action::kOpen);
}

TEST_CASE("S8: a quiet stream that had been open for backoff_max begins a gap of its own; a shorter one belongs to the gap before") {
  Fixture f;
  f.reopening.OnStreamEnded(kDelivered, kStart, kLongest);
  f.Told(kStart);
  auto told = f.reopening.OnStreamEnded({.reopenable = true, .open_for = 5s - 1ns}, kStart + 6s, kLongest);
  CHECK(told.attempts == 1);
  CHECK(told.lasted == 6s);
  f.Told(kStart + 6s, 0);
  f.Look(kStart + 7s);
  told = f.reopening.OnStreamEnded({.reopenable = true, .open_for = 5s}, kStart + 20s, kLongest);
  CHECK(told.attempts == 0);
  CHECK(told.lasted == 0s);
  CHECK(f.Told(kStart + 20s).until == kStart + 20s + 100ms);
}

TEST_CASE("S8: any other status, and a user who says so, end it") {
  Fixture f;
  CHECK(f.reopening.OnStreamEnded({.reopenable = false, .delivered = true}, kStart, 0).action == Action::kEnd);
  Fixture g;
  CHECK(g.reopening.OnStreamEnded(kDelivered, kStart, 0).action == Action::kTell);
  CHECK(g.reopening.OnGapTold(false, kStart, *g.budget, g.slots, 0).action == Action::kEnd);
}

TEST_CASE("S8: a retry-after lengthens the wait, and one beyond backoff_max ends the subscription (C5)") {
  Fixture f;
  CHECK(f.reopening.OnStreamEnded({.reopenable = true, .delivered = true, .retry_after = 5s}, kStart, 0).action == Action::kTell);
  CHECK(f.Told(kStart).until == kStart + 5s);
  Fixture g;
  CHECK(g.reopening.OnStreamEnded({.reopenable = true, .delivered = true, .retry_after = 5s + 1ns}, kStart, 0).action == Action::kEnd);
}

TEST_CASE("S8: the first reopening asks no budget; a later one waits while it is low, sixteen at a time excepted") {
  Fixture f;
  f.EmptyBudget();
  f.reopening.OnStreamEnded(kDelivered, kStart, kLongest);
  CHECK(f.Told(kStart) == ReopenStep{.action = Action::kOpen, .slot = false});
  f.reopening.OnStreamEnded(kNeverOpened, kStart, 0);
  CHECK(f.Told(kStart) == ReopenStep{.action = Action::kOpen, .slot = true});
  f.slots.Give();

  for (std::uint32_t i = 0; i < OpeningSlots::kSlots; ++i) CHECK(f.slots.Take());
  CHECK_FALSE(f.slots.Take());
  f.reopening.OnStreamEnded(kNeverOpened, kStart, 0);
  const ReopenStep wait = f.Told(kStart);
  CHECK(wait == ReopenStep{.action = Action::kWait, .until = kStart + 200ms});
  CHECK(f.Look(kStart + 200ms).action == Action::kWait);
  f.slots.Give();
  // The wait for the budget doubles too.
  CHECK(f.Look(kStart + 600ms - 1ns).action == Action::kWait);
  CHECK(f.Look(kStart + 600ms) == ReopenStep{.action = Action::kOpen, .slot = true});
  while (f.budget->milli_tokens() < f.budget->max_milli_tokens()) f.budget->OnSuccess();
  f.reopening.OnStreamEnded(kNeverOpened, kStart + 600ms, 0);
  CHECK(f.Told(kStart + 600ms) == ReopenStep{.action = Action::kOpen, .slot = false});
}

TEST_CASE("S8: while the breaker is open it waits for it, a little longer each time, and that is no attempt") {
  Fixture f;
  f.reopening.OnStreamEnded(kDelivered, kStart, kLongest);
  CHECK(f.Told(kStart).action == Action::kOpen);
  CHECK(f.reopening.attempts() == 1);
  CHECK(f.reopening.OnRejected(4s, kStart, 0).until == kStart + 4s);
  CHECK(f.reopening.attempts() == 0);
  CHECK(f.Look(kStart + 4s - 1ns).action == Action::kWait);
  CHECK(f.Look(kStart + 4s).action == Action::kOpen);
  // Half-open, every slot taken.
  CHECK(f.reopening.OnRejected(0s, kStart + 4s, kLongest).until == kStart + 4s + 200ms);
  CHECK(f.Look(kStart + 4200ms).action == Action::kOpen);
  CHECK(f.reopening.OnRejected(0s, kStart + 4200ms, kLongest).until == kStart + 4200ms + 400ms);
  CHECK(f.Look(kStart + 4600ms).action == Action::kOpen);
  CHECK(f.reopening.OnStreamEnded(kNeverOpened, kStart + 5s, 0).attempts == 1);
}

TEST_CASE("S8: give_up_after ends it just when it has passed, whatever it waits for") {
  const detail::ReopenRules rules{.backoff = {.base = 100ms, .max = 5s}, .give_up_after = 3s};
  Fixture f(rules);
  f.reopening.OnStreamEnded(kDelivered, kStart + 1h, kLongest);
  CHECK(f.Told(kStart + 1h).action == Action::kOpen);
  CHECK(f.reopening.OnRejected(10s, kStart + 1h, 0).until == kStart + 1h + 3s);
  CHECK(f.Look(kStart + 1h + 3s - 1ns).action == Action::kWait);
  CHECK(f.Look(kStart + 1h + 3s).action == Action::kGiveUp);

  Fixture g(rules);
  g.reopening.OnStreamEnded(kNeverOpened, kStart + 3s, 0);
  CHECK(g.Told(kStart + 3s).action == Action::kGiveUp);
}

TEST_CASE("S8: its deadline ends it just when it has passed") {
  Fixture f({.backoff = {.base = 100ms, .max = 5s}, .deadline = kStart + 50ms});
  f.reopening.OnStreamEnded(kNeverOpened, kStart, kLongest);
  CHECK(f.Told(kStart).until == kStart + 50ms);
  CHECK(f.Look(kStart + 50ms - 1ns).action == Action::kWait);
  CHECK(f.Look(kStart + 50ms).action == Action::kExpire);
}

TEST_CASE("S8: 10,000 subscriptions do not storm a dependency that is down for half a minute, nor when it is back") {
  // No breaker here: that the budget and the slots bound them is to be seen without it.
  constexpr std::size_t kSubscriptions = 10'000;
  constexpr Duration kOpens = 20ms;  // How long an opening takes, either way.
  const TimePoint back = kStart + 30s;
  std::mt19937_64 random(7);
  const auto budget = *RetryBudget::Create();
  OpeningSlots slots;
  struct One {
    Reopening reopening;
    bool opening = false;
    bool slot = false;
  };
  std::deque<One> all(kSubscriptions);
  using Due = std::pair<TimePoint, std::size_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  std::map<std::int64_t, int> opened_at;  // Openings by tenths of a second.
  std::size_t open = 0;
  TimePoint now = kStart;
  const auto follow = [&](std::size_t index, ReopenStep step) {
    One& one = all[index];
    if (step.action == Action::kTell) step = one.reopening.OnGapTold(true, now, *budget, slots, random());
    if (step.action == Action::kWait) return due.emplace(step.until, index);
    REQUIRE(step.action == Action::kOpen);
    one.opening = true;
    one.slot = step.slot;
    ++opened_at[(now - kStart) / 100ms];
    due.emplace(now + kOpens, index);
  };
  for (std::size_t index = 0; index < kSubscriptions; ++index) {
    all[index].reopening.Begin({.backoff = {.base = 100ms, .max = 5s}}, kStart - 1min);
    follow(index, all[index].reopening.OnStreamEnded(kDelivered, kStart, random()));
  }
  while (open < kSubscriptions) {
    const auto [when, index] = due.top();
    due.pop();
    now = when;
    REQUIRE(now < kStart + 5min);
    One& one = all[index];
    if (!one.opening) {
      follow(index, one.reopening.Look(now, *budget, slots, random()));
      continue;
    }
    one.opening = false;
    if (std::exchange(one.slot, false)) slots.Give();
    if (now >= back) {
      budget->OnSuccess();
      ++open;
    } else {
      budget->OnRetryable();
      follow(index, one.reopening.OnStreamEnded(kNeverOpened, now, random()));
    }
  }
  // Each once, at once; then no more than the slots let through: sixteen in every 20 ms.
  CHECK(opened_at[0] >= static_cast<int>(kSubscriptions));
  int most_down = 0;
  int most_back = 0;
  for (const auto& [tenth, count] : opened_at) {
    if (tenth > 0) (tenth < 300 ? most_down : most_back) = std::max(tenth < 300 ? most_down : most_back, count);
  }
  MESSAGE("at most ", most_down, " openings in 100 ms while it was down, ", most_back, " once it was back; all open after ",
          (now - back) / 1ms, " ms");
  CHECK(most_down <= 5 * static_cast<int>(OpeningSlots::kSlots) + 50);
  CHECK(most_back <= static_cast<int>(kSubscriptions) / 10);
  CHECK(now - back < 2min);
}
