#pragma once

// What became of the start of a read or a write on a stream of a client's.
//
// gRPC aborts the process when a stream's operations are started out of turn. penstock's reactors refuse, change nothing, and say why.
//
//     if (const StreamStart started = talk.StartWrite(&message); started != StreamStart::kStarted) Log(Name(started));
//
// Threads: a plain value.
// Ownership: none.
// Time: none.
// Errors: is one.

#include <cstdint>

namespace penstock::inline v0 {

enum class StreamStart : std::uint8_t {
  kStarted,     // its OnReadDone or OnWriteDone will come
  kBusy,        // refused: the one before is not done
  kHalfClosed,  // refused: the writing side was closed by StartWritesDone or StartWriteLast
  kEnded,       // refused: the stream has ended
  kNotOpen,     // refused: a subscription between two streams
  kTooLarge,    // refused: a message of 2 GiB or more, which gRPC cannot send
};

const char* Name(StreamStart start) noexcept;

}  // namespace penstock::inline v0
