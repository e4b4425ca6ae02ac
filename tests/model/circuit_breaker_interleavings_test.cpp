// The shipping breaker in every interleaving of two or three threads with up to three preemptions. mutants.py breaks the
// breaker in many ways and expects that this program notices each.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "support/breaker_scenarios.h"

using namespace penstock;
using namespace penstock_test;
using namespace std::chrono_literals;

TEST_CASE("B3, B10: three failures at once are never a lost trip") {
  for (bool shared : {false, true}) {
    ModelAtomics::all_on_the_shared_line = shared;
    Explore("three failures, three in a row trip", [](explorer::Run& run) {
      auto m = Make(Settings(3));
      for (int i = 0; i < 3; ++i) {
        const Pass pass = m->Acquire();
        run.Thread([=] { m->Settle(pass, kFailure); });
      }
      run.Finally([=, &run] {
        run.Check(Inspect::State(*m->core) == CircuitState::kOpen, "the trip was lost");
        run.Check(m->core->totals().failures == 3, "a failure was lost from the totals");
        run.Check(m->ReportsAreWhole() && m->transitions.size() == 1, "reports");
        run.Check(m->transitions[0].counts == Counts{.failures = 3, .consecutive_failures = 3}, "counts of the trip");
      });
    });
  }
  ModelAtomics::all_on_the_shared_line = false;
}

TEST_CASE("B3, B10: failures and successes at once are all recorded, the failures at growing positions") {
  Explore("four failures by two threads, two successes", [](explorer::Run& run) {
    auto m = Make(Patient());
    const Pass pass = m->Acquire();
    for (int i = 0; i < 2; ++i) {
      run.Thread([=] {
        m->Settle(pass, kFailure);
        m->Settle(pass, kFailure);
      });
    }
    run.Thread([=] {
      m->Settle(pass, kSuccess);
      m->Settle(pass, kSuccess);
    });
    run.Finally([=, &run] {
      run.Check(Inspect::Failures(*m->core) == 4, "a failure was lost");
      run.Check(Inspect::Successes(*m->core) == 2, "a success was lost");
      std::uint64_t last = 0;
      for (std::uint64_t i = 0; i < 4; ++i) {
        const std::uint64_t position = Inspect::Position(*m->core, i);
        run.Check(position > last && position <= 6, "positions");
        last = position;
      }
      const CircuitTotals totals = m->core->totals();
      run.Check(totals.failures == 4 && totals.successes == 2, "totals");
    });
  }, 2);
}

TEST_CASE("B3, B10: a ring that is filled again while others record stays exact") {
  Explore("eight failures by two threads over a ring of four", [](explorer::Run& run) {
    auto m = Make(Patient());
    const Pass pass = m->Acquire();
    m->Settle(pass, kFailure);
    m->Settle(pass, kFailure);
    run.Thread([=] { m->Settle(pass, kFailure); });
    run.Thread([=] {
      for (int i = 0; i < 5; ++i) {
        m->Settle(pass, kFailure);
        if (i % 2 == 0) m->Settle(pass, kSuccess);
      }
    });
    run.Finally([=, &run] {
      run.Check(Inspect::Failures(*m->core) == 8, "a failure was lost");
      std::uint64_t last = 0;
      for (std::uint64_t i = 4; i < 8; ++i) {
        const std::uint64_t position = Inspect::Position(*m->core, i);
        run.Check(position > last && position <= 11, "positions");
        last = position;
      }
    });
  });
}

TEST_CASE("B8, B10: the row of failures is counted exactly, however they are recorded") {
  Explore("five failures by three threads, no success", [](explorer::Run& run) {
    auto m = Make(Patient());
    const Pass pass = m->Acquire();
    m->Settle(pass, kSuccess);
    run.Thread([=] { m->Settle(pass, kFailure); });
    run.Thread([=] { m->Settle(pass, kFailure); });
    run.Thread([=] {
      m->Settle(pass, kFailure);
      m->Settle(pass, kFailure);
    });
    run.Finally([=, &run] {
      m->Settle(pass, kFailure);
      run.Check(m->core->counts() == Counts{.failures = 4, .consecutive_failures = 5}, "counts");
      m->Settle(pass, kSuccess);
      m->Settle(pass, kFailure);
      m->Settle(pass, kFailure);
      run.Check(m->core->counts().consecutive_failures == 2, "the row after a success");
    });
  }, 2);
}

