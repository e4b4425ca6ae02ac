// What has gone wrong in the field with breakers of this kind, each as a test.

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "support/breaker_fixture.h"

using namespace penstock;
using namespace std::chrono_literals;
using penstock_test::BreakerFixture;

TEST_CASE("B6: a hundred ignored or cancelled probes in a row each free their slot") {
  BreakerFixture f;
  f.OpenAndWait();
  for (int i = 0; i < 100; ++i) {
    CircuitTicket probe = f.Probe();
    CHECK(f.breaker->Acquire().probes_taken());
    if (i % 2 == 0) probe.Settle(Outcome::kIgnored);
    // else dropped, as a cancelled call's is
  }
  CHECK(f.breaker->state() == CircuitState::kHalfOpen);
  CHECK(f.breaker->counts() == Counts{});
  for (int i = 0; i < 3; ++i) f.Probe().Settle(Outcome::kSuccess);
  CHECK(f.breaker->state() == CircuitState::kClosed);
}

TEST_CASE("B5: probes that never settle are timed out once each, and never keep the breaker half-open for good") {
  BreakerFixture f;
  f.OpenAndWait();
  std::vector<CircuitTicket> lost;
  lost.push_back(f.Probe());
  for (std::uint64_t i = 1; i <= 20; ++i) {
    f.clock.Advance(9999ms);
    CHECK(f.breaker->Acquire().probes_taken());
    f.clock.Advance(1ms);
    lost.push_back(f.Probe());
    CHECK(f.breaker->counts().timed_out == i);
  }
  CircuitTicket live = std::move(lost.back());
  lost.clear();  // all of them end, late
  CHECK(f.breaker->Acquire().probes_taken());
  CHECK(f.breaker->counts() == Counts{.timed_out = 20});
  live.Settle(Outcome::kSuccess);
  CHECK(f.breaker->counts().successes == 1);
}

TEST_CASE("B7: fifteen late failures after a trip neither lengthen open_for nor are reported again") {
  BreakerFixture f;
  std::vector<CircuitTicket> late;
  for (int i = 0; i < 15; ++i) late.push_back(f.breaker->Acquire().TakeTicket());
  f.Calls(5, Outcome::kFailure);
  f.clock.Advance(4s);
  for (CircuitTicket& ticket : late) ticket.Settle(Outcome::kFailure);
  CHECK(f.breaker->Acquire().rejected_for() == 6s);
  CHECK(f.transitions.size() == 1);
  CHECK(f.breaker->totals().failures == 5);
  CHECK(f.breaker->totals().entered_open == 1);
}

TEST_CASE("B2, B9: of 64 threads at the expiry exactly `probes` are admitted, with one transition") {
  for (std::uint32_t probes : {1u, 3u, 64u}) {
    for (int round = 0; round < 5; ++round) {
      CircuitBreakerSettings settings;
      settings.probes = probes;
      BreakerFixture f(settings);
      f.OpenAndWait();
      constexpr int kThreads = 64;
      std::barrier start(kThreads);
      std::atomic<std::uint32_t> admitted{0};
      std::vector<CircuitTicket> held(kThreads);
      std::vector<std::thread> threads;
      for (CircuitTicket& ticket : held) {
        threads.emplace_back([&] {
          start.arrive_and_wait();
          auto admission = f.breaker->Acquire();
          if (!admission.admitted()) return;
          ++admitted;
          ticket = admission.TakeTicket();
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(admitted == probes);
      CHECK(f.transitions.size() == 2);
      CHECK(f.breaker->totals().entered_half_open == 1);
    }
  }
}

TEST_CASE("B4: when one probe fails and one succeeds the breaker is open, in either order") {
  for (bool failure_first : {true, false}) {
    CircuitBreakerSettings settings;
    settings.probes = 2;
    BreakerFixture f(settings);
    f.OpenAndWait();
    CircuitTicket one = f.Probe();
    CircuitTicket two = f.Probe();
    one.Settle(failure_first ? Outcome::kFailure : Outcome::kSuccess);
    two.Settle(failure_first ? Outcome::kSuccess : Outcome::kFailure);
    CHECK(f.breaker->state() == CircuitState::kOpen);
    CHECK(f.breaker->totals().entered_open == 2);
  }
}

TEST_CASE("B7: a cancel of an unrelated call touches nothing") {
  BreakerFixture f;
  CircuitTicket unrelated = f.breaker->Acquire().TakeTicket();
  f.OpenAndWait();
  CircuitTicket probe = f.Probe();
  { CircuitTicket cancelled = std::move(unrelated); }
  CHECK(f.breaker->Acquire().probes_taken());
  CHECK(f.breaker->totals().ignored == 0);
  probe.Settle(Outcome::kSuccess);
  CHECK(f.breaker->counts().successes == 1);
}

TEST_CASE("B3: nine failures in twenty, for a thousand results, stay closed") {
  BreakerFixture f;
  for (int i = 0; i < 1000; ++i) f.Call(i % 20 < 18 && i % 2 == 1 ? Outcome::kFailure : Outcome::kSuccess);
  CHECK(f.breaker->state() == CircuitState::kClosed);
  CHECK(f.breaker->counts().failures == 45);
}

TEST_CASE("B3: failures a minute apart still count in a row") {
  BreakerFixture f;
  for (int i = 0; i < 4; ++i) {
    f.Call(Outcome::kFailure);
    f.clock.Advance(1min);
  }
  CHECK(f.breaker->state() == CircuitState::kClosed);
  f.Call(Outcome::kFailure);
  CHECK(f.breaker->state() == CircuitState::kOpen);
}

TEST_CASE("B3: a window of one result looks at the last result only") {
  CircuitBreakerSettings settings;
  settings.window = 1;
  settings.min_results = 1;
  settings.failure_ratio = 1;
  BreakerFixture f(settings);
  f.Calls(100, Outcome::kSuccess);
  CHECK(f.breaker->counts() == Counts{.successes = 1, .consecutive_successes = 100});
  f.Call(Outcome::kFailure);
  CHECK(f.breaker->state() == CircuitState::kOpen);
}

TEST_CASE("B3: a window of 2^20 results is exact at its edge") {
  constexpr int kWindow = 1 << 20;
  CircuitBreakerSettings settings;
  settings.window = kWindow;
  settings.consecutive_failures = 0xffffffff;
  BreakerFixture f(settings);
  // Half of a full window, and one failure less: a success, then alternating.
  for (int i = 0; i < kWindow / 2 - 1; ++i) {
    f.Call(Outcome::kSuccess);
    if (i != 7) f.Call(Outcome::kFailure);
    if (i < 1) f.Call(Outcome::kSuccess);  // a head start, so that the share is never reached on the way
  }
  REQUIRE(f.breaker->state() == CircuitState::kClosed);
  const Counts counts = f.breaker->counts();
  CHECK(counts.failures == kWindow / 2 - 2);
  // Successes until the window is full, then failures until exactly half of it has failed.
  while (f.breaker->counts().successes + f.breaker->counts().failures < kWindow) f.Call(Outcome::kSuccess);
  while (f.breaker->state() == CircuitState::kClosed) f.Call(Outcome::kFailure);
  CHECK(f.transitions.at(0).counts.failures == kWindow / 2);
  CHECK(f.transitions.at(0).counts.successes == kWindow / 2);
}
