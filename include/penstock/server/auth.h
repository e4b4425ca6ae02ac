#pragma once

// Who calls, and whether they may.
//
// An authenticator sees every call before its handler does and says who calls, or refuses with UNAUTHENTICATED or
// PERMISSION_DENIED. Health checks are not asked.
//
//     settings.authenticator = penstock::BearerTokens([&](std::string_view token) -> std::optional<penstock::Identity> {
//       return tokens.Find(token);
//     });
//
// Threads: called on gRPC's callback threads, many at once; must not block.
// Ownership: shared with the server.
// Time: none.
// Errors: an exception ends the call with INTERNAL, a thrown grpc::Status refuses it as a returned one does; the handler does not
// see it.

#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "penstock/server/call.h"

namespace penstock::inline v0 {

class Authenticator {
 public:
  virtual ~Authenticator() = default;

  // OK, with who calls in `identity`, or what the call ends with. Read the call's client_metadata() and auth_context().
  virtual grpc::Status Authenticate(ServerCall& call, Identity& identity) = 0;
};

// Takes `authorization: Bearer <token>`; no token, or one for which `find` gives nothing, is UNAUTHENTICATED. Tokens belong
// on TLS connections only.
std::shared_ptr<Authenticator> BearerTokens(std::function<std::optional<Identity>(std::string_view token)> find);

// Takes the certificate that the client showed (mTLS): the subject is the first URI of its alternative names, else the first
// DNS name, else its common name. `allow` may be empty: every certificate that leads to the roots; else what it refuses is
// PERMISSION_DENIED.
std::shared_ptr<Authenticator> MutualTlsIdentity(std::function<bool(const Identity&)> allow = {});

}  // namespace penstock::inline v0
