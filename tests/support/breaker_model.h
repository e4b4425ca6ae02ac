#pragma once

// The shipping breaker over the explorer's atomics, and a look inside.

#include <chrono>
#include <memory>
#include <vector>

#include "core/circuit_core.h"
#include "support/explorer.h"
#include "support/hand_clock.h"

namespace penstock_test {

// A line for each of three threads, and the shared one.
struct ModelAtomics {
  template <class T>
  using Atomic = explorer::Atomic<T>;
  static constexpr std::uint32_t kLines = 4;
  static inline bool all_on_the_shared_line = false;
  static std::uint32_t ThreadLine() {
    return all_on_the_shared_line ? kLines - 1 : static_cast<std::uint32_t>(explorer::ThreadNumber());
  }
  static std::uint32_t AssignThreadLine() { return ThreadLine(); }
  static std::uint32_t UsedLines() { return kLines - 1; }
};

using ModelCore = penstock::detail::CircuitCore<ModelAtomics>;

}  // namespace penstock_test

namespace penstock::inline v0::detail {

// Looks into a breaker, and sets it up as it would be after years.
struct CircuitCoreInspector {
  template <class Core>
  static std::uint64_t Word(const Core& core) {
    return core.word_.Peek();
  }
  template <class Core>
  static std::uint64_t Generation(const Core& core) {
    return Core::GenerationOf(Word(core));
  }
  template <class Core>
  static std::uint64_t GenerationOf(const Core&, std::uint64_t word) {
    return Core::GenerationOf(word);
  }
  template <class Core>
  static CircuitState State(const Core& core) {
    return Core::StateOf(Word(core));
  }
  // Failures recorded in the present generation.
  template <class Core>
  static std::uint64_t Failures(const Core& core) {
    using View = typename Core::ClosedView;
    const std::uint64_t word = core.failures_.Peek();
    return View::IndexGeneration(word) == Generation(core) ? View::Index(word) : 0;
  }
  template <class Core>
  static std::uint64_t Position(const Core& core, std::uint64_t index) {
    return Core::ClosedView::CellPosition(core.ring_[index & core.ring_mask_].Peek());
  }
  template <class Core>
  static std::uint64_t LeaseGeneration(const Core&, std::uint64_t lease) {
    return circuit::LeaseGeneration(lease);
  }
  template <class Core>
  static bool Owns(const Core& core, std::uint64_t lease, std::uint32_t slot) {
    return core.slots_[slot].lease.Peek() == lease;
  }
  template <class Core>
  static std::uint64_t Successes(const Core& core) {
    return core.Successes(Generation(core));
  }
  // Not yet used: its first generation becomes `generation`.
  template <class Core>
  static void StartAt(Core& core, std::uint64_t generation) {
    using View = typename Core::ClosedView;
    core.word_.store(Core::MakeWord(CircuitState::kClosed, generation - 1));
    core.PrepareBank(generation);
    core.word_.store(Core::MakeWord(CircuitState::kClosed, generation));
    core.failures_.store(View::MakeIndex(generation, 0));
    core.reporter_.store(((generation + 1) % Core::kGenerations) << 1);
    for (std::uint64_t i = 0; i <= core.ring_mask_; ++i) core.ring_[i].store(View::MakeCell(generation, 1, 0));
    if (core.records_ != nullptr) {
      for (std::uint64_t i = 0; i < circuit::kRecords; ++i) {
        core.records_[i].stamp.store(generation << 2);
        core.records_[i].dropped.store(generation);
      }
    }
  }
  // As if `results` more (a multiple of 4) had been recorded half-open, none of which shows in the counts.
  template <class Core>
  static void SkipResults(Core& core, std::uint64_t results) {
    core.word_.Poke(core.word_.Peek() + (results << 2));
    const std::uint64_t word = core.word_.Peek();
    const std::uint64_t version = (word & Core::kPayloadMask) >> 2;
    // The tallies of this version, if it is published already, and of the three before it.
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (auto& cell : core.tallies_[(version - i) % 4]) {
        if (cell.Peek() >> Core::kTallyBits != Core::TallyTag(word, version - i - results)) continue;
        cell.Poke(Core::TallyTag(word, version - i) << Core::kTallyBits | (cell.Peek() & Core::kTallyMask));
      }
    }
  }
  // So many successes were counted by a thread, in every bank, before its generation began.
  template <class Core>
  static void CountedBefore(Core& core, std::uint64_t successes) {
    for (auto& counter : core.lines_[0].successes) counter.store(successes);
    core.base_[Core::GenerationOf(core.word_.load()) % Core::kBanks].store(
        Core::GenerationOf(core.word_.load()) << 48 | successes);
  }
};

}  // namespace penstock::inline v0::detail

namespace penstock_test {

using Inspect = penstock::detail::CircuitCoreInspector;

// One breaker for one schedule.
struct Model {
  HandClock clock;
  std::vector<penstock::CircuitTransition> transitions;
  std::unique_ptr<ModelCore> core;
  std::uint64_t current_probes = 0;  // granted while the breaker was still in the state that granted them
  bool granted_late = false;

  explicit Model(penstock::CircuitBreakerSettings settings) {
    settings.clock = &clock;
    settings.observer = [this](const penstock::CircuitTransition& transition) { transitions.push_back(transition); };
    core = std::make_unique<ModelCore>(std::move(settings));
  }

  ModelCore::Pass Acquire() {
    const std::uint64_t word = core->LoadWord();
    ModelCore::Pass pass = ModelCore::IsClosed(word) ? ModelCore::Pass{true, word, ModelCore::kNoSlot, {}}
                                                      : core->AcquireSlow(word);
    // No step lies between the last look of Acquire() and this one: a probe is of the state that the breaker is in.
    if (pass.admitted && pass.slot != ModelCore::kNoSlot &&
        Inspect::LeaseGeneration(*core, pass.number) != Inspect::Generation(*core)) {
      granted_late = true;
    }
    return pass;
  }
  void Settle(const ModelCore::Pass& pass, penstock::Outcome outcome) {
    if (!pass.admitted) return;
    if (outcome == penstock::Outcome::kSuccess && pass.slot == ModelCore::kNoSlot && core->SettleSuccess(pass.number)) return;
    core->Settle(pass.number, pass.slot, outcome);
  }
  void Call(penstock::Outcome outcome) { Settle(Acquire(), outcome); }

  // Whether the transitions seen begin closed, follow from each other and lead to the present state, none missed.
  bool ReportsAreWhole() const {
    auto state = penstock::CircuitState::kClosed;
    for (const auto& transition : transitions) {
      if (transition.from != state || transition.missed != 0) return false;
      state = transition.to;
    }
    return state == Inspect::State(*core);
  }
};

}  // namespace penstock_test
