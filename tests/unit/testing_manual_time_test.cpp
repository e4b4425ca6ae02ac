#include "penstock/testing/manual_time.h"

#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace penstock;
using namespace std::chrono_literals;
using testing::ManualTime;

namespace {

struct Action final : Timer {
  explicit Action(std::function<void()> what) : action(std::move(what)) {}
  void Fire() noexcept override { action(); }
  std::function<void()> action;
};

}  // namespace

TEST_CASE("X1: timers fire in order, each with the clock at its own time") {
  ManualTime time;
  const TimePoint start = time.Now();
  std::vector<TimePoint> seen;
  const auto note = [&] { seen.push_back(time.Now()); };
  Action late(note);
  Action early(note);
  Action never(note);
  time.Arm(late, start + 20s);
  time.Arm(early, start + 10s);
  time.Arm(never, start + 30s);
  CHECK(time.Advance(10s - 1ns) == 0);
  CHECK(time.Advance(1ns) == 1);
  CHECK(time.Advance(15s) == 1);
  CHECK(seen == std::vector{start + 10s, start + 20s});
  CHECK(time.Now() == start + 25s);
  CHECK(time.Disarm(never));
  CHECK_FALSE(time.Disarm(never));
  CHECK(time.Advance(1h) == 0);
  CHECK(time.Advance(-1h) == 0);
  CHECK(time.Now() == start + 25s + 1h);
}

TEST_CASE("X1: a timer armed by a timer fires within the same advance") {
  ManualTime time;
  const TimePoint start = time.Now();
  int ticks = 0;
  Action tick([&] {
    if (++ticks < 5) time.Arm(tick, time.Now() + 1s);
  });
  time.Arm(tick, start + 1s);
  CHECK(time.Advance(3s) == 3);
  CHECK(time.AdvanceToNext() == 1);
  CHECK(time.Now() == start + 4s);
  CHECK(time.AdvanceToNext() == 1);
  CHECK(time.AdvanceToNext() == 0);
  CHECK(ticks == 5);
}

TEST_CASE("X1: arming for the past fires soon, on another thread, with no advance") {
  ManualTime time;
  std::atomic<bool> fired{false};
  std::thread::id on;
  Action action([&] {
    on = std::this_thread::get_id();
    fired = true;
  });
  time.Arm(action, time.Now());
  while (!fired) std::this_thread::yield();
  CHECK(on != std::this_thread::get_id());
  fired = false;
  time.Arm(action, TimePoint::min());
  while (!fired) std::this_thread::yield();
}

TEST_CASE("X1: waiting for a timer sees the one that another thread arms, and gives up at its limit") {
  ManualTime time;
  Action action([] {});
  CHECK_FALSE(time.WaitForTimer(time.Now() + 1s, 1ms));
  std::thread other([&] {
    time.Arm(action, time.Now() + 2s);
    time.Arm(action, time.Now() + 1s);
  });
  CHECK(time.WaitForTimer(time.Now() + 1s, Duration::max()));
  CHECK(time.NextDue() == time.Now() + 1s);
  other.join();
  CHECK_FALSE(time.WaitForTimer(time.Now() + 1s - 1ns, 1ms));
  CHECK(time.WaitForTimers(1));
  CHECK_FALSE(time.WaitForTimers(2, 1ms));
  CHECK(time.timers() == 1);
  Action second([] {});
  std::thread another([&] { time.Arm(second, time.Now() + 1s); });
  CHECK(time.WaitForTimers(2, Duration::max()));
  another.join();
  time.Disarm(action);
  time.Disarm(second);
}

TEST_CASE("X1: a timer without end is stopped") {
  ManualTime time;
  Action action([&] { time.Arm(action, time.Now() + 1ns); });
  time.Arm(action, time.Now() + 1s);
  CHECK_THROWS_AS(time.Advance(10s), std::logic_error);
  time.Disarm(action);
}

TEST_CASE("X1: a timer without end that was due as it was armed is stopped too, and the next Advance says so") {
  ManualTime time;
  std::atomic<int> fired{0};
  std::atomic<bool> stop{false};
  Action action([&] {
    ++fired;
    if (!stop) time.Arm(action, time.Now());
  });
  time.Arm(action, time.Now());
  // Whoever is first: the kit's thread with its million, or Advance with one of its own.
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (fired < 1'000'000 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  CHECK_THROWS_AS(time.Advance(0s), std::logic_error);
  stop = true;
  // It may have gone on once more on the kit's thread, which says so again.
  for (int i = 0; i < 3; ++i) {
    try {
      time.Advance(0s);
    } catch (const std::logic_error&) {
    }
  }
  CHECK(time.timers() == 0);
}

TEST_CASE("X1: arming, disarming and advancing from several threads at once: each timer fires or is disarmed, once") {
  ManualTime time;
  constexpr int kThreads = 3;
  constexpr int kRounds = 2000;
  std::atomic<int> fired{0};
  std::atomic<int> disarmed{0};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      // Kept to the end: a timer must outlive its Fire().
      std::deque<std::atomic<bool>> all_done(kRounds);
      std::deque<Action> actions;
      for (int round = 0; round < kRounds; ++round) {
        std::atomic<bool>& done = all_done[static_cast<std::size_t>(round)];
        Action& action = actions.emplace_back([&] {
          ++fired;
          done = true;
        });
        time.Arm(action, time.Now() + Duration((round * 7 + i) % 50));
        if (round % 3 == 0 && time.Disarm(action)) {
          ++disarmed;
          continue;
        }
        while (!done) std::this_thread::yield();
      }
      --running;
      while (running > 0) std::this_thread::yield();
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (running > 0) time.Advance(10ns);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(fired + disarmed == kThreads * kRounds);
  CHECK(time.timers() == 0);
}
