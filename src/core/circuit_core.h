#pragma once

// The slow paths of the circuit breaker: rejecting, probing, failures, changes of state, reading.
//
// Words that more than one thread writes are changed by compare-and-swap only, from a value that was read before a check
// that the breaker has not moved on; every such word carries its generation or its version, or only grows, so that a
// thread that stalled in between finds another value and starts again. What several threads prepare for the same step
// they prepare alike, or each prepares what is true at that moment; whoever comes first is taken.
//
// Orders, unless a line says otherwise: loads acquire and swaps release what their words publish, so that a thread that
// sees a step sees all that was prepared for it.

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "penstock/core/detail/circuit_core.h"

namespace penstock::inline v0::detail {

// A failure as one thread sees it while it tries to record it.
template <class Atomics>
struct CircuitCore<Atomics>::ClosedView {
  std::uint64_t generation;
  std::uint64_t failures;  // the word
  std::uint64_t index;     // this failure's, from 0
  std::uint64_t last;      // cells of the two before it, where there are any
  std::uint64_t before_last;
  std::uint64_t run;       // the word; after FinishRun(): of the run that the last failure belongs to
  std::uint64_t run_time;  // the words, with consecutive_span
  std::uint64_t last_time;
  std::uint64_t own_time;
  std::int64_t now;
  std::uint64_t position;  // this failure is result number `position` of its generation, from 1

  static constexpr int kIndexBits = 42;
  static constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << kIndexBits) - 1;
  static constexpr int kPositionBits = 45;
  static constexpr std::uint64_t kPositionMask = (std::uint64_t{1} << kPositionBits) - 1;
  static constexpr std::uint64_t kTagMask = (std::uint64_t{1} << 18) - 1;
  static constexpr int kTimeBits = 56;

  static constexpr std::uint64_t MakeIndex(std::uint64_t generation, std::uint64_t index) noexcept {
    return generation << kIndexBits | (index & kIndexMask);
  }
  static constexpr std::uint64_t IndexGeneration(std::uint64_t word) noexcept { return word >> kIndexBits; }
  static constexpr std::uint64_t Index(std::uint64_t word) noexcept { return word & kIndexMask; }

  // lap: how often the ring has been filled, modulo 2: tells a cell that has been written for an index from one that still
  // holds the failure a whole ring earlier.
  static constexpr std::uint64_t MakeCell(std::uint64_t generation, std::uint64_t lap, std::uint64_t position) noexcept {
    return (generation & kTagMask) << (kPositionBits + 1) | (lap & 1) << kPositionBits | (position & kPositionMask);
  }
  static constexpr std::uint64_t CellTag(std::uint64_t cell) noexcept { return cell >> (kPositionBits + 1); }
  static constexpr std::uint64_t CellLap(std::uint64_t cell) noexcept { return cell >> kPositionBits & 1; }
  static constexpr std::uint64_t CellPosition(std::uint64_t cell) noexcept { return cell & kPositionMask; }

  // How many results came after the one at `earlier`, up to and with the one at `later`.
  static constexpr std::uint64_t Between(std::uint64_t earlier, std::uint64_t later) noexcept {
    return (later - earlier) & kPositionMask;
  }

  static constexpr std::uint64_t MakeTime(std::uint64_t index, std::int64_t time) noexcept {
    return index << kTimeBits | (static_cast<std::uint64_t>(time) & ((std::uint64_t{1} << kTimeBits) - 1));
  }
  // Of two times at most 2^55 ns (417 days) apart.
  static constexpr std::int64_t Since(std::uint64_t earlier, std::int64_t later) noexcept {
    return static_cast<std::int64_t>((static_cast<std::uint64_t>(later) - earlier) << (64 - kTimeBits)) >> (64 - kTimeBits);
  }

  bool LastBegins() const noexcept {
    return index == 1 || Between(CellPosition(before_last), CellPosition(last)) != 1;
  }
  bool Begins() const noexcept { return index == 0 || Between(CellPosition(last), position) != 1; }

  // With this failure; after FinishRun().
  std::uint64_t RunLength() const noexcept { return index - (Begins() ? index : Index(run)) + 1; }
};

namespace circuit {

// The coarse clock is behind the precise one by no more than this (a kernel tick is at most 10 ms).
inline constexpr std::int64_t kCoarseLag = 20'000'000;

// Transitions that wait for the observer. CircuitTransition::missed documents it.
inline constexpr std::uint64_t kRecords = 512;

// Time left until `until`; right also where the clock's number wraps in between.
constexpr std::int64_t Rest(std::int64_t until, std::int64_t now) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(until) - static_cast<std::uint64_t>(now));
}
constexpr std::int64_t Until(std::int64_t now, Duration length) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(now) + static_cast<std::uint64_t>(length.count()));
}

// How many failures the ring must remember: as many as can be in the window without tripping.
inline std::uint64_t RingSize(const CircuitBreakerSettings& settings, std::uint64_t window_failures) {
  std::uint64_t failures = settings.window;
  if (!settings.trip && settings.min_results <= settings.window) {
    failures = std::max<std::uint64_t>(window_failures, settings.min_results);
  }
  return std::bit_ceil(std::max<std::uint64_t>(failures, 4));
}

