#pragma once

// The lock-free circuit breaker, over the atomics that it is given.
//
// A closed breaker can trip only when a failure is recorded. So a success is one load of the state word and one addition to
// a counter that only its own thread writes; a failure notes, in a small ring, how many results there were at that
// moment, and all that the rules ask follows from differences of those numbers. docs/circuit-breaker.md has the whole
// picture; src/core/circuit_core.h the slow paths, with the argument for each step.
//
// Threads, ownership, time, errors: those of CircuitBreaker, whose only member it is. The class is a template so that the
// model tests run this code over atomics that they schedule.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "penstock/core/circuit_breaker_settings.h"
#include "penstock/core/clock.h"
#include "penstock/core/detail/failure_ratio.h"

namespace penstock::inline v0::detail {

// Instead of a probe slot: of a call that was admitted while closed, or rejected.
inline constexpr std::uint32_t kNoProbeSlot = 0xffffffff;

// Atomics: `template <class T> Atomic`, kLines (the last one is shared), ThreadLine(), AssignThreadLine(), UsedLines().
template <class Atomics>
class CircuitCore {
 public:
  static constexpr std::uint32_t kNoSlot = kNoProbeSlot;

  // What Acquire() says. Admitted: the number to settle with (closed: the state word; half-open: the lease of a slot).
  struct Pass {
    bool admitted;
    std::uint64_t number;
    std::uint32_t slot;     // kNoSlot unless it is a probe
    Duration rejected_for;  // zero: half-open, and every slot is taken
  };

  explicit CircuitCore(CircuitBreakerSettings settings);

  // The fast half of Acquire(): a closed breaker's word is the ticket. Acquire: pairs with the release in Change(), so that a
  // call admitted to a state sees what was prepared for it.
  std::uint64_t LoadWord() const noexcept { return word_.load(std::memory_order_acquire); }
  static constexpr bool IsClosed(std::uint64_t word) noexcept { return word >> kStateShift == 0; }

  // The other half, for a word that is not closed.
  Pass AcquireSlow(std::uint64_t word) noexcept;

  // The fast half of Settle(): a success of a call admitted while closed. False: nothing was done, call Settle().
  bool SettleSuccess(std::uint64_t word) noexcept {
    // Relaxed: nothing is read that was published with the word; equality alone says that the state is still the one that
    // admitted the call. A success that stalls between this check and its addition lands in its own generation's bank.
    if (word_.load(std::memory_order_relaxed) != word) return true;  // from before a change of state: counts nothing
    const std::uint32_t line = Atomics::ThreadLine();
    if (line >= Atomics::kLines - 1) [[unlikely]] return false;
    Counter& counter = lines_[line].successes[GenerationOf(word) % kBanks];
    // Relaxed, and no read-modify-write: only this thread writes this counter. A failure that happens after this success
    // sees it by coherence; one that does not may count it or not.
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return true;
  }

  // Any outcome of any pass. Whatever it is, a pass from before a change of state counts nothing.
  void Settle(std::uint64_t number, std::uint32_t slot, Outcome outcome) noexcept;

  CircuitState state() const noexcept;
  Counts counts() const noexcept;
  CircuitTotals totals() const noexcept;

 private:
  friend struct CircuitCoreInspector;  // of the tests

  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;
  using Counter = Atomic<std::uint64_t>;
  using Word = Atomic<std::uint64_t>;

  // The state word: state:2 | generation:22 | payload:40. Every change of state raises the generation by one. The payload is
  // zero but for half-open: version:38 | kind of the last result:2; each result raises the version by one.
  static constexpr int kStateShift = 62;
  static constexpr int kGenerationShift = 40;
  static constexpr std::uint64_t kGenerations = std::uint64_t{1} << 22;
  static constexpr std::uint64_t kPayloadMask = (std::uint64_t{1} << kGenerationShift) - 1;

  static constexpr std::uint64_t GenerationOf(std::uint64_t word) noexcept {
    return word >> kGenerationShift & (kGenerations - 1);
  }
  static constexpr CircuitState StateOf(std::uint64_t word) noexcept {
    return static_cast<CircuitState>(word >> kStateShift);
  }
  static constexpr std::uint64_t MakeWord(CircuitState state, std::uint64_t generation) noexcept {
    return static_cast<std::uint64_t>(state) << kStateShift | (generation & (kGenerations - 1)) << kGenerationShift;
  }

  // A result as the half-open state records it.
  enum class Kind : std::uint64_t { kSuccess, kFailure, kTimedOut };

  // Of one thread, so that no other writes its cache lines; 128 bytes because processors fetch lines in pairs.
  static constexpr std::uint64_t kBanks = 8;
  struct alignas(128) Line {
    std::array<Counter, kBanks> successes{};  // closed; by generation % kBanks; never reset
    Counter probe_successes{};                // half-open
    Counter failures{};                       // both
    Counter ignored{};
    Counter rejected{};
  };

  // A probe slot. lease: generation:22 | number:41 | held:1; a new number for each lease, so that it names its owner.
  // until[number % 2]: when that lease expires.
  struct Slot {
    Word lease{};
    std::array<Atomic<std::int64_t>, 2> until{};
  };

