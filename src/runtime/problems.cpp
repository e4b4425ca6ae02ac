#include "runtime/problems.h"

#include <cstddef>

namespace penstock::inline v0::detail {

std::string Quoted(std::string_view value) {
  constexpr std::size_t kLongest = 120;
  constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char character : value.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte > 0x7e) {
      quoted += "\\x";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      if (character == '"' || character == '\\') quoted += '\\';
      quoted += character;
    }
  }
  quoted += value.size() > kLongest ? "...\"" : "\"";
  return quoted;
}

std::string Problem(std::string_view field, std::string_view value, std::string_view what, std::string_view expected) {
  std::string line(field);
  line += ": ";
  line += Quoted(value);
  line += ' ';
  line += what;
  line += "; expected ";
  line += expected;
  return line;
}

}  // namespace penstock::inline v0::detail
