#pragma once

// What a client is connected to, as its calls have seen it (behaviour.md D4).
//
// gRPC does not say which connections a channel has; a finished attempt does say which one it used. A few of the calls, which
// CallRegistry picks, leave a note here: enough to see that all go to one backend, and cheap.
//
// Threads: every member may be called from any thread.
// Ownership: holds the security context of each connection noted, so that its address is not used again for another.
// Time: the client's clock.
// Errors: none.

#include <grpcpp/client_context.h>
#include <grpcpp/security/auth_context.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0::detail {

class ConnectionSamples {
 public:
  // A connection is no longer told of when the latest note is so much younger than its own.
  static constexpr Duration kForgottenAfter = std::chrono::minutes(1);
  static constexpr std::size_t kMost = 64;

  // A finished attempt that had a connection, and not one that ended with it.
  void Note(const grpc::ClientContext& context, TimePoint now);

  std::vector<ClientConnection> Read() const;

  // gRPC's name for a peer as address and port: `ipv4:10.0.0.7:9090`, `ipv6:%5B::1%5D:9090`, `unix:/run/x`.
  static std::string PeerName(std::string_view peer);

 private:
  struct Connection {
    std::shared_ptr<const grpc::AuthContext> auth_context;
    const void* identity = nullptr;
    std::string peer;
    TimePoint since{};
    TimePoint last{};
    double notes = 0;  // halved now and then, so that the share is of late
  };
  // Notes after which all counts are halved.
  static constexpr double kNotesOfLate = 1000;

  mutable std::mutex mutex_;
  std::vector<Connection> connections_;  // under mutex_
  TimePoint latest_{};                   // under mutex_
  double notes_ = 0;                     // under mutex_
};

}  // namespace penstock::inline v0::detail