inline constexpr int kLeaseNumberBits = 41;
constexpr std::uint64_t MakeLease(std::uint64_t generation, std::uint64_t number, bool held) noexcept {
  return generation << (kLeaseNumberBits + 1) | (number & ((std::uint64_t{1} << kLeaseNumberBits) - 1)) << 1 | (held ? 1 : 0);
}
constexpr std::uint64_t LeaseGeneration(std::uint64_t lease) noexcept {
  return lease >> (kLeaseNumberBits + 1);
}
constexpr std::uint64_t LeaseNumber(std::uint64_t lease) noexcept {
  return lease >> 1 & ((std::uint64_t{1} << kLeaseNumberBits) - 1);
}
constexpr bool IsHeld(std::uint64_t lease) noexcept { return (lease & 1) != 0; }

constexpr std::uint64_t kSumMask = (std::uint64_t{1} << 48) - 1;

}  // namespace circuit

template <class Atomics>
CircuitCore<Atomics>::CircuitCore(CircuitBreakerSettings settings)
    : word_(MakeWord(CircuitState::kClosed, 0)),
      settings_(std::move(settings)),
      clock_(settings_.clock != nullptr ? *settings_.clock : SteadyClock()),
      ratio_(settings_.failure_ratio),
      window_failures_(ratio_.FailuresIn(settings_.window)),
      ring_mask_(circuit::RingSize(settings_, window_failures_) - 1),
      ring_(new Word[ring_mask_ + 1]),
      slots_(new Slot[settings_.probes]),
      records_(settings_.observer ? new Record[circuit::kRecords] : nullptr),
      failures_(ClosedView::MakeIndex(0, 0)),
      run_(~std::uint64_t{0}),  // no run yet, in no generation near
      reporter_(std::uint64_t{1} << 1) {
  // Relaxed: nobody else has the breaker yet. Lap 1: not written in the first lap.
  for (std::uint64_t i = 0; i <= ring_mask_; ++i) ring_[i].store(ClosedView::MakeCell(0, 1, 0), std::memory_order_relaxed);
  // Tagged with a generation far away: PrepareBank() sets each before its first generation begins.
  for (std::uint64_t i = 1; i < kBanks; ++i) base_[i].store(~circuit::kSumMask, std::memory_order_relaxed);
}

// --- Admitting ------------------------------------------------------------------------------------------------------

template <class Atomics>
auto CircuitCore<Atomics>::AcquireSlow(std::uint64_t word) noexcept -> Pass {
  // Apart from the rest, so that a rejection saves no registers for it.
  if (StateOf(word) == CircuitState::kOpen) [[likely]] {
    const Duration rest = OpenRest(word);
    if (rest > Duration::zero()) [[likely]] return Reject(rest);
  }
  return AcquireChanging(word);
}

// For a breaker that is half-open, whose open_for has passed, or that has changed since `word` was read.
template <class Atomics>
[[gnu::noinline]] auto CircuitCore<Atomics>::AcquireChanging(std::uint64_t word) noexcept -> Pass {
  for (;;) {
    switch (StateOf(word)) {
      case CircuitState::kClosed:
        return {true, word, kNoSlot, Duration::zero()};
      case CircuitState::kOpen: {
        const Duration rest = OpenRest(word);
        if (rest > Duration::zero()) return Reject(rest);
        Change(word, CircuitState::kHalfOpen, {}, nullptr);  // or somebody else did
        break;
      }
      case CircuitState::kHalfOpen:
        if (const std::optional<Pass> pass = AcquireProbe(word)) return *pass;
        break;
    }
    word = word_.load(std::memory_order_acquire);
  }
}

template <class Atomics>
auto CircuitCore<Atomics>::Reject(Duration rest) noexcept -> Pass {
  Add(&Line::rejected);
  return {false, 0, kNoSlot, rest};
}

template <class Atomics>
inline Duration CircuitCore<Atomics>::OpenRest(std::uint64_t word) const noexcept {
  // Relaxed: written before the word was, which was read with acquire. (Eight changes of state later it may be another's:
  // then the word has moved on, and whoever acts on this finds out by its swap.)
  const std::int64_t until = open_until_[GenerationOf(word) % kBanks].load(std::memory_order_relaxed);
  const std::int64_t coarse = clock_.CoarseNow().time_since_epoch().count();
  const std::int64_t rest = circuit::Rest(until, coarse);
  if (rest > circuit::kCoarseLag) [[likely]] return Duration(rest);
  return PreciseRest(until);
}

template <class Atomics>
[[gnu::noinline]] Duration CircuitCore<Atomics>::PreciseRest(std::int64_t until) const noexcept {
  return Duration(std::max<std::int64_t>(circuit::Rest(until, Now()), 0));
}

template <class Atomics>
bool CircuitCore<Atomics>::IsHalfOpen(std::uint64_t generation) const noexcept {
  const std::uint64_t word = word_.load(std::memory_order_acquire);
  return StateOf(word) == CircuitState::kHalfOpen && GenerationOf(word) == generation;
}

