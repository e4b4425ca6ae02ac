#include "bench/micro/workloads.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/core/circuit_breaker.h"
#include "penstock/core/retry_budget.h"
#include "penstock/core/timer_queue.h"
#include "tests/support/textbook_circuit_breaker.h"

namespace bench {

namespace {

using namespace penstock;
using namespace std::chrono_literals;

std::shared_ptr<CircuitBreaker> MakeBreaker(CircuitBreakerSettings settings = {}) {
  auto breaker = CircuitBreaker::Create(std::move(settings));
  if (!breaker.ok()) {
    std::fprintf(stderr, "%s\n", breaker.error().message().c_str());
    std::abort();
  }
  return std::move(*breaker);
}

// The textbook breaker with the interface of the other, so that both are measured by the same code.
class Textbook {
 public:
  explicit Textbook(CircuitBreakerSettings settings = {}) : breaker_(std::move(settings)) {}

  struct Ticket {
    Textbook* breaker;
    TextbookCircuitBreaker::Pass pass;
    bool admitted() const { return pass.admitted; }
    Ticket& ticket() { return *this; }
    void Settle(Outcome outcome) { breaker->breaker_.Settle(pass.number, pass.slot, outcome); }
  };
  Ticket Acquire() { return {this, breaker_.Acquire()}; }

 private:
  TextbookCircuitBreaker breaker_;
};

template <class Breaker>
std::function<void(std::uint64_t)> Succeed(std::shared_ptr<Breaker> breaker) {
  return [breaker = std::move(breaker)](std::uint64_t operations) {
    Breaker& own = *breaker;
    for (std::uint64_t i = 0; i < operations; ++i) {
      auto admission = own.Acquire();
      if (admission.admitted()) [[likely]] admission.ticket().Settle(Outcome::kSuccess);
    }
  };
}

template <class Breaker>
std::function<void(std::uint64_t)> Reject(std::shared_ptr<Breaker> breaker) {
  for (int i = 0; i < 5; ++i) breaker->Acquire().ticket().Settle(Outcome::kFailure);
  return [breaker = std::move(breaker)](std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      if (breaker->Acquire().admitted()) std::abort();
    }
  };
}

template <class Breaker>
std::function<void(std::uint64_t)> FailEach(std::uint64_t nth, std::shared_ptr<Breaker> breaker) {
  return [=](std::uint64_t operations) {
    thread_local std::uint64_t done = 0;
    for (std::uint64_t i = 0; i < operations; ++i) {
      auto admission = breaker->Acquire();
      if (!admission.admitted()) std::abort();
      admission.ticket().Settle(++done % nth == 0 ? Outcome::kFailure : Outcome::kSuccess);
    }
  };
}

// Half-open for good: a policy that keeps it so, and a slot for each thread.
std::function<void(std::uint64_t)> Probe() {
  CircuitBreakerSettings settings;
  settings.open_for = 1ns;
  settings.probes = 8;
  settings.probe = [](const Counts&) { return ProbeDecision::kKeep; };
  auto breaker = MakeBreaker(settings);
  for (int i = 0; i < 5; ++i) breaker->Acquire().ticket().Settle(Outcome::kFailure);
  return Succeed(std::move(breaker));
}

std::shared_ptr<RetryBudget> MakeBudget() { return std::move(*RetryBudget::Create()); }

// A budget that writes on every success, as it would without a look first.
class AlwaysSwap {
 public:
  void OnSuccess() {
    std::uint32_t before = tokens_.load(std::memory_order_relaxed);
    while (!tokens_.compare_exchange_weak(before, before + 100 < 100'000 ? before + 100 : 100'000, std::memory_order_relaxed)) {
    }
  }

 private:
  alignas(64) std::atomic<std::uint32_t> tokens_{100'000};
};

// A million timers behind one lock, as the runtime has them: the one that was set longest ago is cancelled, and set anew for in ten
// seconds. Made with the first operation.
template <class Queue>
class MillionTimers {
 public:
  void Run(std::uint64_t operations) {
    std::call_once(once_, [this] {
      timers_ = std::vector<OneTimer>(kTimers);
      for (std::size_t i = 0; i < kTimers; ++i) SetNext();
    });
    for (std::uint64_t i = 0; i < operations; ++i) {
      const std::lock_guard lock(mutex_);
      queue_.Disarm(timers_[next_]);
      SetNext();
    }
  }

 private:
  static constexpr std::size_t kTimers = 1'000'000;

