#pragma once

// A subscription's message while it is paused (behaviour.md S8): when it is handed over, and what waits for that. Events in,
// answers out; no I/O, no lock: SubscriptionCore asks under its own.
//
//     none --Arrived (paused)--> held --Resume--> posted --Begin--> delivering --Delivered--> none
//                                  ^                |
//                                  +-- Begin (paused again)
//
// A stream that ends in any state but `none` parks the driving: whoever is told to drive goes on with it. No further message comes
// before Delivered(), since none is read. A cancel drops a message that waits (held or posted --> none), so that nothing is
// left for a Resume() to hand over once the subscription has ended.

#include <cstdint>
#include <utility>

namespace penstock::inline v0::detail {

class HeldMessage {
 public:
  enum class OnBegin : std::uint8_t {
    kTell,     // Hand the message over, then call Delivered().
    kNothing,  // It goes on waiting.
    kDrive,    // It is not wanted any more, and the driving is the caller's.
  };

  void Pause() noexcept { paused_ = true; }

  // True: the delivery has to be posted.
  bool Resume() noexcept {
    paused_ = false;
    if (state_ != State::kHeld) return false;
    state_ = State::kPosted;
    return true;
  }

  // True: the message is told at once. False: it is held.
  bool Arrived() noexcept {
    if (paused_) state_ = State::kHeld;
    return !paused_;
  }

  // The posted delivery runs.
  OnBegin Begin(bool cancelled) noexcept {
    if (cancelled) {
      state_ = State::kNone;
      return std::exchange(parked_, false) ? OnBegin::kDrive : OnBegin::kNothing;
    }
    // Paused again: the next Resume() posts again.
    state_ = paused_ ? State::kHeld : State::kDelivering;
    return paused_ ? OnBegin::kNothing : OnBegin::kTell;
  }

  // The message was handed over. True: the caller drives.
  bool Delivered() noexcept {
    state_ = State::kNone;
    return std::exchange(parked_, false);
  }

  // The stream has ended. True: the driving is parked.
  bool StreamEnded(bool cancelled) noexcept {
    if (cancelled && state_ == State::kHeld) state_ = State::kNone;
    parked_ = state_ != State::kNone;
    return parked_;
  }

  // The subscription was cancelled. True: the canceller drives; a delivery that is under way does it otherwise.
  bool Cancelled() noexcept {
    if (state_ != State::kHeld) return false;
    state_ = State::kNone;
    return std::exchange(parked_, false);
  }

 private:
  enum class State : std::uint8_t { kNone, kHeld, kPosted, kDelivering };
  State state_ = State::kNone;
  bool paused_ = false;
  bool parked_ = false;
};

}  // namespace penstock::inline v0::detail