// A slot for a probe, a rejection because all are taken, or nothing: the state has changed.
template <class Atomics>
auto CircuitCore<Atomics>::AcquireProbe(std::uint64_t word) noexcept -> std::optional<Pass> {
  const std::uint64_t generation = GenerationOf(word);
  for (std::uint32_t i = 0; i < settings_.probes; ++i) {
    Slot& slot = slots_[i];
    std::uint64_t lease = slot.lease.load(std::memory_order_acquire);
    for (;;) {
      // The deadline of the lease to be stands beside that of the present one, whose owner may still read it. The clock is
      // read after `seen`: who overwrites what another wrote for the same lease must not set it back.
      const std::uint64_t number = circuit::LeaseNumber(lease) + 1;
      auto& next_until = slot.until[number % 2];
      std::int64_t seen = next_until.load(std::memory_order_acquire);
      const std::int64_t now = Now();
      bool expired = false;
      if (circuit::LeaseGeneration(lease) == generation) {
        if (circuit::IsHeld(lease)) {
          // Relaxed: written before the lease was. Should the slot have changed hands since, this is a later time: held.
          const auto& until = slot.until[circuit::LeaseNumber(lease) % 2];
          if (circuit::Rest(until.load(std::memory_order_relaxed), now) > 0) break;
          expired = true;
        }
      } else if (!IsHalfOpen(generation)) {
        return std::nullopt;  // the lease may be of a newer generation than ours
      }
      const std::uint64_t still = slot.lease.load(std::memory_order_acquire);
      if (still != lease) {
        lease = still;
        continue;
      }
      // Published by the lease. If another wrote it, or a straggler did, start again.
      if (!next_until.compare_exchange_strong(seen, circuit::Until(now, settings_.probe_timeout), std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
        lease = slot.lease.load(std::memory_order_acquire);
        continue;
      }
      const std::uint64_t taken = circuit::MakeLease(generation, number, true);
      if (!slot.lease.compare_exchange_strong(lease, taken, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      // The state may have changed before the swap: then this lease is of an older generation, and as good as free.
      if (!IsHalfOpen(generation)) return std::nullopt;
      if (expired) {
        RecordProbe(generation, Kind::kTimedOut, nullptr);
        if (!IsHalfOpen(generation)) return std::nullopt;  // the policy decided so
      }
      return Pass{true, taken, i, Duration::zero()};
    }
  }
  if (!IsHalfOpen(generation)) return std::nullopt;
  return Reject(Duration::zero());
}

// --- Settling what was admitted while closed --------------------------------------------------------------------------

template <class Atomics>
void CircuitCore<Atomics>::Settle(std::uint64_t number, std::uint32_t slot, Outcome outcome) noexcept {
  if (slot != kNoSlot) {
    SettleProbe(number, slot, outcome);
    return;
  }
  // Relaxed: as in SettleSuccess().
  if (word_.load(std::memory_order_relaxed) != number) return;
  switch (outcome) {
    case Outcome::kSuccess:
      AddSuccess(number);
      return;
    case Outcome::kFailure:
      SettleFailure(number);
      return;
    case Outcome::kIgnored:
      Add(&Line::ignored);
      return;
  }
}

template <class Atomics>
void CircuitCore<Atomics>::SettleFailure(std::uint64_t word) noexcept {
  using View = ClosedView;
  const bool timed = settings_.consecutive_span > Duration::zero() && !settings_.trip;
  View view{};
  view.generation = GenerationOf(word);
  for (;;) {
    if (word_.load(std::memory_order_acquire) != word) return;
    view.failures = failures_.load(std::memory_order_acquire);
    if (View::IndexGeneration(view.failures) != view.generation) {
      // Of an older generation, unless ours is over: then it may be of a newer one, and is not ours to set back.
      if (word_.load(std::memory_order_acquire) != word) return;
      failures_.compare_exchange_strong(view.failures, View::MakeIndex(view.generation, 0), std::memory_order_acq_rel,
                                        std::memory_order_acquire);
      continue;
    }
    view.index = View::Index(view.failures);
    Word& cell = ring_[view.index & ring_mask_];
    std::uint64_t own = cell.load(std::memory_order_acquire);
    view.last = ring_[(view.index - 1) & ring_mask_].load(std::memory_order_acquire);
    view.before_last = ring_[(view.index - 2) & ring_mask_].load(std::memory_order_acquire);
    view.run = run_.load(std::memory_order_acquire);
    if (timed) {
      view.run_time = run_time_.load(std::memory_order_acquire);
      view.last_time = failure_times_[(view.index - 1) % 4].load(std::memory_order_acquire);
      view.own_time = failure_times_[view.index % 4].load(std::memory_order_acquire);
      view.now = Now();  // after own_time: who overwrites what another wrote for this index must not set it back
    }
    // All of it was read while `index` failures were recorded, no more: else it is a mixture.
    if (failures_.load(std::memory_order_acquire) != view.failures) continue;
    if (!FinishRun(view.generation, view)) continue;

    const std::uint64_t next = View::MakeIndex(view.generation, view.index + 1);
    const std::uint64_t lap = view.index / (ring_mask_ + 1);
    if (View::CellTag(own) == (view.generation & View::kTagMask) && View::CellLap(own) == (lap & 1)) {
      // Somebody recorded failure `index` and has not yet said so: help, then try for the next one.
      failures_.compare_exchange_strong(view.failures, next, std::memory_order_acq_rel, std::memory_order_acquire);
      continue;
    }
    // Greater than the last one's: what that one's thread saw of the counters is seen here too, for its swap of failures_
    // came before our load of it.
    view.position = Successes(view.generation) + view.index + 1;

    if (IsTripped(view)) {
      // Another failure came between: decide again, with it.
      if (failures_.load(std::memory_order_acquire) != view.failures) continue;
      Change(word, CircuitState::kOpen, CountsWithFailure(view), &Line::failures);
      return;  // also if another changed the state first: then this result is from before that change
    }
    if (timed && !failure_times_[view.index % 4].compare_exchange_strong(
                     view.own_time, View::MakeTime(view.index, view.now), std::memory_order_acq_rel,
                     std::memory_order_acquire)) {
      continue;
    }
    if (!cell.compare_exchange_strong(own, View::MakeCell(view.generation, lap, view.position), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    failures_.compare_exchange_strong(view.failures, next, std::memory_order_acq_rel, std::memory_order_acquire);
    Add(&Line::failures);
    return;
  }
}

// Notes in run_ (and run_time_) where the run that the last failure belongs to began: it can be known only now that the
// position of the last failure is fixed. Everybody does it alike before the next failure is recorded. False: start again.
template <class Atomics>
bool CircuitCore<Atomics>::FinishRun(std::uint64_t generation, ClosedView& view) noexcept {
  if (view.index == 0 || !view.LastBegins()) return true;
  const std::uint64_t begun = ClosedView::MakeIndex(generation, view.index - 1);
  if (view.run == begun) return true;
  if (settings_.consecutive_span > Duration::zero() && !settings_.trip) {
    if (!run_time_.compare_exchange_strong(view.run_time, view.last_time, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
      return false;
    }
    view.run_time = view.last_time;
  }
  if (!run_.compare_exchange_strong(view.run, begun, std::memory_order_acq_rel, std::memory_order_acquire)) return false;
  view.run = begun;
  return true;
}

template <class Atomics>
bool CircuitCore<Atomics>::IsTripped(const ClosedView& view) noexcept {
  if (settings_.trip) {
    bool tripped = false;
    Guarded([&] { tripped = settings_.trip(CountsWithFailure(view)); });
    return tripped;
  }
  if (view.RunLength() >= settings_.consecutive_failures) {
    const std::int64_t span = view.Begins() ? 0 : ClosedView::Since(view.run_time, view.now);
    if (settings_.consecutive_span == Duration::zero() || span >= settings_.consecutive_span.count()) return true;
  }
  const std::uint64_t failures = view.index + 1;
  if (view.position <= settings_.window) {
    return view.position >= settings_.min_results && ratio_.IsReached(failures, view.position);
  }
  if (settings_.window < settings_.min_results || failures < window_failures_) return false;
  // The window is full: it holds enough failures if the one so many before this one is still in it.
  if (window_failures_ == 1) return true;
  const std::uint64_t first = ring_[(failures - window_failures_) & ring_mask_].load(std::memory_order_acquire);
  return ClosedView::Between(ClosedView::CellPosition(first), view.position) < settings_.window;
}

template <class Atomics>
Counts CircuitCore<Atomics>::CountsWithFailure(const ClosedView& view) const noexcept {
  Counts counts;
  const std::uint64_t results = std::min<std::uint64_t>(view.position, settings_.window);
  // The cell of this failure still holds the one a whole ring earlier, which is no longer in the window.
  const std::uint64_t from = view.index > ring_mask_ ? view.index - ring_mask_ : 0;
  counts.failures = std::min(WindowFailures(from, view.index, view.position) + 1, results);
  counts.successes = results - counts.failures;
  counts.consecutive_failures = view.RunLength();
  return counts;
}

// How many of the failures with an index in [from, to) are in the window that ends with result number `position`.
template <class Atomics>
std::uint64_t CircuitCore<Atomics>::WindowFailures(std::uint64_t from, std::uint64_t to,
                                                   std::uint64_t position) const noexcept {
  if (position <= settings_.window) return to - from;
  std::uint64_t low = from;
  std::uint64_t high = to;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    const std::uint64_t cell = ring_[middle & ring_mask_].load(std::memory_order_acquire);
    if (ClosedView::Between(ClosedView::CellPosition(cell), position) < settings_.window) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return to - low;
}

// --- Settling probes --------------------------------------------------------------------------------------------------

template <class Atomics>
void CircuitCore<Atomics>::SettleProbe(std::uint64_t lease, std::uint32_t slot_number, Outcome outcome) noexcept {
  Slot& slot = slots_[slot_number];
  // Not ours any more: it timed out and was taken by another, or the state has changed.
  if (slot.lease.load(std::memory_order_acquire) != lease) return;
  // Relaxed: written before the lease was. Late: void, and the slot is left for the Acquire() that will notice.
  const std::int64_t until = slot.until[circuit::LeaseNumber(lease) % 2].load(std::memory_order_relaxed);
  if (circuit::Rest(until, Now()) <= 0) return;
  const std::uint64_t generation = circuit::LeaseGeneration(lease);
  std::uint64_t expected = lease;
  if (!slot.lease.compare_exchange_strong(expected, circuit::MakeLease(generation, circuit::LeaseNumber(lease), false),
                                          std::memory_order_acq_rel, std::memory_order_acquire)) {
    return;
  }
  switch (outcome) {
    case Outcome::kSuccess:
      RecordProbe(generation, Kind::kSuccess, &Line::probe_successes);
      return;
    case Outcome::kFailure:
      RecordProbe(generation, Kind::kFailure, &Line::failures);
      return;
    case Outcome::kIgnored:
      if (IsHalfOpen(generation)) Add(&Line::ignored);
      return;
  }
}

// Counts a result and does what the policy decides; nothing if the generation is over.
template <class Atomics>
void CircuitCore<Atomics>::RecordProbe(std::uint64_t generation, Kind kind, Counter Line::*counter) noexcept {
  for (;;) {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    if (StateOf(word) != CircuitState::kHalfOpen || GenerationOf(word) != generation) return;
    Counts counts;
    TallySeen seen;
    if (!ReadTally(word, counts, seen)) continue;
    // Everybody publishes the counts so far before the word moves on, so that whoever comes next finds them.
    PublishTally(word, counts, seen);
    AddTo(counts, kind);
    switch (DecideProbe(counts)) {
      case ProbeDecision::kKeep: {
        const std::uint64_t payload = ((word & kPayloadMask) >> 2) + 1;
        const std::uint64_t next = MakeWord(CircuitState::kHalfOpen, generation) | ((payload << 2) & kPayloadMask) |
                                   static_cast<std::uint64_t>(kind);
        if (word_.compare_exchange_strong(word, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
          if (counter != nullptr) Add(counter);
          return;
        }
        break;
      }
      case ProbeDecision::kClose:
        if (Change(word, CircuitState::kClosed, counts, counter)) return;
        break;
      case ProbeDecision::kOpen:
        if (Change(word, CircuitState::kOpen, counts, counter)) return;
        break;
    }
  }
}

template <class Atomics>
void CircuitCore<Atomics>::AddTo(Counts& counts, Kind kind) noexcept {
  switch (kind) {
    case Kind::kSuccess:
      ++counts.successes;
      ++counts.consecutive_successes;
      counts.consecutive_failures = 0;
      return;
    case Kind::kFailure:
      ++counts.failures;
      ++counts.consecutive_failures;
      counts.consecutive_successes = 0;
      return;
    case Kind::kTimedOut:
      ++counts.timed_out;
      return;
  }
}

// The half-open counts as of `word`. They follow from those one version earlier and the kind of result in the word, so
// that all threads compute the same. False: the word has moved on.
template <class Atomics>
bool CircuitCore<Atomics>::ReadTally(std::uint64_t word, Counts& counts, TallySeen& seen) const noexcept {
  counts = {};
  seen.published = true;
  const std::uint64_t version = (word & kPayloadMask) >> 2;
  if (version == 0) return true;
  const auto read = [&](std::uint64_t which, std::array<std::uint64_t, kTallyWords>& words) {
    bool complete = true;
    for (std::size_t i = 0; i < kTallyWords; ++i) {
      words[i] = tallies_[which % 4][i].load(std::memory_order_acquire);
      complete = complete && words[i] >> kTallyBits == TallyTag(word, which);
    }
    return complete;
  };
  seen.published = read(version, seen.words);
  std::array<std::uint64_t, kTallyWords> words = seen.words;
  if (!seen.published && version > 1 && !read(version - 1, words)) {
    if (word_.load(std::memory_order_acquire) != word) return false;
    // The word has stood still, so these were complete once: one that slept through exactly 2^18 results has since put its
    // own in their place. The counts begin anew; all that fail to read them here must not try for ever.
    words = {};
  }
  if (seen.published || version > 1) {
    const auto count = [&](TallyWord which) { return words[which] & kTallyMask; };
    counts.successes = count(kSuccesses);
    counts.failures = count(kFailures);
    const std::uint64_t run = count(kRun);
    ((run & 1) != 0 ? counts.consecutive_failures : counts.consecutive_successes) = run >> 1;
    counts.timed_out = count(kTimedOuts);
  }
  if (!seen.published) AddTo(counts, static_cast<Kind>(word & 3));
  // What was read belongs together only if the word has stood still.
  return word_.load(std::memory_order_acquire) == word;
}

template <class Atomics>
void CircuitCore<Atomics>::PublishTally(std::uint64_t word, const Counts& counts, const TallySeen& seen) noexcept {
  if (seen.published) return;
  const std::uint64_t version = (word & kPayloadMask) >> 2;
  const bool failing = counts.consecutive_failures != 0;
  const std::uint64_t length = failing ? counts.consecutive_failures : counts.consecutive_successes;
  const std::uint64_t run = std::min(length, kTallyMask >> 1) << 1 | (failing ? 1 : 0);
  const std::array<std::uint64_t, kTallyWords> values{counts.successes, counts.failures, run, counts.timed_out};
  for (std::size_t i = 0; i < kTallyWords; ++i) {
    std::uint64_t expected = seen.words[i];
    // Failing means that another has written the same value.
    tallies_[version % 4][i].compare_exchange_strong(
        expected, TallyTag(word, version) << kTallyBits | std::min(values[i], kTallyMask), std::memory_order_acq_rel,
        std::memory_order_acquire);
  }
}

template <class Atomics>
ProbeDecision CircuitCore<Atomics>::DecideProbe(const Counts& counts) const noexcept {
  if (settings_.probe) {
    ProbeDecision decision = ProbeDecision::kKeep;
    Guarded([&] {
      const ProbeDecision decided = settings_.probe(counts);
      if (decided > ProbeDecision::kOpen) throw std::out_of_range("the probe policy returned no decision");
      decision = decided;
    });
    return decision;
  }
  if (counts.failures != 0) return ProbeDecision::kOpen;
  return counts.successes >= settings_.successes_to_close ? ProbeDecision::kClose : ProbeDecision::kKeep;
}

// Calls the user's code; what it throws goes to the observer of errors.
template <class Atomics>
template <class Function>
void CircuitCore<Atomics>::Guarded(const Function& function) const noexcept {
  try {
    function();
  } catch (...) {
    try {
      if (settings_.error_observer) settings_.error_observer(std::current_exception());
    } catch (...) {  // there is nobody left to tell
    }
  }
}

// --- Changes of state -------------------------------------------------------------------------------------------------

// Leaves the state that `from` is; false if another has already. On success counts the result that made the change in
// `counter`, then reports.
template <class Atomics>
bool CircuitCore<Atomics>::Change(std::uint64_t from, CircuitState to, const Counts& counts,
                                  Counter Line::*counter) noexcept {
  const std::uint64_t word = MakeWord(to, GenerationOf(from) + 1);
  const std::uint64_t generation = GenerationOf(word);
  PrepareBank(generation);
  if (to == CircuitState::kOpen) PrepareDeadline(generation);
  // Release: publishes what was prepared, to the acquire in LoadWord().
  if (!word_.compare_exchange_strong(from, word, std::memory_order_acq_rel, std::memory_order_acquire)) return false;
  // Relaxed: a total.
  entered_[static_cast<std::size_t>(to)].fetch_add(1, std::memory_order_relaxed);
  if (counter != nullptr) Add(counter);
  Tidy(generation);
  if (records_ != nullptr) {
    Publish(generation, StateOf(from), to, counts);
    Report(generation);
  }
  return true;
}

// Notes the sum of the generation's bank before the generation begins. Done for every state, though only closed ones count
// there, so that no tag grows old enough to be taken for a new one.
template <class Atomics>
void CircuitCore<Atomics>::PrepareBank(std::uint64_t generation) noexcept {
  Word& base = base_[generation % kBanks];
  std::uint64_t seen = base.load(std::memory_order_acquire);
  const std::uint64_t tag = generation & 0xffff;
  if (seen >> 48 == tag) return;  // another did, and may have begun the generation since: its sum is the right one
  // The bank may be in use already, by a generation eight later: then we are late, and the change is not ours to make.
  if (GenerationOf(word_.load(std::memory_order_acquire)) != ((generation - 1) & (kGenerations - 1))) return;
  base.compare_exchange_strong(seen, tag << 48 | (SumBank(generation % kBanks) & circuit::kSumMask),
                               std::memory_order_acq_rel, std::memory_order_acquire);
}

// Several threads that trip at once may each write a deadline; all are true at that moment. A straggler finds another value, or
// is overwritten.
template <class Atomics>
void CircuitCore<Atomics>::PrepareDeadline(std::uint64_t generation) noexcept {
  auto& cell = open_until_[generation % kBanks];
  std::int64_t seen = cell.load(std::memory_order_acquire);
  std::int64_t until = 0;
  // Again where another came between: that may be one who stalled eight generations ago, with a deadline of then.
  do {
    // After `seen`: who overwrites what another wrote for this generation must not set it back.
    until = circuit::Until(Now(), settings_.open_for);
    // The generation has begun already: its deadline stands, or that of one eight later.
    if (GenerationOf(word_.load(std::memory_order_acquire)) != ((generation - 1) & (kGenerations - 1))) return;
  } while (!cell.compare_exchange_strong(seen, until, std::memory_order_acq_rel, std::memory_order_acquire));
}

// Renews what is tagged with a generation and may not be touched for long, a little at each change of state, so that no tag
// lives until its number comes again. Each swap is from a value that was read before a check that no newer generation has
// begun: it can only be an older one's.
template <class Atomics>
void CircuitCore<Atomics>::Tidy(std::uint64_t generation) noexcept {
  using View = ClosedView;
  const auto renew = [&](Word& word, std::uint64_t of, std::uint64_t tag, std::uint64_t value) {
    std::uint64_t seen = word.load(std::memory_order_acquire);
    if (seen >> of == tag || GenerationOf(word_.load(std::memory_order_acquire)) != generation) return;
    word.compare_exchange_strong(seen, value, std::memory_order_acq_rel, std::memory_order_acquire);
  };
  renew(failures_, View::kIndexBits, generation, View::MakeIndex(generation, 0));
  // A number may come again here, but never with the same generation.
  Word& lease = slots_[generation % settings_.probes].lease;
  renew(lease, circuit::kLeaseNumberBits + 1, generation,
        circuit::MakeLease(generation, circuit::LeaseNumber(lease.load(std::memory_order_acquire)), false));
  const std::uint64_t cells = ring_mask_ / 0x10000 + 1;
  for (std::uint64_t i = 0; i < cells; ++i) {
    renew(ring_[(generation * cells + i) & ring_mask_], View::kPositionBits + 1, generation & View::kTagMask, View::MakeCell(generation, 1, 0));
  }
}

// --- Reporting --------------------------------------------------------------------------------------------------------

// Leaves the transition that began `generation` for whoever reports.
template <class Atomics>
void CircuitCore<Atomics>::Publish(std::uint64_t generation, CircuitState from, CircuitState to,
                                   const Counts& counts) noexcept {
  Record& record = records_[generation % circuit::kRecords];
  const std::uint64_t ready = generation << 2 | kReady;
  std::uint64_t stamp = record.stamp.load(std::memory_order_acquire);
  // Upwards only: one that stalled must not hide that a newer transition was dropped.
  const auto raise_dropped = [&record](std::uint64_t to_generation) {
    std::uint64_t seen = record.dropped.load(std::memory_order_seq_cst);
    while (IsAfter(to_generation, seen)) {
      if (record.dropped.compare_exchange_strong(seen, to_generation, std::memory_order_seq_cst, std::memory_order_seq_cst)) break;
    }
  };
  // The record may still be being written by one that stalled, or be a newer one's because we did. Nobody waits: dropped.
  if ((stamp & 3) == kWriting || IsAfter(stamp >> 2, generation) ||
      !record.stamp.compare_exchange_strong(stamp, generation << 2 | kWriting, std::memory_order_acq_rel,
                                            std::memory_order_acquire)) {
    raise_dropped(generation);
    return;
  }
  // Nothing new, but it keeps the number from growing so old that it looks newer.
  raise_dropped((generation - circuit::kRecords) & (kGenerations - 1));
  // Release: a reader that sees one of these also sees that the record is being written.
  const std::array<std::uint64_t, 5> values{counts.successes, counts.failures, counts.consecutive_successes,
                                            counts.consecutive_failures, counts.timed_out};
  for (std::size_t i = 0; i < values.size(); ++i) record.counts[i].store(values[i], std::memory_order_release);
  record.states.store(static_cast<std::uint64_t>(from) << 2 | static_cast<std::uint64_t>(to), std::memory_order_release);
  // Sequentially consistent, with the exchange in Report(): either the one who reports sees this record after he has let
  // go, or we see that he has let go.
  record.stamp.store(ready, std::memory_order_seq_cst);
}

// The transition that began `generation`. Nothing: it is not there yet, or (`missed`) never will be.
template <class Atomics>
std::optional<CircuitTransition> CircuitCore<Atomics>::ReadRecord(std::uint64_t generation, bool& missed) const noexcept {
  const Record& record = records_[generation % circuit::kRecords];
  const std::uint64_t ready = generation << 2 | kReady;
  const std::uint64_t stamp = record.stamp.load(std::memory_order_seq_cst);
  // Dropped, or a newer one was: one that dropped before has been forgotten then, and one that stalls comes too late.
  const std::uint64_t dropped = record.dropped.load(std::memory_order_seq_cst);
  missed = IsAfter(stamp >> 2, generation) || dropped == generation || IsAfter(dropped, generation);
  if (stamp != ready) return std::nullopt;
  CircuitTransition transition{};
  const std::uint64_t states = record.states.load(std::memory_order_acquire);
  transition.from = static_cast<CircuitState>(states >> 2);
  transition.to = static_cast<CircuitState>(states & 3);
  std::uint64_t* const into[] = {&transition.counts.successes, &transition.counts.failures,
                                 &transition.counts.consecutive_successes, &transition.counts.consecutive_failures,
                                 &transition.counts.timed_out};
  for (std::size_t i = 0; i < std::size(into); ++i) *into[i] = record.counts[i].load(std::memory_order_acquire);
  // Overwritten meanwhile: the pieces may not belong together.
  missed = record.stamp.load(std::memory_order_acquire) != ready;
  if (missed) return std::nullopt;
  return transition;
}

// Tells the observer what there is to tell, unless somebody is at it already, who then tells this too. `own`: the generation
// that this call has begun.
template <class Atomics>
void CircuitCore<Atomics>::Report(std::uint64_t own) noexcept {
  // A bound for one call, which the observer's time is charged to; what is left is told at the next change of state.
  for (std::uint64_t told = 0; told < circuit::kRecords;) {
    std::uint64_t reporter = reporter_.load(std::memory_order_seq_cst);
    if ((reporter & 1) != 0) return;
    std::uint64_t generation = reporter >> 1;
    bool missed = false;
    std::optional<CircuitTransition> transition = ReadRecord(generation, missed);
    if (!transition && !missed) return;
    // Acquire: pairs with the release below; missed_ goes from one who reports to the next.
    if (!reporter_.compare_exchange_strong(reporter, reporter | 1, std::memory_order_seq_cst, std::memory_order_relaxed)) {
      continue;
    }
    for (; told < circuit::kRecords; ++told) {
      transition = ReadRecord(generation, missed);
      if (!transition && !missed) break;
      if (missed) {
        ++missed_;
      } else {
        transition->missed = std::exchange(missed_, 0);
        transition->own = generation == own;
        Guarded([&] { settings_.observer(*transition); });
      }
      generation = (generation + 1) & (kGenerations - 1);
    }
    reporter_.store(generation << 1, std::memory_order_seq_cst);
    // And look again: a record that came after the last look found this thread reporting, and was left to it.
  }
}

// --- Reading ----------------------------------------------------------------------------------------------------------

template <class Atomics>
CircuitState CircuitCore<Atomics>::state() const noexcept {
  const std::uint64_t word = word_.load(std::memory_order_acquire);
  const CircuitState state = StateOf(word);
  return state == CircuitState::kOpen && OpenRest(word) == Duration::zero() ? CircuitState::kHalfOpen : state;
}

template <class Atomics>
Counts CircuitCore<Atomics>::counts() const noexcept {
  constexpr int kTries = 64;  // under constant change, what was read last must do
  Counts counts;
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t word = word_.load(std::memory_order_acquire);
    bool consistent = true;
    switch (StateOf(word)) {
      case CircuitState::kClosed:
        consistent = ReadClosed(word, counts);
        break;
      case CircuitState::kHalfOpen: {
        TallySeen seen;
        consistent = ReadTally(word, counts, seen);
        break;
      }
      case CircuitState::kOpen:
        counts = {};
        break;
    }
    if (consistent) break;
  }
  return counts;
}

template <class Atomics>
bool CircuitCore<Atomics>::ReadClosed(std::uint64_t word, Counts& counts) const noexcept {
  using View = ClosedView;
  counts = {};
  const std::uint64_t generation = GenerationOf(word);
  const std::uint64_t failures = failures_.load(std::memory_order_acquire);
  // Failures of another generation: none yet in this one.
  const std::uint64_t index = View::IndexGeneration(failures) == generation ? View::Index(failures) : 0;
  const std::uint64_t results = Successes(generation) + index;
  const std::uint64_t in_window = std::min<std::uint64_t>(results, settings_.window);
  View view{};
  view.index = index;
  view.last = ring_[(index - 1) & ring_mask_].load(std::memory_order_acquire);
  view.before_last = ring_[(index - 2) & ring_mask_].load(std::memory_order_acquire);
  view.run = run_.load(std::memory_order_acquire);
  const std::uint64_t from = index > ring_mask_ + 1 ? index - ring_mask_ - 1 : 0;
  counts.failures = std::min(WindowFailures(from, index, results), in_window);
  counts.successes = in_window - counts.failures;
  const std::uint64_t since_last =
      index == 0 ? results : View::Between(View::CellPosition(view.last), results & View::kPositionMask);
  if (index != 0 && since_last == 0) {
    counts.consecutive_failures = index - (view.LastBegins() ? index - 1 : View::Index(view.run));
  } else {
    counts.consecutive_successes = since_last;
  }
  return failures_.load(std::memory_order_acquire) == failures && word_.load(std::memory_order_acquire) == word;
}

template <class Atomics>
CircuitTotals CircuitCore<Atomics>::totals() const noexcept {
  CircuitTotals totals;
  for (std::uint64_t bank = 0; bank < kBanks; ++bank) totals.successes += SumBank(bank);
  totals.successes += Sum(&Line::probe_successes);
  totals.failures = Sum(&Line::failures);
  totals.ignored = Sum(&Line::ignored);
  totals.rejected = Sum(&Line::rejected);
  const auto entered = [&](CircuitState state) {
    return entered_[static_cast<std::size_t>(state)].load(std::memory_order_relaxed);
  };
  totals.entered_closed = entered(CircuitState::kClosed);
  totals.entered_open = entered(CircuitState::kOpen);
  totals.entered_half_open = entered(CircuitState::kHalfOpen);
  return totals;
}

// --- Counting ---------------------------------------------------------------------------------------------------------

template <class Atomics>
void CircuitCore<Atomics>::AddTo(Counter& counter, std::uint32_t line) noexcept {
  // Relaxed: as in SettleSuccess().
  if (line == Atomics::kLines - 1) {
    counter.fetch_add(1, std::memory_order_relaxed);
  } else {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

template <class Atomics>
void CircuitCore<Atomics>::Add(Counter Line::*counter) noexcept {
  const std::uint32_t line = OwnLine();
  AddTo(lines_[line].*counter, line);
}

template <class Atomics>
void CircuitCore<Atomics>::AddSuccess(std::uint64_t word) noexcept {
  const std::uint32_t line = OwnLine();
  AddTo(lines_[line].successes[GenerationOf(word) % kBanks], line);
}

template <class Atomics>
template <class Pick>
std::uint64_t CircuitCore<Atomics>::SumLines(const Pick& pick) const noexcept {
  std::uint64_t sum = pick(lines_[Atomics::kLines - 1]).load(std::memory_order_relaxed);
  const std::uint32_t used = Atomics::UsedLines();
  for (std::uint32_t line = 0; line < used; ++line) sum += pick(lines_[line]).load(std::memory_order_relaxed);
  return sum;
}

// Relaxed: see SettleSuccess() for what a failure must see; totals promise no moment.
template <class Atomics>
std::uint64_t CircuitCore<Atomics>::SumBank(std::uint64_t bank) const noexcept {
  return SumLines([bank](const Line& line) -> const Counter& { return line.successes[bank]; });
}

template <class Atomics>
std::uint64_t CircuitCore<Atomics>::Sum(Counter Line::*counter) const noexcept {
  return SumLines([counter](const Line& line) -> const Counter& { return line.*counter; });
}

// Of a closed generation, so far.
template <class Atomics>
std::uint64_t CircuitCore<Atomics>::Successes(std::uint64_t generation) const noexcept {
  const std::uint64_t base = base_[generation % kBanks].load(std::memory_order_acquire);
  return (SumBank(generation % kBanks) - base) & circuit::kSumMask;
}

}  // namespace penstock::inline v0::detail