TEST_CASE("B3, B10: rows that begin while others record keep the time of their beginning") {
  Explore("consecutive_span while the clock moves", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(2, 64);
    settings.consecutive_span = 100ms;
    auto m = Make(settings);
    const Pass pass = m->Acquire();
    m->Settle(pass, kFailure);  // an older row, long ago
    m->Settle(pass, kFailure);
    m->Settle(pass, kSuccess);
    m->clock.Advance(1h);
    run.Thread([=] { m->Settle(pass, kFailure); });
    run.Thread([=] {
      m->Settle(pass, kFailure);
      m->clock.Advance(99ms);
      m->Settle(pass, kFailure);
    });
    run.Finally([=, &run] {
      run.Check(Inspect::State(*m->core) == CircuitState::kClosed, "tripped before the span was over");
      m->clock.Advance(100ms);
      m->Settle(pass, kFailure);
      run.Check(Inspect::State(*m->core) == CircuitState::kOpen, "the time of the beginning was lost");
    });
  });
}

TEST_CASE("B2, B9, B10: of three threads at the expiry one is admitted, with one transition") {
  Explore("three acquire when open_for is over", [](explorer::Run& run) {
    auto m = MakeExpired(Settings(1));
    auto admitted = std::make_shared<int>(0);
    for (int i = 0; i < 3; ++i) run.Thread([=] { *admitted += m->Acquire().admitted; });
    run.Finally([=, &run] {
      run.Check(*admitted == 1, "admitted");
      run.Check(m->ReportsAreWhole() && m->transitions.size() == 2, "reports");
    });
  }, 2);
}

TEST_CASE("B1, B10: a breaker that trips by several at once stays open for open_for") {
  Explore("two trip while the clock moves", [](explorer::Run& run) {
    auto m = Make(Settings(1));
    const Pass pass = m->Acquire();
    for (int i = 0; i < 2; ++i) {
      run.Thread([=] {
        m->clock.Advance(1ms);
        m->Settle(pass, kFailure);
      });
    }
    run.Finally([=, &run] {
      const Duration rest = m->Acquire().rejected_for;
      run.Check(rest >= 9ms && rest <= 10ms, "time left");
      run.Check(m->transitions.size() == 1 && m->core->totals().failures == 1, "only one of them tripped it");
    });
  });
}

TEST_CASE("B4, B7, B10: two successful probes close, and what follows is counted in the new state") {
  Explore("two probes succeed, one acquires and succeeds", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    settings.probes = 2;
    settings.successes_to_close = 2;
    auto m = MakeExpired(settings);
    auto admitted = std::make_shared<Pass>();
    for (int i = 0; i < 2; ++i) {
      const Pass probe = m->Acquire();
      run.Thread([=] { m->Settle(probe, kSuccess); });
    }
    run.Thread([=] {
      *admitted = m->Acquire();
      m->Settle(*admitted, kSuccess);
    });
    run.Finally([=, &run] {
      run.Check(Inspect::State(*m->core) == CircuitState::kClosed, "not closed");
      const bool closed = admitted->admitted && admitted->slot == ModelCore::kNoSlot;
      run.Check(m->core->counts().successes == (closed ? 1u : 0u), "counts of the new state");
      run.Check(m->ReportsAreWhole(), "reports");
      run.Check(m->transitions.back().counts.successes == 2, "counts of the closing");
      run.Check(m->core->totals().successes == 2 + (closed ? 1u : 0u), "totals");
    });
  }, 2);
}

TEST_CASE("B4, B7, B10: two probes that both could close do it once, and nothing of the new state is lost") {
  Explore("two probes succeed where one suffices, a third thread succeeds in what follows", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    settings.probes = 2;
    settings.successes_to_close = 1;
    auto m = MakeExpired(settings);
    auto admitted = std::make_shared<Pass>();
    for (int i = 0; i < 2; ++i) {
      const Pass probe = m->Acquire();
      run.Thread([=] { m->Settle(probe, kSuccess); });
    }
    run.Thread([=] {
      *admitted = m->Acquire();
      m->Settle(*admitted, kSuccess);
    });
    run.Finally([=, &run] {
      run.Check(Inspect::Generation(*m->core) == 3, "closed more than once, or not");
      const bool closed = admitted->admitted && admitted->slot == ModelCore::kNoSlot;
      run.Check(m->core->counts().successes == (closed ? 1u : 0u), "counts of the new state");
      run.Check(m->ReportsAreWhole(), "reports");
    });
  }, 2);
}

