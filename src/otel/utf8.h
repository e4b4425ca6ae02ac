#pragma once

// Text that came from outside, as OpenTelemetry's protocol can carry it.
//
// Its texts are protobuf strings, which are UTF-8: a receiver that checks them refuses the whole export, with everybody's spans
// in it, over one byte that is not. A peer's `grpc-message: %ff` and its :path may hold any bytes.
//
// Threads: a pure function.
// Ownership: values.
// Time: none.
// Errors: each byte that belongs to no character (RFC 3629) becomes `?`.

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::inline v0::otel::detail {

// How many bytes the character takes that `text` begins with; 0 when it begins with none. Not for an empty text.
constexpr std::size_t CharacterAt(std::string_view text) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : '\0'); };
  const auto continues = [&](std::size_t first, std::size_t end) {
    for (std::size_t at = first; at < end; ++at) {
      if ((byte(at) & 0xc0) != 0x80) return false;
    }
    return true;
  };
  const unsigned char first = byte(0);
  const unsigned char second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(1, 2) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    // Neither spelt longer than it is, nor half of a UTF-16 pair.
    const bool good = (first != 0xe0 || second >= 0xa0) && (first != 0xed || second <= 0x9f);
    return good && continues(1, 3) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool good = (first != 0xf0 || second >= 0x90) && (first != 0xf4 || second <= 0x8f);
    return good && continues(1, 4) ? 4 : 0;
  }
  return 0;
}

inline std::string Utf8(std::string_view text) {
  std::string good(text);
  for (std::size_t at = 0; at < good.size();) {
    const std::size_t length = CharacterAt(text.substr(at));
    if (length == 0) good[at] = '?';
    at += length == 0 ? 1 : length;
  }
  return good;
}

}  // namespace penstock::inline v0::otel::detail
