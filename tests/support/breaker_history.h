#pragma once

// Checks a recorded history of a breaker against a sequential one: is there an order of the operations, each at a moment
// between its call and its return, in which a plain breaker that does one after the other says the same?
// (Herlihy and Wing, "Linearizability", 1990; the search is Wing and Gong's, 1993, with a memory of what failed.)
//
// Allowed beyond that, and only that, as docs/circuit-breaker.md says:
// - A failure that trips decides at one moment and changes the state at a later one: others go on in between. open_for
//   counts from some moment between these two.
// - A probe that settles frees its slot at one moment and counts at a later one; so does an Acquire() that takes an expired
//   slot and then counts the time-out.
// - An Acquire() takes a slot at one moment and returns at a later one; if the state has changed in between it begins again.
//
// The model knows the default policies, windows of at most 64, and one probe slot. Keep probe_timeout out of reach: a lease that
// expires while it is being granted has no one moment.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/circuit_breaker_settings.h"

namespace penstock_test {

struct HistoryOperation {
  enum Kind { kAcquire, kSettle, kAdvance } kind;
  std::uint64_t called = 0;
  std::uint64_t returned = 0;
  // Acquire: what it said. The generation is that of the state that admitted.
  bool admitted = false;
  bool probe = false;
  std::uint64_t generation = 0;
  // Settle: of which Acquire (its place in the history), and how.
  std::size_t of = 0;
  penstock::Outcome outcome = penstock::Outcome::kIgnored;
  // Advance.
  penstock::Duration length{};
};

struct History {
  penstock::CircuitBreakerSettings settings;
  std::vector<HistoryOperation> operations;
  std::vector<penstock::CircuitTransition> transitions;
  penstock::CircuitState state{};  // at the end
  penstock::Counts counts;         // at the end
};

class HistoryChecker {
 public:
  explicit HistoryChecker(const History& history) : history_(history), settings_(history.settings) {}

  bool IsLinearizable() { return Search(Start()); }

 private:
  using State = penstock::CircuitState;
  using Counts = penstock::Counts;
  enum Stage : std::uint8_t { kNotBegun, kTaken, kHalfway, kPrepared, kDone };

  struct Node {
    State state = State::kClosed;
    std::uint64_t generation = 0;
    std::int64_t now = 0;
    std::int64_t open_until = 0;
    std::int64_t prepared_until = 0;  // of the next open state, if it comes
    std::uint64_t window = 0;  // the last results, the newest in bit 0; 1: a failure
    std::uint64_t results = 0;
    Counts half_open;
    std::uint64_t streak = 0;  // failures in a row, closed
    std::uint64_t since = 0;   // successes in a row, closed
    bool slot_held = false;
    std::size_t slot_owner = 0;
    std::int64_t slot_until = 0;
    std::size_t transitions = 0;
    std::vector<Stage> stages;
    std::vector<Counts> decided;  // by operation, for those halfway

    std::vector<std::uint64_t> Key() const {
      std::vector<std::uint64_t> key{static_cast<std::uint64_t>(state), generation, static_cast<std::uint64_t>(now),
                                     static_cast<std::uint64_t>(open_until), static_cast<std::uint64_t>(prepared_until), window, results, streak, since,
                                     slot_held ? slot_owner + 1 : 0, static_cast<std::uint64_t>(slot_until)};
      const auto add = [&key](const Counts& counts) {
        for (std::uint64_t count : {counts.successes, counts.failures, counts.consecutive_successes,
                                    counts.consecutive_failures, counts.timed_out}) {
          key.push_back(count);
        }
      };
      add(half_open);
      for (std::size_t i = 0; i < stages.size(); ++i) {
        key.push_back(stages[i]);
        if (stages[i] != kNotBegun && stages[i] != kDone) add(decided[i]);
      }
      return key;
    }
  };

  Node Start() const {
    Node node;
    node.stages.assign(history_.operations.size(), kNotBegun);
    node.decided.assign(history_.operations.size(), Counts{});
    return node;
  }

  bool Search(const Node& node) {
    if (std::all_of(node.stages.begin(), node.stages.end(), [](Stage stage) { return stage == kDone; })) {
      return IsTheEnd(node);
    }
    if (!seen_.insert(node.Key()).second) return false;
    std::uint64_t first_return = ~std::uint64_t{0};
    for (std::size_t i = 0; i < node.stages.size(); ++i) {
      if (node.stages[i] != kDone) first_return = std::min(first_return, history_.operations[i].returned);
    }
    for (std::size_t i = 0; i < node.stages.size(); ++i) {
      // What returned before this was called comes before it.
      if (node.stages[i] == kDone || history_.operations[i].called > first_return) continue;
      for (const bool again : {false, true}) {
        const bool may_take = node.stages[i] == kNotBegun && history_.operations[i].kind == HistoryOperation::kAcquire;
        if (again && node.stages[i] != kPrepared && !may_take) continue;
        Node next = node;
        if (Do(next, i, again) && Search(next)) return true;
      }
    }
    return false;
  }

