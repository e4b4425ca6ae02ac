// Histories of a few threads, recorded and compared with what a plain breaker could have said: over the explorer in every
// interleaving of small random scripts, and with real threads. On a failure the seed is printed; PENSTOCK_SEED=<n> runs it
// again (with real threads the same scripts, but not the same moments).

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "penstock/core/detail/process_atomics.h"
#include "support/breaker_history.h"
#include "support/breaker_scenarios.h"

using namespace penstock;
using namespace penstock_test;
using namespace std::chrono_literals;

namespace {

using ProcessCore = detail::CircuitCore<detail::ProcessAtomics>;

CircuitBreakerSettings Small() {
  CircuitBreakerSettings settings = Settings(2);
  settings.failure_ratio = 0.5;
  settings.successes_to_close = 2;
  // Nobody times out: how long a lease is when its Acquire() sleeps through a whole probe_timeout is said by those who look, in
  // more than one way. The interleavings and the stalls have time-outs.
  settings.probe_timeout = 1h;
  return settings;
}

// One step of a thread's script.
struct Step {
  enum Kind { kAcquire, kSettle, kAdvance } kind;
  Outcome outcome;  // settle: what was acquired first of what is left
  Duration length;
};

std::vector<Step> RandomScript(std::mt19937_64& random, std::size_t calls) {
  std::vector<Step> script;
  std::size_t held = 0;
  const auto settle = [&] {
    const std::uint64_t dice = random() % 10;
    script.push_back({Step::kSettle, dice < 6 ? kFailure : dice < 9 ? kSuccess : Outcome::kIgnored, {}});
    --held;
  };
  while (calls != 0 || held != 0) {
    if (random() % 6 == 0) script.push_back({Step::kAdvance, {}, std::chrono::milliseconds(random() % 2 == 0 ? 10 : 4)});
    if (calls != 0 && (held == 0 || random() % 3 == 0)) {
      script.push_back({Step::kAcquire, {}, {}});
      ++held;
      --calls;
    } else {
      settle();
    }
  }
  return script;
}

// Runs scripts against a breaker and writes down what happened. Each thread has its own part of the history.
template <class Core>
struct Recorder {
  HandClock clock;
  std::vector<CircuitTransition> transitions;
  std::unique_ptr<Core> core;
  std::atomic<std::uint64_t> stamp{0};
  struct Recorded {
    HistoryOperation operation;
    typename Core::Pass pass;
  };
  std::vector<std::vector<Recorded>> threads;

  explicit Recorder(std::size_t count) : threads(count) {
    CircuitBreakerSettings settings = Small();
    settings.clock = &clock;
    settings.observer = [this](const CircuitTransition& transition) { transitions.push_back(transition); };
    core = std::make_unique<Core>(std::move(settings));
  }

  void Play(std::size_t thread, const std::vector<Step>& script) {
    std::vector<Recorded>& own = threads[thread];
    std::vector<std::size_t> held;
    for (const Step& step : script) {
      Recorded recorded{};
      HistoryOperation& operation = recorded.operation;
      operation.called = stamp.fetch_add(1);
      switch (step.kind) {
        case Step::kAdvance:
          operation.kind = HistoryOperation::kAdvance;
          operation.length = step.length;
          clock.Advance(step.length);
          break;
        case Step::kAcquire: {
          operation.kind = HistoryOperation::kAcquire;
          const std::uint64_t word = core->LoadWord();
          recorded.pass = Core::IsClosed(word) ? typename Core::Pass{true, word, Core::kNoSlot, {}} : core->AcquireSlow(word);
          operation.admitted = recorded.pass.admitted;
          operation.probe = operation.admitted && recorded.pass.slot != Core::kNoSlot;
          operation.generation = operation.probe ? Inspect::LeaseGeneration(*core, recorded.pass.number)
                                                 : Inspect::GenerationOf(*core, recorded.pass.number);
          held.push_back(own.size());
          break;
        }
        case Step::kSettle: {
          operation.kind = HistoryOperation::kSettle;
          operation.of = held.front();
          operation.outcome = step.outcome;
          held.erase(held.begin());
          const auto pass = own[operation.of].pass;
          if (pass.admitted &&
              !(step.outcome == kSuccess && pass.slot == Core::kNoSlot && core->SettleSuccess(pass.number))) {
            core->Settle(pass.number, pass.slot, step.outcome);
          }
          break;
        }
      }
      operation.returned = stamp.fetch_add(1);
      own.push_back(recorded);
    }
  }