TEST_CASE("B4, B10: of a failing and a closing probe exactly one decides") {
  Explore("a probe succeeds, another fails", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    settings.probes = 2;
    settings.successes_to_close = 1;
    auto m = MakeExpired(settings);
    const Pass one = m->Acquire();
    const Pass two = m->Acquire();
    run.Thread([=] { m->Settle(one, kSuccess); });
    run.Thread([=] { m->Settle(two, kFailure); });
    run.Finally([=, &run] {
      run.Check(m->transitions.size() == 3 && m->ReportsAreWhole(), "reports");
      const CircuitTotals totals = m->core->totals();
      run.Check(totals.successes + totals.failures == 2, "one of the two counts nothing");
    });
  });
}

TEST_CASE("B5, B10: an expired probe is timed out once, whoever notices, and its late end frees nothing") {
  Explore("a late failure and two acquires", [](explorer::Run& run) {
    auto m = MakeExpired(Settings(1));
    auto admitted = std::make_shared<int>(0);
    const Pass late = m->Acquire();
    m->clock.Advance(10ms);
    run.Thread([=] { m->Settle(late, kFailure); });
    for (int i = 0; i < 2; ++i) run.Thread([=] { *admitted += m->Acquire().admitted; });
    run.Finally([=, &run] {
      run.Check(*admitted == 1, "admitted");
      run.Check(m->core->counts() == Counts{.timed_out = 1}, "counts");
    });
  }, 2);
}

TEST_CASE("B5, B10: a probe that ends as it expires counts or is timed out, never both and never neither") {
  Explore("the clock passes the deadline while a probe settles and another acquires", [](explorer::Run& run) {
    auto m = MakeExpired(Settings(1));
    auto admitted = std::make_shared<int>(0);
    const Pass probe = m->Acquire();
    m->clock.Advance(10ms - 1ns);
    run.Thread([=] { m->Settle(probe, kSuccess); });
    run.Thread([=] {
      m->clock.Advance(1ns);
      *admitted += m->Acquire().admitted;
    });
    run.Finally([=, &run] {
      const Counts counts = m->core->counts();
      run.Check(counts.successes + counts.timed_out <= 1, "both");
      if (*admitted == 1) run.Check(counts.successes + counts.timed_out == 1, "neither");
    });
  });
}

TEST_CASE("B7, B10: a probe is granted only in the state that the breaker is in, one at a time") {
  Explore("a probe fails, the breaker opens and half-opens again, others acquire", [](explorer::Run& run) {
    auto m = MakeExpired(Settings(1));
    const Pass probe = m->Acquire();
    m->clock.Advance(1ms);
    auto passes = std::make_shared<std::vector<Pass>>();
    run.Thread([=] {
      m->Settle(probe, kFailure);
      m->clock.Advance(10ms);
    });
    run.Thread([=] { passes->push_back(m->Acquire()); });
    run.Thread([=] {
      passes->push_back(m->Acquire());
      passes->push_back(m->Acquire());
    });
    run.Finally([=, &run] {
      run.Check(!m->granted_late, "granted after the state had changed");
      int live = 0;
      for (const Pass& pass : *passes) {
        if (!pass.admitted || Inspect::State(*m->core) != CircuitState::kHalfOpen ||
            Inspect::LeaseGeneration(*m->core, pass.number) != Inspect::Generation(*m->core)) {
          continue;
        }
        ++live;
        run.Check(Inspect::Owns(*m->core, pass.number, pass.slot), "a live probe does not own its slot");
      }
      run.Check(live <= 1, "more than one live probe");
      run.Check(m->ReportsAreWhole(), "reports");
    });
  }, 2);
}

