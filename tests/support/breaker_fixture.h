#pragma once

// A breaker on a clock that the test moves, with what it reported.

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "penstock/core/circuit_breaker.h"
#include "support/hand_clock.h"

namespace penstock_test {

struct BreakerFixture {
  HandClock clock;
  std::vector<penstock::CircuitTransition> transitions;  // guarded by mutex
  std::mutex mutex;
  std::unique_ptr<penstock::CircuitBreaker> breaker;

  explicit BreakerFixture(penstock::CircuitBreakerSettings settings = {},
                          penstock::Duration start = std::chrono::hours(1))
      : clock(start) {
    settings.clock = &clock;
    if (!settings.observer) {
      settings.observer = [this](const penstock::CircuitTransition& transition) {
        std::lock_guard lock(mutex);
        transitions.push_back(transition);
      };
    }
    auto made = penstock::CircuitBreaker::Create(std::move(settings));
    REQUIRE_MESSAGE(made.ok(), made.error().message());
    breaker = std::move(*made);
  }

  // A call that is admitted and ends so.
  void Call(penstock::Outcome outcome) {
    auto admission = breaker->Acquire();
    REQUIRE(admission.admitted());
    admission.ticket().Settle(outcome);
  }
  void Calls(int count, penstock::Outcome outcome) {
    for (int i = 0; i < count; ++i) Call(outcome);
  }

  // Opens a breaker that trips at five failures in a row, and lets open_for (10 s) pass.
  void OpenAndWait() {
    Calls(5, penstock::Outcome::kFailure);
    REQUIRE(breaker->state() == penstock::CircuitState::kOpen);
    clock.Advance(std::chrono::seconds(10));
  }

  penstock::CircuitTicket Probe() {
    auto admission = breaker->Acquire();
    REQUIRE(admission.admitted());
    REQUIRE(admission.ticket().is_probe());
    return admission.TakeTicket();
  }
};

}  // namespace penstock_test
