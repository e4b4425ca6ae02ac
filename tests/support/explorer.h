#pragma once

// Runs a few threads through every interleaving of their atomic operations, up to a number of preemptions.
//
// A race that shows once in a million runs on a real machine shows here every time: the threads are fibres on one thread,
// each atomic operation is a point at which another may take over, and the explorer tries all the choices, one schedule
// after the other. Most races need no more than two or three preemptions (Musuvathi and Qadeer, "Iterative Context
// Bounding for Systematic Testing of Multithreaded Programs", PLDI 2007).
//
//     auto found = explorer::Explore({.preemptions = 3}, [](explorer::Run& run) {
//       auto word = std::make_shared<explorer::Atomic<int>>(0);             // fresh for every schedule
//       run.Thread([=] { word->store(word->load() + 1); });
//       run.Thread([=] { word->store(word->load() + 1); });
//       run.Finally([=, &run] { run.Check(word->load() == 2, "an update was lost"); });
//     });
//     CHECK_MESSAGE(found.ok(), found.failure);
//
// The code under test takes its atomics from a template parameter: `template <class Atomics> class Thing {
// typename Atomics::template Atomic<std::uint64_t> word_; }`, in production an alias of std::atomic, here
// explorer::Atomics, so that the shipping code is what runs.
//
// What it cannot see: it is sequentially consistent, so a memory order that is too weak passes. Code between two atomic
// operations is one step. Nothing may block: a thread that waits for another in a loop is reported as endless.
// Not under ThreadSanitizer (there is only one thread to look at): Explore() then runs nothing and says ok.

#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace explorer {

struct Options {
  int preemptions = 3;                       // switches away from a thread that could have gone on
  std::uint64_t most_schedules = 5'000'000;  // more is a failure: the scenario is too large to be explored
  std::uint64_t most_steps = 20'000;         // in one schedule; more is a failure: something never ends
  // Threads begin in their order; a preemption begins the next one, and those preempted stay so until all have begun, and
  // end one after the other, in every order. Few schedules, with long and nested stalls: what if each of three threads
  // sleeps somewhere while the fourth goes on?
  bool cascade = false;
};

struct Found {
  std::uint64_t schedules = 0;
  std::string failure;  // empty if no schedule failed; else what failed, and in which schedule

  bool ok() const { return failure.empty(); }
};

// One schedule of a scenario.
class Run {
 public:
  void Thread(std::function<void()> body) { bodies_.push_back(std::move(body)); }

  // Runs after all threads have ended.
  void Finally(std::function<void()> body) { finally_ = std::move(body); }

  // Only the first failure of a schedule is kept.
  void Check(bool holds, const std::string& what) {
    if (!holds && failure_.empty()) failure_ = what;
  }

 private:
  friend class Explorer;
  std::vector<std::function<void()>> bodies_;
  std::function<void()> finally_;
  std::string failure_;
};

class Explorer {
 public:
  Explorer(const Options& options, std::function<void(Run&)> scenario)
      : options_(options), scenario_(std::move(scenario)) {}

  Found Explore() {
    Found found;
    do {
      ++found.schedules;
      found.failure = RunOnce();
      if (found.failure.empty() && found.schedules == options_.most_schedules) found.failure = "too many schedules";
      if (!found.failure.empty()) {
        found.failure += " (schedule " + std::to_string(found.schedules) + ":" + Schedule() + ")";
        break;
      }
    } while (NextPath());
    return found;
  }

  // The explorer whose threads are running, or null.
  static Explorer*& Current() {
    static Explorer* current = nullptr;
    return current;
  }

  // A point at which another thread may take over. Called by a running fibre.
  void Step() {
    if (++steps_ > options_.most_steps) {
      // The fibre is left where it is: nothing can be unwound from here.
      run_->Check(false, "a thread never ends");
      swapcontext(&fibres_[running_]->context, &home_);
    }
    if (options_.cascade) {
      if (!std::exchange(begins_, false) && preemptions_ < options_.preemptions && begun_ < run_->bodies_.size() &&
          Choose(2) != 0) {
        ++preemptions_;
        SwitchTo(begun_++);
      }
      Note();
      return;
    }
    const std::vector<std::size_t>& others = runnable_;
    // A thread that has just been chosen to begin has been chosen for its first step.
    if (std::exchange(begins_, false) || preemptions_ == options_.preemptions || others.size() < 2) {
      Note();
      return;
    }
    const std::size_t choice = Choose(others.size());
    // Choice 0 goes on; the others switch to another runnable thread.
    if (choice != 0) {
      ++preemptions_;
      std::size_t next = choice - 1;
      if (others[next] >= running_) ++next;
      SwitchTo(others[next]);
    }
    Note();
  }

  std::size_t running() const { return running_; }