TEST_CASE("B5, B10: a lease is as long as probe_timeout, whoever else tried for the slot") {
  Explore("two acquire while the clock moves; the winner has its whole time", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    auto m = MakeExpired(settings);
    const Pass first = m->Acquire();
    m->Settle(first, Outcome::kIgnored);
    auto granted = std::make_shared<std::vector<Pass>>();
    for (int i = 0; i < 2; ++i) {
      run.Thread([=] {
        const Pass pass = m->Acquire();
        if (pass.admitted) granted->push_back(pass);
        m->clock.Advance(4ms);
      });
    }
    run.Finally([=, &run] {
      run.Check(granted->size() == 1, "granted");
      // At most 8 ms have passed since the grant: its 10 ms are not over.
      run.Check(!m->Acquire().admitted, "the lease was cut short");
    });
  });
}

TEST_CASE("B7, B10: results of an earlier state leak nothing into a later one") {
  Explore("a failure and a success of the first state while the breaker trips, probes and closes", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(2);
    settings.successes_to_close = 1;
    auto m = Make(settings);
    const Pass old = m->Acquire();
    m->Settle(old, kFailure);
    run.Thread([=] {
      m->Settle(old, kFailure);
      m->clock.Advance(10ms);
      m->Settle(m->Acquire(), kSuccess);
    });
    run.Thread([=] { m->Settle(old, kSuccess); });
    run.Thread([=] { m->Settle(old, kFailure); });
    run.Finally([=, &run] {
      if (Inspect::Generation(*m->core) == 3) run.Check(m->core->counts() == Counts{}, "leaked");
      run.Check(m->ReportsAreWhole(), "reports");
    });
  }, 2);
  Explore("a success of the first state, the same", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    settings.successes_to_close = 1;
    auto m = Make(settings);
    const Pass old = m->Acquire();
    run.Thread([=] {
      m->Settle(old, kFailure);
      m->clock.Advance(10ms);
      m->Settle(m->Acquire(), kSuccess);
    });
    run.Thread([=] { m->Settle(old, kSuccess); });
    run.Finally([=, &run] {
      run.Check(Inspect::Generation(*m->core) == 3, "the breaker did not close");
      const CircuitTotals before = m->core->totals();
      m->Settle(old, kSuccess);
      m->Settle(old, kFailure);
      m->Settle(old, Outcome::kIgnored);
      const CircuitTotals after = m->core->totals();
      run.Check(before.successes == after.successes && before.failures == after.failures &&
                    before.ignored == after.ignored,
                "an old result was counted in the totals");
      run.Check(m->core->counts() == Counts{}, "leaked");
    });
  });
}

TEST_CASE("B7, B10: a late failure of an earlier state takes nothing from the failures of the present one") {
  Explore("a late failure while the breaker trips, closes and records a failure", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(2);
    settings.successes_to_close = 1;
    auto m = Make(settings);
    const Pass old = m->Acquire();
    m->Settle(old, kFailure);
    run.Thread([=] { m->Settle(old, kFailure); });
    run.Thread([=] {
      m->Settle(old, kFailure);
      m->clock.Advance(10ms);
      m->Settle(m->Acquire(), kSuccess);
      const Pass fresh = m->Acquire();
      if (Inspect::Generation(*m->core) == 3) m->Settle(fresh, kFailure);
    });
    run.Finally([=, &run] {
      if (Inspect::Generation(*m->core) == 3) {
        run.Check(m->core->counts() == Counts{.failures = 1, .consecutive_failures = 1}, "the failure was lost");
      }
    });
  });
}

TEST_CASE("B7, B10: tidying after a change of state destroys nothing of a newer state") {
  Explore("one opens and stalls, another goes through half-open to closed and records failures", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(2);
    settings.successes_to_close = 1;
    auto m = Make(settings);
    const Pass old = m->Acquire();
    m->Settle(old, kFailure);
    run.Thread([=] { m->Settle(old, kFailure); });
    run.Thread([=] {
      if (Inspect::Generation(*m->core) != 1) return;
      m->clock.Advance(10ms);
      m->Settle(m->Acquire(), kSuccess);
      m->Call(kFailure);
      m->Call(kSuccess);
      m->Call(kFailure);
    });
    run.Finally([=, &run] {
      if (Inspect::Generation(*m->core) != 3) return;
      run.Check(m->core->counts() == Counts{.successes = 1, .failures = 2, .consecutive_failures = 1}, "destroyed");
      m->Call(kFailure);
      run.Check(Inspect::State(*m->core) == CircuitState::kOpen, "the row was lost");
    });
  });
}

