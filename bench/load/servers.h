#pragma once

// The echo servers that the load program measures with, and measures.
//
//     std::unique_ptr<RunningServer> server = StartServer("raw");
//     const ServerUsage before = AskUsage(server->address(), "start");
//
// Threads: any.
// Ownership: a server runs until it is destroyed.
// Time: none.
// Errors: null, or `ok` false, with a line on stderr.

#include <cstdint>
#include <memory>
#include <string>

namespace load {

class RunningServer {
 public:
  virtual ~RunningServer() = default;
  virtual std::string address() const = 0;
};

// "raw": grpc++'s callback server, unary calls by DefaultReactor, streams with buffer hints; "raw again", the control;
// "raw plain", without hints; "raw own reactor", with new and delete a call. "penstock": pooled messages, streams through
// QueuedWrites; "penstock plain", without a queue; "penstock, OpenTelemetry", where the build has it.
std::unique_ptr<RunningServer> StartServer(const std::string& kind);

// What a server's process has used so far. "start" and "stop" also say when a callgrind above it counts.
struct ServerUsage {
  bool ok = false;
  double cpu_us = 0;
  double allocations = 0;
  double heap_bytes = 0;
  double messages_written = 0;  // on server streams
};
ServerUsage AskUsage(const std::string& address, const std::string& what);

}  // namespace load
