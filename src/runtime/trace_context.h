#pragma once

// W3C trace context (https://www.w3.org/TR/trace-context/, level 1, and what level 2 adds to it), by the letter.
//
// A server hands the trace of its call down to the calls that are made for it, whether the program has OpenTelemetry or
// not. What a peer sends is read strictly: a header that is not to the letter starts no trace, and what is sent on is
// never more than what was understood.
//
//     if (auto parent = ParseTraceparent(header)) { parent->trace_id; parent->span_id; parent->flags; }
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: what is malformed is absent.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::inline v0::detail {

inline constexpr std::string_view kTraceparentKey = "traceparent";
inline constexpr std::string_view kTracestateKey = "tracestate";

struct TraceParent {
  std::array<std::uint8_t, 16> trace_id{};  // Never all zero.
  std::array<std::uint8_t, 8> span_id{};    // Never all zero.
  std::uint8_t flags = 0;                   // The lowest bit: sampled. Of a version above 00 only that is kept.

  friend bool operator==(const TraceParent&, const TraceParent&) = default;
};

// One value of `traceparent`. Lower-case hex alone; version ff, zero ids, and version 00 with anything behind its flags
// are refused; a higher version may have more behind a dash, which is ignored.
std::optional<TraceParent> ParseTraceparent(std::string_view header) noexcept;

// Version 00, 55 characters.
std::string FormatTraceparent(const TraceParent& parent);

// What a list of tracestate members holds at most (level 1, 3.3.1.1), and how long the list may be to be sent on: the
// recommendation asks for at least 512 characters; all headers together have kMostHeaderBytes.
inline constexpr std::size_t kMostTracestateMembers = 32;
inline constexpr std::size_t kLongestTracestate = 2048;

// The header's values as one list, in their order, without empty members and white space. Empty when any member is
// malformed, a key comes twice or there are too many: the recommendation wants all of it discarded then. Cut to
// `longest`: members above 128 characters go first, then those at the end.
std::string CombineTracestate(const std::vector<std::string_view>& headers, std::size_t longest = kLongestTracestate);

}  // namespace penstock::inline v0::detail
