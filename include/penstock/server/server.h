#pragma once

// A server that can be replaced without one failed call.
//
// A plain gRPC server that shuts down fails the calls that cross its GOAWAY on the wire, and hangs on a handler that never
// finishes. This one serves until the last client has left, and never longer than drain, grace and a second.
//
//     LedgerService service(store);
//     auto server = penstock::Server::Create({.address = ":9090", .tls = tls}, {&service});
//     if (!server.ok()) return Fail(server.error());
//     const int code = (*server)->Run();            // SIGTERM -> drain -> shutdown -> exit code
//     if (code != 0) std::_Exit(code);              // a handler may still run: destroy nothing under it
//     return code;
//
// Threads: every member may be called from any thread, handlers included, but Run(), Wait() and the destructor of a server
// that serves: they block, and are not for callback threads.
// Ownership: services, and what the settings point at, outlive the server. Where the exit code is 1 a handler may still
// run, and uses them: end the process without destroying them (std::_Exit). Returning from main() would destroy what the
// handler uses, and wait in ~WorkPool for as long as it likes.
// Time: drain and grace by ServerSettings::time; the handshake window in real time.
// Errors: Create() names every bad setting, a taken port, a bad file, in one error.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/core/result.h"
#include "penstock/server/service.h"
#include "penstock/server/settings.h"

namespace penstock::inline v0 {

enum class ServerState {
  kServing,
  kDraining,  // readiness is NOT_SERVING; everything is served
  kLeaving,   // GOAWAY is sent; everything is served, streams are ended
  kStopped,
};

// Since the server's start.
struct ServerCounts {
  std::uint64_t started = 0;
  std::uint64_t in_flight = 0;
  std::map<grpc::StatusCode, std::uint64_t> ended;
  std::uint64_t exceptions = 0;
  std::uint64_t overloaded = 0;       // refused by a cap
  std::uint64_t unauthenticated = 0;  // refused by the authenticator
  std::uint64_t filtered = 0;         // refused by a filter
  std::uint64_t unknown_methods = 0;  // of methods that no service has; ended with UNIMPLEMENTED
};

class Server {
 public:
  // Listens and serves from here on. Services are not null and of different names.
  static Result<std::unique_ptr<Server>> Create(ServerSettings settings, std::vector<AnyService*> services);

  // A server that serves still is stopped at once: without drain and grace, open calls cancelled. Waits for that, for a
  // second at most, unless on a callback thread.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The port it listens on: which one it is where `address` asked for port 0.
  int port() const noexcept;
  // That of `health_address`; 0 without one.
  int health_port() const noexcept;

  // Serves until SIGTERM, SIGINT or Shutdown(), then leaves in order. Signal handlers are put back before it returns. A
  // second signal ends the wait at once. 0: every call was answered. 1: something had to be abandoned, and the log says what;
  // end the process then, by std::_Exit (see Ownership above).
  int Run();

  // Begins to leave; returns at once. Again is harmless.
  void Shutdown();

  // Leaves now: streams are ended, calls in flight cancelled. Returns at once.
  void ShutdownNow();

  // Blocks until it has stopped; the exit code, as in Run(). -1, and no wait, on a callback thread.
  int Wait();

  ServerState state() const noexcept;
  ServerCounts counts() const;

  // What health says of a service (by full name), or of the whole server for "" or "readiness", which are one. Both begin as
  // true; readiness monitors and a shutdown only take away. False, and nothing is done, for a name that is no service of this server: a misspelt one.
  bool SetServing(const std::string& service, bool serving);

 private:
  explicit Server(std::shared_ptr<detail::ServerCore> core) noexcept : core_(std::move(core)) {}

  std::shared_ptr<detail::ServerCore> core_;
};

}  // namespace penstock::inline v0
