#pragma once

// What the explorations of the breaker share: small settings, and how they are run.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "support/breaker_model.h"

namespace penstock_test {

using Pass = ModelCore::Pass;

inline constexpr auto kSuccess = penstock::Outcome::kSuccess;
inline constexpr auto kFailure = penstock::Outcome::kFailure;

inline penstock::CircuitBreakerSettings Settings(std::uint32_t consecutive, std::uint32_t window = 4) {
  penstock::CircuitBreakerSettings settings;
  settings.consecutive_failures = consecutive;
  settings.window = window;
  settings.min_results = window;
  settings.failure_ratio = 1;
  settings.open_for = std::chrono::milliseconds(10);
  settings.probe_timeout = std::chrono::milliseconds(10);
  settings.successes_to_close = 9;
  return settings;
}

// Never trips, and remembers four failures.
inline penstock::CircuitBreakerSettings Patient() {
  penstock::CircuitBreakerSettings settings = Settings(1);
  settings.trip = [](const penstock::Counts&) { return false; };
  return settings;
}

// The larger scenarios have fewer preemptions by default; with PENSTOCK_FULL set every one has three.
inline void Explore(const char* what, const std::function<void(explorer::Run&)>& scenario, int preemptions = 3) {
  if (std::getenv("PENSTOCK_FULL") != nullptr) preemptions = 3;
  const auto found = explorer::Explore({.preemptions = preemptions, .most_schedules = 50'000'000}, scenario);
  CHECK_MESSAGE(found.ok(), what << ": " << found.failure);
  std::printf("%8llu schedules: %s\n", static_cast<unsigned long long>(found.schedules), what);
}

inline std::shared_ptr<Model> Make(const penstock::CircuitBreakerSettings& settings) { return std::make_shared<Model>(settings); }

// Open, with its time over.
inline std::shared_ptr<Model> MakeExpired(penstock::CircuitBreakerSettings settings) {
  auto model = Make(settings);
  for (std::uint32_t i = 0; i < settings.consecutive_failures; ++i) model->Call(kFailure);
  model->clock.Advance(settings.open_for);
  return model;
}

// Every thread but the last may stall at each of its steps while the following ones run to their end: see Options::cascade.
inline void Cascade(const std::string& what, const std::function<void(explorer::Run&)>& scenario, int stalls,
                    std::uint64_t most_steps = 20'000) {
  const auto found =
      explorer::Explore({.preemptions = stalls, .most_schedules = 50'000'000, .most_steps = most_steps, .cascade = true}, scenario);
  CHECK_MESSAGE(found.ok(), what << ": " << found.failure);
  std::printf("%8llu schedules: %s\n", static_cast<unsigned long long>(found.schedules), what.c_str());
}

}  // namespace penstock_test
