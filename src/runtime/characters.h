#pragma once

// What the readers of headers share.
//
// Threads: pure functions. Ownership: views. Time: none. Errors: none.

#include <cstddef>
#include <string_view>

namespace penstock::inline v0::detail {

// Without the white space around it (RFC 9110, 5.6.3: spaces and tabs).
constexpr std::string_view Trimmed(std::string_view text) noexcept {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// 0 to 15, or -1 for what is no digit.
constexpr int LowerHexDigit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}
constexpr int HexDigit(char c) noexcept { return c >= 'A' && c <= 'F' ? c - 'A' + 10 : LowerHexDigit(c); }

}  // namespace penstock::inline v0::detail
