#pragma once

// The processes that a measurement runs in: a server, and a client that makes one run of calls and tells what it cost.
// The program starts itself again in these roles, so that client and server share neither threads nor allocator.
//
//     ServerProcess server("raw", 1);
//     std::optional<RunResult> result = RunClient({.variant = "raw reactor", .address = server.address()});
//
// Threads: none; one process at a time is waited for.
// Ownership: a ServerProcess ends its server when it is destroyed; a server also ends by itself with its parent.
// Time: a run's length is an argument.
// Errors: a run in which a call failed, or a process that died, gives no result and a line on stderr.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace load {

struct RunOptions {
  std::string variant;
  std::string address;   // empty: the server runs in the client's own process
  int outstanding = 1;
  std::int64_t calls = 0;    // 0: for so many seconds
  double seconds = 0.5;
  int spaced_ms = 0;     // pause before each call, drawn up to a fifth longer; 0: none
  int core = -1;         // -1: anywhere
  bool callgrind = false;
};

struct RunResult {
  double calls_per_second = 0;
  double cpu_us = 0;        // the client's process, a call
  double allocations = 0;   // the client's process, a call; negative: not counted
  double p50_us = 0;
  double p99_us = 0;
};

class ServerProcess {
 public:
  ServerProcess(const std::string& kind, int core);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  const std::string& address() const { return address_; }  // empty: it did not start

 private:
  int pid_ = -1;
  int stdin_ = -1;
  std::string address_;
};

// A client process under way.
class ClientProcess {
 public:
  explicit ClientProcess(const RunOptions& options);
  // Waits for its end.
  std::optional<RunResult> Result();
  // The same for a run under callgrind: the instructions of the whole process.
  std::optional<double> Instructions();

 private:
  std::string ReadAll();
  RunOptions options_;
  int pid_ = -1;
  int stdout_ = -1;
  int exit_code_ = 0;
};

std::optional<RunResult> RunClient(const RunOptions& options);

// The roles' own main functions.
int ServerMain(const std::string& kind, int core);
int ClientMain(const RunOptions& options);

}  // namespace load