  struct OneTimer final : Timer {
    OneTimer() = default;
    OneTimer(OneTimer&&) noexcept {}
    void Fire() noexcept override {}
  };

  void SetNext() {
    now_ += 1us;
    queue_.Arm(timers_[next_], now_ + 10s);
    next_ = (next_ + 1) % kTimers;
  }

  std::once_flag once_;
  std::mutex mutex_;
  Queue queue_;
  std::vector<OneTimer> timers_;
  std::size_t next_ = 0;
  TimePoint now_{1h};
};

// What a textbook would take.
class SortedTimers {
 public:
  void Arm(Timer& timer, TimePoint due) { keys_[&timer] = sorted_.emplace(due, &timer); }
  void Disarm(Timer& timer) {
    const auto found = keys_.find(&timer);
    if (found == keys_.end()) return;
    sorted_.erase(found->second);
    keys_.erase(found);
  }

 private:
  std::multimap<TimePoint, Timer*> sorted_;
  std::unordered_map<Timer*, std::multimap<TimePoint, Timer*>::iterator> keys_;
};

template <class Queue>
std::function<void(std::uint64_t)> SetAndCancel() {
  return [timers = std::make_shared<MillionTimers<Queue>>()](std::uint64_t operations) { timers->Run(operations); };
}

struct alignas(128) OwnLine {
  std::atomic<std::uint64_t> count{0};
};

OwnLine& ThreadsLine() {
  static std::array<OwnLine, 64> lines;
  static std::atomic<std::uint32_t> next{0};
  thread_local OwnLine& own = lines[next.fetch_add(1) % lines.size()];
  return own;
}

}  // namespace

std::vector<Workload> Workloads() {
  CircuitBreakerSettings open;
  open.open_for = std::chrono::hours(24);
  CircuitBreakerSettings tolerant;  // that many failures never trip, in whatever order the threads bring them
  tolerant.consecutive_failures = 1'000'000'000;
  tolerant.failure_ratio = 1;
  auto contended = std::make_shared<OwnLine>();
  return {
      {"breaker_success", "admit, settle with success", Succeed(MakeBreaker())},
      {"breaker_success_mutex", "the same, textbook", Succeed(std::make_shared<Textbook>())},
      {"breaker_reject", "reject, open", Reject(MakeBreaker(open))},
      {"breaker_reject_mutex", "the same, textbook", Reject(std::make_shared<Textbook>(open))},
      {"breaker_failure_1pct", "admit, settle, 1 in 100 a failure", FailEach(100, MakeBreaker(tolerant))},
      {"breaker_failure_10pct", "admit, settle, 1 in 10 a failure", FailEach(10, MakeBreaker(tolerant))},
      {"breaker_half_open", "admit a probe, settle with success", Probe()},
      {"budget_full", "a success on a full budget",
       [budget = MakeBudget()](std::uint64_t operations) {
         for (std::uint64_t i = 0; i < operations; ++i) budget->OnSuccess();
       }},
      {"budget_full_cas", "the same, always swapping",
       [budget = std::make_shared<AlwaysSwap>()](std::uint64_t operations) {
         for (std::uint64_t i = 0; i < operations; ++i) budget->OnSuccess();
       }},
      {"budget_drained", "a retryable failure and a success, nearly drained",
       [budget = MakeBudget()](std::uint64_t operations) {
         for (std::uint64_t i = 0; i < operations; ++i) {
           if (budget->OnRetryable() && operations == 0) std::abort();
           budget->OnSuccess();
         }
       }},
      {"timer_million", "set a timer and cancel one, of a million", SetAndCancel<TimerQueue>()},
      {"timer_million_sorted", "the same, with a sorted map", SetAndCancel<SortedTimers>()},
      {"floor_owned_store", "load and store on a line of one's own",
       [](std::uint64_t operations) {
         auto& count = ThreadsLine().count;
         for (std::uint64_t i = 0; i < operations; ++i) {
           count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
         }
       }},
      {"floor_lock_add", "atomic addition on a line of one's own",
       [](std::uint64_t operations) {
         auto& count = ThreadsLine().count;
         for (std::uint64_t i = 0; i < operations; ++i) count.fetch_add(1, std::memory_order_relaxed);
       }},
      {"floor_contended_add", "atomic addition on one line for all",
       [contended](std::uint64_t operations) {
         for (std::uint64_t i = 0; i < operations; ++i) contended->count.fetch_add(1, std::memory_order_relaxed);
       }},
  };
}

}  // namespace bench
