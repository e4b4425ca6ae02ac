#pragma once

// A server's settings as gRPC wants them, and what is wrong with them.

#include <grpcpp/server_builder.h>

#include <string>
#include <string_view>
#include <vector>

#include "penstock/server/server.h"
#include "runtime/address.h"
#include "runtime/tls.h"

namespace penstock::inline v0::detail {

void CheckServices(const std::vector<AnyService*>& services, const ServerSettings& settings, std::vector<std::string>& problems);

// Everything but the port, the services and the credentials.
void ApplySettings(const ServerSettings& settings, grpc::ServerBuilder& builder);

// gRPC says that it did not start, not why: tries to bind, and tells the system's reason with the address.
std::string WhyNotListening(std::string_view field, const std::string& address);

}  // namespace penstock::inline v0::detail
