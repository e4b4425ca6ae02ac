#pragma once

// What a status message of gRPC's own says of a connection; told by TransportTextOf() in grpc_quirks.h.

namespace penstock::inline v0::detail {

enum class TransportText : unsigned char {
  kNone,    // not one of gRPC's own
  kBroken,  // the connection broke, or could not be made
  kGoaway,  // the call met a GOAWAY before any of it was sent
};

}  // namespace penstock::inline v0::detail
