#pragma once

// In what order a server leaves (behaviour.md V3), as a state machine: events in, actions out, no I/O.

#include <chrono>
#include <cstdint>
#include <optional>

#include "penstock/core/clock.h"
#include "penstock/server/settings.h"

namespace penstock::inline v0::detail {

// What the driver is to do, in the order of the members.
struct ShutdownActions {
  bool start_drain = false;     // health turns NOT_SERVING; arm the drain's timer
  bool start_grace = false;     // arm the grace's timer
  bool stop_listening = false;  // by the public functions; only in the order kStopFirst
  bool send_goaways = false;
  bool end_streams = false;
  bool stop = false;            // cancel what is left and take the server down
  bool abandon = false;         // it does not come down: go without it
};

struct ShutdownView {
  TimePoint now;                   // of the real clock
  std::optional<int> connections;  // without those in their handshake; nothing when it cannot be told
  std::uint64_t in_flight = 0;     // calls and streams
  std::uint64_t unanswered = 0;    // those of them that have no status yet
  std::uint64_t started = 0;       // since the server's start, health checks apart
};

class ShutdownPlan {
 public:
  // kServing    Begin -> kDraining
  // kDraining   DrainOver -> kAnnouncing, or kEmptying when listening stops first
  // kAnnouncing serving, with GOAWAY at every tick; after the handshake window: end the streams -> kEmptying
  // kEmptying   serving, with GOAWAY at every tick; no connection left, or quiet for 2 s -> kStopping.
  //             Stopping first: nothing in flight -> kLingering
  // kLingering  500 ms for what is on the wire -> kStopping
  // kExpiring   the grace is over or somebody is in a hurry: 100 ms for the streams' end to go out -> kStopping
  // kStopping   the server was told to come down: Stopped, or 800 ms after the grace's end abandoned -> kStopped
  enum class State { kServing, kDraining, kAnnouncing, kEmptying, kLingering, kExpiring, kStopping, kStopped };

  static constexpr Duration kQuiet = std::chrono::seconds(2);
  static constexpr Duration kLinger = std::chrono::milliseconds(500);
  static constexpr Duration kLastWrites = std::chrono::milliseconds(100);
  static constexpr Duration kComingDown = std::chrono::milliseconds(700);

  ShutdownPlan(ShutdownOrder order, Duration handshake_window) noexcept
      : order_(order), handshake_window_(handshake_window) {}

  ShutdownActions Begin() noexcept;
  ShutdownActions DrainOver(TimePoint now) noexcept;
  // The grace is over, or a second signal came, in whatever state.
  ShutdownActions Expire(TimePoint now) noexcept;
  // Every 10 ms while ticking().
  ShutdownActions Tick(const ShutdownView& view) noexcept;
  // The server came down.
  void Stopped() noexcept { state_ = State::kStopped; }

  State state() const noexcept { return state_; }
  bool ticking() const noexcept { return state_ > State::kDraining && state_ < State::kStopped; }
  // Calls were cancelled, or handlers never finished.
  bool abandoned() const noexcept { return abandoned_; }

 private:
  ShutdownActions Stop(const ShutdownView& view, bool cancelling) noexcept;

  const ShutdownOrder order_;
  const Duration handshake_window_;
  State state_ = State::kServing;
  bool streams_ended_ = false;
  bool expired_ = false;
  bool abandoned_ = false;
  TimePoint since_{};    // of the state
  TimePoint expired_at_{};
  std::optional<TimePoint> quiet_since_;
  std::uint64_t started_ = 0;  // as last seen
};

}  // namespace penstock::inline v0::detail
