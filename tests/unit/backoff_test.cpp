#include "penstock/core/backoff.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace penstock;
using namespace std::chrono_literals;

namespace {
constexpr std::uint64_t kAllBits = std::numeric_limits<std::uint64_t>::max();
}  // namespace

TEST_CASE("K1: the longest wait is 100 ms after the first attempt, doubles, and stops at 5 s") {
  const Backoff backoff;
  CHECK(backoff.Bound(1) == 100ms);
  CHECK(backoff.Bound(2) == 200ms);
  CHECK(backoff.Bound(6) == 3200ms);
  CHECK(backoff.Bound(7) == 5s);
  CHECK(backoff.Bound(std::uint64_t{1} << 32) == 5s);
  CHECK(backoff.Bound(kAllBits) == 5s);
  CHECK(backoff.Bound(0) == 100ms);
}

TEST_CASE("K1: a wait is never negative and never above the bound, for any attempt, base and random bits") {
  std::mt19937_64 random(42);
  const Duration century = std::chrono::years(100);
  for (Duration base : {Duration(1), Duration(3), Duration(100ms), Duration(24h), century}) {
    for (Duration max : {base, base + 1ns, Duration(century), Duration::max()}) {
      const Backoff backoff{base, max};
      Duration last{};
      for (std::uint64_t attempt : {1ull, 2ull, 3ull, 31ull, 32ull, 33ull, 62ull, 63ull, 64ull, 65ull, 1ull << 32, ~0ull}) {
        const Duration bound = backoff.Bound(attempt);
        CHECK(bound >= last);
        CHECK(bound >= base);
        CHECK(bound <= max);
        last = bound;
        CHECK(backoff.Draw(attempt, 0) == 0ns);
        CHECK(backoff.Draw(attempt, kAllBits) == bound);
        for (int i = 0; i < 100; ++i) {
          const Duration wait = backoff.Draw(attempt, random());
          CHECK(wait >= 0ns);
          CHECK(wait <= bound);
        }
      }
    }
  }
}

TEST_CASE("K1: every length is as likely as any other, at both ends as well") {
  // Of the lengths 0 to 7 ns: the top three bits decide, evenly.
  const Backoff small{.base = 7ns, .max = 7ns};
  for (std::uint64_t top = 0; top < 8; ++top) {
    CHECK(small.Draw(1, top << 61) == Duration(static_cast<std::int64_t>(top)));
    CHECK(small.Draw(1, (top << 61) | (kAllBits >> 3)) == Duration(static_cast<std::int64_t>(top)));
  }
  // And by chance: ten bins of the default's first wait, 5 standard deviations.
  const Backoff backoff;
  std::array<int, 10> bins{};
  constexpr int kDraws = 1'000'000;
  for (int i = 0; i < kDraws; ++i) ++bins[static_cast<std::size_t>(backoff.Draw(1, RandomBits()) / 10'000'001ns)];
  for (int bin : bins) {
    CHECK(bin > kDraws / 10 - 1500);
    CHECK(bin < kDraws / 10 + 1500);
  }
}

TEST_CASE("K1: no two threads draw the same waits") {
  std::vector<std::vector<std::uint64_t>> drawn(8);
  std::vector<std::thread> threads;
  for (auto& own : drawn) {
    threads.emplace_back([&own] {
      for (int i = 0; i < 1000; ++i) own.push_back(RandomBits());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint64_t> all;
  for (const auto& own : drawn) all.insert(own.begin(), own.end());
  CHECK(all.size() == 8000);
}

TEST_CASE("K1: a forked process does not draw its parent's waits") {
  RandomBits();  // the parent's generator is seeded
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t drawn = RandomBits();
    _exit(write(ends[1], &drawn, sizeof drawn) == sizeof drawn ? 0 : 1);
  }
  std::uint64_t theirs = 0;
  REQUIRE(read(ends[0], &theirs, sizeof theirs) == sizeof theirs);
  CHECK(theirs != RandomBits());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("K2: with a retry-after the wait is the larger of the two") {
  CHECK(WithRetryAfter(50ms, 1s) == 1s);
  CHECK(WithRetryAfter(2s, 1s) == 2s);
  CHECK(WithRetryAfter(2s, 0s) == 2s);
}

TEST_CASE("K3: a wait that would end at or after the deadline is not started") {
  const TimePoint now{1h};
  CHECK(EndsBefore(now, 1s - 1ns, now + 1s));
  CHECK_FALSE(EndsBefore(now, 1s, now + 1s));
  CHECK_FALSE(EndsBefore(now, 1s + 1ns, now + 1s));
  CHECK_FALSE(EndsBefore(now, Duration::max(), now + 1s));
  CHECK_FALSE(EndsBefore(TimePoint::max(), 1ns, TimePoint::max()));
}

TEST_CASE("T1, T4: a backoff that makes no sense is refused with name, value and what is allowed") {
  const auto problems = [](Backoff backoff) {
    std::vector<std::string> found;
    CheckSettings(backoff, "backoff_", found);
    return found;
  };
  CHECK(problems({}).empty());
  CHECK(problems({.base = 1s, .max = 1s}).empty());
  REQUIRE(problems({.base = 0s, .max = 1s}).size() == 1);
  CHECK(problems({.base = 0s, .max = 1s})[0].find("backoff_base: 0 ms; expected more than 0") == 0);
  REQUIRE(problems({.base = 2s, .max = 1s}).size() == 1);
  CHECK(problems({.base = 2s, .max = 1s})[0].find("backoff_max: 1000 ms; expected more than 0, and at least backoff_base, which is 2000 ms") == 0);
  CHECK(problems({.base = -1s, .max = -2s}).size() == 2);
}
