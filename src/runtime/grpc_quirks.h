#pragma once

// Everything that leans on a detail of gRPC that its public documentation does not promise, in one place.
//
// Each function says on which versions it was tried, how it is tested, and what happens where it does not work.

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/transport_text.h"

namespace penstock::inline v0::detail {

// A channel that can never connect; one for the process, never destroyed, with one callback call made on it before this
// returns for the first time. Calls on it end at once through the callback queue.
// Tried: 1.51.1 (a null credentials pointer makes a lame channel). Without it: the heartbeat does nothing, and destroying
// the process's last channel on a callback thread aborts.
const std::shared_ptr<grpc::Channel>& LameChannel();

// Whether the server can send GOAWAY while it goes on serving (grpc_core::Server::SendGoaways: exported by libgrpc, in no
// public header). Tried: 1.51.1, linked dynamically, PIE or not. Tested: runtime_test asserts that it is there.
// Without it (or with another gRPC): the server shuts down by the public fallback order.
bool CanSendGoaways() noexcept;

// Sends GOAWAY on every connection of the server, those in their handshake excepted, while it goes on serving; again and
// again is harmless. Runs in an Alarm, since it needs gRPC's execution context; `done` runs there after it. Only where
// CanSendGoaways(). The server must outlive it.
void SendGoaways(grpc::Server& server, std::function<void()> done);

// A server, and the number under which channelz knows it (0 when it could not be told). Needs grpc.enable_channelz = 1 on
// the builder. One at a time in a process.
// Tried: 1.51.1 (the JSON of the public grpc_channelz_get_* functions). Tested: runtime_test.
// Without it: ServerConnections() says nothing, and a shutdown waits for its other conditions.
struct IdentifiedServer {
  std::unique_ptr<grpc::Server> server;
  long channelz_id = 0;
};
IdentifiedServer BuildIdentified(grpc::ServerBuilder& builder);

// How many connections the server has, without those in their handshake.
std::optional<int> ServerConnections(long channelz_id);

// What tells one connection from another, for a finished attempt: an address that is the same for all attempts on one
// connection and new after a reconnect, for as long as `auth_context` is held. Null when no connection was ever picked
// (then nothing was sent), and always null on in-process channels.
// Tried: 1.51.1. Without it: failures cannot be told apart by connection, and each counts.
const void* ConnectionOf(const grpc::AuthContext& auth_context);

// A call's AuthContext, made anew; after its start. ClientContext::auth_context() keeps the one that it makes for who asks first, and
// takes no lock for that: not for who shares the context with other threads, such as an interceptor's with its call's caller.
// Tried: 1.51.1 (grpc::CreateAuthContext, which that function uses).
std::shared_ptr<const grpc::AuthContext> AuthContextOf(const grpc::ClientContext& context);

// Whether this is a message of gRPC's own for a connection that broke or could not be made, or for a call that met a GOAWAY
// before any of it was sent.
// Tried: 1.51.1, with peers that were killed, reset, leaving or never there, with and without transparent retries. Tested:
// killed_pods_test, bench_rollout_calls. Without it: an attempt that runs into a connection just broken, or that meets a
// GOAWAY, counts as a failure of its own.
TransportText TransportTextOf(std::string_view message) noexcept;

// How many threads run the callbacks of the process. Tried: 1.51.1 (half the processors, 2 to 16). Without it: a kill is
// now and then taken for a server that refuses.
unsigned CallbackThreads() noexcept;

// The signature of a call that a server killed as it shut down, before any handler saw it: CANCELLED, message exactly
// "CANCELLED", no metadata at all. It is no proof (behaviour.md C3). Tried: 1.51.1.
bool LooksKilledAtShutdown(const grpc::Status& status, bool has_initial_metadata, bool has_trailing_metadata);

// The refusal of an answer over the client's own receive limit (bytes; 0: gRPC's default of 4 MiB), by its text: code
// RESOURCE_EXHAUSTED, `Received message larger than max (5000000 vs. 4194304)`. A server that refuses the request says the
// same with its own limit, so that it is told from that by the request's size only; a server that hands on such a status
// from a call of its own is not told apart. Tried: 1.51.1. Without it: such ends count as the server's.
bool LooksOverReceiveLimit(const grpc::Status& status, std::size_t limit, std::size_t request_bytes);

}  // namespace penstock::inline v0::detail
