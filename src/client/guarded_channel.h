#pragma once

// A channel whose calls pass a client's breaker (behaviour.md L17).

#include <grpcpp/channel.h>

#include <memory>

#include "client/client_state.h"

namespace penstock::inline v0::detail {

// A channel of its own. It holds the state for as long as it, or a call on it, lives.
std::shared_ptr<grpc::Channel> MakeGuardedChannel(ClientState& state);

}  // namespace penstock::inline v0::detail
