#pragma once

// How long a status message, and what travels with it, may be (G2).
//
// A message travels percent-encoded in the trailers, beside everything else in them, under a limit (kMostHeaderBytes)
// whose excess drops the whole connection with every other call on it. So it is cut well before, and what a handler adds is
// bounded.
//
//     finish(grpc::Status(code, CutStatusText(message)));
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: none; bytes that are no UTF-8 pass as they are.

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/metadata.h"

namespace penstock::inline v0::detail {

// What a message may take in the trailers, its mark included.
inline constexpr std::size_t kLongestStatusText = 1024;
// Ends a message that was cut.
inline constexpr std::string_view kCutMark = "...[cut]";

// What trailers may come to, the status details included, the message aside.
inline constexpr std::size_t kMostTrailers = kMostHeaderBytes - 2 * 1024;
inline constexpr std::string_view kDetailsKey = "grpc-status-details-bin";

// The size of `text` as gRPC encodes it: 0x20 to 0x7e but '%' as they are, every other byte as %HH.
std::size_t EncodedSize(std::string_view text) noexcept;

// `text` itself when it fits, else as much of it as fits with the mark, cut between two characters.
std::string CutStatusText(std::string_view text);

}  // namespace penstock::inline v0::detail
