// The lock-free breaker beside the textbook one, step for step: what each admits, its state, counts, transitions and
// totals, over ten million random steps. On a failure the seed is printed; PENSTOCK_SEED=<n> runs it again.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/circuit_core.h"
#include "support/hand_clock.h"
#include "support/textbook_circuit_breaker.h"

using namespace penstock;
using namespace std::chrono_literals;
using penstock_test::HandClock;

namespace {

// One thread that counts on a random line, the shared one included, as many threads would.
struct ScatteredAtomics {
  template <class T>
  using Atomic = std::atomic<T>;
  static constexpr std::uint32_t kLines = 5;
  static inline std::uint32_t line = 0;
  static std::uint32_t ThreadLine() { return line; }
  static std::uint32_t AssignThreadLine() { return line; }
  static std::uint32_t UsedLines() { return kLines - 1; }
};
using Core = detail::CircuitCore<ScatteredAtomics>;

std::uint64_t Seed() {
  const char* given = std::getenv("PENSTOCK_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

// Policies that look at every count, so that a wrong one shows in what they decide.
std::uint64_t Mix(const Counts& counts) {
  std::uint64_t mixed = 0;
  for (std::uint64_t value : {counts.successes, counts.failures, counts.consecutive_successes, counts.consecutive_failures,
                              counts.timed_out}) {
    mixed = (mixed ^ value) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
  }
  return mixed;
}
bool MixedTrip(const Counts& counts) {
  if (Mix(counts) % 101 == 0) throw std::runtime_error("trip");
  return Mix(counts) % 50 == 1;
}
ProbeDecision MixedProbe(const Counts& counts) {
  switch (Mix(counts) % 16) {
    case 0:
      return ProbeDecision::kOpen;
    case 1:
    case 2:
      return ProbeDecision::kClose;
    case 3:
      throw std::runtime_error("probe");
    default:
      return ProbeDecision::kKeep;
  }
}

struct Tally {
  std::uint64_t steps = 0;
  std::uint64_t trips = 0;
  std::uint64_t errors = 0;
};

// False: the two differ, and the message says where.
void RunBeside(CircuitBreakerSettings settings, std::uint64_t steps, std::uint64_t seed, Tally& tally) {
  std::mt19937_64 random(seed);
  HandClock clock;
  clock.set_lag(random() % 2 == 0 ? 0ms : 4ms);
  settings.clock = &clock;
  std::vector<CircuitTransition> seen[2];
  std::uint64_t errors[2] = {0, 0};
  const auto make = [&](int which) {
    CircuitBreakerSettings own = settings;
    own.observer = [&seen, which](const CircuitTransition& transition) { seen[which].push_back(transition); };
    own.error_observer = [&errors, which](std::exception_ptr) { ++errors[which]; };
    return own;
  };
  TextbookCircuitBreaker textbook(make(0));
  const auto core = std::make_unique<Core>(make(1));

  struct Pair {
    TextbookCircuitBreaker::Pass textbook;
    Core::Pass core;
  };
  std::vector<Pair> held;
  double failing = 0.1;
  std::uint64_t regime = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto fail = [&](const std::string& what) {
      FAIL("they differ in " << what << ": step " << step << ", seed " << seed << ", window " << settings.window);
    };
    ScatteredAtomics::line = static_cast<std::uint32_t>(random() % ScatteredAtomics::kLines);
    if (regime-- == 0) {
      static constexpr double kFailing[] = {0, 0.01, 0.1, 0.3, 0.45, 0.5, 0.55, 0.8, 1.0, 0.4, 0.6, 0.2};
      failing = kFailing[random() % std::size(kFailing)];
      regime = random() % 400;
    }
    const std::uint64_t dice = random();
    if (textbook.state() != CircuitState::kClosed) clock.Advance(Duration(dice % 300'000));
    if (dice % 100 < 5) clock.Advance(Duration(random() % static_cast<std::uint64_t>(settings.open_for.count() / 4 + 1)));
    if (dice % 500'000 == 7) clock.Advance(1h);

    if (held.size() < 1 + dice / 100 % 8) {
      const auto expected = textbook.Acquire();
      const std::uint64_t word = core->LoadWord();
      const auto got = Core::IsClosed(word) ? Core::Pass{true, word, Core::kNoSlot, {}} : core->AcquireSlow(word);
      if (got.admitted != expected.admitted) fail("admission");
      if (got.admitted && (got.slot == Core::kNoSlot) != (expected.slot == TextbookCircuitBreaker::kNoSlot)) fail("probing");
      const Duration off = got.rejected_for - expected.rejected_for;
      if (off < 0ms || off > 4ms) fail("time left");
      if ((got.rejected_for == 0ms) != (expected.rejected_for == 0ms)) fail("the reason for the rejection");
      if (got.admitted) held.push_back({expected, got});
    }
    if (!held.empty() && dice / 1000 % 100 < 70) {
      const std::size_t which = dice / 100'000 % 20 == 0 ? random() % held.size() : 0;
      const Outcome outcome = random() % 50 == 0 ? Outcome::kIgnored
                              : static_cast<double>(random() % 1'000'000) < failing * 1e6 ? Outcome::kFailure
                                                                                          : Outcome::kSuccess;
      const Pair pair = held[which];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      textbook.Settle(pair.textbook.number, pair.textbook.slot, outcome);
      if (outcome != Outcome::kSuccess || pair.core.slot != Core::kNoSlot || !core->SettleSuccess(pair.core.number)) {
        core->Settle(pair.core.number, pair.core.slot, outcome);
      }
    }

    if (core->state() != textbook.state()) fail("state");
    if (core->counts() != textbook.counts()) fail("counts");
    if (seen[0].size() != seen[1].size()) fail("the number of transitions");
    if (!seen[0].empty()) {
      const CircuitTransition& expected = seen[0].back();
      const CircuitTransition& got = seen[1].back();
      if (got.from != expected.from || got.to != expected.to || got.counts != expected.counts || got.missed != 0) {
        fail("the last transition");
      }
      tally.trips += expected.to == CircuitState::kOpen;
      seen[0].clear();
      seen[1].clear();
    }
    if (step % 64 == 0) {
      const CircuitTotals expected = textbook.totals();
      const CircuitTotals got = core->totals();
      if (got.successes != expected.successes || got.failures != expected.failures || got.ignored != expected.ignored ||
          got.rejected != expected.rejected || got.entered_closed != expected.entered_closed ||
          got.entered_open != expected.entered_open || got.entered_half_open != expected.entered_half_open) {
        fail("totals");
      }
    }
    ++tally.steps;
  }
  CHECK(errors[0] == errors[1]);
  tally.errors += errors[1];
}

}  // namespace

TEST_CASE("B3, B4, B5, B6, B7, B8, B9, B12: ten million random steps agree with the plain ring, step for step") {
  const std::uint64_t seed = Seed();
  std::printf("PENSTOCK_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::vector<CircuitBreakerSettings> variants;
  const auto add = [&](std::uint32_t consecutive, double ratio, std::uint32_t least, std::uint32_t window,
                       std::uint32_t probes) -> CircuitBreakerSettings& {
    CircuitBreakerSettings settings;
    settings.consecutive_failures = consecutive;
    settings.failure_ratio = ratio;
    settings.min_results = least;
    settings.window = window;
    settings.probes = probes;
    settings.open_for = 15ms;
    settings.probe_timeout = 3ms;
    return variants.emplace_back(settings);
  };
  add(5, 0.5, 20, 100, 1);  // the defaults
  add(1000, 0.5, 20, 100, 3);
  add(1000, 0.1, 1, 100, 1);
  add(4, 0.3, 5, 10, 2);
  add(1000, 1, 10, 10, 1);
  add(3, 1, 1, 1, 1);
  add(1000, 1, 1, 1, 1);
  add(1000, 2.0 / 3, 20, 64, 5);
  add(128, 1, 20, 128, 1);
  add(5, 0.5, 3, 7, 1);
  add(60, 0.5, 100, 100, 1);
  add(5, 0.5, 50, 20, 2);  // the share never counts
  add(3, 0.9, 20, 100, 2).consecutive_span = 2ms;
  add(5, 1, 50, 50, 1).consecutive_span = 20ms;
  add(5, 0.5, 20, 100, 3).trip = MixedTrip;
  add(5, 0.5, 20, 9, 2).trip = MixedTrip;
  add(5, 0.5, 20, 100, 3).probe = MixedProbe;
  CircuitBreakerSettings& both = add(5, 0.5, 20, 33, 4);
  both.trip = MixedTrip;
  both.probe = MixedProbe;
  CircuitBreakerSettings& sticky = add(5, 0.5, 20, 100, 4);  // half-open for long: many versions of its counts
  sticky.probe = [](const Counts& counts) {
    return Mix(counts) % 300 == 0 ? ProbeDecision::kClose : ProbeDecision::kKeep;
  };
  add(5, 0.5, 20, 100, 1).trip = [](const Counts&) { return false; };

  Tally tally;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    RunBeside(variants[i], 10'000'000 / variants.size(), seed + i, tally);
  }
  CHECK(tally.steps == 10'000'000);
  CHECK(tally.trips > 10'000);  // else the steps tried too little
  CHECK(tally.errors > 100);
}
