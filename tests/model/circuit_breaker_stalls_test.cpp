// What if a thread sleeps, anywhere in the breaker, while the others go on for long: through many changes of state, the reuse
// of a bank, a slot or a record, several rounds of the ring, the wrap of a number that tells old from new?

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/breaker_scenarios.h"

using namespace penstock;
using namespace penstock_test;
using namespace std::chrono_literals;

namespace {

// Moves the breaker on, to the first closed state from generation `target` on, by way of generation `target` if it can be.
void DriveTo(Model& m, std::uint64_t target) {
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t generation = Inspect::Generation(*m.core);
    switch (m.core->state()) {
      case CircuitState::kClosed:
        if (generation >= target) return;
        m.Call(kFailure);
        break;
      case CircuitState::kOpen:
        m.clock.Advance(10ms);
        break;
      case CircuitState::kHalfOpen: {
        const Pass pass = m.Acquire();
        if (!pass.admitted) m.clock.Advance(10ms);  // the slot is a sleeper's
        // Closing is three changes a round, failing two.
        const std::uint64_t half_open = Inspect::Generation(*m.core);
        m.Settle(pass, half_open >= target || (target - half_open - 1) % 3 == 0 ? kSuccess : kFailure);
        break;
      }
    }
  }
}

// Whatever was done to it: the breaker closes, begins with nothing, counts exactly and opens at the second failure in a row.
void CheckThatItWorks(Model& m, explorer::Run& run) {
  const auto close = [&] {
    for (int i = 0; i < 40 && Inspect::State(*m.core) != CircuitState::kClosed; ++i) {
      m.clock.Advance(10ms);
      m.Call(kSuccess);
    }
    run.Check(Inspect::State(*m.core) == CircuitState::kClosed, "it does not close any more");
  };
  close();
  m.Call(kFailure);
  m.Call(kFailure);
  m.Call(kFailure);
  close();
  run.Check(m.core->counts() == Counts{}, "it does not begin with nothing");
  m.Call(kFailure);
  m.Call(kSuccess);
  m.Call(kFailure);
  run.Check(m.core->counts() == Counts{.successes = 1, .failures = 2, .consecutive_failures = 1}, "counts afterwards");
  run.Check(Inspect::State(*m.core) == CircuitState::kClosed, "it opened early");
  m.Call(kFailure);
  run.Check(Inspect::State(*m.core) == CircuitState::kOpen, "it did not open");
  run.Check(m.ReportsAreWhole(), "reports");
  run.Check(!m.granted_late, "a probe of a state that was over");
}

CircuitBreakerSettings TwoInARow() {
  CircuitBreakerSettings settings = Settings(2);
  settings.successes_to_close = 1;
  return settings;
}

// What the sleeper does, and in which state. 
struct Sleeper {
  const char* name;
  bool half_open;   // else closed, with one failure
  bool acquires;    // else it settles a pass that it has
  Outcome outcome;
};
constexpr Sleeper kSleepers[] = {
    {"a failure", false, false, kFailure},
    {"a success", false, false, kSuccess},
    {"an ignored result", false, false, Outcome::kIgnored},
    {"an Acquire() at the expiry", true, true, kFailure},
    {"a probe's success", true, false, kSuccess},
    {"a probe's failure", true, false, kFailure},
    {"an ignored probe", true, false, Outcome::kIgnored},
};

std::shared_ptr<Model> MakeFor(const Sleeper& sleeper, Pass& pass) {
  auto m = Make(TwoInARow());
  pass = m->Acquire();
  m->Settle(pass, kFailure);
  if (sleeper.half_open) {
    m->Settle(pass, kFailure);
    m->clock.Advance(10ms);
    if (!sleeper.acquires) pass = m->Acquire();
  }
  return m;
}

// The pass that the sleeper still has, if any.
Pass Sleep(Model& m, const Sleeper& sleeper, const Pass& pass) {
  if (sleeper.acquires) return m.Acquire();
  m.Settle(pass, sleeper.outcome);
  return pass;
}

}  // namespace

