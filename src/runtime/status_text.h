#pragma once

// How long a status message may be (G2).
//
// A message travels percent-encoded in the trailers, beside everything else in them, under a limit (8 KiB by default)
// whose excess drops the whole connection with every other call on it. So it is cut well before.
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

namespace penstock::inline v0::detail {

// What a message may take in the trailers, its mark included.
inline constexpr std::size_t kLongestStatusText = 1024;
// Ends a message that was cut.
inline constexpr std::string_view kCutMark = "...[cut]";

// The size of `text` as gRPC encodes it: 0x20 to 0x7e but '%' as they are, every other byte as %HH.
std::size_t EncodedSize(std::string_view text) noexcept;

// `text` itself when it fits, else as much of it as fits with the mark, cut between two characters.
std::string CutStatusText(std::string_view text);

}  // namespace penstock::inline v0::detail
