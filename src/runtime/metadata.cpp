#include "runtime/metadata.h"

#include <algorithm>
#include <array>

#include "runtime/problems.h"

namespace penstock::inline v0::detail {
namespace {

// gRPC over HTTP/2 (PROTOCOL-HTTP2.md) and RFC 9113, 8.2.2: not the caller's to set.
constexpr std::array<std::string_view, 11> kReserved = {
    "te",         "content-type",     "content-length",    "host",    "user-agent", "connection",
    "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "lb-token"};

bool LegalKeyCharacters(std::string_view key) noexcept {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  });
}

bool Reserved(std::string_view key) noexcept {
  return key.starts_with("grpc-") || std::find(kReserved.begin(), kReserved.end(), key) != kReserved.end();
}

}  // namespace

bool LegalMetadataKey(std::string_view key) noexcept { return LegalKeyCharacters(key) && !Reserved(key); }

bool LegalMetadataValue(std::string_view key, std::string_view value) noexcept {
  return key.ends_with("-bin") ||
         std::all_of(value.begin(), value.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

std::optional<std::string> MetadataProblem(std::string_view key, std::string_view value) {
  if (Reserved(key)) return "metadata key " + Quoted(key) + " is reserved for gRPC";
  return IllegalMetadata(key, value);
}

std::optional<std::string> IllegalMetadata(std::string_view key, std::string_view value) {
  if (!LegalKeyCharacters(key)) {
    return "metadata key " + Quoted(key) + " is illegal: expected a-z, 0-9, '-', '_' and '.'";
  }
  if (!LegalMetadataValue(key, value)) {
    return "the value of metadata key " + Quoted(key) +
           " is illegal: expected printable ASCII, or a key that ends with -bin";
  }
  return std::nullopt;
}

}  // namespace penstock::inline v0::detail
