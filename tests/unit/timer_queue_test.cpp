#include "penstock/core/timer_queue.h"

#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <random>
#include <vector>

using namespace penstock;
using namespace std::chrono_literals;

namespace {
struct Recorder final : Timer {
  void Fire() noexcept override { ++fired; }
  int fired = 0;
};
constexpr TimePoint kStart{1h};
}  // namespace

TEST_CASE("X1: a timer is due at its time and not just before it") {
  TimerQueue queue;
  Recorder timer;
  queue.Arm(timer, kStart + 10s);
  CHECK(queue.NextDue() == kStart + 10s);
  CHECK(queue.TakeDue(kStart + 10s - 1ns) == nullptr);
  CHECK(queue.TakeDue(kStart + 10s) == &timer);
  CHECK_FALSE(timer.armed());
  CHECK(queue.NextDue() == TimePoint::max());
}

TEST_CASE("X1: a disarmed timer never comes, and disarming says whether it was armed") {
  TimerQueue queue;
  Recorder timer;
  CHECK_FALSE(queue.Disarm(timer));
  queue.Arm(timer, kStart);
  CHECK(queue.Disarm(timer));
  CHECK_FALSE(queue.Disarm(timer));
  CHECK(queue.TakeDue(kStart + 1h) == nullptr);
}

TEST_CASE("X1: random arming, moving and disarming hands timers out in order, as a sorted map does") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  TimerQueue queue;
  std::vector<Recorder> timers(200);
  std::map<std::pair<TimePoint, int>, Timer*> model;
  std::map<Timer*, std::pair<TimePoint, int>> keys;
  int order = 0;
  for (int step = 0; step < 20'000; ++step) {
    Recorder& timer = timers[random() % timers.size()];
    const auto forget = [&](Timer* which) {
      const auto key = keys.find(which);
      if (key == keys.end()) return false;
      model.erase(key->second);
      keys.erase(key);
      return true;
    };
    switch (random() % 3) {
      case 0:
      case 1: {
        const TimePoint due = kStart + std::chrono::milliseconds(random() % 50);
        forget(&timer);
        keys[&timer] = {due, order};
        model[{due, order++}] = &timer;
        queue.Arm(timer, due);
        break;
      }
      default: {
        const bool known = forget(&timer);
        CHECK(queue.Disarm(timer) == known);
      }
    }
    if (random() % 20 == 0) {
      const TimePoint now = kStart + std::chrono::milliseconds(random() % 50);
      while (Timer* due = queue.TakeDue(now)) {
        REQUIRE_FALSE(model.empty());
        REQUIRE(model.begin()->second == due);
        forget(due);
      }
      CHECK((model.empty() || model.begin()->first.first > now));
    }
    REQUIRE(queue.size() == model.size());
  }
}

TEST_CASE("X1: timers come in the order of their times however far off they are, as time goes on in steps of any size") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  // From nanoseconds to years, in the past too.
  const auto length = [&] { return Duration(static_cast<Duration::rep>(random() >> (2 + random() % 62))); };
  TimerQueue queue;
  std::vector<Recorder> timers(300);
  std::map<std::pair<TimePoint, int>, Recorder*> model;
  std::map<Recorder*, std::pair<TimePoint, int>> keys;
  int order = 0;
  TimePoint now{length() / 4};
  for (int step = 0; step < 60'000; ++step) {
    Recorder& timer = timers[random() % timers.size()];
    if (const auto key = keys.find(&timer); key != keys.end()) {
      REQUIRE(timer.armed());
      model.erase(key->second);
      keys.erase(key);
    }
    if (random() % 4 == 0) {
      queue.Disarm(timer);
    } else {
      const TimePoint due = random() % 50 == 0 ? TimePoint(-length()) : random() % 50 == 0 ? TimePoint::max() : SaturatingAdd(now, length());
      keys[&timer] = {due, order};
      model[{due, order++}] = &timer;
      queue.Arm(timer, due);
    }
    if (random() % 10 == 0) {
      // Sometimes exactly to a timer, or to just before it.
      now = std::max(now, model.empty() || random() % 2 == 0 ? SaturatingAdd(now, length() / 1024)
                                                             : model.begin()->first.first - Duration(random() % 2));
      for (;;) {
        Timer* const due = queue.TakeDue(now);
        if (due == nullptr) break;
        REQUIRE_FALSE(model.empty());
        REQUIRE(model.begin()->second == due);
        keys.erase(model.begin()->second);
        model.erase(model.begin());
      }
      CHECK((model.empty() || model.begin()->first.first > now));
      if (now > TimePoint(Duration::max() / 2)) break;
    }
    if (random() % 8 == 0) REQUIRE(queue.NextDue() == (model.empty() ? TimePoint::max() : model.begin()->first.first));
    REQUIRE(queue.size() == model.size());
  }
}
