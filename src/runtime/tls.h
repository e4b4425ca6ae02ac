#pragma once

// Certificates checked before gRPC sees them (T3), and gRPC's credentials made of them.
//
//     std::vector<std::string> problems;
//     std::optional<TlsMaterial> material = LoadTls("tls", settings.tls, TlsSide::kClient, problems);
//     if (material) credentials = ClientCredentialsOf(*material);
//
// Threads: any.
// Ownership: values; the server's credentials keep what they need.
// Time: reads files where it is called; a server's are looked at again at handshakes, at most once a second.
// Errors: appended to `problems`, each with its field and its reason.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/runtime/tls.h"

namespace penstock::inline v0::detail {

enum class TlsSide { kClient, kServer };

// PEM texts that parsed and fit each other. Empty is absent.
struct TlsMaterial {
  std::string roots;
  std::string certificate;
  std::string key;

  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};

// Nothing when it appended a problem. `field` is the prefix of the fields' names.
std::optional<TlsMaterial> LoadTls(std::string_view field, const Tls& tls, TlsSide side,
                                   std::vector<std::string>& problems);

std::shared_ptr<grpc::ChannelCredentials> ClientCredentialsOf(const TlsMaterial& material);

// Of settings that LoadTls() took for a server, and what it made of them. To be kept for as long as the server: where
// files are named, replaced files take effect with the connections that are made after, while this lives.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Tls& tls, TlsMaterial material);

}  // namespace penstock::inline v0::detail
