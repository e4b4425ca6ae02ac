#pragma once

// Stops calling a dependency that is down, and finds out when it is back.
//
// Calls to a dependency that does not answer cost their callers a whole timeout each, and keep it from getting up. A
// circuit breaker counts how calls end: while too many fail it rejects further ones at once, and after a while lets a few
// through to see whether the dependency is back. It guards any dependency: a gRPC service, a database, a disk.
//
//     auto breaker = penstock::CircuitBreaker::Create({.open_for = 10s});
//     if (!breaker.ok()) return Fail(breaker.error().message());
//     auto admission = (*breaker)->Acquire();
//     if (!admission.admitted()) return Busy(admission.rejected_for());
//     admission.ticket().Settle(Query() ? Outcome::kSuccess : Outcome::kFailure);
//
// Threads: every member may be called from any thread; lock-free, no allocation after Create() but for a thread's first use (of
// the process's first breaker that it uses). A ticket is a plain value: it may travel between threads, but is used by one at a time.
// Ownership: one breaker for one dependency; it must outlive its tickets, and no callback may destroy it.
// Time: monotonic, from settings.clock. While closed, neither admitting nor settling a success reads it.
// Errors: Create() refuses settings out of range, all of them in one message. Nothing else fails; what a policy or the
// observer throws is caught and told to settings.error_observer.

#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "penstock/core/circuit_breaker_settings.h"
#include "penstock/core/detail/circuit_core.h"
#include "penstock/core/detail/process_atomics.h"
#include "penstock/core/result.h"

namespace penstock::inline v0 {

class CircuitBreaker;

// The right to make one call, to be settled once with how it ended.
class [[nodiscard]] CircuitTicket {
 public:
  // Holds nothing: settling it is an error, destroying it is fine.
  CircuitTicket() noexcept = default;

  CircuitTicket(CircuitTicket&& other) noexcept
      : breaker_(std::exchange(other.breaker_, nullptr)), number_(other.number_), slot_(other.slot_) {}
  CircuitTicket& operator=(CircuitTicket&& other) noexcept {
    CircuitTicket dropped(std::move(*this));
    breaker_ = std::exchange(other.breaker_, nullptr);
    number_ = other.number_;
    slot_ = other.slot_;
    return *this;
  }

  // A ticket that was not settled counts as ignored.
  ~CircuitTicket() {
    if (breaker_ != nullptr) Settle(Outcome::kIgnored);
  }

  // Says how the call ended; the ticket holds nothing afterwards. Settling one that holds nothing (settled before, moved
  // from) is a programming error: an assertion, and without assertions no effect.
  void Settle(Outcome outcome) noexcept;

  // True until it is settled or moved from.
  bool held() const noexcept { return breaker_ != nullptr; }

  // True for a call that was admitted half-open.
  bool is_probe() const noexcept { return slot_ != kNoSlot; }

 private:
  friend class CircuitBreaker;
  static constexpr std::uint32_t kNoSlot = detail::kNoProbeSlot;

  CircuitTicket(CircuitBreaker* breaker, std::uint64_t number, std::uint32_t slot) noexcept
      : breaker_(breaker), number_(number), slot_(slot) {}

  CircuitBreaker* breaker_ = nullptr;
  std::uint64_t number_ = 0;  // what the core settles it by
  std::uint32_t slot_ = kNoSlot;
};
static_assert(sizeof(CircuitTicket) <= 32);

// Whether a call may be made.
class [[nodiscard]] Admission {
 public:
  bool admitted() const noexcept { return ticket_.held(); }
  explicit operator bool() const noexcept { return admitted(); }

  // Only where admitted.
  CircuitTicket& ticket() noexcept { return ticket_; }
  CircuitTicket TakeTicket() noexcept { return std::move(ticket_); }

  // Rejected by an open breaker: how much longer it stays open (above 0). Otherwise zero.
  Duration rejected_for() const noexcept { return rejected_for_; }

  // Rejected because the breaker is half-open and every probe slot is taken.
  bool probes_taken() const noexcept { return probes_taken_; }

 private:
  friend class CircuitBreaker;
  explicit Admission(CircuitTicket ticket) noexcept : ticket_(std::move(ticket)) {}
  explicit Admission(Duration rejected_for) noexcept
      : rejected_for_(rejected_for), probes_taken_(rejected_for == Duration::zero()) {}

  CircuitTicket ticket_;
  Duration rejected_for_{};
  bool probes_taken_ = false;
};

class CircuitBreaker {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CircuitBreaker>> Create(CircuitBreakerSettings settings = {});
  CircuitBreaker(const CircuitBreaker&) = delete;
  CircuitBreaker& operator=(const CircuitBreaker&) = delete;

  // Admits a call or rejects it; makes and reports the change to half-open if open_for has passed.
  Admission Acquire() noexcept {
    const std::uint64_t word = core_.LoadWord();
    if (Core::IsClosed(word)) [[likely]] return Admission(CircuitTicket(this, word, CircuitTicket::kNoSlot));
    // The core answers in plain values, so that no address of an admission is taken and it lives in registers.
    const Core::Pass pass = core_.AcquireSlow(word);
    if (!pass.admitted) return Admission(pass.rejected_for);
    return Admission(CircuitTicket(this, pass.number, pass.slot));
  }

  // The state as of now: half-open once open_for has passed, though only the next Acquire() makes the change.
  CircuitState state() const noexcept { return core_.state(); }

  // What was recorded in the current state. Exact while no other thread settles, else as of some moment during the call.
  Counts counts() const noexcept { return core_.counts(); }

  CircuitTotals totals() const noexcept { return core_.totals(); }

 private:
  friend class CircuitTicket;
  using Core = detail::CircuitCore<detail::ProcessAtomics>;

  explicit CircuitBreaker(CircuitBreakerSettings settings) : core_(std::move(settings)) {}

  Core core_;
};

inline void CircuitTicket::Settle(Outcome outcome) noexcept {
  assert(breaker_ != nullptr && "a circuit ticket is settled once");
  CircuitBreaker* breaker = std::exchange(breaker_, nullptr);
  if (breaker == nullptr) [[unlikely]] return;
  // The usual end is inlined; everything else is a call.
  if (outcome == Outcome::kSuccess && slot_ == kNoSlot && breaker->core_.SettleSuccess(number_)) [[likely]] return;
  breaker->core_.Settle(number_, slot_, outcome);
}

}  // namespace penstock::inline v0
