#pragma once

// The processes that a measurement runs in: a server, and a client that makes one run and tells what it cost.
// The program starts itself again in these roles, so that client and server share neither threads nor allocator.
//
//     ServerProcess server("raw", 1);
//     std::optional<RunResult> result = ClientProcess({.kind = Kind::kUnary, .variant = "raw reactor", .address = server.address()}).Result();
//
// Threads: none; one process at a time is waited for.
// Ownership: a ServerProcess ends its server when it is destroyed; a server also ends by itself with its parent.
// Time: a run's length is an argument.
// Errors: a run in which a call failed, or a process that died, gives no result and a line on stderr.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "variant.h"

namespace load {

struct RunOptions {
  Kind kind = Kind::kUnary;
  std::string variant{};
  std::string address{};   // empty: a "raw" server runs in the client's own process
  int outstanding = 1;     // calls or streams
  int payload = 64;
  bool waited_for = false;  // a thread a call, which waits for it
  std::int64_t calls = 0;   // 0: for so many seconds
  double seconds = 0.5;
  int spaced_ms = 0;   // pause before each call, drawn up to a fifth longer; 0: none
  int clients = 0;     // above 0: so many clients one after the other, and the first call of each
  int core = -1;       // -1: anywhere
  bool callgrind = false;
};

// The quantiles of the latency that a run tells, for plots.
inline constexpr double kQuantiles[] = {0.01, 0.05, 0.1, 0.2, 0.3,  0.4,   0.5,   0.6,  0.7,
                                        0.8,  0.9,  0.95, 0.98, 0.99, 0.995, 0.998, 0.999};

struct RunResult {
  // By name: see kMetrics in report.cpp.
  std::map<std::string, double> metrics;
  std::vector<double> quantiles_us;
};

class ServerProcess {
 public:
  ServerProcess(const std::string& kind, int core, bool callgrind = false);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  const std::string& address() const { return address_; }  // empty: it did not start
  // Ends it; of a server under callgrind, what was counted.
  std::optional<double> Instructions();

 private:
  int pid_ = -1;
  int stdin_ = -1;
  int stdout_ = -1;
  std::string address_;
};

// A client process under way.
class ClientProcess {
 public:
  explicit ClientProcess(const RunOptions& options);
  // Waits for its end.
  std::optional<RunResult> Result();
  // Of a run under callgrind: the instructions while it measured. After Result().
  std::optional<double> Instructions() const;

 private:
  RunOptions options_;
  int pid_ = -1;
  int stdout_ = -1;
  std::string text_;
};

// The roles' own main functions.
int ServerMain(const std::string& kind, int core);
int ClientMain(const RunOptions& options);

}  // namespace load