TEST_CASE("B8, B10: a probe policy sees every half-open result once, in the order in which they count") {
  Explore("three probes end at once, the policy keeps", [](explorer::Run& run) {
    auto asked = std::make_shared<std::vector<Counts>>();
    CircuitBreakerSettings settings = Settings(1);
    settings.probes = 3;
    settings.probe = [asked](const Counts& counts) {
      asked->push_back(counts);
      return ProbeDecision::kKeep;
    };
    auto m = MakeExpired(settings);
    for (int i = 0; i < 3; ++i) {
      const Pass probe = m->Acquire();
      run.Thread([=] { m->Settle(probe, i == 1 ? kFailure : kSuccess); });
    }
    run.Finally([=, &run] {
      const Counts counts = m->core->counts();
      run.Check(counts.successes == 2 && counts.failures == 1 && counts.timed_out == 0, "counts");
      run.Check(counts.consecutive_successes + counts.consecutive_failures >= 1, "consecutive counts");
      run.Check(counts.consecutive_failures <= 1 && counts.consecutive_successes <= 2, "consecutive counts");
      run.Check(std::find(asked->begin(), asked->end(), counts) != asked->end(), "the policy did not see the last counts");
      run.Check(m->core->totals().successes == 2 && m->core->totals().failures == 2, "totals");
    });
  }, 2);
}

TEST_CASE("B8, B10: a probe that stalls while many others end spoils no counts") {
  Explore("one probe ends while another thread ends eighteen", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    settings.probes = 2;
    settings.probe = [](const Counts&) { return ProbeDecision::kKeep; };
    auto m = MakeExpired(settings);
    const Pass probe = m->Acquire();
    run.Thread([=] { m->Settle(probe, kSuccess); });
    run.Thread([=] {
      for (int i = 0; i < 18; ++i) m->Call(kSuccess);
    });
    run.Finally([=, &run] {
      run.Check(m->core->counts() == Counts{.successes = 19, .consecutive_successes = 19}, "counts");
    });
  }, 2);
}

TEST_CASE("B9, B10: every change is reported once and in order while two threads make them") {
  Explore("two threads trip, probe and close", [](explorer::Run& run) {
    CircuitBreakerSettings settings = Settings(1);
    settings.successes_to_close = 1;
    auto m = Make(settings);
    for (int i = 0; i < 2; ++i) {
      run.Thread([=] {
        m->Call(kFailure);
        m->clock.Advance(10ms);
        m->Call(kSuccess);
      });
    }
    run.Finally([=, &run] {
      run.Check(m->ReportsAreWhole(), "reports");
      const CircuitTotals totals = m->core->totals();
      run.Check(m->transitions.size() == totals.entered_closed + totals.entered_open + totals.entered_half_open,
                "the number of reports");
    });
  }, 2);
}

TEST_CASE("B7, B10: generations, counters and windows go on over the ends of their numbers") {
  // Around the wrap of the generation, of 32 bits, and of the 48 bits of a bank's sum.
  for (std::uint64_t generation : {0x3ffffeull, 0x3ffffull, 0xffffull}) {
    for (std::uint64_t counted : {0xfffffffeull, 0xffffffffull, 0xfffffffffffeull}) {
      CircuitBreakerSettings settings = Settings(3);
      settings.successes_to_close = 1;
      Model m(settings);
      Inspect::StartAt(*m.core, generation);
      Inspect::CountedBefore(*m.core, counted);
      for (int round = 0; round < 12; ++round) {
        m.Call(kSuccess);
        m.Call(kFailure);
        m.Call(kSuccess);
        m.Call(kFailure);
        CHECK(m.core->counts() == Counts{.successes = 2, .failures = 2, .consecutive_failures = 1});
        m.Call(kFailure);
        CHECK(m.core->state() == CircuitState::kClosed);
        m.Call(kFailure);
        CHECK(m.core->state() == CircuitState::kOpen);
        m.clock.Advance(10ms);
        m.Call(kSuccess);
        CHECK(m.core->state() == CircuitState::kClosed);
        CHECK(m.core->counts() == Counts{});
      }
      CHECK(m.ReportsAreWhole());
      CHECK(m.transitions.size() == 36);
    }
  }
}