TEST_CASE("B7, B10: a thread that sleeps through 3 to 24 changes of state takes nothing from the state it wakes in") {
  for (const Sleeper& sleeper : kSleepers) {
    for (std::uint64_t target : {3, 5, 6, 8, 9, 10, 11, 16, 17, 24, 25}) {
      Cascade(std::string(sleeper.name) + " sleeps until generation " + std::to_string(target), [&](explorer::Run& run) {
        Pass pass;
        auto m = MakeFor(sleeper, pass);
        auto left = std::make_shared<Pass>();
        auto generation = std::make_shared<std::uint64_t>();
        run.Thread([=] { *left = Sleep(*m, sleeper, pass); });
        run.Thread([=] {
          DriveTo(*m, target);
          *generation = Inspect::Generation(*m->core);
          m->Call(kFailure);
          m->Call(kSuccess);
          m->Call(kFailure);
        });
        run.Finally([=, &run] {
          run.Check(*generation >= target && Inspect::Generation(*m->core) == *generation, "another generation");
          if (left->admitted && left->number != Inspect::Word(*m->core)) m->Settle(*left, sleeper.outcome);  // long over
          Counts counts = m->core->counts();
          // A success that slept between its check and its addition, through a whole round of the banks: the one leak that
          // docs/circuit-breaker.md names.
          const bool round = *generation % 8 == 0 && !sleeper.half_open && sleeper.outcome == kSuccess;
          if (round && counts.successes == 2) counts = {.successes = 1, .failures = 2, .consecutive_failures = 1};
          run.Check(counts == Counts{.successes = 1, .failures = 2, .consecutive_failures = 1}, "counts");
          CheckThatItWorks(*m, run);
        });
      }, 1);
    }
  }
}

TEST_CASE("B7, B10: a thread that trips and sleeps lengthens nobody's open_for") {
  for (std::uint64_t opened : {3, 7, 9, 11, 17, 25}) {
    Cascade("a failure sleeps until the breaker is open in generation " + std::to_string(opened), [&](explorer::Run& run) {
      auto m = Make(TwoInARow());
      const Pass pass = m->Acquire();
      m->Settle(pass, kFailure);
      auto until = std::make_shared<TimePoint>();
      run.Thread([=] {
        m->clock.Advance(1ms);
        m->Settle(pass, kFailure);
      });
      run.Thread([=] {
        for (int i = 0; i < 100 && Inspect::Generation(*m->core) < opened; ++i) {
          if (Inspect::State(*m->core) == CircuitState::kOpen) m->clock.Advance(10ms);
          m->Call(kFailure);
        }
        *until = m->clock.Now() + 10ms;
        m->clock.Advance(3ms);
      });
      run.Finally([=, &run] {
        run.Check(Inspect::Generation(*m->core) == opened, "another generation");
        run.Check(m->clock.Now() + m->Acquire().rejected_for == *until, "it stays open for another time");
        CheckThatItWorks(*m, run);
      });
    }, 1);
  }
}

