#include "runtime/baggage.h"

#include <algorithm>

#include "runtime/characters.h"

namespace penstock::inline v0::detail {
namespace {

// RFC 9110, 5.6.2.
bool IsToken(std::string_view text) noexcept {
  constexpr std::string_view kSymbols = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kSymbols.find(c) != kSymbols.npos;
  });
}

bool IsBaggageOctet(char c) noexcept { return c > 0x20 && c < 0x7f && c != '"' && c != ',' && c != ';' && c != '\\'; }

bool IsValue(std::string_view text) noexcept { return std::all_of(text.begin(), text.end(), IsBaggageOctet); }

// key, or key "=" value, each with optional white space around it.
bool IsProperty(std::string_view text) noexcept {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return IsToken(Trimmed(text));
  return IsToken(Trimmed(text.substr(0, equals))) && IsValue(Trimmed(text.substr(equals + 1)));
}

}  // namespace

std::optional<BaggageMember> ParseBaggageMember(std::string_view text) noexcept {
  BaggageMember member;
  member.text = Trimmed(text);
  std::string_view rest = member.text;
  std::size_t semicolon = rest.find(';');
  const std::string_view pair = rest.substr(0, semicolon);
  const std::size_t equals = pair.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  member.key = Trimmed(pair.substr(0, equals));
  member.value = Trimmed(pair.substr(equals + 1));
  if (!IsToken(member.key) || !IsValue(member.value)) return std::nullopt;
  while (semicolon != std::string_view::npos) {
    rest = rest.substr(semicolon + 1);
    semicolon = rest.find(';');
    if (!IsProperty(rest.substr(0, semicolon))) return std::nullopt;
  }
  // White space inside a member may be a tab, which no metadata can carry.
  if (member.text.find('\t') != std::string_view::npos) return std::nullopt;
  return member;
}

std::string CombineBaggage(const std::vector<std::string_view>& headers, std::size_t longest) {
  std::string combined;
  std::size_t members = 0;
  for (const std::string_view header : headers) {
    ForEachBaggageMember(header, [&](const BaggageMember& member) {
      if (members == kMostBaggageMembers) return;
      ++members;
      if (combined.size() + member.text.size() + (combined.empty() ? 0 : 1) > longest) return;
      if (!combined.empty()) combined += ',';
      combined += member.text;
    });
  }
  return combined;
}

std::string WithoutBaggageMember(std::string_view header, std::string_view key) {
  std::string rest;
  ForEachBaggageMember(header, [&](const BaggageMember& member) {
    if (member.key == key) return;
    if (!rest.empty()) rest += ',';
    rest += member.text;
  });
  return rest;
}

std::optional<std::string> PercentDecoded(std::string_view value) {
  std::string decoded;
  decoded.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] != '%') {
      decoded += value[i];
      continue;
    }
    if (value.size() - i < 3) return std::nullopt;
    const int high = HexDigit(value[i + 1]);
    const int low = HexDigit(value[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return decoded;
}

}  // namespace penstock::inline v0::detail
