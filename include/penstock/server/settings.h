#pragma once

// What a server is made from. Plain values; Server::Create() checks all of them and names every bad one in one error.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/runtime/readiness.h"
#include "penstock/runtime/time_source.h"
#include "penstock/runtime/tls.h"
#include "penstock/server/auth.h"
#include "penstock/server/call.h"

namespace penstock::inline v0 {

// How a server leaves (behaviour.md V3).
enum class ShutdownOrder {
  // GOAWAY while it still serves, then the streams' end, then nothing until every client has left: no call fails. Needs a
  // detail of gRPC's; where that is missing, kStopFirst is taken instead and the log says so.
  kServeToTheEnd,
  // Stops listening first, by public functions only. Calls that cross the GOAWAY on the wire are CANCELLED.
  kStopFirst,
};

// One line of the access log. The views and references live until the function returns: copy what is kept.
struct AccessLogEntry {
  std::string_view method;   // `/package.Service/Method`
  std::string peer;          // gRPC's name of the caller's address, `ipv4:10.0.0.7:51234`; also of a call that was cancelled
  const Identity& identity;
  ServerCallEnd end;
};

struct ServerSettings {
  // host:port. An empty host is every interface; port 0 is any free port, told by Server::port().
  std::string address{};

  // Required, unless plain text is asked for by name.
  std::optional<Tls> tls{};
  bool plaintext = false;

  // Serving on with readiness NOT_SERVING, until new connections reach another pod. 0 and up.
  Duration drain = std::chrono::seconds(5);
  // How long clients may take to leave after the drain, at most. 0 and up.
  Duration grace = std::chrono::seconds(15);
  // How long a client's handshake may take so that it loses no call by a shutdown. Real time, within the grace. 0 to 10 s.
  Duration handshake_window = std::chrono::milliseconds(500);
  ShutdownOrder shutdown_order = ShutdownOrder::kServeToTheEnd;

  // After this age (gRPC varies it by 10% each way) a connection gets GOAWAY; after the grace, what is left on it ends with
  // UNAVAILABLE. Unset is endless; 1 ms and up.
  std::optional<Duration> max_connection_age{};
  std::optional<Duration> max_connection_age_grace{};

  // A connection that has not shaken hands by then is closed. Positive.
  Duration handshake_timeout = std::chrono::seconds(20);
  // Clients may ping this often, with and without calls. 1 s and up.
  Duration permitted_keepalive = std::chrono::seconds(10);

  // The longest message that is taken, 1 byte to 2 GiB - 1.
  std::size_t max_receive_bytes = 4 * 1024 * 1024;
  // Calls at once on one connection; a client waits with more. 1 and up; unset is endless.
  std::optional<std::uint32_t> max_streams_per_connection{};
  // Load shedding: more unary calls (streams) at once than this are refused with RESOURCE_EXHAUSTED and told to come back
  // after `pushback`. Health checks are neither counted nor refused. 1 and up; unset is endless.
  std::optional<std::uint32_t> max_unary_calls{};
  std::optional<std::uint32_t> max_streams{};
  // 0 to 1 hour.
  Duration pushback = std::chrono::milliseconds(200);

  // SERVING once all of these are ready, for the whole server and for one service (by full name) in addition.
  std::vector<std::shared_ptr<ReadinessMonitor>> readiness{};
  std::map<std::string, std::vector<std::shared_ptr<ReadinessMonitor>>> service_readiness{};
  // Serves the health service on a port of its own too, in plain text, as kubelet's probes want it; host:port.
  std::optional<std::string> health_address{};

  // Around every handler, outside in (V7).
  std::vector<std::shared_ptr<ServerObserver>> observers{};
  // Once a call, after its OnDone, on a gRPC thread, several at once; must not block. What it throws is logged. Health checks
  // stay out of it (probes come once a second); observers see them.
  std::function<void(const AccessLogEntry&)> access_log{};
  std::shared_ptr<Authenticator> authenticator{};
  // The program's own: the first status that is not OK ends the call, returned or thrown. They must not block; what else they
  // throw is INTERNAL.
  std::vector<std::function<grpc::Status(ServerCall&)>> filters{};

  // Sends what() of a handler's exception to the client. It may hold secrets.
  bool exception_text_to_clients = false;

  // For what else gRPC can be told (grpc/impl/codegen/grpc_types.h), by name; set last.
  std::map<std::string, int> channel_arguments{};

  // Null: the real time. Drain, grace and readiness checks run by it. Real all the same, in a shutdown: the handshake window, the
  // two quiet seconds that it waits for at most where connections stay, the 500 ms that kStopFirst gives to what is on the wire,
  // and at the grace's end 100 ms for the streams' last words and 700 ms to come down.
  std::shared_ptr<TimeSource> time{};
};

// Appends a line for each field that cannot be; reads certificate files.
void CheckSettings(const ServerSettings& settings, std::vector<std::string>& problems);

}  // namespace penstock::inline v0