TEST_CASE("B1, B10: what a thread wrote that slept since eight changes of state shortens nobody's open_for") {
  Cascade("a probe's failure sleeps until another opens the breaker, which sleeps as well", [](explorer::Run& run) {
    CircuitBreakerSettings settings = TwoInARow();
    settings.probes = 2;
    auto m = MakeExpired(settings);
    const Pass failing = m->Acquire();
    const Pass closing = m->Acquire();
    auto tripped = std::make_shared<TimePoint>();
    run.Thread([=] { m->Settle(failing, kFailure); });
    run.Thread([=] {
      // Generation 3 is closed, 4 open, 5 half-open, 6 closed, 7 open, 8 half-open, 9 open, 10 half-open: none before 11 uses
      // the deadline that generation 3 would have had.
      m->Settle(closing, kSuccess);
      for (int i = 0; i < 40 && Inspect::Generation(*m->core) < 11; ++i) {
        if (Inspect::State(*m->core) == CircuitState::kOpen) m->clock.Advance(10ms);
        const Pass pass = m->Acquire();
        *tripped = m->clock.Now();
        m->Settle(pass, Inspect::Generation(*m->core) == 5 ? kSuccess : kFailure);
      }
    });
    run.Thread([=] { m->clock.Advance(1ms); });
    run.Finally([=, &run] {
      if (Inspect::Generation(*m->core) != 11 || Inspect::State(*m->core) != CircuitState::kOpen) return;
      const TimePoint until = m->clock.Now() + m->Acquire().rejected_for;
      run.Check(until >= *tripped + 10ms && until <= *tripped + 11ms, "it is open for another time");
    });
  }, 2);
}

TEST_CASE("B7, B9, B10: two threads that sleep at once, anywhere, leave a breaker that works") {
  for (const Sleeper& sleeper : kSleepers) {
    for (std::uint64_t target : {5, 8, 9}) {
      Cascade(std::string(sleeper.name) + " and one that moves the breaker on sleep until generation " + std::to_string(target),
              [&](explorer::Run& run) {
        Pass pass;
        auto m = MakeFor(sleeper, pass);
        auto left = std::make_shared<Pass>();
        run.Thread([=] { *left = Sleep(*m, sleeper, pass); });
        run.Thread([=] { DriveTo(*m, 3); });
        run.Thread([=] {
          DriveTo(*m, target);
          m->Call(kFailure);
        });
        run.Finally([=, &run] {
          m->Settle(*left, sleeper.outcome);
          CheckThatItWorks(*m, run);
        });
      }, 2);
    }
  }
}

TEST_CASE("B7, B10: the first failure of a state counts from nothing, even if nobody has tidied since the one before") {
  Cascade("three change the state and sleep before they tidy, a fourth fails", [](explorer::Run& run) {
    CircuitBreakerSettings settings = TwoInARow();
    // Disarmed for the late failure, so that recording it is all that could be done with it.
    auto armed = std::make_shared<bool>(true);
    settings.trip = [armed](const Counts& counts) { return *armed && counts.consecutive_failures >= 2; };
    auto m = Make(settings);
    const Pass old = m->Acquire();
    m->Settle(old, kFailure);
    run.Thread([=] { m->Settle(old, kFailure); });
    run.Thread([=] {
      if (Inspect::Generation(*m->core) != 1) return;
      m->clock.Advance(10ms);
      m->Acquire();
    });
    run.Thread([=] {
      if (Inspect::Generation(*m->core) != 2) return;
      m->clock.Advance(10ms);  // the second may hold the slot
      m->Call(kSuccess);
    });
    auto failed = std::make_shared<bool>(false);
    run.Thread([=, &run] {
      if (Inspect::Generation(*m->core) != 3) return;
      *failed = true;
      const CircuitTotals before = m->core->totals();
      *armed = false;
      m->Settle(old, kFailure);
      *armed = true;
      run.Check(m->core->totals().failures == before.failures, "a failure of an earlier state was recorded");
      m->Call(kFailure);
      run.Check(Inspect::Generation(*m->core) == 3, "one failure tripped");
      run.Check(m->core->counts() == Counts{.failures = 1, .consecutive_failures = 1}, "counts of the new state");
    });
    run.Finally([=, &run] {
      if (*failed) run.Check(m->core->counts() == Counts{.failures = 1, .consecutive_failures = 1}, "the failure was lost");
      CheckThatItWorks(*m, run);
    });
  }, 3);
}

