#pragma once

// W3C baggage (https://www.w3.org/TR/baggage/), read so that it passes on unharmed.
//
// Baggage belongs to whoever put it there. What is relayed is the text of each member as it came, never decoded and
// encoded again, since two libraries seldom agree on what `a=b+c` decodes to; a member that is not to the letter, and
// so could not be sent as metadata either, is left out.
//
//     std::string header = CombineBaggage({"tenant=7,user=a%20b", "run=3"});   // one header for the calls made for this one
//     ForEachBaggageMember(header, [](const BaggageMember& member) { ... });
//
// Threads: pure functions.
// Ownership: members are views into the header.
// Time: none.
// Errors: a malformed member is skipped.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::inline v0::detail {

inline constexpr std::string_view kBaggageKey = "baggage";

// What the recommendation asks everybody to pass on, and what penstock passes on at most (3.3.2).
inline constexpr std::size_t kMostBaggageMembers = 64;
inline constexpr std::size_t kLongestBaggage = 8192;

struct BaggageMember {
  std::string_view text;  // As it came, with its properties, without the white space around it.
  std::string_view key;
  std::string_view value;  // Not decoded, without properties.
};

// The member that this text between two commas is; nothing when it is none (3.2.1: the key is a token of HTTP, the
// value printable ASCII without space, quote, comma, semicolon and backslash).
std::optional<BaggageMember> ParseBaggageMember(std::string_view text) noexcept;

// Calls visit(member) for every well-formed member, in order.
template <class Visit>
void ForEachBaggageMember(std::string_view header, Visit&& visit) {
  for (std::size_t begin = 0; begin <= header.size();) {
    const std::size_t end = std::min(header.find(',', begin), header.size());
    if (const auto member = ParseBaggageMember(header.substr(begin, end - begin))) visit(*member);
    begin = end + 1;
  }
}

// The header's values as one, with the well-formed members alone, in order, as many as the limits allow: the first 64,
// and of those the ones with which the whole stays within `longest` bytes.
std::string CombineBaggage(const std::vector<std::string_view>& headers, std::size_t longest = kLongestBaggage);

// The header without the members of this key.
std::string WithoutBaggageMember(std::string_view header, std::string_view key);

// %HH as the byte that it means; nothing where a percent sign is not followed by two hex digits.
std::optional<std::string> PercentDecoded(std::string_view value);

}  // namespace penstock::inline v0::detail
