#include "shutdown_plan.h"

#include <utility>

namespace penstock::inline v0::detail {

ShutdownActions ShutdownPlan::Begin() noexcept {
  ShutdownActions actions;
  if (state_ != State::kServing) return actions;
  state_ = State::kDraining;
  actions.start_drain = true;
  return actions;
}

ShutdownActions ShutdownPlan::DrainOver(TimePoint now) noexcept {
  ShutdownActions actions;
  if (state_ != State::kDraining) return actions;
  since_ = now;
  actions.start_grace = true;
  switch (order_) {
    case ShutdownOrder::kServeToTheEnd:
      state_ = State::kAnnouncing;
      actions.send_goaways = true;
      break;
    case ShutdownOrder::kStopFirst:
      // The GOAWAY is queued on every connection before the streams' trailers, and control frames are flushed first.
      state_ = State::kEmptying;
      actions.stop_listening = true;
      actions.end_streams = streams_ended_ = true;
      break;
  }
  return actions;
}

ShutdownActions ShutdownPlan::Expire(TimePoint now) noexcept {
  ShutdownActions actions;
  switch (state_) {
    case State::kServing:
    case State::kDraining:
    case State::kAnnouncing:
    case State::kEmptying:
    case State::kLingering:
      if (state_ <= State::kDraining) actions.start_drain = state_ == State::kServing;
      state_ = State::kExpiring;
      since_ = now;
      actions.send_goaways = order_ == ShutdownOrder::kServeToTheEnd;
      actions.end_streams = !streams_ended_;
      streams_ended_ = true;
      break;
    case State::kExpiring:
    case State::kStopping:
    case State::kStopped:
      break;
  }
  if (!expired_) {
    expired_ = true;
    expired_at_ = now;
  }
  return actions;
}

ShutdownActions ShutdownPlan::Stop(const ShutdownView& view, bool cancelling) noexcept {
  ShutdownActions actions;
  state_ = State::kStopping;
  since_ = view.now;
  abandoned_ = abandoned_ || (cancelling && view.unanswered > 0);
  actions.stop = true;
  return actions;
}

ShutdownActions ShutdownPlan::Tick(const ShutdownView& view) noexcept {
  ShutdownActions actions;
  switch (state_) {
    case State::kServing:
    case State::kDraining:
    case State::kStopped:
      return actions;

    case State::kAnnouncing:
      actions.send_goaways = true;
      if (view.now - since_ >= handshake_window_) {
        actions.end_streams = streams_ended_ = true;
        state_ = State::kEmptying;
        since_ = view.now;
      }
      return actions;

    case State::kEmptying:
      // A call that came and went since the last look was in flight, too.
      if (view.in_flight > 0 || std::exchange(started_, view.started) != view.started) quiet_since_.reset();
      if (view.in_flight == 0) {
        if (order_ == ShutdownOrder::kStopFirst) {
          state_ = State::kLingering;
          since_ = view.now;
          return actions;
        }
        if (!quiet_since_) quiet_since_ = view.now;
        if (view.now - *quiet_since_ >= kQuiet) return Stop(view, false);
      }
      // Each client has read its GOAWAY. Handlers whose clients are gone may still run: coming down waits for them.
      if (view.connections == 0) return Stop(view, false);
      actions.send_goaways = order_ == ShutdownOrder::kServeToTheEnd;
      return actions;

    case State::kLingering:
      if (view.connections == 0 || view.now - since_ >= kLinger) return Stop(view, false);
      return actions;

    case State::kExpiring:
      if (view.in_flight == 0 || view.now - since_ >= kLastWrites) return Stop(view, true);
      return actions;

    case State::kStopping:
      if (expired_ && view.now - (expired_at_ > since_ ? expired_at_ : since_) >= kComingDown) {
        abandoned_ = true;
        state_ = State::kStopped;
        actions.abandon = true;
      }
      return actions;
  }
  return actions;
}

}  // namespace penstock::inline v0::detail
