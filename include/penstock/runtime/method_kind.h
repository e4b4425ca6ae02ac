#pragma once

// The four kinds of gRPC methods.
//
// A client and a server both say of a call what kind it is.
//
//     if (call.kind() != MethodKind::kUnary) ++streams;
//
// Threads: a plain value.
// Ownership: none.
// Time: none.
// Errors: none.

namespace penstock::inline v0 {

enum class MethodKind : unsigned char { kUnary, kServerStream, kClientStream, kBidi };

}  // namespace penstock::inline v0
