#pragma once

// The word that orders what may happen to a server reactor at once: starts, holds and the one finish.
//
// A stream may be finished by its own code, by a cancellation and by the server's shutdown at the same moment, while
// another thread starts a write. gRPC allows one finish and nothing after it. So whoever starts something holds the word
// meanwhile; a finish is claimed by whoever comes first, and made by the last one to let go:
//
//     flags:  reading | writing | written | headers | claimed (a finish is on its way) | ready (its status is stored) |
//             finished (gRPC has it)
//     above:  the number of holds
//
//     Enter   not claimed, and not yet the flag:  +1 hold, + the flag
//     Claim   not claimed:                        +1 hold, + claimed
//     Settle  + ready, then Leave
//     Leave   -1 hold; with `ready`, no hold left and not `finished`: + finished, and the finish is the leaver's to make
//
// Once a finish is made, OnDone may come on another thread and delete the reactor: Leave() touches the word no more once
// it has let go, unless the finish is its own to make.

#include <atomic>
#include <cstdint>

namespace penstock::inline v0::detail {

template <template <class> class Atomic>
class BasicReactorWord {
 public:
  static constexpr std::uint32_t kReading = 1u << 0;
  static constexpr std::uint32_t kWriting = 1u << 1;
  static constexpr std::uint32_t kWritten = 1u << 2;
  static constexpr std::uint32_t kHeaders = 1u << 3;
  static constexpr std::uint32_t kClaimed = 1u << 4;
  static constexpr std::uint32_t kReady = 1u << 5;
  static constexpr std::uint32_t kFinished = 1u << 6;
  static constexpr std::uint32_t kHold = 1u << 8;

  // Takes a hold and sets `flag`, unless a finish is on its way or one of `unless` is set.
  bool Enter(std::uint32_t flag, std::uint32_t unless) noexcept { return Take(flag, unless); }

  // True for the one who may store how the call ends; Settle() follows.
  bool Claim(std::uint32_t unless) noexcept { return Take(kClaimed, unless); }

  // Lets go of a hold. True: the finish is the caller's to make.
  [[nodiscard]] bool Leave() noexcept {
    // acq_rel: what was started under the hold comes before the finish, and the status that Settle() published is seen.
    std::uint32_t state = word_.fetch_sub(kHold, std::memory_order_acq_rel) - kHold;
    while ((state & kReady) != 0 && state < kHold && (state & kFinished) == 0) {
      if (word_.compare_exchange_weak(state, state | kFinished, std::memory_order_acq_rel, std::memory_order_acquire)) {
        return true;
      }
    }
    return false;
  }

  // The claimer has stored the status. True: the finish is the caller's to make.
  [[nodiscard]] bool Settle() noexcept {
    word_.fetch_or(kReady, std::memory_order_acq_rel);  // release: publishes the status to whoever leaves last
    return Leave();
  }

  void Set(std::uint32_t flag) noexcept { word_.fetch_or(flag, std::memory_order_acq_rel); }
  void Clear(std::uint32_t flag) noexcept { word_.fetch_and(~flag, std::memory_order_acq_rel); }
  bool Has(std::uint32_t flag) const noexcept { return (word_.load(std::memory_order_acquire) & flag) != 0; }

 private:
  bool Take(std::uint32_t flag, std::uint32_t unless) noexcept {
    std::uint32_t state = word_.load(std::memory_order_acquire);
    do {
      if ((state & (kClaimed | unless)) != 0) return false;
      // acq_rel: after a Leave() or Clear() of another thread, before whoever makes the finish.
    } while (!word_.compare_exchange_weak(state, (state | flag) + kHold, std::memory_order_acq_rel, std::memory_order_acquire));
    return true;
  }

  Atomic<std::uint32_t> word_{0};
};

using ReactorWord = BasicReactorWord<std::atomic>;

}  // namespace penstock::inline v0::detail
