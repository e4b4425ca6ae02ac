#pragma once

// A client's channels, made from its settings.

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "penstock/client/settings.h"
#include "penstock/core/result.h"

namespace penstock::inline v0::detail {

// Appends a line for each setting of address, TLS and connection that makes no sense.
void CheckConnection(const ClientSettings& settings, std::vector<std::string>& problems);

enum class ChannelUse {
  kCalls,    // The client ends calls at their deadlines by its own timers.
  kGuarded,  // For GuardedChannel(): gRPC's deadlines stay in force.
};

// A channel of the client's own, that shares nothing with any other. `index` tells a client's channels apart. `interceptors` come
// outside the user's own.
using InterceptorFactories = std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;
std::shared_ptr<grpc::Channel> MakeChannel(const ClientSettings& settings, ChannelUse use, std::uint32_t index,
                                           InterceptorFactories interceptors = {});

}  // namespace penstock::inline v0::detail
