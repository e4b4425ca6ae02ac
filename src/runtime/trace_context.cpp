#include "runtime/trace_context.h"

#include <algorithm>

#include "runtime/characters.h"

namespace penstock::inline v0::detail {
namespace {

// Version, trace id, span id and flags with a dash between each.
constexpr std::size_t kTraceparentLength = 55;
// Entries above this length are the first to go (level 1, 3.3.1.5).
constexpr std::size_t kLongMember = 128;

bool ReadHex(std::string_view text, std::uint8_t* bytes) noexcept {
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = LowerHexDigit(text[i]);
    const int low = LowerHexDigit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i / 2] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return true;
}

template <class Bytes>
bool AllZero(const Bytes& bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

void AppendHex(std::string& text, const std::uint8_t* bytes, std::size_t size) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 0xf];
  }
}

bool LowerOrDigit(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Level 2, 3.3.1.3.1, which takes every key of level 1's and more: it begins with a letter or a digit, and where an @ divides
// it into tenant and system does not matter.
bool LegalKey(std::string_view key) noexcept {
  return !key.empty() && key.size() <= 256 && LowerOrDigit(key[0]) && std::all_of(key.begin(), key.end(), [](char c) {
    return LowerOrDigit(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
  });
}

// Level 1, 3.3.1.3.2: 1 to 256 printable characters without comma and equals sign, the last of them no space.
bool LegalValue(std::string_view value) noexcept {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(), [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

struct Member {
  std::string_view text;
  std::string_view key;
};

}  // namespace

std::optional<TraceParent> ParseTraceparent(std::string_view header) noexcept {
  if (header.size() < kTraceparentLength || header[2] != '-' || header[35] != '-' || header[52] != '-')
    return std::nullopt;
  std::uint8_t version = 0;
  TraceParent parent;
  if (!ReadHex(header.substr(0, 2), &version) || !ReadHex(header.substr(3, 32), parent.trace_id.data()) ||
      !ReadHex(header.substr(36, 16), parent.span_id.data()) || !ReadHex(header.substr(53, 2), &parent.flags)) {
    return std::nullopt;
  }
  if (version == 0xff || AllZero(parent.trace_id) || AllZero(parent.span_id)) return std::nullopt;
  if (header.size() > kTraceparentLength && (version == 0 || header[kTraceparentLength] != '-')) return std::nullopt;
  if (version != 0) parent.flags &= 1;
  return parent;
}

std::string FormatTraceparent(const TraceParent& parent) {
  std::string text;
  text.reserve(kTraceparentLength);
  text += "00-";
  AppendHex(text, parent.trace_id.data(), parent.trace_id.size());
  text += '-';
  AppendHex(text, parent.span_id.data(), parent.span_id.size());
  text += '-';
  AppendHex(text, &parent.flags, 1);
  return text;
}

std::string CombineTracestate(const std::vector<std::string_view>& headers, std::size_t longest) {
  std::vector<Member> members;
  std::size_t length = 0;
  for (const std::string_view header : headers) {
    for (std::size_t begin = 0; begin <= header.size();) {
      const std::size_t end = std::min(header.find(',', begin), header.size());
      const std::string_view text = Trimmed(header.substr(begin, end - begin));
      begin = end + 1;
      if (text.empty()) continue;
      const std::size_t equals = text.find('=');
      if (equals == std::string_view::npos || members.size() == kMostTracestateMembers) return {};
      const Member member{text, text.substr(0, equals)};
      if (!LegalKey(member.key) || !LegalValue(text.substr(equals + 1))) return {};
      if (std::any_of(members.begin(), members.end(), [&](const Member& other) { return other.key == member.key; }))
        return {};
      members.push_back(member);
      length += text.size() + 1;
    }
  }
  // From the end, so that the newest entries, at the front, stay.
  for (std::size_t i = members.size(); i-- > 0 && length > longest + 1;) {
    if (members[i].text.size() <= kLongMember) continue;
    length -= members[i].text.size() + 1;
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
  }
  while (length > longest + 1) {
    length -= members.back().text.size() + 1;
    members.pop_back();
  }
  std::string combined;
  combined.reserve(length);
  for (const Member& member : members) {
    if (!combined.empty()) combined += ',';
    combined += member.text;
  }
  return combined;
}

}  // namespace penstock::inline v0::detail
