#include "penstock/client/detail/stream_sides.h"

namespace penstock::inline v0::detail {

ReadSide::OnAsk ReadSide::Asked() noexcept {
  switch (state_) {
    case State::kOff:
      state_ = State::kOffAsked;
      return OnAsk::kWait;
    case State::kPosted:
      state_ = State::kWanted;
      return OnAsk::kWait;
    case State::kTelling:
      state_ = State::kAskedAgain;
      return OnAsk::kWait;
    case State::kKept:
      state_ = State::kHopping;
      return OnAsk::kHop;
    case State::kOffAsked:
    case State::kWanted:
    case State::kHopping:
    case State::kAskedAgain:
      return OnAsk::kBusy;
    case State::kOver:
      return OnAsk::kEnded;
  }
  return OnAsk::kEnded;
}

bool ReadSide::AttemptStarted() noexcept {
  const bool asked = state_ == State::kOffAsked;
  state_ = asked ? State::kWanted : State::kPosted;
  return asked;
}

ReadSide::OnArrival ReadSide::Arrived() noexcept {
  if (state_ == State::kWanted) {
    state_ = State::kTelling;
    return OnArrival::kTell;
  }
  state_ = State::kKept;
  return OnArrival::kKeep;
}

bool ReadSide::Told() noexcept {
  const bool asked = state_ == State::kAskedAgain;
  state_ = asked ? State::kWanted : State::kPosted;
  return asked;
}

bool ReadSide::Drop() noexcept {
  if (state_ != State::kKept) return false;
  state_ = State::kPosted;
  return true;
}

void ReadSide::AttemptFailed() noexcept {
  if (state_ == State::kPosted) state_ = State::kOff;
  if (state_ == State::kWanted) state_ = State::kOffAsked;
}

bool ReadSide::Ended() noexcept {
  const bool waits = state_ == State::kOffAsked || state_ == State::kWanted;
  state_ = State::kOver;
  return waits;
}

StreamStart WriteSide::Asked(bool last) noexcept {
  if (state_ == State::kOver) return StreamStart::kEnded;
  if (half_close_ != HalfClose::kOpen) return StreamStart::kHalfClosed;
  if (state_ != State::kIdle) return StreamStart::kBusy;
  state_ = State::kAsked;
  if (last) half_close_ = HalfClose::kWithLastWrite;
  return StreamStart::kStarted;
}

StreamStart WriteSide::WritesDoneAsked() noexcept {
  if (state_ == State::kOver) return StreamStart::kEnded;
  if (half_close_ != HalfClose::kOpen) return StreamStart::kHalfClosed;
  half_close_ = HalfClose::kAsked;
  return StreamStart::kStarted;
}

bool WriteSide::IssueWrite() noexcept {
  if (state_ != State::kAsked) return false;
  state_ = State::kIssued;
  return true;
}

bool WriteSide::IssueHalfClose() noexcept {
  if (half_close_ != HalfClose::kAsked || state_ != State::kIdle) return false;
  half_close_ = HalfClose::kIssued;
  return true;
}

void WriteSide::AttemptFailed() noexcept {
  if (state_ == State::kFailed) state_ = State::kAsked;
  if (half_close_ == HalfClose::kIssued) half_close_ = HalfClose::kAsked;
}

bool WriteSide::Written(bool ok, bool opened) noexcept {
  if (state_ != State::kIssued) return false;
  if (ok || opened) {
    state_ = State::kIdle;
    return true;
  }
  state_ = State::kFailed;
  return false;
}

bool WriteSide::HalfClosed(bool ok, bool opened) noexcept {
  if (half_close_ != HalfClose::kIssued) return false;
  // Before the opening a failure waits for what becomes of the attempt.
  if (!ok && !opened) return false;
  half_close_ = HalfClose::kDone;
  return true;
}

WriteSide::Untold WriteSide::Ended() noexcept {
  Untold untold;
  untold.write = state_ == State::kAsked || state_ == State::kFailed || state_ == State::kIssued;
  untold.half_close = half_close_ == HalfClose::kAsked || half_close_ == HalfClose::kIssued;
  state_ = State::kOver;
  return untold;
}

}  // namespace penstock::inline v0::detail

namespace penstock::inline v0 {

const char* Name(StreamStart start) noexcept {
  switch (start) {
    case StreamStart::kStarted:
      return "started";
    case StreamStart::kBusy:
      return "busy";
    case StreamStart::kHalfClosed:
      return "half-closed";
    case StreamStart::kEnded:
      return "ended";
    case StreamStart::kNotOpen:
      return "not open";
    case StreamStart::kTooLarge:
      return "too large";
  }
  return "unknown";
}

}  // namespace penstock::inline v0
