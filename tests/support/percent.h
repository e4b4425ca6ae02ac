#pragma once

// The other half of PercentDecoded(), which the library itself has no use for.

#include <string>
#include <string_view>

namespace penstock::test {

// A value that may stand in a baggage member: every byte that is no letter and no digit, as %HH.
inline std::string PercentEncoded(std::string_view value) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : value) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
      encoded += c;
      continue;
    }
    encoded += '%';
    encoded += kDigits[static_cast<unsigned char>(c) >> 4];
    encoded += kDigits[static_cast<unsigned char>(c) & 0xf];
  }
  return encoded;
}

}  // namespace penstock::test