  // When all threads have ended.
  History Collect() {
    History history;
    history.settings = Small();
    for (const auto& thread : threads) {
      const std::size_t first = history.operations.size();
      for (const Recorded& recorded : thread) {
        history.operations.push_back(recorded.operation);
        history.operations.back().of += first;
      }
    }
    history.transitions = transitions;
    history.counts = core->counts();
    history.state = transitions.empty() ? CircuitState::kClosed : transitions.back().to;
    return history;
  }
};

// A row of failures in the thread that begins, so that short scripts reach every state.
void PlayBefore(std::vector<Step>& script, std::uint64_t kind) {
  const auto call = [](Outcome outcome) { return std::vector<Step>{{Step::kAcquire, {}, {}}, {Step::kSettle, outcome, {}}}; };
  std::vector<Step> before = call(kFailure);
  if (kind % 3 != 0) {  // open, with its time over
    before = call(kFailure);
    for (const Step& step : call(kFailure)) before.push_back(step);
    before.push_back({Step::kAdvance, {}, 10ms});
    if (kind % 3 == 2) {
      for (const Step& step : call(kSuccess)) before.push_back(step);
    }
  }
  script.insert(script.begin(), before.begin(), before.end());
}

std::uint64_t Seed() {
  const char* given = std::getenv("PENSTOCK_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

// Four calls by hand, to see that the checker can say no.
History TwoFailuresAnd(CircuitState last, std::uint64_t streak) {
  History history;
  history.settings = Small();
  std::uint64_t stamp = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    HistoryOperation acquire{};
    acquire.kind = HistoryOperation::kAcquire;
    acquire.called = stamp++;
    acquire.returned = stamp++;
    acquire.admitted = true;
    history.operations.push_back(acquire);
    HistoryOperation settle{};
    settle.kind = HistoryOperation::kSettle;
    settle.called = stamp++;
    settle.returned = stamp++;
    settle.of = 2 * i;
    settle.outcome = kFailure;
    history.operations.push_back(settle);
  }
  history.state = last;
  if (last == CircuitState::kOpen) {
    CircuitTransition transition{};
    transition.from = CircuitState::kClosed;
    transition.to = CircuitState::kOpen;
    transition.counts = {.failures = streak, .consecutive_failures = streak};
    history.transitions.push_back(transition);
  } else {
    history.counts = {.failures = streak, .consecutive_failures = streak};
  }
  return history;
}

}  // namespace

TEST_CASE("B3, B10: the history checker accepts what a plain breaker says, and nothing else") {
  CHECK(HistoryChecker(TwoFailuresAnd(CircuitState::kOpen, 2)).IsLinearizable());
  CHECK_FALSE(HistoryChecker(TwoFailuresAnd(CircuitState::kOpen, 1)).IsLinearizable());
  CHECK_FALSE(HistoryChecker(TwoFailuresAnd(CircuitState::kClosed, 2)).IsLinearizable());
  CHECK_FALSE(HistoryChecker(TwoFailuresAnd(CircuitState::kClosed, 1)).IsLinearizable());
  History late = TwoFailuresAnd(CircuitState::kOpen, 2);
  HistoryOperation acquire = late.operations[0];
  acquire.called = 100;
  acquire.returned = 101;
  late.operations.push_back(acquire);
  CHECK_FALSE(HistoryChecker(late).IsLinearizable());  // admitted to what was over before it was called
  late.operations.back().called = 7;                   // while the second failure was settling
  late.operations[3].returned = 50;
  CHECK(HistoryChecker(late).IsLinearizable());
}

TEST_CASE("B1, B7, B10: in every interleaving of random scripts the breaker says what a plain one could have said") {
  const std::uint64_t seed = Seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::uint64_t schedules = 0;
  for (std::uint64_t round = 0; round < 30; ++round) {
    std::mt19937_64 random(seed + round);
    const std::size_t threads = 2 + random() % 2;
    std::vector<std::vector<Step>> scripts;
    for (std::size_t i = 0; i < threads; ++i) scripts.push_back(RandomScript(random, threads == 2 ? 2 : 1));
    std::vector<Step> before;
    PlayBefore(before, random());
    const auto found = explorer::Explore({.preemptions = threads == 2 ? 2 : 1, .most_schedules = 50'000'000}, [&](explorer::Run& run) {
      auto recorder = std::make_shared<Recorder<ModelCore>>(threads + 1);
      recorder->Play(threads, before);
      for (std::size_t i = 0; i < threads; ++i) run.Thread([=, &scripts] { recorder->Play(i, scripts[i]); });
      run.Finally([=, &run] {
        const History history = recorder->Collect();
        if (!HistoryChecker(history).IsLinearizable()) run.Check(false, Describe(history));
      });
    });
    schedules += found.schedules;
    CHECK_MESSAGE(found.ok(), "seed " << seed << ", round " << round << ": " << found.failure);
    if (!found.ok()) break;
  }
  std::printf("%llu histories\n", static_cast<unsigned long long>(schedules));
}

TEST_CASE("B1, B7, B10: what three real threads saw is what a plain breaker could have said") {
  const std::uint64_t seed = Seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  constexpr std::size_t kThreads = 3;
  constexpr std::uint64_t kRounds = 1500;
  std::vector<std::vector<Step>> scripts(kThreads);
  std::unique_ptr<Recorder<ProcessCore>> recorder;
  std::barrier together(kThreads + 1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        together.arrive_and_wait();
        recorder->Play(i, scripts[i]);
        together.arrive_and_wait();
      }
    });
  }
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::mt19937_64 random(seed + round);
    for (auto& script : scripts) script = RandomScript(random, 2);
    recorder = std::make_unique<Recorder<ProcessCore>>(kThreads + 1);
    std::vector<Step> before;
    PlayBefore(before, random());
    recorder->Play(kThreads, before);
    together.arrive_and_wait();
    together.arrive_and_wait();
    const History history = recorder->Collect();
    if (!HistoryChecker(history).IsLinearizable() && ++wrong == 1) {
      FAIL_CHECK("seed " << seed << ", round " << round << ": " << Describe(history));
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
