#pragma once

// Who may do what with a call, in one atomic word.
//
// A call is driven by one party at a time: the thread that starts it, the callback that ends its attempt, or the timer that ends
// a wait. Cancelling comes from any thread at any time: the caller, the deadline's timer, the parent, the client's closing.
// Between them lies gRPC's context, which must not be destroyed while somebody cancels it.
//
//     driving --BeginAttempt--> running --EndAttempt--> driving --BeginWait--> waiting --EndWait--> driving --Finish--> done
//
//     phase     Cancel() finds it        what the canceller does then
//     driving   notes the reason         nothing: the driver meets the reason at its next step
//     running   notes it and claims      TryCancel on the context, then LetGo(); an attempt that ended meanwhile has left
//                                        the driving to the canceller
//     waiting   notes it                 drives on: the wait's timer will find that it is too late
//     done      nothing                  nothing
//
// The first reason stays, and after one there is no further attempt and no further wait. So a word is claimed at most once, and
// a canceller that drives has only the end before it.
//
// The words that decide are read-modify-writes of one atomic, so they have one order that all threads agree on; what a driver
// wrote is seen by the next one because each step that hands the driving over is a release and each that takes it an acquire.
// No gRPC, no I/O. `Atomic` is std::atomic but for the model checker.

#include <atomic>
#include <cassert>
#include <cstdint>

#include "penstock/client/detail/live_call.h"

namespace penstock::inline v0::detail {

template <template <class> class Atomic = std::atomic>
class CallWord {
 public:
  enum class Canceller : unsigned char {
    kNothing,    // The call was cancelled already, has ended, or its driver sees to it.
    kTryCancel,  // Cancel the context, then call LetGo().
    kDrive,      // The caller of Cancel() drives the call now.
  };

  // For a call that starts (again); nobody else knows it yet. The one that starts it drives.
  void Reset() noexcept {
    // relaxed: the call is published by the first step that follows.
    word_.store(kDriving, std::memory_order_relaxed);
  }

  // The driver, with a context that is ready. True: the attempt may be started, and from here on the driver touches
  // nothing of the call but by starting it. False: the call was cancelled and the driver goes on.
  bool BeginAttempt() noexcept {
    std::uint32_t seen = kDriving;
    // release: pairs with the acquire in Cancel() and EndAttempt(): they see the context. acquire on failure: the reason.
    if (word_.compare_exchange_strong(seen, kRunning, std::memory_order_release, std::memory_order_acquire)) return true;
    // A reason, or a stale timer's note after one; a driver that has ended a wait by its timer has taken the note away.
    return false;
  }

  // The attempt's end. True: the caller drives. False: somebody is cancelling the context and drives on; nothing of the
  // call may be touched any more.
  bool EndAttempt() noexcept {
    std::uint32_t seen = kRunning;
    for (;;) {
      const bool claimed = (seen & kClaimed) != 0;
      const std::uint32_t next = claimed ? (seen | kEnded) : ((seen & ~kPhase) | kDriving);
      // release: the canceller that drives on sees the attempt's status; acquire: pairs with Cancel() and LetGo(), whose use of
      // the context is over.
      if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed)) return !claimed;
    }
  }

  // The driver, with the wait's timer armed. True: the call waits, and whoever ends the wait drives. False: the driver goes
  // on, since the timer has fired already or the call was cancelled.
  bool BeginWait() noexcept {
    std::uint32_t seen = kDriving;
    for (;;) {
      const bool over = (seen & (kReason | kTimerFired)) != 0;
      const std::uint32_t next = over ? (seen & ~kTimerFired) : kWaiting;
      // release: pairs with the acquire of whoever ends the wait; acquire: the reason.
      if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed)) return !over;
    }
  }

  // The wait's timer. True: the caller drives. False: it came before BeginWait() or after a cancel; others see to it.
  bool EndWait() noexcept {
    // relaxed: only a guess, confirmed by the exchange.
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      const bool waiting = (seen & kPhase) == kWaiting;
      const std::uint32_t next = waiting ? ((seen & ~kPhase) | kDriving) : (seen | kTimerFired);
      // acquire: pairs with the release in BeginWait(); release: pairs with BeginWait()'s acquire, for the note.
      if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed)) return waiting;
    }
  }

  // Anyone who holds a reference.
  Canceller Cancel(CancelReason reason) noexcept {
    assert(reason != CancelReason::kNone);
    // relaxed: only a guess, confirmed by the exchange.
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      const std::uint32_t phase = seen & kPhase;
      if (phase == kDone || (seen & kReason) != 0) return Canceller::kNothing;
      std::uint32_t next = seen | (static_cast<std::uint32_t>(reason) << kReasonShift);
      if (phase == kRunning) next |= kClaimed;
      if (phase == kWaiting) next = (next & ~kPhase) | kDriving;
      // acquire: pairs with BeginAttempt() (the context) and BeginWait(); release: pairs with the driver's acquire.
      if (!word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
      if (phase == kRunning) return Canceller::kTryCancel;
      return phase == kWaiting ? Canceller::kDrive : Canceller::kNothing;
    }
  }

  // After the cancelling of the context. True: the attempt has ended meanwhile and the caller drives.
  bool LetGo() noexcept {
    // relaxed: only a guess, confirmed by the exchange.
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      assert((seen & kClaimed) != 0 && (seen & kPhase) == kRunning);
      const bool ended = (seen & kEnded) != 0;
      std::uint32_t next = seen & ~(kClaimed | kEnded);
      if (ended) next = (next & ~kPhase) | kDriving;
      // release: the context is no longer touched; acquire: pairs with EndAttempt(): the attempt's status.
      if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed)) return ended;
    }
  }

  // The driver, once the call's result stands: later cancels do nothing.
  void Finish() noexcept {
    // release: pairs with nobody who goes on to act; the exchange only has to come after everything the driver decided.
    word_.store(kDone, std::memory_order_release);
  }

  // For the driver: a reason that it has not met yet may come at any time before Finish().
  CancelReason reason() const noexcept {
    // acquire: pairs with the release in Cancel().
    return static_cast<CancelReason>((word_.load(std::memory_order_acquire) & kReason) >> kReasonShift);
  }

  bool done() const noexcept {
    // acquire: pairs with the release in Finish().
    return (word_.load(std::memory_order_acquire) & kPhase) == kDone;
  }

 private:
  static constexpr std::uint32_t kPhase = 0x3;
  static constexpr std::uint32_t kDriving = 0;
  static constexpr std::uint32_t kRunning = 1;
  static constexpr std::uint32_t kWaiting = 2;
  static constexpr std::uint32_t kDone = 3;
  static constexpr std::uint32_t kReasonShift = 2;
  static constexpr std::uint32_t kReason = 0x7u << kReasonShift;
  static constexpr std::uint32_t kClaimed = 1u << 5;     // Somebody is cancelling the context.
  static constexpr std::uint32_t kEnded = 1u << 6;       // The attempt ended while claimed.
  static constexpr std::uint32_t kTimerFired = 1u << 7;  // The wait's timer fired before the wait had begun.

  Atomic<std::uint32_t> word_{kDone};
};

}  // namespace penstock::inline v0::detail