  // The half-open counts after the result with some version v, in cells[v % 4]; each word is
  // generation:22 | v:18 | count:24. The version is in each word, and long, because a count that does not change would
  // otherwise come back with the same tag while a thread that wants to replace it stalls.
  enum TallyWord : std::size_t { kSuccesses, kFailures, kRun, kTimedOuts, kTallyWords };
  using Tally = std::array<Word, kTallyWords>;
  static constexpr int kTallyBits = 24;
  static constexpr std::uint64_t kTallyMask = (std::uint64_t{1} << kTallyBits) - 1;
  static constexpr std::uint64_t TallyTag(std::uint64_t word, std::uint64_t version) noexcept {
    return GenerationOf(word) << 18 | (version & 0x3ffff);
  }
  struct TallySeen {
    std::array<std::uint64_t, kTallyWords> words;
    bool published;
  };

  // A transition that waits to be reported. stamp: generation << 2 | kWriting or kReady.
  struct Record {
    Word stamp{};
    Word dropped{};  // generation of the newest transition that found its record being written
    Word states{};
    std::array<Word, 5> counts{};
  };
  static constexpr std::uint64_t kWriting = 1;
  static constexpr std::uint64_t kReady = 2;
  static constexpr bool IsAfter(std::uint64_t generation, std::uint64_t than) noexcept {
    const std::uint64_t distance = (generation - than) & (kGenerations - 1);
    return distance != 0 && distance < kGenerations / 2;
  }

  struct ClosedView;

  // Acquire.
  Pass AcquireChanging(std::uint64_t word) noexcept;
  Pass Reject(Duration rest) noexcept;
  Duration OpenRest(std::uint64_t word) const noexcept;
  Duration PreciseRest(std::int64_t until) const noexcept;
  std::optional<Pass> AcquireProbe(std::uint64_t word) noexcept;
  bool IsHalfOpen(std::uint64_t generation) const noexcept;

  // Settle.
  void SettleFailure(std::uint64_t word) noexcept;
  bool FinishRun(std::uint64_t generation, ClosedView& view) noexcept;
  bool IsTripped(const ClosedView& view) noexcept;
  Counts CountsWithFailure(const ClosedView& view) const noexcept;
  std::uint64_t WindowFailures(std::uint64_t from, std::uint64_t to, std::uint64_t position) const noexcept;
  void SettleProbe(std::uint64_t lease, std::uint32_t slot, Outcome outcome) noexcept;
  void RecordProbe(std::uint64_t generation, Kind kind, Counter Line::*counter) noexcept;
  bool ReadTally(std::uint64_t word, Counts& counts, TallySeen& seen) const noexcept;
  void PublishTally(std::uint64_t word, const Counts& counts, const TallySeen& seen) noexcept;
  static void AddTo(Counts& counts, Kind kind) noexcept;

  // Both policies, or the rules in their place.
  ProbeDecision DecideProbe(const Counts& counts) const noexcept;
  template <class Function>
  void Guarded(const Function& function) const noexcept;

  // Changes of state.
  bool Change(std::uint64_t from, CircuitState to, const Counts& counts, Counter Line::*counter) noexcept;
  void PrepareBank(std::uint64_t generation) noexcept;
  void PrepareDeadline(std::uint64_t generation) noexcept;
  void Tidy(std::uint64_t generation) noexcept;
  void Publish(std::uint64_t generation, CircuitState from, CircuitState to, const Counts& counts) noexcept;
  void Report(std::uint64_t own) noexcept;
  std::optional<CircuitTransition> ReadRecord(std::uint64_t generation, bool& missed) const noexcept;

  // Reading.
  bool ReadClosed(std::uint64_t word, Counts& counts) const noexcept;

  // Counting.
  static std::uint32_t OwnLine() noexcept {
    const std::uint32_t line = Atomics::ThreadLine();
    return line < Atomics::kLines ? line : Atomics::AssignThreadLine();
  }
  static void AddTo(Counter& counter, std::uint32_t line) noexcept;
  void Add(Counter Line::*counter) noexcept;
  void AddSuccess(std::uint64_t word) noexcept;
  std::uint64_t SumBank(std::uint64_t bank) const noexcept;
  std::uint64_t Sum(Counter Line::*counter) const noexcept;
  template <class Pick>
  std::uint64_t SumLines(const Pick& pick) const noexcept;
  std::uint64_t Successes(std::uint64_t generation) const noexcept;

  std::int64_t Now() const noexcept { return clock_.Now().time_since_epoch().count(); }

  // Alone on its cache line, with nothing that is written more often than the state changes.
  alignas(128) Word word_;

  alignas(128) const CircuitBreakerSettings settings_;
  const Clock& clock_;
  const FailureRatio ratio_;
  const std::uint64_t window_failures_;  // that trip a full window
  const std::uint64_t ring_mask_;
  const std::unique_ptr<Word[]> ring_;  // generation:18 | lap:1 | position:45
  const std::unique_ptr<Slot[]> slots_;
  const std::unique_ptr<Record[]> records_;  // null without an observer

  // Written by failures.
  alignas(128) Word failures_;                     // generation:22 | how many in it:42
  Word run_;                                       // generation:22 | index of the first failure of the last run:42
  std::array<Word, 4> failure_times_{};            // by index % 4: index:8 | nanoseconds:56; only with consecutive_span
  Word run_time_{};                                // index:8 | nanoseconds:56 of the first failure of the last run

  // Written by changes of state.
  alignas(128) std::array<Word, kBanks> base_{};               // generation:16 | the bank's sum at its beginning:48
  std::array<Atomic<std::int64_t>, kBanks> open_until_{};      // by generation
  std::array<Tally, 4> tallies_{};                             // by version
  std::array<Counter, 3> entered_{};                           // by state
  Word reporter_;                                              // generation to report next << 1 | somebody reports
  std::uint64_t missed_ = 0;                                   // guarded by reporter_

  std::array<Line, Atomics::kLines> lines_{};
};

}  // namespace penstock::inline v0::detail
