#pragma once

// Which metadata gRPC can send (G1).
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

// Why gRPC would not send this pair; nothing when it would. The value is not told: it may be a secret.
std::optional<std::string> MetadataProblem(std::string_view key, std::string_view value);

}  // namespace penstock::inline v0::detail
