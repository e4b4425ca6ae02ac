#pragma once

// A DNS server on loopback that knows what a test tells it, over UDP and TCP: for clients whose dependency is a name with
// several addresses, which come and go.
//
//     auto resolver = testing::Resolver::Create();
//     (*resolver)->Set("ledger.test", {"127.0.0.11", "127.0.0.12"});
//     ... .address = "ledger.test:9090", .connection = {.name_server = (*resolver)->address()}
//
// Threads: every member may be called from any thread; each has taken effect when it returns.
// Ownership: owns its sockets.
// Time: answers may be kept for 0 s. A client asks again by its own rules (gRPC: on a lost connection, and not more often
// than its least time between resolutions).
// Errors: Create says why it cannot listen. A name that nobody told it does not exist (NXDOMAIN); questions for anything
// but A records are answered with none.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/core/result.h"

namespace penstock::inline v0::testing {

class Resolver {
 public:
  static Result<std::unique_ptr<Resolver>> Create();
  ~Resolver();

  std::string address() const;  // host:port, the same for UDP and TCP

  // What a name resolves to from now on, whatever its case: IPv4 addresses, or none (the name exists all the same).
  void Set(const std::string& name, std::vector<std::string> addresses);

  // How often an A record was asked for.
  std::uint64_t questions() const;

 private:
  class Impl;
  explicit Resolver(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::inline v0::testing