TEST_CASE("B3, B10: a failure that sleeps while the ring is filled several times is recorded once and spoils nothing") {
  for (int others = 1; others <= 18; ++others) {
    Cascade("a failure sleeps through " + std::to_string(others), [=](explorer::Run& run) {
      auto m = Make(Patient());
      const Pass pass = m->Acquire();
      m->Settle(pass, kFailure);
      run.Thread([=] { m->Settle(pass, kFailure); });
      run.Thread([=] {
        for (int i = 0; i < others; ++i) {
          m->Settle(pass, kFailure);
          if (i % 3 == 0) m->Settle(pass, kSuccess);
        }
      });
      run.Finally([=, &run] {
        const std::uint64_t failures = static_cast<std::uint64_t>(others) + 2;
        run.Check(Inspect::Failures(*m->core) == failures, "a failure was lost");
        run.Check(m->core->totals().failures == failures, "totals");
        std::uint64_t last = 0;
        for (std::uint64_t i = failures > 4 ? failures - 4 : 0; i < failures; ++i) {
          const std::uint64_t position = Inspect::Position(*m->core, i);
          run.Check(position > last && position <= failures + Inspect::Successes(*m->core), "positions");
          last = position;
        }
      });
    }, 1);
  }
}

TEST_CASE("B3, B10: the time of a row's beginning survives a sleep through the wrap of the index beside it") {
  for (int others : {1, 4, 255, 256, 257, 512}) {
    for (Duration step : {Duration(0), Duration(1us)}) {
      Cascade("a failure sleeps through " + std::to_string(others) + " with consecutive_span", [=](explorer::Run& run) {
        CircuitBreakerSettings settings = Settings(2, 4096);
        settings.consecutive_span = 100ms;
        auto m = Make(settings);
        const Pass pass = m->Acquire();
        m->Settle(pass, kFailure);
        m->Settle(pass, kSuccess);
        run.Thread([=] { m->Settle(pass, kFailure); });
        run.Thread([=] {
          for (int i = 0; i < others; ++i) {
            if (i % 2 == 0) m->Settle(pass, kSuccess);
            m->Settle(pass, kFailure);
            m->clock.Advance(step);
          }
          m->Settle(pass, kSuccess);
        });
        run.Finally([=, &run] {
          run.Check(Inspect::State(*m->core) == CircuitState::kClosed, "tripped before the span was over");
          m->Settle(pass, kSuccess);
          m->Settle(pass, kFailure);
          m->clock.Advance(100ms - 1ns);
          m->Settle(pass, kFailure);
          run.Check(Inspect::State(*m->core) == CircuitState::kClosed, "tripped early");
          m->clock.Advance(1ns);
          m->Settle(pass, kFailure);
          run.Check(Inspect::State(*m->core) == CircuitState::kOpen, "the time of the beginning was lost");
        });
      }, 1, 200'000);
    }
  }
}

TEST_CASE("B5, B8, B10: a thread that sleeps while a slot changes hands many times frees and grants nothing of another's") {
  for (const bool acquires : {true, false}) {
    for (int leases = 1; leases <= 6; ++leases) {
      for (const bool stands : {true, false}) {
        Cascade(std::string(acquires ? "an Acquire()" : "a probe's end") + " sleeps through " + std::to_string(leases) + " leases",
                [=](explorer::Run& run) {
          CircuitBreakerSettings settings = Settings(1);
          settings.probe = [](const Counts&) { return ProbeDecision::kKeep; };
          auto m = MakeExpired(settings);
          const Pass first = m->Acquire();
          if (acquires) m->Settle(first, kSuccess);
          auto passes = std::make_shared<std::vector<Pass>>();
          run.Thread([=] {
            if (acquires) {
              passes->push_back(m->Acquire());
            } else {
              m->Settle(first, kSuccess);
            }
          });
          run.Thread([=] {
            for (int i = 0; i < leases; ++i) {
              Pass pass = m->Acquire();
              if (!pass.admitted) {
                m->clock.Advance(10ms);
                pass = m->Acquire();
              }
              if (!stands) m->clock.Advance(1ms);
              passes->push_back(pass);
              if (i + 1 < leases) m->Settle(pass, i % 2 == 0 ? kSuccess : Outcome::kIgnored);
            }
          });
          run.Finally([=, &run] {
            int live = 0;
            for (const Pass& pass : *passes) live += pass.admitted && Inspect::Owns(*m->core, pass.number, pass.slot);
            run.Check(live == 1, "not one owner");
            // What it has left is not less than what it was given when it was admitted.
            m->clock.Advance(stands ? 10ms - 1ns : 9ms - 1ns);
            run.Check(!m->Acquire().admitted, "the lease was cut short");
            m->clock.Advance(20ms);
            run.Check(m->Acquire().admitted, "the slot was lost");
          });
        }, 1);
      }
    }
  }
}

TEST_CASE("B8, B10: a probe that sleeps through as many results as the counts' tags can tell apart hangs nobody") {
  for (std::uint64_t skipped : {(1ull << 18) - 12, (1ull << 18) - 8, (1ull << 18) - 4, 1ull << 18}) {
    Cascade("one probe's end sleeps through the wrap of the version, " + std::to_string(skipped), [=](explorer::Run& run) {
      CircuitBreakerSettings settings = Settings(1);
      settings.probes = 3;
      settings.probe = [](const Counts&) { return ProbeDecision::kKeep; };
      auto m = MakeExpired(settings);
      for (int i = 0; i < 5; ++i) m->Call(kSuccess);
      const Pass probe = m->Acquire();
      run.Thread([=] { m->Settle(probe, kSuccess); });
      run.Thread([=] {
        for (int i = 0; i < 2; ++i) m->Call(kSuccess);
        Inspect::SkipResults(*m->core, skipped);
        for (int i = 0; i < 6; ++i) m->Call(kSuccess);
      });
      run.Thread([=] {
        for (int i = 0; i < 2; ++i) m->Call(kSuccess);
      });
      run.Finally([=, &run] {
        // The counts are right, or have begun anew.
        const Counts counts = m->core->counts();
        run.Check(counts.successes >= 1 && counts.successes <= 16 && counts.successes == counts.consecutive_successes, "counts");
        run.Check(m->core->totals().successes == 16, "totals");
        m->Call(kSuccess);
        run.Check(m->core->counts().successes == counts.successes + 1, "counts afterwards");
      });
    }, 2);
  }
}

TEST_CASE("B9, B10: a thread that sleeps while it reports holds nobody up, and what was missed is told") {
  for (int rounds : {3, 255, 256, 257, 515}) {
    Cascade("one trips and sleeps through " + std::to_string(2 * rounds) + " changes", [=](explorer::Run& run) {
      auto m = Make(TwoInARow());
      const Pass pass = m->Acquire();
      m->Settle(pass, kFailure);
      run.Thread([=] { m->Settle(pass, kFailure); });
      run.Thread([=] {
        m->Call(kFailure);
        for (int i = 0; i < rounds; ++i) {
          m->clock.Advance(10ms);
          m->Call(kFailure);
        }
      });
      run.Finally([=, &run] {
        for (int i = 0; i < 4; ++i) {  // these tell what was left, at most 512 at each change
          m->clock.Advance(10ms);
          m->Call(kFailure);
        }
        std::uint64_t told = 0;
        for (const CircuitTransition& transition : m->transitions) told += 1 + transition.missed;
        const CircuitTotals totals = m->core->totals();
        run.Check(told == totals.entered_closed + totals.entered_open + totals.entered_half_open, "some were neither told nor missed: " + std::to_string(told) + " of " + std::to_string(totals.entered_closed + totals.entered_open + totals.entered_half_open));
        run.Check(m->transitions.back().to == Inspect::State(*m->core), "the last is not the present state");
        if (rounds < 250) run.Check(m->ReportsAreWhole(), "reports");
      });
    }, 1, 1'000'000);
  }
}