  bool IsTheEnd(const Node& node) const {
    if (node.transitions != history_.transitions.size() || node.state != history_.state) return false;
    return CountsOf(node) == history_.counts;
  }

  Counts CountsOf(const Node& node) const {
    if (node.state == State::kHalfOpen) return node.half_open;
    Counts counts;
    if (node.state == State::kOpen) return counts;
    const std::uint64_t held = std::min<std::uint64_t>(node.results, settings_.window);
    for (std::uint64_t i = 0; i < held; ++i) ++((node.window >> i & 1) != 0 ? counts.failures : counts.successes);
    counts.consecutive_failures = node.streak;
    counts.consecutive_successes = node.since;
    return counts;
  }

  // The next step of an operation, or the preparing of the deadline once more; false: it cannot be now, with what the history says it returned.
  bool Do(Node& node, std::size_t i, bool again) const {
    const HistoryOperation& operation = history_.operations[i];
    if (node.stages[i] == kTaken) {
      if (node.decided[i].successes == node.generation) {
        // What had expired is counted, though the state may end before this returns.
        if (std::exchange(node.decided[i].timed_out, 0) == 0) return false;
        ++node.half_open.timed_out;
        return true;
      }
      node.decided[i] = {};
      node.stages[i] = kNotBegun;
      return true;
    }
    if (node.stages[i] == kNotBegun && again) return TakeInVain(node, i);
    const bool fails = operation.kind == HistoryOperation::kSettle && operation.outcome == penstock::Outcome::kFailure;
    if (node.stages[i] == kHalfway && fails) again = true;
    if (again) {
      node.prepared_until = node.now + settings_.open_for.count();
      node.stages[i] = kPrepared;
      return true;
    }
    if (node.stages[i] != kNotBegun) {
      node.stages[i] = kDone;
      return Finish(node, i, operation);
    }
    node.stages[i] = kDone;
    switch (operation.kind) {
      case HistoryOperation::kAdvance:
        node.now += operation.length.count();
        return true;
      case HistoryOperation::kAcquire:
        return Acquire(node, i, operation);
      case HistoryOperation::kSettle:
        return Settle(node, i, operation);
    }
    return false;
  }

  bool Acquire(Node& node, std::size_t i, const HistoryOperation& said) const {
    if (node.state == State::kClosed) return said.admitted && !said.probe && said.generation == node.generation;
    if (node.state == State::kOpen) {
      if (node.now < node.open_until) return !said.admitted;
      if (!Change(node, State::kHalfOpen, {})) return false;
    }
    const bool expired = node.slot_held && node.now >= node.slot_until;
    if (node.slot_held && !expired) return !said.admitted;
    if (!said.admitted || !said.probe || said.generation != node.generation) return false;
    node.slot_held = true;
    node.slot_owner = i;
    node.slot_until = node.now + settings_.probe_timeout.count();
    if (expired) node.stages[i] = kHalfway;
    return true;
  }

  bool TakeInVain(Node& node, std::size_t i) const {
    if (node.state == State::kOpen && (node.now < node.open_until || !Change(node, State::kHalfOpen, {}))) return false;
    if (node.state != State::kHalfOpen) return false;
    const bool expired = node.slot_held && node.now >= node.slot_until;
    if (node.slot_held && !expired) return false;
    node.slot_held = true;
    node.slot_owner = i;
    node.slot_until = node.now + settings_.probe_timeout.count();
    node.stages[i] = kTaken;
    node.decided[i] = {};
    node.decided[i].successes = node.generation;
    node.decided[i].timed_out = expired ? 1 : 0;
    return true;
  }

  bool Settle(Node& node, std::size_t i, const HistoryOperation& operation) const {
    const HistoryOperation& acquired = history_.operations[operation.of];
    if (!acquired.admitted || acquired.generation != node.generation) return true;
    if (acquired.probe) {
      if (!node.slot_held || node.slot_owner != operation.of || node.now >= node.slot_until) return true;
      node.slot_held = false;
      if (operation.outcome != penstock::Outcome::kIgnored) node.stages[i] = kHalfway;
      return true;
    }
    switch (operation.outcome) {
      case penstock::Outcome::kIgnored:
        return true;
      case penstock::Outcome::kSuccess:
        Record(node, false);
        return true;
      case penstock::Outcome::kFailure: {
        Node with = node;
        Record(with, true);
        if (IsTripped(with)) {
          node.stages[i] = kHalfway;
          node.decided[i] = CountsOf(with);
        } else {
          node = with;
        }
        return true;
      }
    }
    return false;
  }

