#pragma once

// A client's channels, made from its settings.
//
// gRPC shares connections between channels that look alike, obeys proxy variables, waits for two minutes between
// reconnects and takes a scheme where it sees one. A channel from here has what the settings say and nothing else.
//
//     CheckConnection(settings, problems);
//     LoadCertificates(settings, problems);
//     TakeChannelArguments(settings, problems);
//     if (problems.empty()) channel = MakeChannel(settings, ChannelUse::kCalls, 0);
//
// Threads: any.
// Ownership: a channel owns what it needs of the settings.
// Time: connecting and its waits are gRPC's, in real time.
// Errors: appended to `problems`, each with its field's name; after that MakeChannel() fails only by the user's `interceptors`.

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "penstock/client/settings.h"
#include "penstock/core/result.h"

namespace penstock::inline v0::detail {

// Appends a line for each setting of address and connection that makes no sense.
void CheckConnection(const ClientSettings& settings, std::vector<std::string>& problems);

// Reads and checks the certificates, once: where files are named, their texts take their place.
void LoadCertificates(ClientSettings& settings, std::vector<std::string>& problems);

// Asks the settings' channel_arguments, once, and checks what it sets: just that is in its place from then on.
void TakeChannelArguments(ClientSettings& settings, std::vector<std::string>& problems);

// What is sent as :authority, and verified by TLS (L19).
std::string AuthorityOf(const ClientSettings& settings);

// The target that gRPC is given.
std::string TargetOf(const ClientSettings& settings);

enum class ChannelUse {
  kCalls,    // The client ends calls at their deadlines by its own timers.
  kGuarded,  // For GuardedChannel(): gRPC's deadlines stay in force.
};

// A channel of the client's own, that shares nothing with any other. `index` tells a client's channels apart.
// `interceptors` come outside the user's own. It connects to nothing yet. An error where the user's function for them throws
// or gives a null one.
using InterceptorFactories = std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;
Result<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientSettings& settings, ChannelUse use, std::uint32_t index,
                                                   InterceptorFactories interceptors = {});

}  // namespace penstock::inline v0::detail
