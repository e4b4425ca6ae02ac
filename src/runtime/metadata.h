#pragma once

// Which metadata gRPC can send (G1), and how much (G2).
//
// gRPC aborts the process on a key with an upper-case letter and on a value with a tab. Callers' metadata is checked
// before a call starts, and what is relayed from a peer (baggage, trace state) is dropped where it can't be sent on.
//
//     if (auto problem = MetadataProblem(key, value)) return Fail(*problem);
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: a reason as text; never an abort.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::inline v0::detail {

// A key holds a-z, 0-9, '-', '_' and '.', at least one of them, and is none that HTTP/2 or gRPC sets itself
// (`grpc-...`, te, content-type, host, ...; a colon is illegal anyway).
bool LegalMetadataKey(std::string_view key) noexcept;

// The value of a key that ends with `-bin` is any bytes (gRPC sends them in base64); any other value is printable
// ASCII, 0x20 to 0x7e.
bool LegalMetadataValue(std::string_view key, std::string_view value) noexcept;

// What gRPC takes by default of the headers of a call together, and of its trailers. Beyond it gRPC 1.51 ends the connection, with
// every other call on it, whichever side receives them.
inline constexpr std::size_t kMostHeaderBytes = 8 * 1024;

// What a pair counts against that (RFC 9113, 6.5.2), its bytes in base64 where they may have to be.
constexpr std::size_t HeaderSize(std::string_view key, std::string_view value) noexcept {
  return key.size() + (key.ends_with("-bin") ? (value.size() + 2) / 3 * 4 : value.size()) + 32;
}

// Up to here a request is filled with what is relayed; the rest is for what gRPC adds (some 500 bytes measured, with the path
// and the address) and, where the call has credentials, for their token.
inline constexpr std::size_t kMostRequestHeaders = kMostHeaderBytes - 1024;
inline constexpr std::size_t kCredentialsBytes = 2 * 1024;

// Why gRPC would not send this pair; nothing when it would. The value is not told: it may be a secret.
std::optional<std::string> MetadataProblem(std::string_view key, std::string_view value);

// The same of pairs among which gRPC's own are: what it would abort on.
std::optional<std::string> IllegalMetadata(std::string_view key, std::string_view value);

}  // namespace penstock::inline v0::detail