 private:
  struct Fibre {
    ucontext_t context{};
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStack);
  };
  struct Choice {
    std::size_t taken;
    std::size_t options;
  };
  static constexpr std::size_t kStack = 256 * 1024;

  std::string RunOnce() {
    Run run;
    run_ = &run;
    scenario_(run);
    while (fibres_.size() < run.bodies_.size()) fibres_.push_back(std::make_unique<Fibre>());
    runnable_.clear();
    for (std::size_t i = 0; i < run.bodies_.size(); ++i) {
      runnable_.push_back(i);
      Fibre& fibre = *fibres_[i];
      getcontext(&fibre.context);
      fibre.context.uc_stack.ss_sp = fibre.stack.get();
      fibre.context.uc_stack.ss_size = kStack;
      fibre.context.uc_link = nullptr;
      makecontext(&fibre.context, &Explorer::Main, 0);
    }
    depth_ = 0;
    preemptions_ = 0;
    steps_ = 0;
    schedule_.clear();
    if (!runnable_.empty()) {
      running_ = options_.cascade ? 0 : runnable_[Choose(runnable_.size())];
      begun_ = 1;
      Current() = this;
      swapcontext(&home_, &fibres_[running_]->context);
      Current() = nullptr;
    }
    if (run.failure_.empty() && run.finally_) run.finally_();
    run_ = nullptr;
    return run.failure_;
  }

  static void Main() {
    Explorer& explorer = *Current();
    explorer.begins_ = true;
    explorer.run_->bodies_[explorer.running_]();
    explorer.Ended();
  }

  void Ended() {
    std::erase(runnable_, running_);
    const std::size_t ended = running_;
    if (runnable_.empty()) {
      swapcontext(&fibres_[ended]->context, &home_);
    } else if (options_.cascade && begun_ < run_->bodies_.size()) {
      SwitchTo(begun_++);
    } else {
      SwitchTo(runnable_[Choose(runnable_.size())]);
    }
  }

  void SwitchTo(std::size_t next) {
    const std::size_t last = std::exchange(running_, next);
    swapcontext(&fibres_[last]->context, &fibres_[next]->context);
  }

  std::size_t Choose(std::size_t options) {
    if (options == 1) return 0;
    if (depth_ == path_.size()) path_.push_back({0, options});
    return path_[depth_++].taken;
  }

  // Moves to the next path in depth-first order; false after the last.
  bool NextPath() {
    path_.resize(depth_);
    while (!path_.empty() && ++path_.back().taken == path_.back().options) path_.pop_back();
    return !path_.empty();
  }

  void Note() {
    if (schedule_.empty() || schedule_.back().first != running_) schedule_.emplace_back(running_, 0);
    ++schedule_.back().second;
  }

  std::string Schedule() const {
    std::string text;
    for (const auto& [thread, steps] : schedule_) text += " T" + std::to_string(thread) + "*" + std::to_string(steps);
    return text;
  }

  const Options options_;
  const std::function<void(Run&)> scenario_;
  Run* run_ = nullptr;
  ucontext_t home_{};
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::vector<std::size_t> runnable_;
  std::size_t running_ = 0;
  bool begins_ = false;
  std::size_t begun_ = 0;  // cascade: how many threads have begun
  std::vector<Choice> path_;
  std::size_t depth_ = 0;
  int preemptions_ = 0;
  std::uint64_t steps_ = 0;
  std::vector<std::pair<std::size_t, std::uint64_t>> schedule_;  // thread, atomic operations in a row
};

// Runs every schedule of the scenario, which is called anew for each, until one fails.
inline Found Explore(const Options& options, std::function<void(Run&)> scenario) {
#if defined(__SANITIZE_THREAD__)
  (void)options;
  (void)scenario;
  return {};
#else
  return Explorer(options, std::move(scenario)).Explore();
#endif
}

// The number of the thread that runs, in the order of Run::Thread(); `outside` in the scenario's set-up and in Finally().
inline std::size_t ThreadNumber(std::size_t outside = 0) {
  const Explorer* explorer = Explorer::Current();
  return explorer == nullptr ? outside : explorer->running();
}

// As std::atomic; each operation first lets another thread take over. The memory orders are taken and not looked at.
template <class T>
class Atomic {
 public:
  constexpr Atomic() noexcept = default;
  constexpr Atomic(T value) noexcept : value_(value) {}  // NOLINT: implicit, as std::atomic's
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order = std::memory_order_seq_cst) const noexcept {
    Step();
    return value_;
  }
  void store(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    value_ = value;
  }
  T exchange(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    return std::exchange(value_, value);
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    if (value_ == expected) {
      value_ = desired;
      return true;
    }
    expected = value_;
    return false;
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                             std::memory_order failure = std::memory_order_seq_cst) noexcept {
    return compare_exchange_strong(expected, desired, success, failure);
  }
  T fetch_add(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    return std::exchange(value_, static_cast<T>(value_ + value));
  }
  T fetch_sub(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    return std::exchange(value_, static_cast<T>(value_ - value));
  }
  T fetch_or(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    return std::exchange(value_, static_cast<T>(value_ | value));
  }
  T fetch_and(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    Step();
    return std::exchange(value_, static_cast<T>(value_ & value));
  }

  // For checks: no step.
  T Peek() const noexcept { return value_; }
  // For setting the scene: no step either.
  void Poke(T value) noexcept { value_ = value; }

 private:
  static void Step() noexcept {
    if (Explorer* explorer = Explorer::Current()) explorer->Step();
  }

  T value_{};
};

// The alias that code under test is instantiated with.
struct Atomics {
  template <class T>
  using Atomic = explorer::Atomic<T>;
};

}  // namespace explorer
