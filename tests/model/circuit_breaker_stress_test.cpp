// The breaker under real threads: nothing is lost, whatever the threads do. Runs under ThreadSanitizer as well.

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "penstock/core/circuit_breaker.h"

using namespace penstock;
using namespace std::chrono_literals;

namespace {

std::unique_ptr<CircuitBreaker> Make(CircuitBreakerSettings settings) {
  auto made = CircuitBreaker::Create(std::move(settings));
  REQUIRE(made.ok());
  return std::move(*made);
}

CircuitBreakerSettings NeverTrips() {
  CircuitBreakerSettings settings;
  settings.trip = [](const Counts&) { return false; };
  return settings;
}

unsigned Seed() {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  return seed;
}

}  // namespace

TEST_CASE("B10, B12: the totals of many threads are exact, the 65th and further ones included") {
  const unsigned seed = Seed();
  for (int thread_count : {4, 80}) {
    const auto breaker = Make(NeverTrips());
    std::atomic<std::uint64_t> settled[3] = {};
    std::barrier all_alive(thread_count);
    std::vector<std::thread> threads;
    for (int i = 0; i < thread_count; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(seed + static_cast<unsigned>(i));
        all_alive.arrive_and_wait();  // so that more than 64 have a slot, or none left to have
        std::uint64_t own[3] = {};
        for (int round = 0; round < 160'000 / thread_count; ++round) {
          const unsigned dice = random() % 10;
          const Outcome outcome = dice < 6 ? Outcome::kSuccess : dice < 9 ? Outcome::kFailure : Outcome::kIgnored;
          breaker->Acquire().ticket().Settle(outcome);
          ++own[static_cast<int>(outcome)];
        }
        all_alive.arrive_and_wait();
        for (int k = 0; k < 3; ++k) settled[k] += own[k];
      });
    }
    for (std::thread& thread : threads) thread.join();
    const CircuitTotals totals = breaker->totals();
    CHECK(totals.successes == settled[static_cast<int>(Outcome::kSuccess)]);
    CHECK(totals.failures == settled[static_cast<int>(Outcome::kFailure)]);
    CHECK(totals.ignored == settled[static_cast<int>(Outcome::kIgnored)]);
    const Counts counts = breaker->counts();
    CHECK(counts.successes + counts.failures == 100);
    CHECK(breaker->state() == CircuitState::kClosed);
  }
}

TEST_CASE("B10: threads that come and go hand their counters on without a loss") {
  const auto breaker = Make(NeverTrips());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (int call = 0; call < 100; ++call) breaker->Acquire().ticket().Settle(Outcome::kSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(breaker->totals().successes == 50u * 8 * 100);
}

TEST_CASE("B10: a thread's last destructors may still use a breaker") {
  static std::unique_ptr<CircuitBreaker> breaker;
  breaker = Make(NeverTrips());
  struct Last {
    // Constructed before the thread's slot is taken, so destroyed after it was given back.
    ~Last() { breaker->Acquire().ticket().Settle(Outcome::kSuccess); }
  };
  for (int i = 0; i < 20; ++i) {
    std::thread([] {
      static thread_local Last last;
      (void)last;
      breaker->Acquire().ticket().Settle(Outcome::kSuccess);
    }).join();
  }
  CHECK(breaker->totals().successes == 40);
  breaker.reset();
}

TEST_CASE("B9, B12: state, transitions and totals agree while 32 threads flap the breaker, and it works afterwards") {
  const unsigned seed = Seed();
  CircuitBreakerSettings settings;
  settings.open_for = 1ms;
  settings.probe_timeout = 2ms;
  settings.probes = 3;
  std::mutex mutex;
  std::vector<CircuitTransition> seen;
  settings.observer = [&](const CircuitTransition& transition) {
    std::lock_guard lock(mutex);
    seen.push_back(transition);
  };
  const auto breaker = Make(settings);
  std::atomic<std::uint64_t> rejected{0};
  std::atomic<std::uint64_t> admitted{0};
  std::vector<std::thread> threads;
  const auto end = std::chrono::steady_clock::now() + 1s;
  for (unsigned i = 0; i < 32; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(seed + i);
      std::vector<CircuitTicket> kept;
      while (std::chrono::steady_clock::now() < end) {
        auto admission = breaker->Acquire();
        if (!admission.admitted()) {
          ++rejected;
          std::this_thread::yield();
          continue;
        }
        ++admitted;
        const unsigned dice = random() % 100;
        if (dice < 3) {
          kept.push_back(admission.TakeTicket());  // settled much later, by its destructor
          if (kept.size() > 8) kept.erase(kept.begin());
        } else {
          admission.ticket().Settle(dice < 50 ? Outcome::kFailure : dice < 55 ? Outcome::kIgnored : Outcome::kSuccess);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  const CircuitTotals totals = breaker->totals();
  CHECK(totals.rejected == rejected);
  CHECK(totals.successes + totals.failures + totals.ignored <= admitted);
  CHECK(totals.entered_open >= 2);  // it did flap
  const auto reported = [&] {
    std::uint64_t count = 0;
    for (const CircuitTransition& transition : seen) count += 1 + transition.missed;
    return count;
  };
  CHECK(reported() == totals.entered_closed + totals.entered_open + totals.entered_half_open);
  auto state = CircuitState::kClosed;
  for (const CircuitTransition& transition : seen) {
    if (transition.missed == 0) CHECK(transition.from == state);
    state = transition.to;
    const Counts& counts = transition.counts;
    if (transition.from == CircuitState::kClosed) {
      CHECK(counts.failures >= 1);
      CHECK(counts.successes + counts.failures <= 100);
    }
    if (transition.from == CircuitState::kHalfOpen) {
      // A failure opens, the third success closes; what was recorded says so.
      if (transition.to == CircuitState::kOpen) CHECK(counts.failures == 1);
      if (transition.to == CircuitState::kClosed) CHECK(counts.successes == 3);
    }
  }

  // It heals, and then opens on exactly the fifth failure.
  for (const auto limit = std::chrono::steady_clock::now() + 30s; breaker->state() != CircuitState::kClosed;) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    auto admission = breaker->Acquire();
    if (admission.admitted()) admission.ticket().Settle(Outcome::kSuccess);
  }
  breaker->Acquire().ticket().Settle(Outcome::kSuccess);
  for (int i = 1; i <= 5; ++i) {
    CHECK(breaker->counts().consecutive_failures == static_cast<std::uint64_t>(i - 1));
    auto admission = breaker->Acquire();
    REQUIRE(admission.admitted());
    admission.ticket().Settle(Outcome::kFailure);
  }
  CHECK(seen.back().to == CircuitState::kOpen);
  CHECK(seen.back().counts.consecutive_failures == 5);
}
