#pragma once

// The two sides of a stream as state machines: what the user asked for, what gRPC has been asked for, and what follows
// from each event. They start nothing and tell nobody; StreamCore does what they say.
//
// Threads: none of their own; their owner locks.

#include <cstdint>

#include "penstock/client/stream_start.h"

namespace penstock::inline v0 {

namespace detail {

// The reading side. A read is outstanding at gRPC whenever no message waits for the user, since only a read tells that a
// stream has ended. What arrives before the user has asked is kept: one message at most.
//
//   state      at gRPC  user     event → next
//   kOff                         AttemptStarted → kPosted          Asked → kOffAsked
//   kOffAsked           asked    AttemptStarted → kWanted
//   kPosted    read              Asked → kWanted                   Arrived → kKept
//   kWanted    read     asked    Arrived → kTelling (tell him)
//   kKept                        Asked → kHopping (tell him from a callback thread)
//                                Drop → kPosted (post)
//   kHopping            asked    Hopped → kTelling
//   kTelling            told     Asked → kAskedAgain               Told → kPosted (post)
//   kAskedAgain         asked    Told → kWanted (post)
//   kOver
//
// AttemptFailed (the opening is tried again): kPosted → kOff, kWanted → kOffAsked. Ended: any → kOver; a user who has asked
// is told that there is nothing more.
class ReadSide {
 public:
  enum class State : std::uint8_t { kOff, kOffAsked, kPosted, kWanted, kKept, kHopping, kTelling, kAskedAgain, kOver };
  enum class OnAsk : std::uint8_t { kBusy, kEnded, kWait, kHop };
  enum class OnArrival : std::uint8_t { kKeep, kTell };

  // The user asks for the next message.
  OnAsk Asked() noexcept;
  // A read has to be posted with the new attempt; true when the user waits for it.
  bool AttemptStarted() noexcept;
  // The posted read brought a message.
  OnArrival Arrived() noexcept;
  // The hop that was asked for by kHop has arrived: the kept message is told now.
  void Hopped() noexcept { state_ = State::kTelling; }
  // The user's OnReadDone(true) has returned, and a read has to be posted; true when the user waits for it.
  bool Told() noexcept;
  // The stream was cancelled, and a kept message keeps its end from being heard: true when one was, and a read has to be posted.
  bool Drop() noexcept;
  void AttemptFailed() noexcept;
  // True when the user has asked and has to be told that there is nothing more.
  bool Ended() noexcept;

  State state() const noexcept { return state_; }

 private:
  State state_ = State::kOff;
};

// The writing side: one write at a time. A write that failed before the stream opened is neither told nor lost: it is
// written again with the next attempt (S2), or told as failed when there is none.
//
//   state      event → next
//   kIdle      Asked → kAsked
//   kAsked     Issue → kIssued
//   kIssued    Written(true) → kIdle (tell)      Written(false) → kFailed
//   kFailed    Issue (next attempt) → kIssued    Tell → kIdle
//   kOver
//
// The half-close is asked once, by StartWritesDone or with the last write, and issued when no write is in the way.
class WriteSide {
 public:
  enum class State : std::uint8_t { kIdle, kAsked, kIssued, kFailed, kOver };
  enum class HalfClose : std::uint8_t { kOpen, kAsked, kIssued, kDone, kWithLastWrite };

  StreamStart Asked(bool last) noexcept;
  StreamStart WritesDoneAsked() noexcept;

  // What can be handed to gRPC now, each at most once. Called when an attempt runs.
  bool IssueWrite() noexcept;
  bool IssueHalfClose() noexcept;

  // A new attempt: what the last one was given has to be given again.
  void AttemptFailed() noexcept;

  // The write at gRPC has ended. True when the user is to be told now; a failure before the opening waits.
  bool Written(bool ok, bool opened) noexcept;
  // Likewise the half-close.
  bool HalfClosed(bool ok, bool opened) noexcept;

  struct Untold {
    bool write = false;
    bool half_close = false;
  };
  // The stream has ended: what the user still has to be told, as failed.
  Untold Ended() noexcept;

  State state() const noexcept { return state_; }
  HalfClose half_close() const noexcept { return half_close_; }

 private:
  State state_ = State::kIdle;
  HalfClose half_close_ = HalfClose::kOpen;
};

}  // namespace detail
}  // namespace penstock::inline v0
