#pragma once

// What a server says about retrying, in the trailer grpc-retry-pushback-ms (C4, G4).
//
//     switch (Pushback pushback = ReadPushback(context.GetServerTrailingMetadata()); pushback.kind) { ... }
//
// Threads: pure functions.
// Ownership: values.
// Time: milliseconds on the wire, nanoseconds here, held at the end of the range.
// Errors: whatever is no whole number from 0 up means "do not retry" (gRFC A6).

#include <iterator>
#include <string_view>

#include "penstock/core/clock.h"

namespace penstock::inline v0::detail {

inline constexpr std::string_view kPushbackKey = "grpc-retry-pushback-ms";

struct Pushback {
  enum class Kind {
    kNone,   // The server said nothing.
    kAfter,  // Not before `after` has passed.
    kStop,   // Not at all.
  };
  Kind kind = Kind::kNone;
  Duration after{};  // 0 up; Duration::max() for what does not fit.

  friend bool operator==(const Pushback&, const Pushback&) = default;
};

// One value of the trailer: digits alone. C-core hands malformed ones on as the least 64-bit integer, which is negative
// and so reads as it should.
Pushback ParsePushback(std::string_view value) noexcept;

// Of a call's trailers (a multimap of string_refs, such as ClientContext::GetServerTrailingMetadata()). Given twice is
// kStop.
template <class Trailers>
Pushback ReadPushback(const Trailers& trailers) {
  using Key = typename Trailers::key_type;
  const auto [first, last] = trailers.equal_range(Key(kPushbackKey.data(), kPushbackKey.size()));
  if (first == last) return {};
  if (std::next(first) != last) return {Pushback::Kind::kStop, {}};
  return ParsePushback(std::string_view(first->second.data(), first->second.size()));
}

}  // namespace penstock::inline v0::detail