  // The second step: of a failure that has decided to trip, of a result of a probe, of a time-out.
  bool Finish(Node& node, std::size_t i, const HistoryOperation& operation) const {
    const bool acquires = operation.kind == HistoryOperation::kAcquire;
    const HistoryOperation& acquired = acquires ? operation : history_.operations[operation.of];
    const Counts decided = std::exchange(node.decided[i], Counts{});
    if (acquired.generation != node.generation) return true;  // another changed the state first
    if (!acquired.probe) return Change(node, State::kOpen, decided);
    Counts& counts = node.half_open;
    if (acquires) {
      ++counts.timed_out;
      return true;
    }
    if (operation.outcome == penstock::Outcome::kSuccess) {
      ++counts.successes;
      ++counts.consecutive_successes;
      counts.consecutive_failures = 0;
    } else {
      ++counts.failures;
      ++counts.consecutive_failures;
      counts.consecutive_successes = 0;
    }
    if (counts.failures != 0) return Change(node, State::kOpen, counts);
    if (counts.successes >= settings_.successes_to_close) return Change(node, State::kClosed, counts);
    return true;
  }

  static void Record(Node& node, bool failed) {
    node.window = node.window << 1 | (failed ? 1 : 0);
    ++node.results;
    node.streak = failed ? node.streak + 1 : 0;
    node.since = failed ? 0 : node.since + 1;
  }

  bool IsTripped(const Node& node) const {
    if (node.streak >= settings_.consecutive_failures) return true;
    const Counts counts = CountsOf(node);
    const std::uint64_t held = counts.successes + counts.failures;
    return held >= settings_.min_results &&
           static_cast<double>(counts.failures) >= settings_.failure_ratio * static_cast<double>(held);
  }

  // False: the breaker reported another transition, or none.
  bool Change(Node& node, State to, Counts counts) const {
    if (node.transitions == history_.transitions.size()) return false;
    const penstock::CircuitTransition& reported = history_.transitions[node.transitions++];
    if (reported.from != node.state || reported.to != to || !(reported.counts == counts)) return false;
    node.state = to;
    ++node.generation;
    node.window = node.results = node.streak = node.since = 0;
    node.half_open = {};
    node.slot_held = false;
    if (to == State::kOpen) node.open_until = node.prepared_until;
    node.prepared_until = 0;
    return true;
  }

  const History& history_;
  const penstock::CircuitBreakerSettings& settings_;
  std::set<std::vector<std::uint64_t>> seen_;  // that led nowhere
};

inline std::string Describe(const History& history) {
  static const char* const kOutcomes[] = {"success", "failure", "ignored"};
  std::string text;
  for (std::size_t i = 0; i < history.operations.size(); ++i) {
    const HistoryOperation& operation = history.operations[i];
    text += "\n  " + std::to_string(i) + ": [" + std::to_string(operation.called) + ", " + std::to_string(operation.returned) + "] ";
    switch (operation.kind) {
      case HistoryOperation::kAcquire:
        text += !operation.admitted ? "rejected"
                                    : (operation.probe ? "probe of " : "admitted to ") + std::to_string(operation.generation);
        break;
      case HistoryOperation::kSettle:
        text += std::string("settled ") + std::to_string(operation.of) + ": " + kOutcomes[static_cast<int>(operation.outcome)];
        break;
      case HistoryOperation::kAdvance:
        text += "time: " + std::to_string(operation.length.count()) + " ns";
        break;
    }
  }
  const auto flat = [](const penstock::Counts& counts) {
    return std::to_string(counts.successes) + "/" + std::to_string(counts.failures) + "/" +
           std::to_string(counts.consecutive_successes) + "/" + std::to_string(counts.consecutive_failures) + "/" +
           std::to_string(counts.timed_out);
  };
  for (const auto& transition : history.transitions) {
    text += "\n  " + std::to_string(static_cast<int>(transition.from)) + " -> " +
            std::to_string(static_cast<int>(transition.to)) + " " + flat(transition.counts);
  }
  return text + "\n  at the end " + flat(history.counts);
}

}  // namespace penstock_test
